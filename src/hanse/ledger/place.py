"""Finds the ledger of a run directory, and what the rest of the directory says about it.

Whatever looks at a finished or running run (the report, a statement, ``hanse ledger``) opens its ledger with
:func:`reading` or :func:`open_ledger`. Both ask :func:`place_of` where the books are, and that function enforces a
rule: a run directory may come from a stranger, so its files alone never make hanse connect to another place.

The last checkpoint and the metrics name heads of the hash chain. :func:`latest_claim` and :func:`heads_said` collect
them, so that verification and recovery can compare the ledger with them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from hanse.base.errors import UserError
from hanse.base.files import LONGEST, json_lines, opened, read_json, read_toml, run_folder, table
from hanse.core.book import LedgerError
from hanse.core.declared import Declared
from hanse.core.entry import GENESIS, JOURNAL, Transaction, digest
from hanse.ledger.connect import as_url
from hanse.ledger.export import from_dict
from hanse.ledger.receipts import Receipt
from hanse.ledger.store import Ledger, Record
from hanse.ledger.verify import Verdict, verify

HOW_TO_PAY = "a run with payments has one: --set mechanism=ipfl, --set mechanism=pifl, or a part in mechanism.settle"
NOTES = 1 << 28  # bytes (256 MiB) that a checkpoint's header may have; a longer one is taken for damage
_Whole = Annotated[int, Field(ge=0, lt=2**63)]


class _Books(TypedDict):
    """The state of the books in a checkpoint: head, number of transactions, and floor in units."""

    head: str
    count: _Whole
    floor: int


# in functional form, because the key is no identifier; the lengths are bytes
_Lengths = TypedDict("_Lengths", {"metrics.jsonl": _Whole, "transactions.jsonl": NotRequired[_Whole]})


class _Notes(TypedDict):
    """The parts of a checkpoint's metadata that are read here.

    A pending transaction is (round, step, kind, memo, postings).
    """

    round: _Whole
    book: _Books
    lengths: _Lengths
    pending: list[tuple[_Whole, str, str, str, list[tuple[str, int]]]]
    finished: NotRequired[bool]


_NOTES = Declared[_Notes](_Notes)


@dataclass(frozen=True)
class Claim:
    """What a checkpoint says about the books. The defaults describe the start of a run.

    Attributes:
        round: the checkpoint's round; None for the start of the run.
        count: how many transactions there are.
        head: the hash of the last of them.
        pending: the last of them, each with its round. The ledger may not have these yet, because the checkpoint is
            written first.
        floor: the book's floor, in units.
        lines: how many bytes of ``metrics.jsonl`` belong to the checkpoint.
        journal: how many bytes of the journal belong to it; None: an older hanse wrote the run and kept none.
        finished: whether the last round is settled, too.
    """

    round: int | None = None
    count: int = 0
    head: str = GENESIS
    pending: Sequence[tuple[int, Transaction]] = ()
    floor: int = 0
    lines: int = 0
    journal: int | None = None
    finished: bool = False

    @property
    def heads(self) -> dict[str, str]:
        """The head that must be in the ledger's chain, with who names it; empty where there are no transactions."""
        return {self.head: self.who} if self.count else {}

    @property
    def who(self) -> str:
        """Who makes the claim, in words for a message."""
        return "start of the run" if self.round is None else f"checkpoint of round {self.round}"

    def lacking(self, count: int) -> Sequence[tuple[int, Transaction]]:
        """Return those of ``pending`` that a ledger with ``count`` transactions does not have yet."""
        # the test for > 0 matters: [-0:] would be all of them
        return self.pending[-missing:] if (missing := self.count - count) > 0 else ()


