"""The guide's examples run as they stand there."""

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import hanse
from hanse.experiment import Observer
from hanse.ledger.entry import MINT, TOKEN, client
from hanse.mechanisms.part import View
from hanse.rounds import Played

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


class Watch(Observer):
    """Keeps the views of the rounds."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        self.views.append(played.view)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The guide's files by name, importable."""
    found = {}
    for code in blocks(GUIDE, "python"):
        name = code.split("\n")[0].removeprefix("# ").removesuffix(".py")
        (tmp_path / f"{name}.py").write_text(code)
        found[name] = code
        sys.modules.pop(name, None)
    monkeypatch.syspath_prepend(str(tmp_path))
    return found


@pytest.mark.parametrize("name", ["longest_ago", "inverse_loss", "alone", "wages", "newcomer"])
def test_each_part_is_one_file_of_at_most_30_lines(files: dict[str, str], name: str) -> None:
    assert len(files[name].strip().splitlines()) <= 30


def test_the_four_parts_select_weigh_value_and_settle(files: dict[str, str]) -> None:
    [table] = [tomllib.loads(block) for block in blocks(GUIDE, "toml")]
    watch = Watch()
    run = hanse.run(hanse.Experiment(**SMALL, **table), observers=[watch])
    for view in watch.views:
        before, after = (view.server.score(rows).loss for rows in (view.table.rows, view.trained.rows))
        assert view.values is not None
        assert view.values.per_seat == pytest.approx(before - after, rel=1e-4)
    for r, clients in ((0, [0, 1, 2, 3]), (1, [4, 5, 6, 7]), (2, [0, 1, 2, 3])):
        assert sorted(s["client"] for s in run.clients if s["round"] == r) == clients
    seats = [s for s in run.clients if s["round"] == 4]
    trust = [1 / s["loss"] for s in seats]
    assert [s["weight"] for s in seats] == pytest.approx([t / sum(trust) for t in trust], rel=1e-6)
    for c in range(8):
        earned = sum(s["value"] > 0 for s in run.clients if s["client"] == c)
        assert run.book.balance(client(c)) == (100 + 2 * earned) * TOKEN
    assert run.book.balance(MINT) < -800 * TOKEN  # somebody earned something


def test_the_new_mechanism_trains_everyone_in_turn(files: dict[str, str]) -> None:
    table = {"mechanism": {"name": "newcomer:newcomer", "clients_per_round": 4, "value": "exact"}}
    run = hanse.run(hanse.Experiment(**SMALL, **table))
    assert sorted(s["client"] for s in run.clients if s["round"] == 1) == [4, 5, 6, 7]
    assert "value/sum" in run.metrics[-1]


def test_readme_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    [file] = blocks(README, "toml")
    experiment = hanse.Experiment(**tomllib.loads(file))
    assert experiment.mechanism.name == "greedyfed"
    for code in blocks(README, "python"):
        exec(code, {})
    assert "client" in capsys.readouterr().out
