"""Grants in parts: one part when a client joins, one for each round in which its update counted."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

import hanse
from hanse.core.entry import MINT, TOKEN, grant, part_of
from hanse.federation.behaviour import Behaviour, Me
from hanse.runs.rehearsal import small_experiment
from hanse.runs.replay import against_rules, wrong_books


@dataclass(frozen=True)
class TwoKeys(Behaviour):
    """A member that is client 2 in the first half and comes back as client 3; client 1 never answers."""

    def present(self, me: Me, round: int) -> bool:
        return me.id < 2 or (me.id == 2) == (round < 4)

    def on_reply(self, me: Me, round: int, request: Any, reply: Any) -> Any:
        return reply if me.id != 1 else type(reply)(1, refused="no")


def experiment(**clients: Any) -> hanse.Experiment:
    paying = {"name": "fedavg", "value": "path", "settle": {"name": "by_value", "rate": 1e-6}}
    return small_experiment(paying, clients=clients, behaviour={f"{__name__}:TwoKeys": {}}, run={"rounds": 8})


@given(some.integers(0, 10**14), some.integers(1, 500))
def test_the_parts_are_the_grant(units: int, parts: int) -> None:
    found = [part_of(units, parts, k) for k in range(parts)]
    assert sum(found) == units
    assert max(found) - min(found) <= 1


@pytest.fixture(scope="module")
def vested(tmp_path_factory: pytest.TempPathFactory) -> hanse.Run:
    return hanse.run(experiment(grant=80.0, vests=8), out=tmp_path_factory.mktemp("vested") / "run")


def test_a_member_that_comes_back_under_another_key_has_one_grant_in_all(vested: hanse.Run, tmp_path: Path) -> None:
    run = vested
    assert run.book.balance(MINT) == -(80 + 10 + 40 + 40) * TOKEN  # stays; never works; two halves
    assert [row.granted for row in hanse.facts(run.path).clients] == [80 * TOKEN, 10 * TOKEN, 40 * TOKEN, 40 * TOKEN]
    assert wrong_books(run.path) is None
    assert hanse.run(experiment(grant=80.0), out=tmp_path / "once").book.balance(MINT) == -4 * 80 * TOKEN
    assert [row.granted for row in hanse.facts(tmp_path / "once").clients] == [80 * TOKEN] * 4


@pytest.mark.parametrize(
    ("forged", "said"), [([10, 11], "10 tokens"), ([80], "10 tokens"), ([10] * 9, "opened before")]
)
def test_other_parts_than_those_of_the_settings_are_found(forged: list[int], said: str, vested: hanse.Run) -> None:
    history = [(r, grant(0, u * TOKEN)) for r, u in enumerate(forged)]
    assert said in against_rules(vested.path, history, frozenset())


def test_a_resumed_run_goes_on_with_the_parts(vested: hanse.Run, tmp_path: Path) -> None:
    shutil.copytree(vested.path, tmp_path / "run")
    for late in sorted((tmp_path / "run" / "checkpoints").iterdir())[1:]:
        late.unlink()
    assert hanse.resume(tmp_path / "run").book == vested.book