def place_of(folder: Path, ledger_url: str | None = None) -> tuple[str | Path, str]:
    """Return the database of a run directory (a URL, or the path of an SQLite file) and the name of its book.

    The database is ``ledger_url`` if given, else the ``[ledger] url`` in the run's config.toml, else ``ledger.db`` in
    the directory. A URL from config.toml is followed only to a file inside the directory, since whoever wrote the
    directory could name any server. The name of the book comes from ledger.json.

    Args:
        folder: the run directory.
        ledger_url: a place that the user named; it is used as it is.

    Raises:
        UserError: it is no run directory, the run has no payments, its ledger.json is malformed, or its books are
            outside the directory and the user did not name the place.
    """
    config = read_toml(run_folder(folder) / "config.toml")
    if not (folder / "ledger.json").exists():
        raise UserError(f"{folder}: this run has no ledger, because nobody pays in it; {HOW_TO_PAY}")
    named = read_json(folder / "ledger.json")
    book = named.get("book") if isinstance(named, dict) else None
    if not isinstance(book, str):
        raise UserError(f'{folder / "ledger.json"}: must be {{"book": NAME}}')
    return ledger_url or _inside(folder, url_said(folder, config)), book


def url_said(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the database URL in a run's config.toml; None if it names none, which means ledger.db in the directory.

    Raises UserError if it is not text.
    """
    said = table(config, "ledger").get("url") or None
    if said is not None and not isinstance(said, str):
        raise UserError(f"{folder / 'config.toml'}: ledger.url: {said!r}: must be text")
    return said


def _inside(folder: Path, said: str | None) -> Path:
    """Return the SQLite file that a URL from config.toml names, if it lies in the directory.

    Raises UserError for any other place. The message shows the place, so that the user can name it.
    """
    if said is None:
        return folder / "ledger.db"
    url = as_url(said)
    file = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
    if file is None or not file.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"{folder / 'config.toml'}: ledger.url: {url.render_as_string()}: is not in the run directory, and nothing "
            "else is opened because a file says so; if you trust the place, name it yourself: --ledger-url URL"
        )
    return file  # the bare path: a driver or options in the URL are not trusted either


def open_ledger(folder: Path, ledger_url: str | None = None, *, read_only: bool = True) -> Ledger:
    """Open the ledger of a run directory at the place that :func:`place_of` returns.

    Args:
        folder: the run directory.
        ledger_url: where the books are, if the user named the place.
        read_only: see :meth:`Ledger.open`.

    Raises:
        UserError: there is no ledger, or it cannot be opened.
    """
    url, book = place_of(folder, ledger_url)
    try:
        return Ledger.open(url, book=book, read_only=read_only)
    except LedgerError as wrong:
        raise UserError(str(wrong)) from None


@contextmanager
def reading(folder: Path, ledger_url: str | None = None) -> Iterator[Ledger]:
    """Open a run's ledger for reading, and close it at the end of the ``with`` statement.

    Raises UserError if it cannot be opened, and for any LedgerError inside the ``with`` statement.
    """
    with open_ledger(folder, ledger_url) as ledger:
        try:
            yield ledger
        except LedgerError as wrong:
            raise UserError(str(wrong)) from None


def latest_claim(folder: Path) -> Claim | None:
    """Return what the newest readable checkpoint says about the books; None if there is no such checkpoint.

    Only the header of the checkpoint's file is read. Its checksum is not verified: whoever resumes from it does that.
    """
    for path in sorted((folder / "checkpoints").glob("*.safetensors"), reverse=True):
        try:
            with opened(path) as file:
                # a safetensors file starts with the length of its JSON header (8 bytes, little endian)
                (length,) = struct.unpack("<Q", file.read(8))
                if length > NOTES:
                    continue
                notes = _NOTES.read(json.loads(file.read(length))["__metadata__"]["notes"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError, struct.error):
            continue
        book = notes["book"]
        pending = [(r, Transaction(s, k, tuple(rows), m)) for r, s, k, m, rows in notes["pending"]]
        lengths = notes["lengths"]
        lines, journal = lengths["metrics.jsonl"], lengths.get("transactions.jsonl")
        claimed = (notes["round"], book["count"], book["head"], pending, book["floor"], lines, journal)
        return Claim(*claimed, finished=notes.get("finished", False))
    return None


def heads_said(folder: Path, ledger: Ledger) -> dict[str, str]:
    """Return the hashes that must occur in the ledger's chain, each with a word on who names it.

    They come from the last checkpoint and from the metrics up to it. After a kill between the two writes, the
    checkpoint may be ahead of the ledger, and resuming the run completes the ledger. Heads that would only exist after
    that are left out, so that such a run is not reported as damaged.

    Raises:
        UserError: the metrics are damaged.
    """
    claim = latest_claim(folder)
    if claim is None:
        return {}
    said = claim.heads
    for fields in json_lines(folder / "metrics.jsonl", until=claim.lines):
        if isinstance(fields.get("ledger/head"), str):
            said.setdefault(fields["ledger/head"], f"metrics of round {fields.get('round')}")
    head = ledger.head()
    for round_, transaction in claim.lacking(ledger.count()):
        head = digest(head, round_, transaction)
        said.pop(head, None)
    return said


def wrong_in(folder: Path, ledger_url: str | None = None) -> str | None:
    """Return what is wrong with a run's books in a few words, None if they hold: what ``hanse ledger verify`` checks.

    Every transaction is read, about 0.1 ms each. Raises UserError: the books or the run's metrics cannot be read.
    """
    with reading(folder, ledger_url) as ledger:
        return verify_run(folder, ledger).wrong


def verify_run(folder: Path, ledger: Ledger, receipts: Iterable[Receipt] = ()) -> Verdict:
    """Verify a run's ledger and hold it against the rest of its directory: the heads named there, and the journal.

    Args:
        folder: the run directory.
        ledger: its open ledger.
        receipts: what participants kept of the book.

    Raises:
        UserError: the metrics are damaged.
    """
    verdict = verify(ledger, receipts, heads_said(folder, ledger))
    claim = latest_claim(folder)
    if not verdict.ok or claim is None or claim.journal is None:
        return verdict
    hashes, theirs = (record.hash for record in ledger.history()), GENESIS
    try:
        for record in journal_of(folder, claim):
            theirs = next(hashes, record.hash)  # the ledger may lack the last ones after a kill
            if theirs != record.hash:
                raise JournalError(f"has another transaction {record.number} than the ledger")
    except JournalError as wrong:
        return replace(verdict, wrong=f"{JOURNAL}: {wrong}")
    return verdict


class JournalError(Exception):
    """The journal is not what the checkpoint says; the text completes a sentence that begins with its name."""


def journal_of(folder: Path, claim: Claim) -> Iterator[Record]:
    """Yield the claimed transactions from a run's journal, each after a check of its number and hash.

    Raises:
        JournalError: it is missing, too short or damaged, or does not lead to the claimed head.
    """
    head, number = GENESIS, 0
    try:
        with opened(folder / JOURNAL) as lines:
            for number in range(1, claim.count + 1):
                if not (line := lines.readline(LONGEST)):
                    raise JournalError(f"ends after {number - 1} of {claim.count} transactions")
                record = from_dict(json.loads(line))
                head = digest(head, record.round, record.transaction)
                if head != record.hash or record.number != number:
                    raise ValueError
                yield record
    except FileNotFoundError:
        raise JournalError("is not there (an older hanse kept none)") from None
    except OSError as wrong:
        raise JournalError(f"cannot be read: {wrong.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise JournalError(f"is damaged in line {number}") from None
    if head != claim.head:
        raise JournalError(f"leads to the head {head}, the {claim.who} has {claim.head}")


def is_settled(folder: Path, ledger: Ledger) -> bool:
    """Say whether the run is over by its last checkpoint, and the ledger has as many transactions as that says."""
    claim = latest_claim(folder)
    return claim is not None and claim.finished and ledger.count() >= claim.count


def rounds_written(folder: Path, ledger: Ledger) -> int | None:
    """Return the first round that may be incomplete in the ledger. All rounds before it are there.

    Rounds behind the last checkpoint may be missing or left in part by a run that was killed, and so may transactions
    that the checkpoint counts but the ledger lacks. Without a checkpoint the answer is 0 for an empty ledger and None,
    which means unknown, for any other.
    """
    claim, count = latest_claim(folder), ledger.count()
    if claim is None or claim.round is None:
        return None if count else 0
    return min([claim.round, *(round_ for round_, _ in claim.lacking(count))])
