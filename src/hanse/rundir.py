"""The run directory: what a run leaves on disk, and how a resumed run finds its place again.

A round becomes part of the run with its checkpoint: lines and files of rounds after the last checkpoint are cut off on
resume and made again, bit for bit. Its transactions are in the checkpoint too, and are written into the ledger right
after it: the ledger is never ahead of the run, and a resumed run writes what a crash kept from it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import torch

from hanse import checkpoint
from hanse.checkpoint import CorruptCheckpointError, Snapshot
from hanse.config import Experiment
from hanse.errors import UserError
from hanse.ledger.book import Book
from hanse.ledger.entry import TOKEN, Transaction
from hanse.rounds import LoopState, Played

if TYPE_CHECKING:
    from hanse.ledger.store import Ledger

__all__ = ["RunDir", "read_lines"]

LINE_FILES = ("metrics.jsonl", "clients.jsonl")
EARLIER = ("federation.json", "members.json", "members.tmp", "operator.jsonl")  # of a network, before the run
KEEP = 3  # checkpoints: the last one, and two to fall back on


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the complete lines of a JSON-lines file; a torn last line (a run in progress) is left out."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


@dataclass
class RunDir:
    """An open run directory. Use :meth:`create` or :meth:`reopen`, then :meth:`append` each round, then
    :meth:`close`.
    """

    path: Path
    _files: dict[str, BinaryIO] = field(default_factory=dict)
    _ledger: Ledger | None = None
    _pending: list[tuple[int, Transaction]] = field(default_factory=list)

    @staticmethod
    def create(path: Path, experiment: Experiment, *, overwrite: bool = False, books: bool = False) -> RunDir:
        """Make a new run directory, with a ledger if there will be ``books``.

        Raises UserError if it exists (unless ``overwrite``) or cannot be written.
        """
        if path.exists() and any(p.name not in EARLIER for p in (path.iterdir() if path.is_dir() else [path])):
            if not overwrite:
                raise UserError(
                    f"--out {path}: exists already; give another folder, --overwrite, or 'hanse resume {path}'"
                )
            if not (path / "config.toml").exists():
                raise UserError(f"--out {path}: is not a run directory, so --overwrite will not delete it")
            shutil.rmtree(path)
        try:
            (path / "rounds").mkdir(parents=True, exist_ok=True)
            (path / "checkpoints").mkdir(exist_ok=True)
            (path / "config.toml").write_text(experiment.to_toml())
            (path / "environment.json").write_text(json.dumps(_environment(), indent=1) + "\n")
        except OSError as wrong:
            raise UserError(f"--out {path}: cannot be written: {wrong.strerror}") from None
        if books:
            (path / "ledger.json").write_text(json.dumps({"book": uuid.uuid4().hex}) + "\n")
        return RunDir(path)._open(experiment)

    @staticmethod
    def reopen(path: Path, experiment: Experiment, device: torch.device) -> tuple[RunDir, Snapshot | None, list[str]]:
        """Open a run directory to go on: return it, the last sound checkpoint, and what had to be passed over.

        Whatever lies after that checkpoint is cut off, and its transactions are in the ledger.
        """
        if not (path / "config.toml").exists():
            raise UserError(f"{path}: is not a run directory (it has no config.toml)")
        said: list[str] = []
        snapshot = None
        for file in sorted((path / "checkpoints").glob("*.safetensors"), reverse=True):
            try:
                snapshot = _whole(path, checkpoint.load(file, device), file.name)
                break
            except CorruptCheckpointError as wrong:
                said.append(f"corrupt checkpoint {wrong}; using the one before it")
                file.rename(file.with_suffix(".corrupt"))
        lengths = dict.fromkeys(LINE_FILES, 0) if snapshot is None else snapshot.lengths
        if said and snapshot is None:
            said.append("no sound checkpoint is left; starting again from round 0")
        for name, length in lengths.items():
            if (path / name).exists():
                os.truncate(path / name, length)
        finished = 0 if snapshot is None else snapshot.state.round
        for record in (path / "rounds").glob("*.npz"):
            if int(record.stem) >= finished:
                record.unlink()
        folder = RunDir(path)._open(experiment)
        if snapshot is not None:
            folder._pending = list(snapshot.pending)
            folder._post()
        return folder, snapshot, said

    def _open(self, experiment: Experiment) -> RunDir:
        self._files = {name: (self.path / name).open("ab") for name in LINE_FILES}
        if (self.path / "ledger.json").exists():
            from hanse.ledger.store import Ledger  # here: databases take a while to import, and few runs need them

            book = json.loads((self.path / "ledger.json").read_text())["book"]
            url = experiment.ledger.url or f"sqlite:///{self.path / 'ledger.db'}"
            self._ledger = Ledger.open(url, book=book, floor=round(experiment.ledger.floor * TOKEN))
        return self

    def append(
        self,
        metrics: Mapping[str, Any],
        seats: Sequence[Mapping[str, Any]],
        played: Played,
        more: Mapping[str, np.ndarray],
    ) -> None:
        """Write one finished round's lines and arrays."""
        arrays: dict[str, Any] = {**_arrays(played), **more}
        self.owe(played.view.round, played.view.posted)
        np.savez(self.path / "rounds" / f"{played.view.round:05d}.npz", **arrays)
        for name, lines in (("clients.jsonl", seats), ("metrics.jsonl", [metrics])):
            file = self._files[name]
            file.write("".join(json.dumps(line) + "\n" for line in lines).encode())
            file.flush()

    def owe(self, round: int, transactions: Sequence[Transaction]) -> None:
        """Keep a round's transactions for the next checkpoint."""
        self._pending += [(round, t) for t in transactions]

    def checkpoint(self, state: LoopState) -> None:
        """Make everything so far part of the run, and write the transactions since the last time into the ledger."""
        lengths = {name: file.tell() for name, file in self._files.items()}
        folder = self.path / "checkpoints"
        checkpoint.store(folder / f"{state.round:05d}.safetensors", Snapshot(state, lengths, tuple(self._pending)))
        self._post()
        for old in sorted(folder.glob("*.safetensors"))[:-KEEP]:
            old.unlink()

    def _post(self) -> None:
        if self._ledger is not None:
            for round in sorted({r for r, _ in self._pending}):
                self._ledger.post(round, [t for r, t in self._pending if r == round])
        self._pending = []

    def receipts(self, round: int, book: Book, posted: Sequence[Transaction]) -> None:
        """Write what each participant keeps of the finished run into ``receipts/``, to hold the books against it."""
        if self._ledger is None:
            return
        from hanse.ledger.receipts import make_receipts, write_receipts

        names = [account.partition("/") for account in book.balances]
        clients = sorted(int(number) for kind, _, number in names if kind == "client")
        write_receipts(self.path / "receipts", make_receipts(self._ledger.book, round, book, posted, clients))

    def metrics(self) -> list[dict[str, Any]]:
        """Return the rounds so far."""
        return read_lines(self.path / "metrics.jsonl")

    def clients(self) -> Iterator[dict[str, Any]]:
        """Yield the seats so far."""
        yield from read_lines(self.path / "clients.jsonl")

    def close(self) -> None:
        """Close the line files and the ledger."""
        for file in self._files.values():
            file.close()
        self._files = {}
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None


