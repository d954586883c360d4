"""Keeps receipts and statements for participants on disk until their clients have them.

Where a mechanism pays, each participant gets a receipt of every round (:mod:`hanse.ledger.receipts`). At a run's end
each gets its statement, a page that the operator's key signs (:func:`signed_page`). On a network :class:`Teller`
observes the run and writes them into :class:`Letters`, a file in the run directory.
:class:`hanse.flower.link.FlowerFederation` sends them along with the next request to each client, and drops what a
client has acknowledged. At the client, :func:`keep_pages` keeps the statements.
"""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanse.base.errors import MachineError, UserError
from hanse.base.files import going_on, private_folder, write_whole
from hanse.base.wings import Names
from hanse.core.book import LedgerError
from hanse.ledger.note import PrivateKey, is_signed, sign
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.store import Issuer
from hanse.runs.run_record import load_run

if TYPE_CHECKING:
    from hanse.runs.config import Experiment
    from hanse.runs.experiment import PlayedRun
    from hanse.runs.round import Played

STATEMENTS: Mapping[str, Callable[[Path, int], str]] = Names({}, "statements")  # make a client's page of a run
_PAGE = '{"page":'  # a line with a statement begins so; all others are receipts
SIGNER = "hanse/statement"  # the name under which the operator signs
_WHAT = "hanse statement 1\n"  # so the signature is under nothing else


def signed_page(page: str, key: PrivateKey) -> str:
    """Return a page with the operator's signature under all of it, as a comment in its last line.

    Args:
        page: the page, HTML.
        key: the operator's private key.
    """
    text = page.rstrip("\n") + "\n"
    return f"{text}<!-- {sign(_WHAT + text, SIGNER, key).strip()} -->\n"


def is_signed_page(page: str, public: bytes) -> bool:
    """Return whether a page ends with the signature of a key (32 bytes) under all that is above it."""
    text, newline, last = page.removesuffix("\n").rpartition("\n")
    return is_signed(_WHAT + text + newline, last.removeprefix("<!-- ").removesuffix(" -->"), SIGNER, public)


def signed_statements(run: Path, clients: Iterable[int], key: PrivateKey) -> Iterator[tuple[int, str]]:
    """Yield these clients of a run with their statements as of now, signed; of one that cannot be made, the log says
    why.
    """
    for make, client in itertools.product(STATEMENTS.values(), clients):
        try:
            page = signed_page(make(run, client), key)
        except UserError as wrong:
            logging.getLogger(__name__).warning("client %d gets no statement: %s", client, wrong)
        else:
            yield client, page


def keep_pages(letter: str, folder: Path, public: bytes) -> str:
    """Keep the statements of a letter in a participant's folder, and return the letter's other lines, its receipts.

    Each is a file ``statements/N.html``. One that is there already is not written again.

    Args:
        letter: the lines that the server sent.
        folder: the participant's folder of this run.
        public: the operator's key, which must have signed the statements.

    Raises:
        WireError: a line is no statement, or it is not signed.
    """
    from hanse.federation.codec import WireError  # late: it imports torch, and 'hanse receipt' does without

    receipts = []
    for line in letter.splitlines():
        if not line.startswith(_PAGE):
            receipts.append(line)
            continue
        try:
            page = json.loads(line)["page"]
        except (ValueError, RecursionError) as wrong:
            raise WireError(f"not a statement: {wrong}") from None
        if not isinstance(page, str) or not is_signed_page(page, public):
            raise WireError("its statement is not signed by the operator's key; it was not kept")
        place = private_folder(folder / "statements")
        files = (place / f"{number}.html" for number in itertools.count(1))
        file = next(file for file in files if not file.exists() or file.read_text("utf-8") == page)
        write_whole(file, page, private=True)
    return "\n".join(receipts)


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
        >>> letters.delivered(0, 1)
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

    def delivered(self, client: int, lines: int) -> None:
        """Drop so many of a client's oldest lines, which it has acknowledged, and write the file if this changes it."""
        if lines:
            del self.waiting[client][:lines]
            self.waiting = {client: left for client, left in self.waiting.items() if left}
            self._write()

    def _write(self) -> None:
        if self.path is not None:
            write_whole(self.path, json.dumps({"rounds": self.rounds, "waiting": self.waiting}) + "\n", durable=True)


@dataclass
class Teller:
    """An observer that gives each participant the receipts of its rounds.

    Receipts are written only for rounds that a checkpoint holds. Later rounds are played again if the run is
    interrupted, and the books may then differ. Receipts that a crash kept from being written are made again from the
    ledger.

    Attributes:
        letters: where the receipts wait.
        deliver: the function that sends what is left at the run's end.
        run: the run directory.
        key: the operator's key, which signs statements. None: no statements are sent.

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
    key: PrivateKey | None = None
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

    def on_end(self, result: PlayedRun) -> None:
        """Write the last receipts of a finished run and its statements, and send all that wait."""
        if result.interrupted:
            return
        self._tell(len(result.metrics))  # the run's end settles once more
        if self.key is not None:
            pages = signed_statements(self.run, range(load_run(self.run).num_clients), self.key)
            self.letters.add(((c, f"{_PAGE} {json.dumps(page)}}}") for c, page in pages), len(result.metrics))
        if self.letters.waiting:
            self.deliver()

    def _tell(self, rounds: int) -> None:
        """Add the new receipts to the letters: of a round that was watched those of whoever was there or was paid."""
        if self._issuer is None:
            return
        new = [r for r in self._issuer.new() if r.said["postings"] or r.client in self._here.get(r.round, (r.client,))]
        self.letters.add(((r.client, r.as_json()) for r in new), rounds)
        self._here = {}
