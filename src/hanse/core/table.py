"""The model table: every model in play is one row, and a round is ``M' = W [U; M]``.

``M [K, P]`` is the :class:`Table`: one flattened model per row, parameters first, then float buffers (batch-norm
statistics). Distances, norms and proximal terms use the first ``Layout.num_parameters`` columns only; mixing uses all
of them. Rows lie in named blocks (:class:`Block`). :class:`Seats` say who trains which row, and :class:`Updates` hold
the trained models. A :class:`Mix` holds the weights of updates and old rows in each new row; :func:`mix` computes the
new rows from them.

Only this module knows where a block begins. All other code asks by name (:meth:`Table.at`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import Tensor, nn, torch

SERVER = -1  # the owner of a row that the server holds
SOUND = 1e9  # a sound update's largest number: even a sum of squares of such is far below the largest float32
PER_CLIENT: Final = "per client"  # how many rows a block has that has one for each client

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Layout:
    """The position of each tensor of a module in a flat row.

    Integer buffers, such as batch counters, are not part of a row and are not mixed. Nor are frozen parameters if only
    the trained part of a model is sent. Both stay in the module as they are.

    Attributes:
        names: the parameters in the order of ``module.named_parameters()``, then the float buffers.
        shapes: the shape of each tensor.
        offsets: the first column of each tensor, and ``size`` as the last entry, so there is one entry more than in
            ``names``.
        num_parameters: how many columns are parameters; these come first.
        size: the length P of a row, which holds the parameters and the float buffers.

    Examples:
        >>> module = nn.Linear(3, 2)
        >>> layout = Layout.of(module)
        >>> layout.names, layout.size
        (('weight', 'bias'), 8)
        >>> layout.flatten(module).shape
        torch.Size([8])
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    offsets: tuple[int, ...]
    num_parameters: int  # columns that are parameters
    size: int  # P: parameters and float buffers

    @staticmethod
    def of(module: nn.Module, *, frozen: bool = True) -> Layout:
        """Return the layout of a module.

        Args:
            module: any module.
            frozen: whether parameters with ``requires_grad = False`` are part of a row.

        Raises:
            ValueError: the module has no parameters.
        """
        parameters = [(n, p) for n, p in module.named_parameters() if frozen or p.requires_grad]
        if not parameters:
            raise ValueError("the model has no parameters to train")
        buffers = [(n, b) for n, b in module.named_buffers() if b.is_floating_point()]
        names, tensors = zip(*parameters, *buffers, strict=True)
        offsets = (0, *accumulate(tensor.numel() for tensor in tensors))
        shapes = tuple(tensor.shape for tensor in tensors)
        return Layout(names, shapes, offsets, num_parameters=offsets[len(parameters)], size=offsets[-1])

    def _blocks(self) -> Iterator[tuple[str, tuple[int, ...], int, int]]:
        """Yield name, shape, first column and end of each tensor."""
        return zip(self.names, self.shapes, self.offsets[:-1], self.offsets[1:], strict=True)

    def flatten(self, module: nn.Module) -> Tensor:
        """Return the module's parameters and float buffers as one new row, ``[P]`` float32."""
        tensors = dict(module.named_parameters()) | dict(module.named_buffers())
        return torch.cat([tensors[name].detach().reshape(-1).float() for name in self.names])

    def unflatten(self, rows: Tensor) -> dict[str, Tensor]:
        """Return views of rows as tensors by name.

        Args:
            rows: ``[..., P]``.

        Returns:
            Tensors of shape ``[..., *shape]`` that share memory with ``rows``.
        """
        lead = rows.shape[:-1]
        return {n: rows[..., a:b].view((*lead, *shape)) for n, shape, a, b in self._blocks()}

    def load(self, module: nn.Module, row: Tensor) -> None:
        """Copy a row ``[P]`` into the module's parameters and buffers, in place."""
        tensors: dict[str, Tensor] = dict(module.named_parameters()) | dict(module.named_buffers())
        with torch.no_grad():
            for name, value in self.unflatten(row).items():
                tensors[name].copy_(value)


def _close(*arrays: NDArray[Any]) -> None:
    """Make arrays read-only, since everybody is shown the same ones."""
    for array in arrays:
        array.flags.writeable = False


