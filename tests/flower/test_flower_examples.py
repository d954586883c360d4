"""The Flower apps of ``examples/flower``, each with its own framework, valued by hanse in three lines.

Of frameworks that are not installed the tests are left out; ``make test-frameworks`` installs them.
"""

import importlib
import sys
import tomllib
from pathlib import Path

import pytest
from flower_apps import grid_of
from flwr.app import Context, RecordDict

from hanse.runs.round_record import METRICS, SEATS
from hanse.runs.run_record import played_lines

APPS = Path(__file__).parents[2] / "examples" / "flower"
FRAMEWORKS = {"pytorch": "torch", "sklearn": "sklearn", "jax": "jax", "xgboost": "xgboost"}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_an_app_is_valued_in_three_lines(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(FRAMEWORKS[name])
    folder, package = APPS / name, f"{name}example"
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    config = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config["num-server-rounds"] = 2
    client = importlib.import_module(f"{package}.client_app").app
    server = importlib.import_module(f"{package}.server_app").app
    server(grid_of(dict.fromkeys(range(3), client), config), Context(1, 1, {}, RecordDict(), config))
    lines, seats = played_lines(tmp_path / "runs/valued", METRICS), played_lines(tmp_path / "runs/valued", SEATS)
    assert len(lines) == 2
    assert len(seats) == 6
    assert all(isinstance(seat["value"], float) for seat in seats)
    for line in lines:  # Shapley values: they sum to what the round gained
        own = [seat["value"] for seat in seats if seat["round"] == line["round"]]
        assert sum(own) == pytest.approx(line["value/sum"], abs=1e-6)
    for known in [one for one in sys.modules if one.split(".")[0] == package]:
        del sys.modules[known]
