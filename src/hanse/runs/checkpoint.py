"""Checkpoints: everything needed to resume a run, in one safetensors file with a checksum, written atomically.

:func:`store` writes a :class:`Snapshot` and :func:`load` reads it back, bit for bit. Arrays and tensors are the file's
tensors. Everything else is JSON in the file's header ("notes"). Nothing is pickled, so a stranger's checkpoint cannot
run code. It also has the settings that were played, so :func:`edited_settings` can say whether ``config.toml`` still
has them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open

from hanse.base.errors import UserError
from hanse.base.files import whole_file
from hanse.base.pytorch import Tensor, torch
from hanse.core.book import Book
from hanse.core.calling import States
from hanse.core.entry import Transaction
from hanse.core.part import State
from hanse.core.recipe import History
from hanse.core.table import Block, Floats, Ints, Seats, Table, Updates
from hanse.runs.arrivals import Flight, Underway
from hanse.runs.guards import restored

ARRAYS = {  # of a state, by their names in the file; few states have the last three
    "home": "table/home", "moved": "table/moved", "held": "table/held",
    "personal": "personal", "on_server": "on_server",
}  # fmt: skip
HISTORY = ("steps", "last", "statistics")
VERSION = 4  # of the format; a checkpoint of any other is refused


class CorruptCheckpointError(Exception):
    """The file was truncated or changed. The checkpoint before it may still be intact."""


@dataclass(frozen=True)
class LoopState:
    """Everything that changes over a run; a checkpoint holds exactly this.

    Attributes:
        round: the number of the next round, from 0.
        table: the models in play, a row each.
        home: ``[N]``, the row from which each client starts.
        states: the parts' states, by :meth:`hanse.runs.setup.Session.key`.
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

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> from hanse.runs.round import first_state, play_round
        >>> session = rehearse("fedavg").setup
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


def own_copy(state: LoopState) -> LoopState:
    """Return a copy of a state. Parts cannot change it by writing into arrays of theirs.

    Another thread writes the copy while the next round is played. Models are shared, because every round makes a new
    table.
    """
    states = {slot: {name: _copied(value) for name, value in of.items()} for slot, of in state.states.items()}
    arrays = {name: _copied(getattr(state, name)) for name in ("home", "held", "moved", "personal")}
    return replace(state, states=states, **arrays)


def _copied(value: Any) -> Any:
    """Return a copy of a tensor (on the CPU) or an array; anything else as it is."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _digest(tensors: Mapping[str, Tensor | np.ndarray], notes: str) -> str:
    """Return the checksum of a checkpoint: BLAKE2b of its tensors by name, with their types and shapes, and of its
    notes.
    """
    hasher = hashlib.blake2b(notes.encode(), digest_size=20)
    for name in sorted(tensors):
        array = np.asarray(tensors[name])
        hasher.update(f"{name}|{array.dtype}|{array.shape}|".encode())
        hasher.update(np.ascontiguousarray(array).data if array.size else b"")
    return hasher.hexdigest()


def _stored(value: Tensor | np.ndarray) -> Tensor:
    """Return a tensor or an array as a file takes it. Arrays are copied, as two names may stand for one array."""
    return torch.tensor(value) if isinstance(value, np.ndarray) else value.detach().cpu().contiguous()


def _split(states: Mapping[str, State]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the states' arrays and tensors by "state/slot/name", and their plain values by the same names.

    An array is marked by "numpy:" and its name, so it is not read back as a tensor.
    """
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for slot, state in states.items():
        for name, value in state.items():
            key = f"state/{slot}/{name}"
            if isinstance(value, Tensor | np.ndarray):
                tensors[key] = _stored(_copied(value))
                plain |= {f"numpy:{key}": True} if isinstance(value, np.ndarray) else {}
            elif value is None or isinstance(value, bool | int | float | str):
                plain[key] = value
            else:
                raise TypeError(f"{key}: a state holds tensors, arrays, numbers, strings, not {type(value).__name__}")
    return tensors, plain