def _whole(path: Path, snapshot: Snapshot, name: str) -> Snapshot:
    """Return the snapshot if the line files are as long as it says. Raises CorruptCheckpointError otherwise."""
    for file, length in snapshot.lengths.items():
        size = (path / file).stat().st_size if (path / file).exists() else 0
        if size < length:
            raise CorruptCheckpointError(f"{name}: {file} has {size} bytes of the {length} that it should have")
    return snapshot


def _arrays(played: Played) -> dict[str, np.ndarray]:
    """Return what ``rounds/NNNNN.npz`` holds: seats, W in coordinates, home if it changed, values, refusals."""
    view = played.view
    seats, updates, mixed = view.seats, view.trained, view.mixed
    row, column = np.nonzero(mixed.W)
    arrays = {
        "client": np.zeros(0, np.int64) if seats is None else seats.client,
        "start": np.zeros(0, np.int64) if seats is None else seats.start,
        "answered": updates.seats.client,
        "num_samples": updates.num_samples,
        "loss": updates.loss,
        "steps": updates.steps,
        "W_row": row,
        "W_column": column,
        "W_weight": mixed.W[row, column],
        "W_shape": np.array(mixed.W.shape),
        "refused": np.array([c for c, _ in view.refusals], np.int64),
        "reason": np.array([r for _, r in view.refusals], np.str_),
    }
    if view.values is not None:
        arrays["value"] = view.values.per_seat
        if view.values.standard_errors is not None:
            arrays["value_error"] = view.values.standard_errors
        if view.values.without_block is not None:
            arrays["value_without_block"] = view.values.without_block
    if view.settlement is not None:
        arrays |= view.settlement.arrays
        arrays["withheld"] = np.array(sorted(view.settlement.withheld), np.int64)
    if not np.array_equal(mixed.home, view.home) or view.round == 0:
        arrays["home"] = mixed.home
    return arrays


def _environment() -> dict[str, Any]:
    packages = ("hanse", "torch", "numpy", "scipy", "scikit-learn", "pydantic", "sqlalchemy", "safetensors")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: version(name) for name in packages},
    }
