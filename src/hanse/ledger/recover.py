"""Opens a run's ledger with all that the run knows of it, and rebuilds one that is lost or damaged.

A run keeps its transactions three times: in the ledger, in ``transactions.jsonl`` beside it (the lines of ``hanse
ledger export -f json``), and the last of them in the checkpoint. The checkpoint names the head of the chain; whatever
does not lead to this head is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from hanse.base.errors import MachineError
from hanse.base.files import write_whole
from hanse.base.lock import Hold
from hanse.core.book import DamagedError, LedgerError
from hanse.core.entry import GENESIS, JOURNAL, Transaction, digest
from hanse.ledger.export import from_dict, line_of
from hanse.ledger.place import Claim, latest_claim, place_of
from hanse.ledger.store import Ledger, Record, hash_of, tail_of
from hanse.ledger.verify import verify

BACKUP = "'hanse ledger restore FILE DIR' brings back a backup"


def open_books(url: str | Path, book: str, floor: int, claim: Claim, folder: Path) -> tuple[Ledger, list[str]]:
    """Open the ledger of the run in ``folder``, made if there is none, with at least the transactions of the claim, and
    say what had to be mended.

    What the ledger lacks is written into it, from the claim's pending transactions or else from the journal. A damaged
    file in the run directory is set aside and written anew. Raises MachineError, and leaves all as it is, if that
    cannot be done, and LedgerError if the database cannot be opened.
    """
    own = _own(url, folder)
    if own is not None and claim.count and not own.exists():
        return _anew(url, book, floor, claim, folder, f"{own}: is gone")
    try:
        ledger = Ledger.open(url, book=book, floor=floor)
        try:
            return ledger, _catch_up(ledger, claim, folder)
        except BaseException:
            ledger.close()
            raise
    except DamagedError as wrong:
        return _anew(url, book, floor, claim, folder, str(wrong))


def rebuild_run(folder: Path, ledger_url: str | None = None) -> list[str]:
    """Do for a run directory what :func:`open_books` does, go through the whole book, and write it anew if it does not
    hold. Return what was done, empty if nothing was. ``ledger_url``: where the books are, if not in the directory.

    Raises UserError if it is no run directory with a ledger, or in use, and MachineError if it cannot be done.
    """
    url, book = place_of(folder, ledger_url)
    with Hold(folder) as hold:
        hold.take()
        claim = latest_claim(folder)
        if claim is None:
            raise MachineError(f"{folder}: no checkpoint says which books are right; {BACKUP}")
        try:
            return _rebuilt(url, book, claim.floor, claim, folder)
        except LedgerError as wrong:
            raise MachineError(str(wrong)) from None


def _rebuilt(url: str | Path, book: str, floor: int, claim: Claim, folder: Path) -> list[str]:
    ledger, said = open_books(url, book, floor, claim, folder)
    with ledger:
        wrong = verify(ledger, heads={claim.head: claim.who}).wrong
    if wrong is None:
        return said
    ledger, more = _anew(url, book, floor, claim, folder, wrong)
    with ledger:
        still = verify(ledger, heads={claim.head: claim.who}).wrong
    if still is not None:
        raise MachineError(f"{folder}: the book that was written anew does not hold either: {still}")
    return [*said, *more]


def rewrite_journal(ledger: Ledger, count: int, path: Path) -> None:
    """Write the journal of the ledger's first ``count`` transactions."""
    records = (record for record in ledger.history() if record.number <= count)
    write_whole(path, "".join(map(line_of, records)), durable=True)


def _own(url: str | Path, folder: Path) -> Path | None:
    """Return the ledger's file if it is the run's own; None for a database elsewhere, which may hold other books."""
    file = folder / "ledger.db"
    return file if url in (file, f"sqlite:///{file}") else None


