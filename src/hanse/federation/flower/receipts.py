"""Tells participants of the books: receipts that travel with the next request, and the last ones at the end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hanse.config import Experiment
from hanse.experiment import Run
from hanse.federation.flower.link import FlowerFederation
from hanse.ledger.entry import Transaction
from hanse.ledger.receipts import Receipt, make_receipts, read_receipts
from hanse.rounds import Played

__all__ = ["Teller"]


@dataclass
class Teller:
    """An observer that gives each participant the receipts of its rounds.

    Only of rounds that a checkpoint holds: one that has to be played again may end with other books.
    """

    federation: FlowerFederation
    run: Path
    _every: int = 1
    _posted: list[Transaction] = field(default_factory=list)

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Remember how often there is a checkpoint."""
        self._every = experiment.run.checkpoint_every

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Write the receipts of the rounds since the last checkpoint, if this round has one."""
        name = self._book()
        if name is None:
            return
        self._posted += played.view.posted
        if played.state.round % self._every == 0:
            here = played.view.roster.ids.tolist()
            self._tell(make_receipts(name, played.view.round, played.state.book, self._posted, here))
            self._posted = []

    def on_end(self, result: Run) -> None:
        """Send the last receipts of a finished run, and those that wait."""
        if self._book() is None or result.interrupted:
            return
        if (self.run / "receipts").exists():
            last = {receipt.client: receipt for receipt in read_receipts(self.run / "receipts")}
            self._tell(last.values())
        self.federation.deliver()

    def _tell(self, receipts: Any) -> None:
        receipt: Receipt
        for receipt in receipts:
            self.federation.letters.setdefault(receipt.client, []).append(json.dumps(asdict(receipt)))

    def _book(self) -> str | None:
        path = self.run / "ledger.json"
        return json.loads(path.read_text())["book"] if path.exists() else None
