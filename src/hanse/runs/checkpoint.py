"""Checkpoints: everything needed to resume a run, in one safetensors file with a checksum, written atomically.

:func:`store` writes a :class:`Snapshot` and :func:`load` reads it back, bit for bit. Arrays and tensors are the file's
tensors. Everything else is JSON in the file's header ("notes", :mod:`hanse.runs.written`). Nothing is pickled, so a
stranger's checkpoint cannot run code. It also has the settings that were played, so
:func:`hanse.runs.run_record.edited_settings` can say whether ``config.toml`` still has them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hanse.base.errors import UserError, gated
from hanse.base.files import in_order, write_whole
from hanse.base.pytorch import Tensor, torch
from hanse.core.book import Book
from hanse.core.calling import States
from hanse.core.entry import Transaction
from hanse.core.recipe import History
from hanse.core.table import Block, Floats, Ints, Seats, Table, Updates
from hanse.ledger.run_ledger import BooksAtCheckpoint, pending_in, rows_of
from hanse.runs.arrivals import Flight, Underway
from hanse.runs.guards import restored
from hanse.runs.written import Reader, Writer

VERSION = 5  # of the format; a checkpoint of any other is refused
KINDS = {one.__name__: one for one in (Table, Block, Seats, Updates, History, Underway, Flight)}
NOTED = ("round", "finished", "book", "left", "accounts")  # of a state: they are read without PyTorch, or by a wing


class CorruptCheckpointError(Exception):
    """The file was truncated or changed. The checkpoint before it may still be intact."""


@dataclass(frozen=True)
class LoopState:
    """Everything that changes over a run; a checkpoint holds exactly this.

    Attributes:
        round: the number of the next round, from 0.
        table: the models in play, a row each.
        home: ``[N]``, the row from which each client starts.
        states: the parts' states, by :meth:`hanse.core.part.Mechanism.key`.
        book: the balances, and the hash of the last transaction.
        personal: ``[N, K]``, the weights with which each client mixes the table's rows into its personal model. None:
            no client has such a model.
        finished: whether :func:`hanse.runs.round.finish` has settled the last round.
        moved: ``[K]``, for each private row the round in which its owner's last accepted update was taken (NEVER:
            none). Rows beyond its end never did.
        history: what is remembered of clients' earlier training, if the recipe depends on it.
        held: ``[N]``, the row that each client holds, if it is not its home row. None: all hold their home rows.
        underway: who still trains, and the virtual clock.
        on_server: ``[2, K]``, loss and accuracy on the server's test set of rows that have not changed since they were
            tested (NaN: all other rows). Checkpoints keep it because scoring a row again in another batch may change
            its last bits.
        accounts: what each client of a simulation has spent of its privacy budget, by client. None: there are no
            budgets, or clients keep them themselves.
        left: the clients that have left the run (``hanse leave``), who are asked nothing more.
        memories: what behaviours keep from round to round, by their names.
        quit: the clients that answered a part's question that they do not stay, who are asked for no tests.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> from hanse.runs.round import first_state, play_round
        >>> session = rehearse("fedavg").session
        >>> state = first_state(session)
        >>> state.round, state.table.size, sorted(state.states)
        (0, 1, ['deploy', 'select', 'train', 'weigh'])
        >>> play_round(session, state).state.round
        1
    """

    round: int
    table: Table
    home: Ints
    states: States
    book: Book = field(default_factory=Book)
    personal: Floats | None = None
    finished: bool = False
    moved: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # no entry: never
    history: History | None = None
    held: Ints | None = None
    underway: Underway = field(default_factory=Underway)
    on_server: Floats | None = None
    accounts: Mapping[int, Any] | None = None
    left: frozenset[int] = frozenset()
    memories: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    quit: Ints = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass(frozen=True)
class Snapshot:
    """The contents of one checkpoint.

    Attributes:
        state: the loop's state.
        lengths: how many bytes of each line file belong to earlier rounds.
        pending: (round, transaction) since the previous checkpoint, which may not be in the ledger yet.
        settings: the experiment that was played, as ``config.toml`` had it. "": an earlier version of hanse did not
            keep it.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> Snapshot(rehearse("fedavg").played.state, {"metrics.jsonl": 120}).state.round
        1
    """

    state: LoopState
    lengths: Mapping[str, int]
    pending: tuple[tuple[int, Transaction], ...] = ()
    settings: str = ""

    @property
    def books(self) -> BooksAtCheckpoint:
        """What it says about the books."""
        return BooksAtCheckpoint(self.state.round, self.state.book.count, self.state.book.head, self.pending)


def own_copy(state: LoopState) -> LoopState:
    """Return a copy of a state. Parts and behaviours cannot change it by writing into arrays of theirs.

    Another thread writes the copy while the next round is played. Models are shared, because every round makes a new
    table.
    """
    states = {slot: {name: _copied(value) for name, value in of.items()} for slot, of in state.states.items()}
    memories = {name: {key: _copied(value) for key, value in of.items()} for name, of in state.memories.items()}
    arrays = {name: _copied(getattr(state, name)) for name in ("home", "held", "moved", "personal")}
    return replace(state, states=states, memories=memories, **arrays)


def _copied(value: Any) -> Any:
    """Return a copy of a tensor (on the CPU) or an array; anything else as it is."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _digest(arrays: Mapping[str, NDArray[Any]], notes: str) -> str:
    """Return the checksum of a checkpoint: BLAKE2b of its arrays by name, with their types and shapes, and of its
    notes.
    """
    hasher = hashlib.blake2b(notes.encode(), digest_size=20)
    for name, array in sorted(arrays.items()):
        hasher.update(f"{name}|{array.dtype}|{array.shape}|".encode())
        hasher.update(np.ascontiguousarray(array).data if array.size else b"")
    return hasher.hexdigest()


