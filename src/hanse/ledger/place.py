"""Finds the ledger of a run directory, and what else in the directory speaks of it."""

from __future__ import annotations

import json
import struct
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hanse.errors import UserError
from hanse.ledger.book import LedgerError
from hanse.ledger.entry import Transaction, digest
from hanse.ledger.store import Ledger

__all__ = ["heads_said", "latest_notes", "open_ledger", "place_of", "reading", "rounds_written"]


def place_of(folder: Path) -> tuple[str, str]:
    """Return the URL and the book of a run directory: ``[ledger] url`` of its config.toml (if there is none,
    ``ledger.db`` in the directory), and the book that its ledger.json names.

    Raises UserError if it is no run directory, or a run without payments.
    """
    try:
        config = tomllib.loads((folder / "config.toml").read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder}: is not a run directory (it has no config.toml)") from None
    except tomllib.TOMLDecodeError as wrong:
        raise UserError(f"{folder / 'config.toml'}: {wrong}") from None
    try:
        book = json.loads((folder / "ledger.json").read_text())["book"]
    except FileNotFoundError:
        raise UserError(f"{folder}: this run has no ledger (nobody pays in it)") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f'{folder / "ledger.json"}: must be {{"book": NAME}}') from None
    url = config.get("ledger", {}).get("url")
    return url or f"sqlite:///{folder / 'ledger.db'}", book


def open_ledger(folder: Path, *, read_only: bool = True) -> Ledger:
    """Open the ledger of a run directory. Raises UserError if there is none or it cannot be opened."""
    url, book = place_of(folder)
    try:
        return Ledger.open(url, book=book, read_only=read_only)
    except LedgerError as wrong:
        raise UserError(str(wrong)) from None


@contextmanager
def reading(folder: Path) -> Iterator[Ledger]:
    """Open a run's ledger for reading, and close it. Raises UserError for what goes wrong with it meanwhile, too."""
    with open_ledger(folder) as ledger:
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
            with path.open("rb") as file:
                (length,) = struct.unpack("<Q", file.read(8))
                notes = json.loads(json.loads(file.read(length))["__metadata__"]["notes"])
        except (OSError, ValueError, KeyError, struct.error):
            continue
        if isinstance(notes, dict) and "book" in notes:
            return notes
    return None


def heads_said(folder: Path, ledger: Ledger) -> dict[str, str]:
    """Return the heads of the chain that the last checkpoint and the metrics before it name, with who says so.

    A checkpoint may be ahead of the ledger: a run that was killed between the two brings the ledger up when it
    resumes. Heads that the ledger will have then are left out.
    """
    notes = latest_notes(folder)
    if notes is None:
        return {}
    said = {notes["book"]["head"]: f"checkpoint of round {notes['round']}"}
    metrics = folder / "metrics.jsonl"
    if metrics.exists():
        with metrics.open("rb") as file:
            left = int(notes["lengths"]["metrics.jsonl"])
            for line in file:
                left -= len(line)
                if left < 0:
                    break
                fields = json.loads(line)
                if "ledger/head" in fields:
                    said.setdefault(fields["ledger/head"], f"metrics of round {fields['round']}")
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
