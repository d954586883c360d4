"""Tells participants of the books: receipts that travel with the next request, and the last ones at the end."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hanse.core.book import Book
from hanse.core.entry import Transaction
from hanse.deployment.link import FlowerFederation
from hanse.ledger.place import open_ledger
from hanse.ledger.receipts import Receipt, make_receipts, read_receipts
from hanse.rounds.round import Played
from hanse.runs.config import Experiment
from hanse.runs.experiment import Run

__all__ = ["Teller"]


@dataclass
class Teller:
    """An observer that gives each participant the receipts of its rounds.

    Only of rounds that a checkpoint holds: one that has to be played again may end with other books. What a crash kept
    from being written down is made again from the ledger.
    """

    federation: FlowerFederation
    run: Path
    _every: int = 1
    _made: list[Receipt] = field(default_factory=list)  # of rounds that no checkpoint holds yet

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Remember how often there is a checkpoint; make up for receipts that a crash has lost."""
        self._every = experiment.run.checkpoint_every
        told = self.federation.letters.rounds
        if self._book() is not None and told is not None and told < first_round:
            self._tell(_made_again(self.run, told, first_round), first_round)

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Write the receipts of the rounds since the last checkpoint, if this round has one."""
        name = self._book()
        if name is None:
            return
        view, state = played.view, played.state
        self._made += make_receipts(name, view.round, state.book, view.posted, view.roster.ids.tolist())
        if state.round % self._every == 0:
            self._tell(self._made, state.round)
            self._made = []

    def on_end(self, result: Run) -> None:
        """Send the last receipts of a finished run, and those that wait."""
        if self._book() is None or result.interrupted:
            return
        if (self.run / "receipts").exists():
            self._made += {receipt.client: receipt for receipt in read_receipts(self.run / "receipts")}.values()
        self._tell(self._made, len(result.metrics))
        self._made = []
        self.federation.deliver()

    def _tell(self, receipts: Iterable[Receipt], rounds: int) -> None:
        self.federation.letters.add(((r.client, json.dumps(asdict(r))) for r in receipts), rounds)

    def _book(self) -> str | None:
        path = self.run / "ledger.json"
        return json.loads(path.read_text())["book"] if path.exists() else None


def _made_again(run: Path, first: int, end: int) -> Iterator[Receipt]:
    """Yield the receipts of the rounds from ``first`` up to ``end`` for all who have an account, out of the ledger."""
    with open_ledger(run) as ledger:
        by_round: dict[int, list[Transaction]] = {}
        for record in ledger.history():
            by_round.setdefault(record.round, []).append(record.transaction)
        book, name = Book(floor=ledger.floor), ledger.book
    for round in range(end):
        book = book.post(round, by_round.get(round, []))
        if round >= first:
            accounts = [account.partition("/") for account in book.balances]
            clients = sorted(int(number) for kind, _, number in accounts if kind == "client")
            yield from make_receipts(name, round, book, by_round.get(round, []), clients)
