"""Finds the ledger of a run directory, and what else in the directory speaks of it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field
from typing_extensions import TypedDict

from hanse.base.errors import UserError
from hanse.base.files import json_lines, opened, read_json, read_toml, run_folder, table
from hanse.core.book import LedgerError
from hanse.core.declared import Declared
from hanse.core.entry import GENESIS, Transaction, digest
from hanse.ledger.connect import as_url
from hanse.ledger.store import Ledger

HOW_TO_PAY = "one with payments does: --set mechanism=ipfl, --set mechanism=pifl, or a part in mechanism.settle"
NOTES = 1 << 28  # bytes of a checkpoint's header; a longer one is damage
_Whole = Annotated[int, Field(ge=0, lt=2**63)]


class _Books(TypedDict):
    head: str
    count: _Whole
    floor: int


_Lengths = TypedDict("_Lengths", {"metrics.jsonl": _Whole})


class _Notes(TypedDict):
    """What is read here of what a checkpoint says beside its tensors."""

    round: _Whole
    book: _Books
    lengths: _Lengths
    pending: list[tuple[_Whole, str, str, str, list[tuple[str, int]]]]


_NOTES = Declared[_Notes](_Notes)


@dataclass(frozen=True)
class Claim:
    """What the checkpoint of a ``round`` (None: the start of the run) says of the books.

    ``count`` transactions lead to ``head``, and the last ones are ``pending`` (by round): they may not be in the ledger
    yet. ``floor`` is in units; ``lines`` are the bytes of metrics.jsonl that the checkpoint knows of.
    """

    round: int | None = None
    count: int = 0
    head: str = GENESIS
    pending: Sequence[tuple[int, Transaction]] = ()
    floor: int = 0
    lines: int = 0

    @property
    def who(self) -> str:
        """Who says it, for a message."""
        return "start of the run" if self.round is None else f"checkpoint of round {self.round}"

    def lacking(self, count: int) -> Sequence[tuple[int, Transaction]]:
        """Return what of ``pending`` a ledger of ``count`` transactions lacks."""
        return self.pending[-missing:] if (missing := self.count - count) > 0 else ()


def place_of(folder: Path, ledger_url: str | None = None) -> tuple[str | Path, str]:
    """Return the database (a URL, or an SQLite file) and the book of a run directory.

    The database is ``ledger_url`` if the user said it, else ``[ledger] url`` of the run's config.toml, else
    ``ledger.db`` in the directory; the book is the one that its ledger.json names.

    This decides for all who look at a run where they connect: only to a file in the directory, unless the user named
    another place. Raises UserError if it is no run directory, a run without payments, or one whose books are elsewhere.
    """
    config = read_toml(run_folder(folder) / "config.toml")
    if not (folder / "ledger.json").exists():
        raise UserError(f"{folder}: this run has no ledger, for nobody pays in it; {HOW_TO_PAY}")
    named = read_json(folder / "ledger.json")
    book = named.get("book") if isinstance(named, dict) else None
    if not isinstance(book, str):
        raise UserError(f'{folder / "ledger.json"}: must be {{"book": NAME}}')
    return ledger_url or _inside(folder, url_said(folder, config)), book


def url_said(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Return the URL that a run's config.toml gives for its books, None for ledger.db in the directory."""
    said = table(config, "ledger").get("url") or None
    if said is not None and not isinstance(said, str):
        raise UserError(f"{folder / 'config.toml'}: ledger.url: {said!r}: must be text")
    return said


def _inside(folder: Path, said: str | None) -> Path:
    """Return an SQLite file in the directory. Raises UserError for any other place, and shows it."""
    if said is None:
        return folder / "ledger.db"
    url = as_url(said)
    file = Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None
    if file is None or not file.resolve().is_relative_to(folder.resolve()):
        raise UserError(
            f"{folder / 'config.toml'}: ledger.url: {url.render_as_string()}: is not in the run directory, and nothing "
            "else is opened on the word of a file; if you know the place, say it: --ledger-url URL"
        )
    return file  # its driver and options are not taken over


def open_ledger(folder: Path, ledger_url: str | None = None, *, read_only: bool = True) -> Ledger:
    """Open the ledger of a run directory, where :func:`place_of` says. Raises UserError if there is none or it cannot
    be opened.
    """
    url, book = place_of(folder, ledger_url)
    try:
        return Ledger.open(url, book=book, read_only=read_only)
    except LedgerError as wrong:
        raise UserError(str(wrong)) from None


@contextmanager
def reading(folder: Path, ledger_url: str | None = None) -> Iterator[Ledger]:
    """Open a run's ledger for reading, and close it. Raises UserError for what goes wrong with it meanwhile, too."""
    with open_ledger(folder, ledger_url) as ledger:
        try:
            yield ledger
        except LedgerError as wrong:
            raise UserError(str(wrong)) from None


def latest_claim(folder: Path) -> Claim | None:
    """Return what the last checkpoint says of the books; None if there is no readable checkpoint.

    Its checksum is not looked at: that is for those who go on from it.
    """
    for path in sorted((folder / "checkpoints").glob("*.safetensors"), reverse=True):
        try:
            with opened(path) as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > NOTES:
                    continue
                notes = _NOTES.read(json.loads(file.read(length))["__metadata__"]["notes"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError, struct.error):
            continue
        book = notes["book"]
        pending = [(r, Transaction(s, k, tuple(rows), m)) for r, s, k, m, rows in notes["pending"]]
        lines = notes["lengths"]["metrics.jsonl"]
        return Claim(notes["round"], book["count"], book["head"], pending, floor=book["floor"], lines=lines)
    return None


def heads_said(folder: Path, ledger: Ledger) -> dict[str, str]:
    """Return the heads of the chain that the last checkpoint and the metrics before it name, with who says so.

    A checkpoint may be ahead of the ledger: a run that was killed between the two brings the ledger up when it
    resumes. Heads that the ledger will have then are left out. Raises UserError if the metrics are damaged.
    """
    claim = latest_claim(folder)
    if claim is None:
        return {}
    said = {claim.head: claim.who}
    for fields in json_lines(folder / "metrics.jsonl", until=claim.lines):
        if isinstance(fields.get("ledger/head"), str):
            said.setdefault(fields["ledger/head"], f"metrics of round {fields.get('round')}")
    head = ledger.head()
    for round_, transaction in claim.lacking(ledger.count()):
        head = digest(head, round_, transaction)
        said.pop(head, None)
    return said


def rounds_written(folder: Path, ledger: Ledger) -> int | None:
    """Return before which round everything is in the ledger: rounds after the last checkpoint are not, nor is what a
    run that was killed left in it. None: no checkpoint says so.
    """
    claim, count = latest_claim(folder), ledger.count()
    if claim is None or claim.round is None:
        return None if count else 0
    return min([claim.round, *(round_ for round_, _ in claim.lacking(count))])