def _catch_up(ledger: Ledger, claim: Claim, folder: Path) -> list[str]:
    """Write what the ledger lacks of the claim."""
    with ledger.begin() as connection:
        tail = tail_of(connection, ledger.id)
        there = hash_of(connection, ledger.id, min(tail.number, claim.count))
    lacking = claim.count - tail.number
    where = f"{ledger.url.render_as_string()}, book '{ledger.book}'"
    if lacking <= 0:
        if there != claim.head:
            raise MachineError(
                f"{where}: is not this run's: its transaction {claim.count} has the hash {there}, in the {claim.who} "
                f"it is {claim.head}; {BACKUP}"
            )
        return []
    last = claim.lacking(tail.number)
    if last and _head(tail.hash, last) == claim.head:  # a run that was killed before it could write them
        ledger.post_rounds(last)
        return []
    found = f"{where}: has {tail.number} of the {claim.count} transactions that the {claim.who} knows of"
    records = _journal(folder, claim, found)
    if (records[tail.number - 1].hash if tail.number else GENESIS) != tail.hash:
        raise MachineError(f"{found}, and these are others than in {folder / JOURNAL}; {BACKUP}")
    ledger.post_rounds([(r.round, r.transaction) for r in records[tail.number :]])
    return [f"{found}; the others were written into it from {JOURNAL}"]


def _anew(url: str | Path, book: str, floor: int, claim: Claim, folder: Path, why: str) -> tuple[Ledger, list[str]]:
    """Set the ledger's file aside and write the book anew from the journal."""
    own = _own(url, folder)
    if own is None:
        raise MachineError(f"{why}; it is not in the run directory and stays as it is; {BACKUP}")
    records = _journal(folder, claim, why)
    aside = _set_aside(own)
    ledger = Ledger.open(url, book=book, floor=floor)
    try:
        ledger.post_rounds([(r.round, r.transaction) for r in records])
    except BaseException:
        ledger.close()
        raise
    kept = f" (what was there is now {aside.name})" if aside is not None else ""
    return ledger, [f"{why}; written anew from {JOURNAL}: {claim.count} transactions, head {claim.head}{kept}"]


def _journal(folder: Path, claim: Claim, why: str) -> list[Record]:
    """Return the claim's transactions from the journal. Raises MachineError with ``why`` they are needed unless they
    lead to the claim's head.
    """
    path, records, head = folder / JOURNAL, list[Record](), GENESIS
    try:
        with path.open("rb") as lines:
            for number in range(1, claim.count + 1):
                record = from_dict(json.loads(next(lines)))
                if digest(head, record.round, record.transaction) != record.hash or record.number != number:
                    raise ValueError
                records.append(record)
                head = record.hash
    except FileNotFoundError:
        lack = "is not there (an older hanse kept none)"
    except StopIteration:
        lack = f"ends after {len(records)} of {claim.count} transactions"
    except OSError as wrong:
        lack = f"cannot be read: {wrong.strerror}"
    except (ValueError, KeyError, TypeError, RecursionError):
        lack = f"is damaged in line {len(records) + 1}"
    else:
        if head == claim.head:
            return records
        lack = f"leads to the head {head}, the {claim.who} has {claim.head}"
    raise MachineError(f"{why}; it cannot be rebuilt: {path} {lack}; {BACKUP}")


def _head(head: str, transactions: Iterable[tuple[int, Transaction]]) -> str:
    for round_, transaction in transactions:
        head = digest(head, round_, transaction)
    return head


def _set_aside(file: Path) -> Path | None:
    """Rename the ledger's files and return the new name; None if there are none."""
    if not file.exists():
        return None
    number = next(n for n in range(1, 1000) if not file.with_name(f"{file.name}.damaged-{n}").exists())
    aside = file.with_name(f"{file.name}.damaged-{number}")
    for tail in ("-wal", "-shm", ""):  # the file last: until it is gone, the others belong to it
        part = file.with_name(file.name + tail)
        if part.exists():
            part.rename(aside.with_name(aside.name + tail))
    return aside
