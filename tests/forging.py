"""An operator who rewrites what it holds: the ledger, the journal, the checkpoints, the metrics, the rounds' files.

:func:`rewritten` puts another history into a run directory, consistent in every place that names it. :func:`restamped`
does the same for rounds' files that were changed. Both are for tests and for ``benchmarks/forgeries.py``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hanse.core.book import Book
from hanse.core.entry import JOURNAL, Transaction
from hanse.ledger.export import line_of
from hanse.ledger.receipts import make_receipts, read_receipts
from hanse.ledger.store import Ledger
from hanse.runs import checkpoint
from hanse.runs.record import HASH, METRICS, file_hash, round_file

History = list[tuple[int, Transaction]]


def history_of(folder: Path) -> History:
    """Return the transactions of a run's ledger, each with its round."""
    with Ledger.open(folder / "ledger.db", book=book_name(folder), read_only=True) as ledger:
        return [(record.round, record.transaction) for record in ledger.history()]


def book_name(folder: Path) -> str:
    return str(json.loads((folder / "ledger.json").read_text())["book"])


def rewritten(folder: Path, history: Sequence[tuple[int, Transaction]]) -> None:
    """Put another history into a run directory: ledger, journal, the heads in metrics and checkpoint, receipts."""
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (folder / name).unlink(missing_ok=True)
    with Ledger.open(folder / "ledger.db", book=book_name(folder)) as ledger:
        ledger.post_rounds(history)
        journal = "".join(map(line_of, ledger.history()))
        book = ledger.as_book()
    heads, after = {}, Book()
    last = max(number for number, _ in history)
    for number in range(last + 1):
        after = after.post(number, [t for r, t in history if r == number])
        heads[number] = after.head
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    for line in lines:
        line["ledger/head"] = heads[min(line["round"], last)]
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / JOURNAL).write_text(journal)
    newest, *older = sorted((folder / "checkpoints").glob("*.safetensors"), reverse=True)
    for file in older:
        file.unlink()
    snapshot = checkpoint.load(newest, torch.device("cpu"))
    state = replace(snapshot.state, book=replace(book, round=snapshot.state.book.round))
    lengths = {name: (folder / name).stat().st_size for name in snapshot.lengths}
    checkpoint.store(newest, replace(snapshot, state=state, lengths=lengths, pending=()))
    if (folder / "receipts").is_dir():  # the run's own copies
        number = max(r.round for r in read_receipts(folder / "receipts"))
        posted = [t for r, t in history if r == number]
        for receipt in make_receipts(book_name(folder), number, after, posted, None):
            (folder / "receipts" / f"client-{receipt.client}.jsonl").write_text(json.dumps(asdict(receipt)) + "\n")


def restamped(folder: Path) -> None:
    """Write the hashes of the rounds' files anew, as they are now."""
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    for line in lines:
        line[HASH] = file_hash(io.BytesIO(round_file(folder, line["round"]).read_bytes()))
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


def rerecorded(folder: Path, round: int, **arrays: Any) -> None:
    """Change arrays of a round's file, and its hash with it."""
    file = round_file(folder, round)
    with np.load(file) as stored:
        kept: Mapping[str, Any] = {**stored, **arrays}
    np.savez(file, **kept)
    restamped(folder)