@dataclass(frozen=True)
class Block:
    """Rows of the table under one name. The part in the train slot declares them.

    Attributes:
        name: the block's name, such as "server" or "own".
        count: how many rows the block has, or ``PER_CLIENT`` for one per client.
        initial: the initial values. "model": the first initial model. "different": a different initial model in each
            row. "zero": zeros.
        private: whether each row belongs to a client, which computes it and never sends it to the server.
        held: whether clients are meant to hold these rows as their models. hanse warns of a mechanism that gives
            clients only other rows.

    Raises:
        ValueError: a count or an initial state that is not allowed.

    Examples:
        >>> blocks = (Block("own", "per client"), Block("server"))
        >>> Table.laid_out(blocks, num_clients=3, initial=lambda k: torch.zeros(2)).size
        4
    """

    name: str
    count: int | Literal["per client"] = 1
    initial: Literal["model", "different", "zero"] = "model"
    private: bool = False
    held: bool = False

    def __post_init__(self) -> None:
        if self.initial not in ("model", "different", "zero"):
            raise ValueError(f"Block '{self.name}': initial: {self.initial!r}: must be 'model', 'different' or 'zero'")
        if self.count != PER_CLIENT and not (isinstance(self.count, int) and self.count >= 1):
            raise ValueError(f"Block '{self.name}': count: {self.count!r}: must be a number from 1 on, or PER_CLIENT")

    @property
    def per_client(self) -> bool:
        """Whether the block has one row for each client."""
        return self.count == PER_CLIENT


@dataclass(frozen=True)
class Table:
    """The models in play. Its arrays ``owner`` and ``block`` are read-only.

    Attributes:
        rows: ``[K, P]`` float32.
        owner: ``[K]`` int64, the owner of each row: -1 (``SERVER``) for the server, else a client id.
        block: ``[K]`` int64, the row's block, as a position in ``blocks``. A block need not be contiguous once rows
            were added.
        blocks: the named blocks.

    Examples:
        Two rows of two numbers, the server's and client 0's:

        >>> table = Table.of(torch.zeros(2, 2), np.array([SERVER, 0]))
        >>> table.per_client(np.array([0, 1]))
        array([False,  True])

        The table of a small round of Ditto, with one row for each client and one shared row:

        >>> from hanse.runs.rehearsal import rehearse
        >>> rehearse("ditto").view.table.size
        5
    """

    rows: Tensor
    owner: Ints
    block: Ints
    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        _close(self.owner, self.block)

    @property
    def size(self) -> int:
        """The number of rows, K."""
        return int(self.rows.shape[0])

    @staticmethod
    def of(rows: Tensor, owner: Ints | None = None) -> Table:
        """Return a table of given rows, in blocks "server" and "own" by their owners.

        Args:
            rows: ``[K, P]``.
            owner: ``[K]``, in any order. None: the server owns all rows.
        """
        if owner is None:
            owner = np.full(rows.shape[0], SERVER, dtype=np.int64)
        return Table(rows, owner, (owner != SERVER).astype(np.int64), (Block("server"), Block("own", private=True)))

    @staticmethod
    def laid_out(blocks: Sequence[Block], num_clients: int, initial: Callable[[int], Tensor]) -> Table:
        """Return the table before round 0.

        Args:
            blocks: the blocks, in the order in which their rows lie.
            num_clients: the number of clients, for blocks that have one row per client.
            initial: ``initial(k)`` returns the k-th initial model ``[P]``.

        Raises:
            ValueError: there are no blocks, or two have the same name.
        """
        names = [block.name for block in blocks]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"a table needs at least one block, and a different name for each: {names}")
        first, rows = initial(0), list[Tensor]()
        owner, number = list[Ints](), list[Ints]()
        for b, block in enumerate(blocks):
            count = num_clients if block.count == PER_CLIENT else block.count
            # every block of different models has the same ones, from the first on: initial(0), initial(1), ...
            if block.initial == "different":
                rows.append(torch.stack([initial(k) for k in range(count)]))
            else:
                rows.append((first if block.initial == "model" else torch.zeros_like(first)).repeat(count, 1))
            owner.append(np.arange(count) if block.private else np.full(count, SERVER))
            number.append(np.full(count, b))
        return Table(
            torch.cat(rows),
            np.concatenate(owner).astype(np.int64),
            np.concatenate(number).astype(np.int64),
            tuple(blocks),
        )

    def __contains__(self, name: str) -> bool:
        """Whether there is a block of this name."""
        return any(block.name == name for block in self.blocks)

    def number(self, name: str) -> int:
        """Return a block's position in ``blocks``. Raises KeyError, with the existing names, if there is none."""
        names = [block.name for block in self.blocks]
        if name not in names:
            raise KeyError(f"the table has no block '{name}'; it has {', '.join(map(repr, names))}")
        return names.index(name)

    def at(self, name: str, clients: Ints | None = None) -> Ints:
        """Return the row numbers of a block.

        Args:
            name: the block.
            clients: ``[n]``, the clients whose rows are wanted, if the block has a row for each client. None: all rows
                of the block.

        Returns:
            ``[n]`` int64.

        Raises:
            KeyError: there is no such block.
            ValueError: clients are given for a block that does not have a row per client.
        """
        number = self.number(name)
        rows = np.flatnonzero(self.block == number)
        if clients is None:
            return rows
        if not self.blocks[number].per_client:
            raise ValueError(f"the block '{name}' does not have one row for each client")
        return np.asarray(rows[clients], np.int64)

    def row(self, name: str) -> int:
        """Return the number of the only (or first) row of a block."""
        return int(self.at(name)[0])

    def models(self, name: str) -> Tensor:
        """Return the models of a block, ``[n, P]``."""
        return self.some(self.at(name))

    def some(self, rows: Ints) -> Tensor:
        """Return the models of these rows, ``[n, P]``.

        Consecutive rows are returned as a view, not a copy. The tensor's address in memory tells whether a client was
        already sent these models in this round, so their bytes are counted once.
        """
        return some_rows(self.rows, rows)

    @property
    def shared(self) -> Ints:
        """The rows ``[n]`` that are models of the server.

        Left out are rows of single clients, private rows, and rows that start as zeros (as control variates do).
        """
        models = [not (block.per_client or block.private or block.initial == "zero") for block in self.blocks]
        return np.flatnonzero(np.array(models)[self.block] & (self.owner == SERVER))

    @property
    def on_show(self) -> Ints:
        """The server's rows ``[n]`` that are tested on held-out data by distribution.

        If there are both per-client rows and shared rows, only the shared rows are tested.
        """
        rows = np.flatnonzero(self.owner == SERVER)
        mine = [b for b, block in enumerate(self.blocks) if block.per_client and not block.private]
        others = rows[self.block[rows] != mine[0]] if mine else rows
        return others if len(others) else rows

    def per_client(self, rows: Ints) -> NDArray[np.bool_]:
        """Return which of ``rows [n]`` belong to a single client, ``[n]``: private rows, and rows of a per-client
        block.
        """
        own = np.array([block.per_client or block.private for block in self.blocks])
        return np.asarray(own[self.block[rows]])


