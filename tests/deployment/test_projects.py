"""The projects that a user starts from: the template of ``hanse new`` and the example are whole."""

import importlib.util
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from typer.testing import CliRunner

from hanse.base.errors import UserError
from hanse.cli import app
from hanse.core.recipe import Recipe
from hanse.deployment.loopback import Loopback
from hanse.federation.behaviour import Me
from hanse.federation.policy import answer
from hanse.runs.config import Experiment

EXAMPLE = Path(__file__).parents[2] / "examples" / "deployment"


def module(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_a_new_project_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(app, ["new", "harvest"])
    assert said.exit_code == 0, said.output
    made = tmp_path / "harvest"
    assert {p.name for p in made.iterdir()} == {
        ".gitignore", "README.md", "client_app.py", "down.sh", "experiment.toml", "pyproject.toml", "run.sh",
        "server_app.py", "up.sh",
    }  # fmt: skip
    assert (made / "up.sh").stat().st_mode & stat.S_IXUSR
    Experiment.read(made / "experiment.toml")
    client = module(made / "client_app.py")
    data = client.load_data(SimpleNamespace(node_config={"partition-id": 1}))
    assert (len(data.train), data.name) == (140, "participant 1")
    mine, me = client.Mine(), Me(1, 3, 0, Recipe(), 5)
    told = {"scores": {"loss": [2.0, 1.0], "accuracy": [0.2, 0.5]}, "price": 10, "balance": 15}
    assert answer(mine, "bid", me, 1, told) == {"tiers": [1]}
    assert answer(mine, "declare", me, 1, {}) == data.profile
    assert answer(mine, "stay", me, 1, {}) == {"stay": True}
    assert mine.authorise(me, 1, {}) == 20_000_000


def test_the_example_is_whole() -> None:
    experiment = Experiment.read(EXAMPLE / "experiment.toml")
    assert experiment.ledger.url is not None
    data = module(EXAMPLE / "client_app.py").load_data(SimpleNamespace(node_config={"partition-id": 2}))
    assert len(data.train) > 0
    validation, test = module(EXAMPLE / "server_app.py").load_server_data()
    assert len(validation) > 0
    assert len(test) > 0


def test_commands_say_where_there_is_no_federation(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no federation was brought up here"):
        Loopback.read(tmp_path)
    result = CliRunner().invoke(app, ["network", "up", str(tmp_path)])
    assert isinstance(result.exception, UserError)
    assert "is not a project" in str(result.exception)
