"""Random sequences of operations, crashes and retries on the ledger, beside a plain dictionary that cannot crash."""

import random
import tempfile
import uuid
from pathlib import Path

import hypothesis.strategies as st
import pytest
from faults import crash_at
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_cases import grant, one

from hanse.core.book import Book, LedgerError
from hanse.core.entry import MINT, TOKEN, Transaction, client
from hanse.ledger.store import Ledger

CLIENTS = 4
FOLDER = tempfile.TemporaryDirectory()
SEEDS = st.integers(0, 2**32)


class LedgerMachine(RuleBasedStateMachine):
    """Posts, posts again, posts nonsense, crashes, reopens; the model is a dictionary by (round, step)."""

    @initialize(floor=st.sampled_from([0, -2 * TOKEN]))
    def begin(self, floor: int) -> None:
        self.file = Path(FOLDER.name) / f"{uuid.uuid4().hex}.jsonl"
        self.ledger = Ledger.open(self.file, floor=floor)
        self.book = Book(floor=floor)
        self.posted: dict[tuple[int, str], Transaction] = {}
        self.round = 0
        self.steps = 0
        self._post([grant(i) for i in range(CLIENTS)])

    def _new(self, seed: int, number: int) -> list[Transaction]:
        draw = random.Random(seed)
        self.steps += number
        return [one(draw, CLIENTS, f"step/{self.steps - k}") for k in range(number)]

    def _post(self, new: list[Transaction]) -> None:
        try:
            after = self.book.post(self.round, new)
        except LedgerError as refused:
            with pytest.raises(type(refused)):
                self.ledger.post(self.round, new)
            return
        records = self.ledger.post(self.round, new)
        assert [r.number for r in records][-1:] == [after.count][: len(new)]
        self.book = after
        self.posted |= {(self.round, t.step): t for t in new}

    @rule(seed=SEEDS, number=st.integers(1, 4))
    def post(self, seed: int, number: int) -> None:
        self._post(self._new(seed, number))

    @rule(by=st.integers(1, 3))
    def next_round(self, by: int) -> None:
        self.round += by

    @rule(data=st.data())
    def again(self, data: st.DataObject) -> None:
        number, step = data.draw(st.sampled_from(sorted(self.posted)))
        (record,) = self.ledger.post(number, [self.posted[number, step]])
        assert (record.round, record.transaction) == (number, self.posted[number, step])

    @rule(data=st.data())
    def under_a_used_key(self, data: st.DataObject) -> None:
        number, step = data.draw(st.sampled_from(sorted(self.posted)))
        other = Transaction(step, "forged", ((MINT, -1), (client(0), 1)))
        with pytest.raises(LedgerError):
            self.ledger.post(number, [other])

    @rule(seed=SEEDS, number=st.integers(1, 3), byte=st.integers(0, 900), again=st.booleans())
    def crash(self, seed: int, number: int, byte: int, again: bool) -> None:
        new = self._new(seed, number)
        try:
            after = self.book.post(self.round, new)
        except LedgerError:
            return
        crash_at(self.ledger, self.round, new, byte)
        self.reopen()
        if self.ledger.as_book().head == after.head:
            self.book = after
            self.posted |= {(self.round, t.step): t for t in new}
        elif again:
            self._post(new)

    @rule()
    def reopen(self) -> None:
        self.ledger = Ledger.open(self.file, floor=self.book.floor)

    @precondition(lambda self: hasattr(self, "ledger"))
    @invariant()
    def nothing_is_lost_or_made(self) -> None:
        held = self.ledger.as_book().balances
        assert held == self.book.balances
        assert sum(held.values()) == 0
        assert all(units >= self.book.floor for name, units in held.items() if name != MINT)
        assert self.ledger.as_book().head == self.book.head

    def teardown(self) -> None:
        if not hasattr(self, "ledger"):
            return
        assert self.ledger.verify().ok
        assert {(r.round, r.transaction.step): r.transaction for r in self.ledger.history()} == self.posted
        assert self.ledger.as_book() == self.book


TestLedgerMachine = LedgerMachine.TestCase
TestLedgerMachine.settings = settings(
    max_examples=20, stateful_step_count=15, deadline=None, suppress_health_check=list(HealthCheck)
)