@dataclass(frozen=True)
class Seats:
    """The places in one round's training, called seats; a client may hold several.

    Seat s minimises its client's loss plus ``mu/2 |theta - (R M)_s|^2 + <(L M)_s, theta>``, starting from row
    ``start[s]``.

    Attributes:
        client: ``[S]`` int64, who trains.
        start: ``[S]`` int64, the table row that each seat starts from.
        target: ``[S]`` int64, the row that each update goes to; seats with the same target form a group.
        R: ``[S, K]``, the weights of the rows that each seat is pulled to. None: no pull.
        mu: ``[S]``, the strength of each seat's pull; given together with ``R``.
        L: ``[S, K]``, the weights of the rows in the linear term (the tilt). None: no tilt.

    Examples:
        Clients 0 and 2 train the row 0, without a pull:

        >>> seats = Seats.at([0, 2], [0, 0])
        >>> len(seats), seats.groups()
        (2, {0: array([0, 1])})
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
        """Return seats of these clients at these start rows, ``[S]`` each, without pull or tilt.

        Each trains its start row.
        """
        client, start = np.asarray(client, np.int64), np.asarray(start, np.int64)
        return Seats(client, start, start)

    def take(self, keep: Ints) -> Seats:
        """Return the seats at these positions, in this order."""
        R, mu, L = (None if a is None else a[keep] for a in (self.R, self.mu, self.L))
        return Seats(self.client[keep], self.start[keep], self.target[keep], R, mu, L)

    def plain(self) -> Seats:
        """Return the same seats without pull and tilt."""
        return Seats(self.client, self.start, self.target)

    def with_more(self, others: Sequence[Seats]) -> Seats:
        """Return these seats followed by ``others``, which have neither pull nor tilt."""
        if not others:
            return self
        client, start, target = (
            np.concatenate([getattr(seats, name) for seats in (self, *others)])
            for name in ("client", "start", "target")
        )
        more = len(client) - len(self)
        R, mu, L = (
            None if a is None else np.concatenate([a, np.zeros((more, *a.shape[1:]))])
            for a in (self.R, self.mu, self.L)
        )
        return Seats(client, start, target, R, mu, L)

    def groups(self) -> dict[int, Ints]:
        """Return the positions of the seats that train each target row, by row in ascending order."""
        return {int(k): np.flatnonzero(self.target == k) for k in np.unique(self.target)}


@dataclass(frozen=True)
class Updates:
    """The accepted results of training, in the order of ``seats``.

    Attributes:
        seats: the seats that answered, S of them.
        rows: ``[S, P]`` float32, the trained models.
        num_samples: ``[S]``, the numbers of samples that clients *report*.
        loss: ``[S]``, mean training losses; NaN for a client whose own training loop reports no loss.
        steps: ``[S]`` int64, optimiser steps.
        extras: tensors by name, ``[S, ...]`` each.
        metrics: numbers that clients' own training loops report, one mapping per seat; empty if no loop reports any.
        staleness: ``[S]`` int64, by how many rounds each update is late; 0 for an update of this round. A late update
            is rebased: ``U' = M[start now] + (U - start then)``. If left out, all are 0.
        raw: late updates before rebasing, by position.

    Examples:
        >>> rows = torch.tensor([[1.0, 2.0], [5.0, 6.0]])
        >>> samples, loss, steps = np.array([10.0, 30.0]), np.array([0.7, 0.5]), np.array([1, 3])
        >>> updates = Updates(Seats.at([0, 2], [0, 0]), rows, samples, loss, steps)
        >>> len(updates), updates.staleness
        (2, array([0, 0]))
    """

    seats: Seats
    rows: Tensor
    num_samples: Floats
    loss: Floats
    steps: Ints
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    metrics: Sequence[Mapping[str, float]] = ()
    staleness: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # no entries: all are this round's
    raw: Mapping[int, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.staleness) != len(self.seats):
            object.__setattr__(self, "staleness", np.zeros(len(self.seats), np.int64))

    def __len__(self) -> int:
        return len(self.seats)


@dataclass(frozen=True)
class Replace:
    """New values of some rows: row ``rows[r]`` becomes ``updates[r] @ U + models[r] @ M``.

    Attributes:
        rows: ``[r]`` int64, row numbers.
        updates: ``[r, S]``, the weights of the round's updates.
        models: ``[r, K]``, the weights of the old rows. None: nothing of the old table.
    """

    rows: Ints
    updates: Floats
    models: Floats | None = None


@dataclass(frozen=True)
class Add:
    """One more row of a block: ``updates @ U + models @ M``.

    Attributes:
        block: the block's name.
        updates: ``[S]``, the weights of the round's updates.
        models: ``[K]``, the weights of the old rows.
    """

    block: str
    updates: Floats
    models: Floats


@dataclass(frozen=True)
class Made:
    """A new row that is not a weighted sum of rows.

    Attributes:
        row: ``[P]`` float32.
        of: ``[m]`` int64, the positions of the updates from which the row was computed.
    """

    row: Tensor
    of: Ints


@dataclass(frozen=True)
class Mix:
    """The proposed next table, ``M' = W [U; M]``. Its arrays are read-only, and its methods return new mixes.

    Attributes:
        W: ``[K', S + K]`` float64. Columns 0..S-1 are the weights of the updates, and column S + k is the weight of old
            row k. A row that stays as it is has weight 1 on itself and 0 elsewhere. K' may be larger than K.
        owner: ``[K']`` int64, the owners of the new rows.
        block: ``[K']`` int64, the block of each new row.
        home: ``[N]`` int64, the row that each client starts from in the next round.
        metrics: numbers by name that are recorded with the round.
        refused: ``(client, reason)`` of each client excluded from the mix.
        made: the rows that are not weighted sums, by row number; they are zero in ``W``.

    Examples:
        Two updates of a table with one row become their mean:

        >>> table, updates = Table.of(torch.zeros(1, 2)), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        >>> found = Mix(np.array([[0.5, 0.5, 0.0]]), table.owner, table.block, home=np.zeros(3, np.int64))
        >>> found.rows(updates, table.rows)
        tensor([[2., 3.]])

        The mix of a small round: four updates and one old row go into one new row.

        >>> from hanse.runs.rehearsal import rehearse
        >>> rehearse("fedavg").view.mixed.W.shape
        (1, 5)
    """

    W: Floats
    owner: Ints
    block: Ints
    home: Ints
    metrics: Mapping[str, float] = field(default_factory=dict)
    refused: tuple[tuple[int, str], ...] = ()
    made: Mapping[int, Made] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _close(self.W, self.owner, self.block, self.home)

    @staticmethod
    def keeping(table: Table, num_updates: int, home: Ints) -> Mix:
        """Return the mix that keeps every row of ``table`` and uses none of the ``num_updates`` updates."""
        return Mix(np.eye(table.size, num_updates + table.size, num_updates), table.owner, table.block, home)

    def changed(self, table: Table, replaced: Sequence[Replace], added: Sequence[Add] = ()) -> Mix:
        """Return the mix with some rows of ``table`` replaced, and others appended at its end.

        If a row is replaced twice, the last one counts.

        Args:
            table: the table before the round.
            replaced: what becomes of existing rows.
            added: rows to append to blocks.
        """
        count, W, made = self.W.shape[1] - table.size, self.W.copy(), dict(self.made)
        for part in replaced:
            W[part.rows] = 0.0  # what an earlier replacement or a unit row left there
            W[part.rows, :count] = part.updates
            if part.models is not None:
                W[part.rows, count:] = part.models
            made = {row: one for row, one in made.items() if row not in part.rows}
        if not added:
            return replace(self, W=W, made=made)
        new = np.stack([np.concatenate([one.updates, one.models]) for one in added])
        return replace(
            self,
            W=np.concatenate([W, new]),
            made=made,
            owner=np.append(self.owner, np.full(len(added), SERVER, np.int64)),
            block=np.append(self.block, np.array([table.number(one.block) for one in added], np.int64)),
        )

    def keeps(self, table: Table, rows: Ints) -> NDArray[np.bool_]:
        """Return which of ``rows [n]`` of ``table`` stay as they are, ``[n]``."""
        return np.asarray(copies(self.W[rows]) & (self.W[rows, self.W.shape[1] - table.size + rows] == 1.0))

    def without(self, table: Table, rows: Sequence[int], home: Ints) -> Mix:
        """Return the mix that leaves these rows of ``table`` as they are.

        A new row has no old value to keep. If one of ``rows`` is new, all rows therefore stay as they are, and every
        client keeps its ``home [N]``.
        """
        count = self.W.shape[1] - table.size
        if rows and max(rows) >= table.size:  # rows are only appended, so those numbers are the new ones
            return Mix.keeping(table, count, home)
        W = self.W.copy()
        W[list(rows)] = np.eye(table.size, count + table.size, count)[list(rows)]
        return replace(self, W=W, made={row: one for row, one in self.made.items() if row not in rows})

    def with_made(self, made: Mapping[int, Made]) -> Mix:
        """Return the mix in which these rows, by number, are given directly instead of as weighted sums."""
        if not made:
            return self
        W = self.W.copy()
        W[list(made)] = 0.0
        return replace(self, W=W, made={**self.made, **made})

    def made_of(self, num_updates: int) -> NDArray[np.bool_]:
        """Return which of the ``num_updates`` updates each new row depends on, ``[K', S]``."""
        used = np.asarray(self.W[:, :num_updates] != 0)
        for row, one in self.made.items():
            used[row, one.of] = True
        return used

    def rows(self, updates: Tensor, table: Tensor) -> Tensor:
        """Return the new rows, ``[K', P]`` float32, from ``updates [S, P]`` and ``table [K, P]``."""
        rows = mix(self.W, updates, table)
        for row, one in self.made.items():
            rows[row] = one.row
        return rows

    def makers(self, table: Table, rows: Sequence[int]) -> NDArray[np.bool_]:
        """Return which updates these new rows depend on, ``[S]``."""
        return np.asarray(self.made_of(self.W.shape[1] - table.size)[list(rows)].any(axis=0))


def copies(W: Floats) -> NDArray[np.bool_]:
    """Return which rows of ``W [K, n]`` copy one model, ``[K]``: their only nonzero weight is 1."""
    return np.asarray((np.count_nonzero(W, axis=1) == 1) & (W.max(axis=1, initial=0.0) == 1.0))


def outsized(models: Tensor) -> NDArray[np.bool_]:
    """Return which of ``models [n, P]`` have a number beyond :data:`SOUND`, ``[n]``: even a sound rule may make an
    infinite or NaN row of these.
    """
    return np.asarray((models.abs().amax(dim=1) > SOUND).cpu())


def some_rows(models: Tensor, rows: Ints) -> Tensor:
    """Return the ``rows [n]`` of ``models [K, P]`` as ``[n, P]``: a view if they are consecutive, else a copy."""
    if len(rows) and np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows))):
        return models[int(rows[0]) : int(rows[-1]) + 1]
    return models[rows]


def as_one(rows: Sequence[Tensor]) -> Tensor:
    """Return several models ``[P]`` as one tensor ``[n, P]``.

    If they are consecutive rows of one tensor, as engines return them, the result is a view, not a copy.
    """
    first, size = rows[0], len(rows[0])
    begin, memory = first.storage_offset(), first.untyped_storage().data_ptr()

    def lies(place: int, row: Tensor) -> bool:
        """Whether a row lies at this place after the first one, in the same memory."""
        alike = (row.dtype, row.shape, row.stride()) == (first.dtype, first.shape, (1,))
        return alike and row.untyped_storage().data_ptr() == memory and row.storage_offset() == begin + place * size

    if all(lies(place, row) for place, row in enumerate(rows)):
        return first.as_strided((len(rows), size), (size, 1))
    return torch.stack(list(rows))


_COLUMNS = 1 << 20  # numbers that are copied to float64 at a time, so mixing needs no second table


def mix(W: Floats, updates: Tensor, table: Tensor) -> Tensor:
    """Return ``M' = W [U; M]``.

    Sums are made in float64 in a fixed order. A row that copies one model is copied bit for bit, even if other rows are
    infinite.

    Args:
        W: ``[K', S + K]``, the weights. The columns of updates come first.
        updates: ``[S, P]``, U.
        table: ``[K, P]``, M.

    Returns:
        ``[K', P]`` float32.

    Raises:
        ValueError: the shapes do not fit.

    Examples:
        >>> updates, table = torch.tensor([[1.0, 1.0], [3.0, 3.0]]), torch.zeros(1, 2)
        >>> mix(np.array([[0.5, 0.5, 0.0]]), updates, table).tolist()  # the mean of two updates
        [[2.0, 2.0]]
    """
    num_updates, num_rows = updates.shape[0], table.shape[0]
    if W.ndim != 2 or W.shape[1] != num_updates + num_rows:
        raise ValueError(f"W is {W.shape}, but there are {num_updates} updates and {num_rows} rows")
    out = torch.empty((W.shape[0], table.shape[1]), dtype=torch.float32, device=table.device)
    # rows that only keep a model are not multiplied: 0 times an infinite number in another row would be NaN
    kept = copies(W)
    for k in np.flatnonzero(kept):
        column = int(np.argmax(W[k]))
        out[k] = updates[column] if column < num_updates else table[column - num_updates]
    mixed = np.flatnonzero(~kept)
    if len(mixed) == 0:
        return out
    columns = np.flatnonzero(np.any(W[mixed] != 0, axis=0))  # only these are copied to float64
    from_updates = columns[columns < num_updates]
    from_table = columns[columns >= num_updates] - num_updates
    weights = torch.as_tensor(W[np.ix_(mixed, columns)], device=table.device)
    width = max(1, _COLUMNS // max(1, len(columns)))
    for a in range(0, table.shape[1], width):
        b = min(a + width, table.shape[1])
        parts = (some_rows(updates[:, a:b], from_updates), some_rows(table[:, a:b], from_table))
        stack = torch.empty((len(columns), b - a), dtype=torch.float64, device=table.device)
        stack[: len(from_updates)], stack[len(from_updates) :] = parts
        out[mixed, a:b] = (weights @ stack).float()
    return out