def store(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot to ``path``, atomically and flushed to the disk. Raises OSError.

    A request that a client still has to answer is not kept: after a restart nobody can match an answer to it
    (:attr:`Flight.lost`).
    """
    state, book, writer = snapshot.state, snapshot.state.book, Writer()
    flights = {client: replace(flight, request=None) for client, flight in state.underway.flights.items()}
    state = replace(state, underway=replace(state.underway, flights=flights))
    known = {
        "version": VERSION,
        "round": state.round,
        "finished": state.finished,
        "left": sorted(state.left),
        "lengths": dict(snapshot.lengths),
        "book": {
            "peaks": [peak.hex() for peak in book.peaks],
            **{name: getattr(book, name) for name in ("count", "floor", "round", "balances")},
        },
        "pending": rows_of(snapshot.pending),
        "settings": snapshot.settings,
        "state": writer.write({f.name: getattr(state, f.name) for f in fields(state) if f.name not in NOTED}),
    }
    if state.accounts is not None:
        known["accounts"] = {client: asdict(account) for client, account in sorted(state.accounts.items())}
    notes = json.dumps(known)
    blob = save(writer.arrays, {"notes": notes, "digest": _digest(writer.arrays, notes)})
    write_whole(path, blob, durable=True)


def _read(path: Path) -> tuple[dict[str, NDArray[Any]], str]:
    """Return a checkpoint's arrays, and its notes. Raises CorruptCheckpointError if its checksum is wrong."""
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError, TypeError, AttributeError) as wrong:  # the last two: a type that NumPy lacks
        raise CorruptCheckpointError(f"{path.name}: {wrong}") from None
    notes = metadata.get("notes", "")
    if metadata.get("digest") != _digest(arrays, notes):
        raise CorruptCheckpointError(f"{path.name}: the checksum does not match")
    return arrays, notes


def broken_checkpoints(folder: Path) -> list[str]:
    """Return a line for each checkpoint in a run directory that was damaged or changed after it was written."""
    broken = []
    for file in in_order(folder / "checkpoints", ".safetensors"):
        try:
            _read(file)
        except CorruptCheckpointError as wrong:
            if file.exists():  # a run that goes on has deleted it meanwhile
                broken.append(str(wrong))
    return broken


def load(path: Path, device: torch.device) -> Snapshot:
    """Read a snapshot.

    Args:
        path: the file.
        device: where models and the parts' tensors are put.

    Raises:
        CorruptCheckpointError: the file's checksum or form is wrong.
        UserError: another version of hanse, or somebody else, wrote the file.
    """
    arrays, notes = _read(path)
    with gated(f"{path}: cannot be read"):
        known = json.loads(notes)
        if known["version"] != VERSION:
            raise UserError(
                f"{path}: written by another version of hanse (format {known['version']}, this is {VERSION}): go on "
                "with it in the version that environment.json names, or play its config.toml again with 'hanse run'"
            )
        said = Reader(known["state"], arrays, KINDS, device).read(known["state"])
        book = Book(**known["book"] | {"peaks": tuple(map(bytes.fromhex, known["book"]["peaks"]))})
        kept = known.get("accounts")
        state = LoopState(
            known["round"], book=book, finished=known["finished"], left=frozenset(known["left"]),
            accounts=None if kept is None else restored(kept), **said,
        )  # fmt: skip
        if not isinstance(state.table, Table) or state.table.rows.ndim != 2:
            raise ValueError("has no table of models")
        return Snapshot(state, known["lengths"], pending_in(known["pending"]), known.get("settings", ""))
