"""Finds the ledger of a run directory, and what else in the directory speaks of it."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeGuard

from hanse.base.errors import UserError
from hanse.base.files import json_lines, opened, read_json, read_toml, run_folder, table
from hanse.core.book import LedgerError
from hanse.core.entry import Transaction, digest
from hanse.ledger.connect import as_url
from hanse.ledger.store import Ledger

__all__ = ["heads_said", "latest_notes", "open_ledger", "place_of", "reading", "rounds_written", "url_said"]


NOTES = 1 << 28  # bytes of a checkpoint's header; a longer one is damage


def place_of(folder: Path, ledger_url: str | None = None) -> tuple[str | Path, str]:
    """Return the database (a URL, or an SQLite file) and the book of a run directory.

    The database is ``ledger_url`` if the user said it, else ``[ledger] url`` of the run's config.toml, else
    ``ledger.db`` in the directory; the book is the one that its ledger.json names.

    This decides for all who look at a run where they connect: only to a file in the directory, unless the user named
    another place. Raises UserError if it is no run directory, a run without payments, or one whose books are elsewhere.
    """
    config = read_toml(run_folder(folder) / "config.toml")
    if not (folder / "ledger.json").exists():
        raise UserError(f"{folder}: this run has no ledger (nobody pays in it)")
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


def latest_notes(folder: Path) -> dict[str, Any] | None:
    """Return what the last checkpoint says of the run beside its tensors; none if there is no readable checkpoint.

    Its checksum is not looked at: that is for those who go on from it.
    """
    for path in sorted((folder / "checkpoints").glob("*.safetensors"), reverse=True):
        try:
            with opened(path) as file:
                (length,) = struct.unpack("<Q", file.read(8))
                if length > NOTES:
                    continue
                notes = json.loads(json.loads(file.read(length))["__metadata__"]["notes"])
                if _are_notes(notes):
                    return notes
        except (OSError, ValueError, KeyError, TypeError, RecursionError, struct.error):
            continue
    return None


def _are_notes(notes: Any) -> TypeGuard[dict[str, Any]]:
    """Say whether a checkpoint's notes have what is read here, in the form that a run writes."""
    if not isinstance(notes, dict) or "book" not in notes:
        return False
    book, lengths, pending = notes["book"], notes["lengths"], notes["pending"]
    counts = [notes["round"], book["count"], lengths["metrics.jsonl"]]
    for round_, step, kind, memo, postings in pending:
        counts.append(round_)
        if not all(isinstance(text, str) for text in (step, kind, memo)):
            return False
        if not all(isinstance(account, str) and type(units) is int for account, units in postings):
            return False
    return isinstance(book["head"], str) and all(type(n) is int and 0 <= n < 2**63 for n in counts)


def heads_said(folder: Path, ledger: Ledger) -> dict[str, str]:
    """Return the heads of the chain that the last checkpoint and the metrics before it name, with who says so.

    A checkpoint may be ahead of the ledger: a run that was killed between the two brings the ledger up when it
    resumes. Heads that the ledger will have then are left out. Raises UserError if the metrics are damaged.
    """
    notes = latest_notes(folder)
    if notes is None:
        return {}
    said = {notes["book"]["head"]: f"checkpoint of round {notes['round']}"}
    for fields in json_lines(folder / "metrics.jsonl", until=notes["lengths"]["metrics.jsonl"]):
        if isinstance(fields.get("ledger/head"), str):
            said.setdefault(fields["ledger/head"], f"metrics of round {fields.get('round')}")
    head, pending = ledger.head(), notes["pending"]
    missing = notes["book"]["count"] - ledger.count()
    for round_, step, kind, memo, postings in pending[-missing:] if 0 < missing <= len(pending) else []:
        head = digest(head, round_, Transaction(step, kind, tuple((a, u) for a, u in postings), memo))
        said.pop(head, None)
    return said


def rounds_written(folder: Path, ledger: Ledger) -> int | None:
    """Return before which round everything is in the ledger: rounds after the last checkpoint are not, nor is what a
    run that was killed left in it. None: no checkpoint says so.
    """
    notes = latest_notes(folder)
    if notes is None:
        return None if ledger.count() else 0
    missing, pending = notes["book"]["count"] - ledger.count(), notes["pending"]
    late = [int(round_) for round_, *_ in pending[-missing:]] if missing > 0 else []
    return min([int(notes["round"]), *late])
