"""Receipts on their way to participants: kept on disk until their clients have them, sent with the next request."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.core.book import Book
from hanse.core.entry import Transaction
from hanse.ledger.place import open_ledger
from hanse.ledger.receipts import Receipt, make_receipts, read_receipts
from hanse.rounds.round import Played
from hanse.runs.config import Experiment
from hanse.runs.experiment import Run

FILE = "letters.json"


@dataclass
class Letters:
    """Lines by client that it has not acknowledged, oldest first, written to ``path`` at each change if there is one.

    ``rounds`` says of how many rounds receipts were written; None if nothing was written yet.
    """

    path: Path | None = None
    waiting: dict[int, list[str]] = field(default_factory=dict)
    rounds: int | None = None

    @staticmethod
    def read(path: Path) -> Letters:
        """Read the letters of a run that was interrupted, or start with none. Raises UserError for a damaged file."""
        if not path.exists():
            return Letters(path)
        try:
            said = json.loads(path.read_bytes())
            waiting = {int(client): [str(line) for line in lines] for client, lines in said["waiting"].items()}
            return Letters(path, waiting, int(said["rounds"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
            raise UserError(
                f"{path}: is not what it was ({wrong}); without it the run goes on, and the receipts that had not "
                "reached their participants are lost"
            ) from None

    def add(self, lines: Iterable[tuple[int, str]], rounds: int) -> None:
        """Put lines, ``(client, line)``, behind those that wait, now that ``rounds`` rounds are told."""
        for client, line in lines:
            mine = self.waiting.setdefault(client, [])
            if line not in mine:
                mine.append(line)
        self.rounds = rounds
        self._write()

    def delivered(self, count: Mapping[int, int]) -> None:
        """Drop each client's first ``count`` lines: it has them."""
        known = {client: lines for client, lines in count.items() if lines}
        for client, lines in known.items():
            del self.waiting[client][:lines]
            if not self.waiting[client]:
                del self.waiting[client]
        if known:
            self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        write_whole(self.path, json.dumps({"rounds": self.rounds, "waiting": self.waiting}) + "\n", durable=True)


@dataclass
class Teller:
    """An observer that gives each participant the receipts of its rounds. ``deliver`` sends the letters that are left.

    Only of rounds that a checkpoint holds: one that has to be played again may end with other books. What a crash kept
    from being written down is made again from the ledger.
    """

    letters: Letters
    deliver: Callable[[], None]
    run: Path
    _every: int = 1
    _made: list[Receipt] = field(default_factory=list)  # of rounds that no checkpoint holds yet

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Remember how often there is a checkpoint; make up for receipts that a crash has lost."""
        self._every = experiment.run.checkpoint_every
        told = self.letters.rounds
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
        self.deliver()

    def _tell(self, receipts: Iterable[Receipt], rounds: int) -> None:
        self.letters.add(((r.client, json.dumps(asdict(r))) for r in receipts), rounds)

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
            yield from make_receipts(name, round, book, by_round.get(round, []), None)
