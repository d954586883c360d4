"""Keeps receipts for participants on disk until their clients have them.

Where a mechanism pays, each participant gets a receipt of every round (:mod:`hanse.ledger.receipts`). On a network
:class:`Teller` observes the run and writes the receipts of finished rounds into :class:`Letters`, a file in the run
directory. :class:`hanse.flower.link.FlowerFederation` sends them along with the next request to each client, and
drops what a client has acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.base.errors import MachineError, UserError
from hanse.base.files import going_on, write_whole
from hanse.core.book import LedgerError
from hanse.ledger.issuer import Issuer
from hanse.ledger.run_ledger import open_ledger
from hanse.runs.config import Experiment
from hanse.runs.experiment import Run
from hanse.runs.round import Played

FILE = "letters.json"


@dataclass
class Letters:
    """The receipts that clients have not acknowledged yet.

    Attributes:
        path: the file to which the receipts are written at each change. None: they are only in memory.
        waiting: the receipts as lines of JSON by client id, oldest first.
        rounds: the number of rounds whose receipts were written so far.

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
        """Append lines to those that wait, and write the file. A line that already waits is not added again.

        Args:
            lines: ``(client id, line of JSON)`` for each receipt.
            rounds: the number of rounds whose receipts are then written.
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
            count: how many lines each client has acknowledged, by id. So many of the client's oldest lines are dropped.
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

    Receipts are written only for rounds that a checkpoint holds. Later rounds are played again if the run is
    interrupted, and the books may then differ. Receipts that a crash kept from being written are made again from the
    ledger.

    Attributes:
        letters: where the receipts wait.
        deliver: the function that sends the remaining receipts at the run's end.
        run: the run directory.

    Examples:
        This shows the receipts of a small run in which clients pay. Its run directory is invented:

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
    _here: dict[int, set[int]] = field(default_factory=dict)  # by round: who was there
    _issuer: Issuer | None = None  # None: the mechanism does not pay

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Note how often there is a checkpoint, and make receipts again that a crash has lost."""
        self._every = experiment.run.checkpoint_every
        if not (self.run / "ledger.json").exists():
            return
        try:
            self._issuer = Issuer(open_ledger(self.run), self.run, self.letters.rounds)
            if self.letters.rounds < first_round:
                self._tell(first_round)
        except (UserError, LedgerError) as wrong:
            raise MachineError(f"{wrong}; mend that, then '{going_on(self.run)}'") from wrong

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Write the receipts of all rounds since the last checkpoint, if this round ends with a checkpoint."""
        self._here[played.view.round] = set(played.view.roster.ids.tolist())
        if played.state.round % self._every == 0:
            self._tell(played.state.round)

    def on_end(self, result: Run) -> None:
        """Write the last receipts of a finished run, and send those that wait."""
        if self._issuer is None or result.interrupted:
            return
        self._tell(len(result.metrics))  # the run's end settles once more
        self.deliver()

    def _tell(self, rounds: int) -> None:
        """Add the new receipts to the letters: of a round that was watched those of whoever was there or was paid."""
        if self._issuer is None:
            return
        new = [r for r in self._issuer.new() if r.postings or r.client in self._here.get(r.round, (r.client,))]
        self.letters.add(((r.client, r.as_json()) for r in new), rounds)
        self._here = {}
