"""Receipts on their way to participants: kept on disk until their clients have them.

Where a mechanism pays, each participant gets a receipt of every round (:mod:`hanse.ledger.receipts`). On a network
:class:`Teller` observes the run and writes the receipts of finished rounds into :class:`Letters`, a file in the run
directory. :class:`hanse.deployment.link.FlowerFederation` sends them along with the next request to each client, and
drops what a client has acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hanse.base.errors import MachineError, UserError
from hanse.base.files import going_on, write_whole
from hanse.core.book import Book, LedgerError
from hanse.core.entry import Transaction
from hanse.ledger.receipts import Receipt, make_receipts, read_receipts
from hanse.ledger.store import Ledger
from hanse.rounds.round import Played
from hanse.runs.config import Experiment
from hanse.runs.experiment import Run
from hanse.runs.runbooks import books_url

FILE = "letters.json"


@dataclass
class Letters:
    """The receipts that clients have not acknowledged yet.

    Attributes:
        path: the file to which they are written at each change; None: they are kept in memory alone.
        waiting: lines of JSON by client id, oldest first.
        rounds: of how many rounds receipts were written so far.

    Examples:
        >>> letters = Letters()
        >>> letters.add([(0, '{"round": 0}'), (2, '{"round": 0}')], rounds=1)
        >>> letters.delivered({0: 1})
        >>> letters.waiting
        {2: ['{"round": 0}']}
    """

    path: Path | None = None
    waiting: dict[int, list[str]] = field(default_factory=dict)
    rounds: int = 0

    @staticmethod
    def read(path: Path) -> Letters:
        """Return the letters in the file ``path``, or none if there is no file.

        Raises:
            UserError: the file is damaged.
        """
        if not path.exists():
            return Letters(path)
        try:
            said = json.loads(path.read_bytes())
            waiting = {int(client): [str(line) for line in lines] for client, lines in said["waiting"].items()}
            return Letters(path, waiting, int(said["rounds"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
            raise UserError(
                f"{path}: is damaged ({wrong}); remove it, and the receipts of all rounds are made again"
            ) from None

    def add(self, lines: Iterable[tuple[int, str]], rounds: int) -> None:
        """Add lines behind those that wait, and write the file. A line that waits already is not added again.

        Args:
            lines: ``(client id, line of JSON)`` for each receipt.
            rounds: of how many rounds receipts are written with these.
        """
        for client, line in lines:
            mine = self.waiting.setdefault(client, [])
            if line not in mine:
                mine.append(line)
        self.rounds = rounds
        self._write()

    def delivered(self, count: Mapping[int, int]) -> None:
        """Drop what clients have acknowledged, and write the file if this changes it.

        Args:
            count: how many lines a client has by client id; its oldest ones are dropped.
        """
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
    """An observer that gives each participant the receipts of its rounds.

    Receipts are written only of rounds that a checkpoint holds. A round after it is played again if the run is
    interrupted, and the books may then end otherwise. Receipts that a crash kept from being written are made again from
    the ledger.

    Attributes:
        letters: where the receipts wait.
        deliver: sends what is left at the run's end.
        run: the run directory.

    Examples:
        The receipts of a small run that pays, with a directory that it told of itself:

        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> experiment, letters = rehearse("ipfl").experiment, Letters()
        >>> teller = Teller(letters, lambda: None, Path("run"))
        >>> run = hanse.run(experiment, out="run", overwrite=True, observers=[teller])
        >>> sorted(letters.waiting), letters.rounds
        ([0, 1, 2, 3], 3)
    """

    letters: Letters
    deliver: Callable[[], None]
    run: Path
    _every: int = 1
    _made: list[Receipt] = field(default_factory=list)  # of rounds that no checkpoint holds yet

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Note how often there is a checkpoint, and make the receipts again that a crash has lost."""
        self._every = experiment.run.checkpoint_every
        name, told = self._book(), self.letters.rounds
        if name is not None and told < first_round:
            try:
                self._tell(_made_again(books_url(self.run, experiment), name, told, first_round), first_round)
            except LedgerError as wrong:
                raise MachineError(f"{wrong}; mend that, then '{going_on(self.run)}'") from wrong

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Collect the receipts of a round, and write all of them down if the round ends with a checkpoint."""
        name = self._book()
        if name is None:
            return
        view, state = played.view, played.state
        self._made += make_receipts(name, view.round, state.book, view.posted, view.roster.ids.tolist())
        if state.round % self._every == 0:
            self._tell(self._made, state.round)
            self._made = []

    def on_end(self, result: Run) -> None:
        """Write the last receipts of a finished run, and send those that wait."""
        if self._book() is None or result.interrupted:
            return
        # the run's end settles once more and leaves these receipts in the run directory; the latest of each client
        # counts
        if (self.run / "receipts").exists():
            self._made += {receipt.client: receipt for receipt in read_receipts(self.run / "receipts")}.values()
        self._tell(self._made, len(result.metrics))
        self._made = []
        self.deliver()

    def _tell(self, receipts: Iterable[Receipt], rounds: int) -> None:
        """Add receipts to the letters, as JSON."""
        self.letters.add(((r.client, json.dumps(asdict(r))) for r in receipts), rounds)

    def _book(self) -> str | None:
        """Return the name of the run's ledger; None if the mechanism does not pay."""
        path = self.run / "ledger.json"
        return json.loads(path.read_text())["book"] if path.exists() else None


def _made_again(url: str, name: str, first: int, end: int) -> Iterator[Receipt]:
    """Yield the receipts of the rounds from ``first`` to before ``end``, for all clients that have an account.

    They follow from the transactions in the ledger, so that they are the ones which were lost.

    Args:
        url: the operator's database.
        name: the book's name.
        first, end: the rounds.
    """
    with Ledger.open(url, book=name, read_only=True) as ledger:
        by_round: dict[int, list[Transaction]] = {}
        for record in ledger.history():
            by_round.setdefault(record.round, []).append(record.transaction)
        book = Book(floor=ledger.floor)
    # from the beginning: a receipt names the balance, which all rounds before have made
    for round in range(end):
        book = book.post(round, by_round.get(round, []))
        if round >= first:
            yield from make_receipts(name, round, book, by_round.get(round, []), None)
