"""What a payment rule makes from nothing is told, and no line of a record has a number that JSON does not have."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke
from experiments import digits

import hanse
from hanse.base.errors import PartError
from hanse.core.entry import MINT, TOKEN, Transaction, client
from hanse.core.part import Mechanism, Settlement, SettlePart, State, View
from hanse.mechanisms.baselines import fedavg


@dataclass(frozen=True)
class Bonus(SettlePart):
    """Gives client 0 a token from the mint in each round; its figures and metrics are no numbers."""

    kind: str = "pot"  # as hanse's own rule calls what it takes from the mint

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        if view.stage != "close":
            return Settlement(), state
        given = Transaction("bonus", self.kind, ((MINT, -TOKEN), (client(0), TOKEN)))
        return Settlement(transactions=(given,), metrics={"ratio": float("nan")}), state

    def figures(self, state: State) -> dict[str, Any]:
        return {"rank": np.array([1.0, np.nan, np.inf])}


def generous(kind: str = "pot") -> Mechanism:
    return replace(fedavg(), name="generous", settle=Bonus(kind))


def asked(**mechanism: Any) -> hanse.Experiment:
    return digits({"name": "test_minted:generous", **mechanism}, 3, 2, model="mlp", train={"steps": 1})


@pytest.mark.usefixtures("undrawn")
def test_a_rule_that_mints_is_told_everywhere_and_its_figures_are_json(tmp_path: Path) -> None:
    path = tmp_path / "run"
    (tmp_path / "asked.toml").write_text(asked().to_toml())
    said = invoke("run", tmp_path / "asked.toml", "--out", path, env={"COLUMNS": "500"})
    sentence = "the mint gave 2 as 'pot'"
    assert said.exit_code == 0, said.output
    assert sentence in said.output
    [note] = [note for note in hanse.facts(path).notes if note.code == "minted"]
    assert note.fields["units"] == {"pot": 2 * TOKEN}
    assert invoke("report", path).exit_code == 0
    assert "the mint gave 2 as" in (path / "report.html").read_text()
    lines = [
        json.loads(line, parse_constant=pytest.fail)
        for name in ("clients.jsonl", "metrics.jsonl")
        for line in (path / name).read_text().splitlines()
    ]
    assert [line["rank"] for line in lines[:3]] == [1.0, None, None]
    assert lines[-1]["ratio"] is None
    assert invoke("ledger", "verify", path).exit_code == 0


def test_grants_are_the_loops_alone() -> None:
    with pytest.raises(PartError, match="posts 'grant', a kind that only hanse itself posts"):
        hanse.run(asked(kind="grant"))
