"""A new built-in selector, value or payment is two files: its own, and a line of the registry."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import hanse
from hanse.core.entry import Transaction, client
from hanse.core.part import Choice, SelectPart, Settlement, SettlePart, State, ValuePart, Values, View
from hanse.core.telling import Kind, Measure, Telling
from hanse.mechanisms.registry import PARTS, word_of
from hanse.reports.audit import audit_run
from hanse.runs.rehearsal import small_experiment
from hanse.runs.run_record import load_run

OWN = "hanse.mechanisms.brand_new"  # the part's own file


class LastTwo(SelectPart):
    def select(self, view: View, state: State) -> tuple[Choice, State]:
        return Choice(view.present[-2:]), state


class Steps(ValuePart):
    def value(self, view: View, state: State) -> tuple[Values, State]:
        return Values(view.trained.steps.astype(float)), state

    def tells(self, slots: frozenset[str]) -> Telling:
        return Telling(measures=Measure("number of steps"))


class Flat(SettlePart):
    """Whose update was worth something gets a thousand units from client 0."""

    needs = frozenset({"values"})

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        values = view.values
        if view.stage != "close" or values is None:
            return Settlement(), state
        paid = [c for c, worth in zip(view.trained.seats.client.tolist(), values.per_seat, strict=True) if worth > 0]
        moved = (Transaction(f"flat/{c}", "flat", ((client(0), -1000), (client(c), 1000))) for c in paid if c)
        return Settlement(transactions=tuple(moved)), state

    def tells(self, slots: frozenset[str]) -> Telling:
        return Telling(kinds=(Kind("flat", "flat pay"),))


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> dict[str, type]:
    """The three parts in a file of hanse's, with a line each in the registry."""
    file, parts = ModuleType(OWN), {"select": LastTwo, "value": Steps, "settle": Flat}
    monkeypatch.setitem(sys.modules, OWN, file)
    for slot, part in parts.items():
        monkeypatch.setattr(part, "__module__", OWN)
        setattr(file, part.__name__, part)
        monkeypatch.setitem(PARTS[slot].own, f"new_{slot}", f"brand_new:{part.__name__}")
    return parts


def test_they_play_by_name_and_the_payment_is_settled_again(registered: dict[str, type], tmp_path: Path) -> None:
    named: dict[str, Any] = {slot: f"new_{slot}" for slot in registered}
    run = hanse.run(small_experiment({"name": "fedavg", **named}, clients={"grant": 1.0}), out=tmp_path / "run")
    assert {seat["client"] for seat in run.clients} == {2, 3}
    assert all(seat["value"] > 0 for seat in run.clients)
    assert {name: run.book.balances[client(name)] for name in range(4)} == {0: 994000, 1: 10**6, 2: 1003000, 3: 1003000}
    record, audit = load_run(tmp_path / "run"), audit_run(tmp_path / "run")  # without trust: nothing is imported
    assert (record.about.measure.name, record.about.kinds["flat"]) == ("number of steps", "flat pay")
    checks = {check.name: check.holds for check in audit.checks}
    assert audit.holds
    assert checks["settled again"]
    assert [word_of(part(), slot) for slot, part in registered.items()] == [f"'{name}'" for name in named.values()]
