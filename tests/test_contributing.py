"""The guide's examples run as they stand there."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

import hanse

GUIDE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text()
README = (Path(__file__).parents[1] / "README.md").read_text()
SMALL = {
    "data": {"clients": 8},
    "model": {"name": "logistic"},
    "engine": {"train": "stacked", "threads": 1},
    "run": {"rounds": 5},
}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    [code] = blocks(GUIDE, "python")
    (tmp_path / "newcomer.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("newcomer", None)
    return code


def test_the_new_mechanism_takes_30_lines_and_trains_everyone_in_turn(newcomer: str) -> None:
    body = [line for line in newcomer.splitlines() if line.strip() and not line.startswith(("import", "from", "#"))]
    assert len(body) <= 30
    own, other = (tomllib.loads(block) for block in blocks(GUIDE, "toml"))
    run = hanse.run(hanse.Experiment(**SMALL, **own))
    assert [sorted(s["client"] for s in run.clients if s["round"] == r) for r in (0, 1, 2)] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [0, 1, 2, 3],
    ]
    seats = [s for s in run.clients if s["round"] == 4]
    trust = [1 / s["loss"] for s in seats]
    assert [s["weight"] for s in seats] == pytest.approx([t / sum(trust) for t in trust], rel=1e-6)
    mixed = hanse.run(hanse.Experiment(**SMALL, **other))
    assert "value/sum" in mixed.metrics[-1]


def test_readme_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    [file] = blocks(README, "toml")
    experiment = hanse.Experiment(**tomllib.loads(file))
    assert experiment.mechanism.name == "greedyfed"
    for code in blocks(README, "python"):
        exec(code, {})
    assert "client" in capsys.readouterr().out