def _split_flights(underway: Underway) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return what clients still train, as tensors by "flight/place/name" and as plain values in the same order.

    A flight's request is not kept: after a restart nobody can match an answer to it (:attr:`Flight.lost`).
    """
    tensors: dict[str, Tensor] = {}
    plain: list[dict[str, Any]] = []
    for place, flight in enumerate(underway.flights.values()):
        key, seats, updates = f"flight/{place}", flight.seats, flight.updates
        known = {name: getattr(seats, name).tolist() for name in ("client", "start", "target")}
        plain.append({"round": flight.round, "due": flight.due, "refused": flight.refused, **known})
        if updates is None:
            continue
        tensors[f"{key}/start"] = _stored(flight.start)
        for name in ("rows", "num_samples", "loss", "steps"):
            tensors[f"{key}/{name}"] = _stored(getattr(updates, name))
        plain[-1]["metrics"] = [dict(one) for one in updates.metrics]
        tensors |= {f"{key}/extras/{name}": _stored(extra) for name, extra in updates.extras.items()}
    return tensors, plain


def _flights(
    tensors: Mapping[str, Tensor], plain: Sequence[Mapping[str, Any]], device: torch.device
) -> dict[int, Flight]:
    """Return what clients still train, by client, as :func:`_split_flights` took it apart."""
    flights: dict[int, Flight] = {}
    for place, known in enumerate(plain):
        key = f"flight/{place}"
        client, begun, target = (np.array(known[name], np.int64) for name in ("client", "start", "target"))
        seats = Seats(client, begun, target)
        updates, start = None, torch.zeros(0, device=device)
        if f"{key}/rows" in tensors:
            start, rows = (tensors[f"{key}/{name}"].to(device) for name in ("start", "rows"))
            samples, loss, steps = (tensors[f"{key}/{name}"].numpy() for name in ("num_samples", "loss", "steps"))
            mine = f"{key}/extras/"
            extras = {n.removeprefix(mine): x.to(device) for n, x in tensors.items() if n.startswith(mine)}
            updates = Updates(seats, rows, samples, loss, steps, extras, known["metrics"])
        flight = Flight(known["round"], seats, start, known["due"], updates, known["refused"])
        flights[flight.client] = flight
    return flights


def store(path: Path, snapshot: Snapshot) -> None:
    """Write a snapshot to ``path``, atomically and flushed to the disk. Raises OSError."""
    state = snapshot.state
    tensors, plain = _split(state.states)
    tensors |= {f"table/{name}": _stored(getattr(state.table, name)) for name in ("rows", "owner", "block")}
    arrays = {key: getattr(state, name) for name, key in ARRAYS.items()}
    tensors |= {key: _stored(array) for key, array in arrays.items() if array is not None}
    if state.history is not None:
        tensors |= {f"history/{name}": _stored(getattr(state.history, name)) for name in HISTORY}
    flights, underway = _split_flights(state.underway)
    tensors |= flights
    book = state.book
    known = {
        "version": VERSION,
        "round": state.round,
        "finished": state.finished,
        "left": sorted(state.left),
        "slots": list(state.states),
        "blocks": [asdict(block) for block in state.table.blocks],
        "plain": plain,
        "lengths": dict(snapshot.lengths),
        "book": {
            "peaks": [peak.hex() for peak in book.peaks],
            **{name: getattr(book, name) for name in ("count", "floor", "round", "balances")},
        },
        "pending": [[r, t.step, t.kind, t.memo, t.postings] for r, t in snapshot.pending],
        "settings": snapshot.settings,
    }
    if state.accounts is not None:
        known["accounts"] = {client: asdict(account) for client, account in sorted(state.accounts.items())}
    if underway or state.underway.clock:
        known |= {"clock": state.underway.clock, "flights": underway}
    notes = json.dumps(known, sort_keys=True)
    from safetensors.torch import save  # late: it imports torch

    with whole_file(path, durable=True) as file:
        file.write(save(tensors, {"notes": notes, "digest": _digest(tensors, notes)}))


def _read(path: Path, form: Literal["pt", "np"] = "pt") -> tuple[dict[str, Any], str]:
    """Return a checkpoint's tensors (or arrays, in the form "np"), and its notes. Raises CorruptCheckpointError if its
    checksum is wrong.
    """
    try:
        with safe_open(path, form) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as wrong:
        raise CorruptCheckpointError(f"{path.name}: {wrong}") from None
    notes = metadata.get("notes", "")
    if metadata.get("digest") != _digest(tensors, notes):
        raise CorruptCheckpointError(f"{path.name}: the checksum does not match")
    return tensors, notes


def broken_checkpoints(folder: Path) -> list[str]:
    """Return a line for each checkpoint in a run directory that was damaged or changed after it was written."""
    broken = []
    for file in sorted((folder / "checkpoints").glob("*.safetensors")):
        try:
            _read(file, "np")  # which needs no torch
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
        UserError: another version of hanse wrote the file.
    """
    tensors, notes = _read(path)
    known = json.loads(notes)
    if known["version"] != VERSION:
        raise UserError(
            f"{path}: written by another version of hanse (format {known['version']}, this is {VERSION}): go on "
            "with it in the version that environment.json names, or play its config.toml again with 'hanse run'"
        )
    states: dict[str, dict[str, Any]] = {slot: {} for slot in known["slots"]}
    for key, value in known["plain"].items():
        if not key.startswith("numpy:"):
            _, slot, name = key.split("/", 2)
            states[slot][name] = value
    for key, tensor in tensors.items():
        if key.startswith("state/"):
            _, slot, name = key.split("/", 2)
            states[slot][name] = tensor.numpy() if f"numpy:{key}" in known["plain"] else tensor.to(device)
    blocks = tuple(Block(**block) for block in known["blocks"])
    table = Table(
        tensors["table/rows"].to(device), tensors["table/owner"].numpy(), tensors["table/block"].numpy(), blocks
    )
    arrays: dict[str, Any] = {name: tensors[key].numpy() for name, key in ARRAYS.items() if key in tensors}
    history = None
    if "history/steps" in tensors:
        steps, last, statistics = (tensors[f"history/{name}"] for name in HISTORY)
        history = History(steps.numpy(), last.numpy(), statistics.to(device))
    book = Book(**known["book"] | {"peaks": tuple(map(bytes.fromhex, known["book"]["peaks"]))})
    kept = known.get("accounts")
    underway = Underway(known.get("clock", 0.0), _flights(tensors, known.get("flights", ()), device))
    state = LoopState(
        known["round"], table, states=states, book=book,
        finished=known["finished"], history=history, underway=underway, **arrays,
        accounts=None if kept is None else restored(kept), left=frozenset(known.get("left", ())),
    )  # fmt: skip
    pending = tuple(
        (r, Transaction(step, kind, tuple((account, units) for account, units in rows), memo))
        for r, step, kind, memo, rows in known["pending"]
    )
    return Snapshot(state, known["lengths"], pending, known.get("settings", ""))
