"""Opens the ledger of a run that is resumed, completes it, and rebuilds one that is lost or damaged.

A run keeps every transaction twice: in the ledger, and as a line of its journal, ``transactions.jsonl`` (the format of
``hanse ledger export -f json``). The last transactions are also in the checkpoint, which names the head of the hash
chain. That head decides what is right: nothing is written into a ledger unless it leads to it.

``resume`` calls :func:`open_books`, and ``hanse ledger rebuild`` calls :func:`rebuild_run`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hanse.base.errors import MachineError
from hanse.base.files import write_whole
from hanse.base.lock import Hold
from hanse.core.book import DamagedError, LedgerError
from hanse.core.entry import GENESIS, JOURNAL, Transaction, digest
from hanse.ledger.export import line_of
from hanse.ledger.place import Claim, JournalError, journal_of, latest_claim, place_of
from hanse.ledger.store import Ledger, Record, hash_of, tail_of
from hanse.ledger.verify import verify

# the end of messages about books that cannot be rebuilt
BACKUP = "'hanse ledger restore FILE DIR' brings back a backup"


def open_books(url: str | Path, book: str, floor: int, claim: Claim, folder: Path) -> tuple[Ledger, list[str]]:
    """Open the ledger of a run, complete it, and return it with what had to be mended.

    Transactions that the ledger lacks are written into it, from the checkpoint's pending ones or else from the journal.
    A ledger file in the run directory that is missing or damaged is written anew from the journal, and a damaged one is
    kept under another name.

    Args:
        url: the database, a URL or the path of an SQLite file.
        book: the book's name.
        floor: the book's floor in units.
        claim: what the checkpoint says about the books.
        folder: the run directory.

    Returns:
        the open ledger, and a line in words for each repair (mostly none).

    Raises:
        MachineError: the ledger cannot be completed or rebuilt. Nothing was changed.
        LedgerError: the database cannot be opened.
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
    """Repair the ledger of a run directory and return a line in words for each repair; none if the books hold.

    This does what :func:`open_books` does, then verifies the whole book and writes it anew from the journal if it does
    not hold.

    Args:
        folder: the run directory.
        ledger_url: where the books are, if not in the directory.

    Raises:
        UserError: it is no run directory with a ledger, or the run is in use.
        MachineError: the ledger cannot be rebuilt.
    """
    url, book = place_of(folder, ledger_url)
    with Hold(folder) as hold:
        hold.take()
        claim = latest_claim(folder)
        if claim is None:
            raise MachineError(f"{folder}: no checkpoint says which books are right; {BACKUP}")
        try:
            return _rebuilt(url, book, claim, folder)
        except LedgerError as wrong:
            raise MachineError(str(wrong)) from None


def _rebuilt(url: str | Path, book: str, claim: Claim, folder: Path) -> list[str]:
    """Repair and verify the book, write it anew if it does not hold, and return what was done."""
    ledger, said = open_books(url, book, claim.floor, claim, folder)
    with ledger:
        wrong = verify(ledger, heads=claim.heads).wrong
    if wrong is None:
        return said
    ledger, more = _anew(url, book, claim.floor, claim, folder, wrong)
    with ledger:
        still = verify(ledger, heads=claim.heads).wrong
    if still is not None:
        raise MachineError(f"{folder}: the book that was written anew does not hold either: {still}")
    return [*said, *more]


def rewrite_journal(ledger: Ledger, count: int, path: Path) -> None:
    """Write the journal anew, with the first ``count`` transactions of the ledger.

    Args:
        ledger: the open ledger.
        count: how many transactions the journal is to have.
        path: the journal.
    """
    records = (record for record in ledger.history() if record.number <= count)
    write_whole(path, "".join(map(line_of, records)), durable=True)


def _own(url: str | Path, folder: Path) -> Path | None:
    """Return the ledger's file if it is ``ledger.db`` of the run directory, else None.

    Only this file may be set aside and replaced: a database elsewhere may hold books of other runs.
    """
    file = folder / "ledger.db"
    return file if url in (file, f"sqlite:///{file}") else None


def _catch_up(ledger: Ledger, claim: Claim, folder: Path) -> list[str]:
    """Write what the ledger lacks of the claimed transactions, and return what to tell the user about it.

    Raises MachineError if the ledger's transactions are not the first ones of the claimed chain.
    """
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
    # The usual case: the run was killed after the checkpoint and before it wrote its pending transactions. Nothing was
    # damaged, so nothing is said.
    if last and _head(tail.hash, last) == claim.head:
        ledger.post_rounds(last)
        return []
    found = f"{where}: has {tail.number} of the {claim.count} transactions that the {claim.who} knows of"
    records = _journal(folder, claim, found)
    if (records[tail.number - 1].hash if tail.number else GENESIS) != tail.hash:
        raise MachineError(f"{found}, and they differ from those in {folder / JOURNAL}; {BACKUP}")
    ledger.post_rounds([(r.round, r.transaction) for r in records[tail.number :]])
    return [f"{found}; the others were written into it from {JOURNAL}"]


def _anew(url: str | Path, book: str, floor: int, claim: Claim, folder: Path, why: str) -> tuple[Ledger, list[str]]:
    """Set the ledger's file aside, write the book anew from the journal, and return it with a line that says so.

    Args:
        url, book, floor, claim, folder: as in :func:`open_books`.
        why: what is wrong with the present ledger; the start of every message.

    Raises:
        MachineError: the ledger is not the run's own file, or the journal does not lead to the claimed head.
    """
    own = _own(url, folder)
    if own is None:
        raise MachineError(f"{why}; it is not in the run directory and stays as it is; {BACKUP}")
    records = _journal(folder, claim, why)  # read and checked as a whole before anything is touched
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
    """Return the claimed transactions from the journal. Raises MachineError unless they lead to the claimed head.

    ``why`` they are needed is the start of the message.
    """
    try:
        return list(journal_of(folder, claim))
    except JournalError as lack:
        raise MachineError(f"{why}; it cannot be rebuilt: {folder / JOURNAL} {lack}; {BACKUP}") from None


def _head(head: str, transactions: Iterable[tuple[int, Transaction]]) -> str:
    """Return the hash of the last of these transactions, if they follow ``head``."""
    for round_, transaction in transactions:
        head = digest(head, round_, transaction)
    return head


def _set_aside(file: Path) -> Path | None:
    """Rename the ledger's files to ``ledger.db.damaged-N`` and return that name; None if there is no ledger."""
    if not file.exists():
        return None
    number = next(n for n in range(1, 1000) if not file.with_name(f"{file.name}.damaged-{n}").exists())
    aside = file.with_name(f"{file.name}.damaged-{number}")
    # The main file is renamed last, so that an interruption never leaves an old -wal file beside a new ledger.db.
    for tail in ("-wal", "-shm", ""):
        part = file.with_name(file.name + tail)
        if part.exists():
            part.rename(aside.with_name(aside.name + tail))
    return aside
