"""The model table: every model in play is one row, and a round is ``M' = W [U; M]``.

``M`` is ``[K, P]``: one flattened model a row, parameters first, then float buffers (batch-norm statistics). Distances,
norms and proximal terms use the first ``Layout.num_parameters`` columns only; mixing uses all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

__all__ = ["SERVER", "Floats", "Ints", "Layout", "Mix", "Seats", "Table", "Updates", "mix"]

SERVER = -1  # the owner of a row that the server holds

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a module lies in a flat row.

    ``names`` and ``shapes`` list the parameters in ``module.named_parameters()`` order, then the float buffers;
    ``offsets`` has one entry more than names. Integer buffers (counters) are not part of a row and are not mixed.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]
    num_parameters: int  # columns that are parameters
    size: int  # P: parameters and float buffers

    @staticmethod
    def of(module: nn.Module) -> Layout:
        """Return the layout of any module. Raises ValueError if it has no parameters."""
        parameters = list(module.named_parameters())
        if not parameters:
            raise ValueError("the model has no parameters to train")
        buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        offsets = [0]
        for _, tensor in parameters + buffers:
            offsets.append(offsets[-1] + tensor.numel())
        return Layout(
            names=tuple(n for n, _ in parameters + buffers),
            shapes=tuple(t.shape for _, t in parameters + buffers),
            offsets=tuple(offsets),
            num_parameters=offsets[len(parameters)],
            size=offsets[-1],
        )

    def _blocks(self) -> Iterator[tuple[str, torch.Size, int, int]]:
        return zip(self.names, self.shapes, self.offsets[:-1], self.offsets[1:], strict=True)

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the module's parameters and float buffers as one new row ``[P]`` (float32)."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        return torch.cat([tensors[name].detach().reshape(-1).float() for name in self.names])

    def unflatten(self, rows: Tensor) -> dict[str, Tensor]:
        """Return named views of ``rows [..., P]``; each has shape ``[..., *shape]`` and shares memory."""
        lead = rows.shape[:-1]
        return {n: rows[..., a:b].view(*lead, *shape) for n, shape, a, b in self._blocks()}

    def load(self, module: nn.Module, row: Tensor) -> None:
        """Copy a row ``[P]`` into the module in place."""
        tensors: dict[str, Tensor] = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in self.unflatten(row).items():
                tensors[name].copy_(value)


@dataclass(frozen=True)
class Table:
    """The models in play: ``rows [K, P]`` float32 and each row's ``owner`` (-1 server, else a client id) ``[K]``."""

    rows: Tensor
    owner: Ints

    @property
    def size(self) -> int:
        """The number of rows, K."""
        return int(self.rows.shape[0])

    @staticmethod
    def of(rows: Tensor, owner: Ints | None = None) -> Table:
        """Make a table; every row belongs to the server unless ``owner`` says otherwise."""
        if owner is None:
            owner = np.full(rows.shape[0], SERVER, dtype=np.int64)
        return Table(rows, owner)


@dataclass(frozen=True)
class Seats:
    """The places at one round's training, S of them; a client may hold several.

    ``client``, ``start`` and ``target`` are ``[S]`` int64: who trains, from which row, and which row its update goes
    to (the group that averaging acts in; by default where it started). ``R [S, K]`` with ``mu [S]`` is the proximal
    pull ``mu/2 |theta - R M|^2`` and ``L [S, K]`` the tilt ``<L M, theta>``; ``None`` means absent.
    """

    client: Ints
    start: Ints
    target: Ints
    R: Floats | None = None
    mu: Floats | None = None
    L: Floats | None = None

    def __len__(self) -> int:
        return len(self.client)

    @staticmethod
    def at(client: Ints, start: Ints) -> Seats:
        """Seat each client at its start row, which is also its target; no pull, no tilt."""
        client, start = np.asarray(client, np.int64), np.asarray(start, np.int64)
        return Seats(client, start, start)

    def take(self, keep: Ints) -> Seats:
        """Return the seats with these positions, in this order."""
        R, mu, L = (None if a is None else a[keep] for a in (self.R, self.mu, self.L))
        return Seats(self.client[keep], self.start[keep], self.target[keep], R, mu, L)

    def groups(self) -> dict[int, Ints]:
        """Return, by target row in ascending order, the positions of the seats that train it."""
        return {int(k): np.flatnonzero(self.target == k) for k in np.unique(self.target)}


@dataclass(frozen=True)
class Updates:
    """What came back and was accepted: ``rows [S, P]``, the *reported* ``num_samples [S]``, mean training ``loss [S]``,
    optimiser ``steps [S]``, and extras by name, each ``[S, ...]``. ``seats`` are the seats that answered, same order.
    """

    seats: Seats
    rows: Tensor
    num_samples: Floats
    loss: Floats
    steps: Ints
    extras: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.seats)


@dataclass(frozen=True)
class Mix:
    """The proposed table ``M' = W [U; M]``: ``W [K', S + K]`` float64, its rows' ``owner [K']``, and ``home [N]``, the
    row that each client starts from next. Keeping row k is the unit column ``S + k``; K' may differ from K.
    ``metrics`` are recorded with the round, and so is who was ``refused``: (client, reason).
    """

    W: Floats
    owner: Ints
    home: Ints
    metrics: Mapping[str, float] = field(default_factory=dict)
    refused: tuple[tuple[int, str], ...] = ()


_COLUMNS = 1 << 20  # elements of the float64 copy at a time, so that mixing needs no second table


def mix(W: Floats, updates: Tensor, table: Tensor) -> Tensor:
    """Return ``M' = W [U; M]`` as float32 ``[K', P]`` for ``updates [S, P]`` and ``table [K, P]``.

    Sums are made in float64 in a fixed order; a row that only keeps one model is copied bit for bit.
    Raises ValueError if the shapes do not fit.
    """
    num_updates, num_rows = updates.shape[0], table.shape[0]
    if W.ndim != 2 or W.shape[1] != num_updates + num_rows:
        raise ValueError(f"W is {W.shape}, but there are {num_updates} updates and {num_rows} rows")
    out = torch.empty((W.shape[0], table.shape[1]), dtype=torch.float32, device=table.device)
    kept = (np.count_nonzero(W, axis=1) == 1) & (W.max(axis=1, initial=0.0) == 1.0)
    for k in np.flatnonzero(kept):
        column = int(np.argmax(W[k]))
        out[k] = updates[column] if column < num_updates else table[column - num_updates]
    mixed = np.flatnonzero(~kept)
    if len(mixed) == 0:
        return out
    columns = np.flatnonzero(np.any(W[mixed] != 0, axis=0))
    from_updates = columns[columns < num_updates]
    from_table = columns[columns >= num_updates] - num_updates
    weights = torch.as_tensor(W[np.ix_(mixed, columns)], device=table.device)
    width = max(1, _COLUMNS // max(1, len(columns)))
    for a in range(0, table.shape[1], width):
        b = min(a + width, table.shape[1])
        stack = torch.cat([updates[from_updates, a:b], table[from_table, a:b]]).double()
        out[mixed, a:b] = (weights @ stack).float()
    return out
