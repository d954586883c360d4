"""An operator who rewrites what it holds: the log, its index, the checkpoints, the metrics, the rounds' files.

:func:`rewritten` puts another history into a run directory, consistent in every place that names it. :func:`restamped`
does the same for rounds' files that were changed. Both are for tests and for ``benchmarks/tamperings.py``.
"""

import base64
import io
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hanse.base.merkle import Tree, root_from
from hanse.core.book import Book
from hanse.core.entry import CLOSE, LOG, Transaction, leaf
from hanse.ledger.index import follow
from hanse.ledger.log import LogHead, heads_of
from hanse.ledger.receipts import NOTHING, Receipt, RecordDigest, close, closing_line, write_receipts
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.store import Issuer, Ledger
from hanse.runs import checkpoint
from hanse.runs.round_record import HASH, METRICS, SEATS, file_hash, round_file

History = list[tuple[int, Transaction]]


def history_of(folder: Path) -> History:
    """Return the transactions of a run's ledger, each with its round, without the closes."""
    return [
        (r.round, r.transaction)
        for r in Ledger.open(folder / LOG, book=book_name(folder), read_only=True).history()
        if r.transaction.kind != CLOSE
    ]


def book_name(folder: Path) -> str:
    return str(json.loads((folder / "ledger.json").read_text())["book"])


def rewritten(folder: Path, history: Sequence[tuple[int, Transaction]]) -> None:
    """Put another history into a run directory: log, index, closes, the heads in metrics and checkpoint, receipts."""
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    seats = [json.loads(line) for line in (folder / SEATS).read_text().splitlines()]
    ended = open_ledger(folder).as_book().round
    last = max([ended, *(number for number, _ in history), *(line["round"] for line in lines)])
    book, whole = Book(), list[tuple[int, Transaction]]()
    for number in range(last + 1):
        new = [t for r, t in history if r == number]
        book = book.post(number, new)
        facts = NOTHING
        for line in (one for one in lines if one["round"] == number):
            line["ledger/head"] = book.head
            facts = RecordDigest.of(line, [seat for seat in seats if seat["round"] == number])
        closing = close(number, book, new, facts)
        book = book.post(number, [closing])
        whole += [(number, t) for t in (*new, closing)]
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    for file in (folder / LOG, heads_of(folder / LOG)):
        file.unlink()
    ledger = Ledger.open(folder / LOG, book=book_name(folder))
    ledger.post_rounds(whole)
    follow(folder / "ledger.db", ledger, anew=True)
    newest, *older = sorted((folder / "checkpoints").glob("*.safetensors"), reverse=True)
    for file in older:
        file.unlink()
    snapshot = checkpoint.load(newest, torch.device("cpu"))
    state = replace(snapshot.state, book=replace(book, round=snapshot.state.book.round))
    lengths = {name: (folder / name).stat().st_size for name in snapshot.lengths}
    checkpoint.store(newest, replace(snapshot, state=state, lengths=lengths, pending=()))
    if (folder / "receipts").is_dir():  # the run's own copies
        shutil.rmtree(folder / "receipts")
        write_receipts(folder / "receipts", receipts_of(folder, last))


def receipts_of(folder: Path, first: int = 0) -> list[Receipt]:
    """Return what participants are told of a run, from a round on."""
    return list(Issuer(open_ledger(folder), folder, first).new())


def receipt(
    book: str = "b",
    round: int = 3,
    client: int = 1,
    count: int = 20,
    balance: int = 5,
    escrow: int = 0,
    postings: Sequence[tuple[str, str, int]] = (),
    other: int = 0,
    key: Ed25519PrivateKey | None = None,
) -> Receipt:
    """A receipt whose proof holds, of a book that nobody has; ``other`` makes another root."""
    said = {"round": round, "client": client, "balance": balance, "escrow": escrow, "postings": list(postings)}
    statement, record = json.dumps(said, separators=(",", ":")), bytes([other]) * 32
    proof = [bytes(32)] * (count - 1).bit_count()
    line = leaf(count, round, closing_line(record, Tree([statement.encode()]).root()))
    root = root_from(line, count - 1, count, proof)
    assert root is not None
    record64, proof64 = (base64.b64encode(blob).decode() for blob in (record, b"".join(proof)))
    return Receipt(statement, 0, 1, "", record64, proof64, LogHead(book, count, root, round).signed(key).note())


def restamped(folder: Path) -> None:
    """Write the hashes of the rounds' files anew, as they are now, and what the book has of them."""
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    for line in lines:
        line[HASH] = file_hash(io.BytesIO(round_file(folder, line["round"]).read_bytes()))
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    if (folder / LOG).exists():
        rewritten(folder, history_of(folder))


def recorded(folder: Path, round: int, **arrays: Any) -> None:
    """Put these arrays in the place of a round's file, and its hash with it."""
    np.savez(round_file(folder, round), **arrays)
    restamped(folder)


def altered(folder: Path, round: int, **arrays: Any) -> None:
    """Change arrays of a round's file, whose hash stays as it was."""
    with np.load(round_file(folder, round)) as stored:
        kept: Mapping[str, Any] = {**stored, **arrays}
    np.savez(round_file(folder, round), **kept)


def rerecorded(folder: Path, round: int, **arrays: Any) -> None:
    """Change arrays of a round's file, and its hash with it."""
    altered(folder, round, **arrays)
    restamped(folder)
