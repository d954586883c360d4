"""Data as the federation uses them: the shares of registered clients, and the server's own sets.

:class:`FederatedData` is used by engines, reports and the server's judge. Data come in three forms with the same
interface. :class:`SplitData` is a data set in memory that was split over clients.
:class:`hanse.data.synthetic.GeneratedData` is for clients whose samples are made on demand. :class:`RemoteData` is what
a server knows of clients whose data are elsewhere. :func:`hanse.data.build.build` makes the first two.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.pytorch import Tensor, torch
from hanse.data.augment import Augment
from hanse.data.dataset import Dataset
from hanse.data.kinds import first_few
from hanse.data.samples import Inputs, Samples, unfinite
from hanse.data.shares import Cuts, Partition, borrowed, server_cut, taken
from hanse.data.units import FEW_UNITS, SHARES, shrunk

Share = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class FederatedData(ABC):
    """The samples of ``num_clients`` clients, ids 0 to ``num_clients - 1``, and the server's sets.

    The server's three sets are disjoint. An empty one is None.

    Attributes:
        sizes: ``[num_clients]``, int64, the train samples of each client.
        input_shape: the shape of one sample's input.
        num_classes: None for regression.
        server_validation: the server's set for valuing updates.
        server_test: the server's set for testing models.
        name: the source's name.
        note: a note to show with any result, such as that a split is not the official one. It may be empty.
        server_root: the server's own training set, for mechanisms that need one.
        names: the clients' names in the source; empty if they have none.
        groups: ``[num_clients]``, the cluster of each client, or its most frequent distribution. None: there is
            neither.
        test_weights: for each client the weight of each sample of its test share, float64 ``[n]``, summing to 1. A
            client's test result is then the weighted mean. None: all samples count alike.
        augment: changes images each time that a client trains on them, or None.
        server_tests: the part of ``server_test`` that comes from each distribution.
        warnings: lines that a user should see before a run.
        notes: what may be meant otherwise than it was read, told once before a run.
        doubt: why rows may be several of one person, though nobody says so. It is told first of all.
        inputs: the layout of several inputs in a sample's row, if any.

    Examples:
        >>> from hanse.data import build
        >>> from hanse.data.spec import DataSpec
        >>> data = build(DataSpec(source="digits", clients=4, client_test=0.2))
        >>> data.num_clients, data.num_classes
        (4, 10)
        >>> pool, (mine,) = data.pool([2], "test")
        >>> pool.x[mine].shape[1:]
        torch.Size([1, 8, 8])
    """

    sizes: NDArray[np.int64]
    input_shape: tuple[int, ...]
    num_classes: int | None
    server_validation: Samples | None = None
    server_test: Samples | None = None
    _: KW_ONLY
    name: str = "remote"
    note: str = ""
    server_root: Samples | None = None
    names: tuple[str, ...] = ()
    groups: NDArray[np.int64] | None = None
    test_weights: tuple[NDArray[np.float64], ...] | None = None
    augment: Augment | None = None
    server_tests: tuple[Samples, ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    doubt: str = ""
    inputs: Inputs = field(default=Inputs())

    @property
    def sample_shape(self) -> tuple[int, ...] | Inputs:
        """A sample's shape, or its several inputs, for building models."""
        return self.inputs or self.input_shape

    def called(self, client: int) -> str:
        """Return a client's name for messages: "client 3", or "client 3 (Hamlet)" if it has a name."""
        return f"client {client} ({self.names[client]})" if self.names else f"client {client}"

    @property
    def num_clients(self) -> int:
        """The number of registered clients."""
        return len(self.sizes)

    @abstractmethod
    def pool(self, clients: Sequence[int], share: str = "train") -> tuple[Samples, list[Tensor]]:
        """Return samples that include a share of some clients, and the positions of each client's samples among them.

        The pool may hold other clients' samples too. It is shared, so it must not be written to.

        Args:
            clients: ids of clients.
            share: "train", "validation" or "test".

        Returns:
            The pool, and for each client the int64 positions of its share, ``[n]``. They are empty for a client without
            samples in this share.

        Raises:
            UserError: there is no such share or client.
        """

    def origin(self, share: str) -> Sequence[str] | None:
        """Return how clients' samples are generated, for the data's fingerprint, if the samples are not in memory.

        Returns:
            There is one line for each client. Clients that are elsewhere give an empty sequence, and samples in memory
            give None.
        """
        return None

    @abstractmethod
    def class_counts(self) -> NDArray[np.int64] | None:
        """Return the number of train samples of each client and class, ``[clients, classes]``.

        None for regression, for texts, for clients that are elsewhere, and if counting would cost too much.
        """

    def _check(self, clients: Sequence[int], share: str) -> None:
        """Raise UserError unless the share and all of the clients exist."""
        if share not in SHARES:
            raise UserError(f"share = '{share}'; allowed: {', '.join(SHARES)}")
        for client in clients:
            if not 0 <= client < self.num_clients:
                raise UserError(f"client {client} is not registered; allowed: 0..{self.num_clients - 1}")


@dataclass(frozen=True, kw_only=True)
class SplitData(FederatedData):
    """A data set in memory, split over clients.

    The pool is always the whole train set, so nothing is copied. Only the positions tell clients apart.

    Attributes:
        train: the source's train samples, the pool.
        shares: for each client the positions in the pool of its train, validation and test share, ``[n]`` each.
        lent: given if test shares are taken from the server's test set: that set, and each client's positions in it.
            None: clients test on their own samples.

    Examples:
        >>> import torch
        >>> from hanse.data import build
        >>> from hanse.data.spec import DataSpec
        >>> split = build(DataSpec(source="digits", clients=3))
        >>> type(split).__name__, split.class_counts().shape
        ('SplitData', (3, 10))
    """

    train: Samples
    shares: tuple[tuple[Tensor, ...], ...]
    lent: tuple[Samples, tuple[Tensor, ...]] | None = None

    @staticmethod
    def of(dataset: Dataset, partition: Partition, cuts: Cuts) -> SplitData:
        """Take the clients' shares as the partition has them, and split the source's test set into the server's sets.

        Args:
            dataset: the samples, and the source's test set.
            partition: who has which train samples, in which share.
            cuts: the parts.

        Raises:
            UserError: the server's test set has no samples for a client that needs some.
        """
        shares = partition.shares
        lengths = np.array([[len(part) for part in own] for own in shares], dtype=np.int64)
        dists = dataset.distributions
        held, cut, kept = server_cut(dataset.test, dataset.num_classes, cuts, dists, dataset.test_client_of)
        server_test = taken(dataset.test, cut)
        index, weights, way = None, None, cuts.client_test_from
        if way in ("equal", "classes") or (way == "server" and cuts.client_test > 0):
            index, weights = borrowed(server_test, dataset, partition, cut, cuts)
        data = SplitData(
            name=dataset.name,
            num_classes=dataset.num_classes,
            input_shape=dataset.input_shape,
            note=dataset.note,
            sizes=lengths[:, 0],
            server_validation=taken(dataset.test, held),
            server_test=server_test,
            server_root=taken(dataset.test, kept),
            groups=partition.groups,
            names=_names(dataset, partition),
            inputs=dataset.inputs,
            notes=dataset.notes,
            doubt=dataset.doubt,
            train=dataset.train,
            shares=tuple(tuple(map(torch.from_numpy, own)) for own in shares),
            lent=None if server_test is None or index is None else (server_test, index),
            test_weights=weights,
        )
        if dists is not None:
            of_each = [torch.from_numpy(cut[dists.test[cut] == d]) for d in range(len(dists.names))]
            tests = tuple(map(dataset.test.take, of_each))
            data = replace(data, server_tests=tests)
        few = few_units(data) if dataset.train.units is not None else []
        if cuts.client_test_from == "own":
            asked = (partition.sizes * cuts.client_test).astype(np.int64).tolist()
            few += shrunk({data.called(c): (int(lengths[c, 2]), share) for c, share in enumerate(asked)})
        left_out = int(partition.sizes.sum() - lengths.sum())
        if (gone := left_out + dataset.left_out) > 0:
            whole = gone + int(lengths.sum()) + len(dataset.test)
            few.append(
                f"data: {gone:,} of {whole:,} rows ({gone / whole:.0%}) are left out, {dataset.left_out:,} in "
                f"the server's cut, {left_out:,} in clients': their units lie on both sides of a date (group and time)"
            )
        return replace(data, warnings=(*_unheld_classes(data), *few))

    def pool(self, clients: Sequence[int], share: str = "train") -> tuple[Samples, list[Tensor]]:
        """Return the whole train set and each client's positions in it (see :meth:`FederatedData.pool`)."""
        self._check(clients, share)
        if share == "test" and self.lent is not None:
            tests, index = self.lent
            return tests, [index[client] for client in clients]
        return self.train, [self.shares[client][SHARES.index(share)] for client in clients]

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return train samples of each client and class, ``[clients, classes]``, or None for regression and texts."""
        if self.num_classes is None or self.train.y.ndim > 1:
            return None
        labels = self.train.y.numpy()
        return np.stack([np.bincount(labels[own.numpy()], minlength=self.num_classes) for own, *_ in self.shares])


def _names(dataset: Dataset, partition: Partition) -> tuple[str, ...]:
    """Return what the source calls each client; parts of one natural client are numbered."""
    if partition.owners is None or not dataset.client_names:
        return ()
    named = [dataset.client_names[owner] for owner in partition.owners.tolist()]
    return tuple(name if named.count(name) == 1 else f"{name} {named[:k].count(name)}" for k, name in enumerate(named))


def gaps_of(data: SplitData, test: Samples) -> str | None:
    """Return a line if any used sample has a number that is not finite, or None.

    Args:
        data: the split data. Samples that no client has are ignored.
        test: the source's test samples.
    """
    if unfinite(data.train) is not None:
        owner = np.full(len(data.train), None, object)
        for client, own in enumerate(data.shares):
            owner[torch.cat(own).numpy()] = data.names[client] if data.names else str(client)
        if line := unfinite(data.train, owner):
            return f"train: {line}"
    line = unfinite(test)
    return None if line is None else f"test: {line}"


def _unheld_classes(data: FederatedData) -> list[str]:
    """Return a warning if the server's validation set has classes that no client trains on; else nothing."""
    counts = data.class_counts()
    if counts is None or data.server_validation is None:
        return []
    missing = np.setdiff1d(data.server_validation.y.numpy(), np.flatnonzero(counts.sum(axis=0)))
    if len(missing) == 0:
        return []
    share = np.isin(data.server_validation.y.numpy(), missing).mean()
    classes = f"class{'es' if len(missing) > 1 else ''} {', '.join(map(str, missing.tolist()))}"
    return [
        f"data: no client trains on {classes} ({share:.0%} of the server's validation set): the validation "
        "loss includes errors on them that no client can reduce"
    ]


def few_units(data: SplitData) -> list[str]:
    """Return a warning if test or validation sets hold so few units that their intervals say little; else nothing."""
    pool, index = data.pool(range(data.num_clients), "test")
    sets = {data.called(c): pool.take(own) for c, own in enumerate(index) if any(map(len, index))}
    server = {"the server's validation set": data.server_validation, "the server's test set": data.server_test}
    sets |= {name: samples for name, samples in server.items() if samples is not None}
    counts = {name: len(np.unique(s.units.numpy())) for name, s in sets.items() if s.units is not None}
    few = [f"{name}: {count}" for name, count in counts.items() if count < FEW_UNITS]
    told = f"data: test sets of fewer than {FEW_UNITS} units, whose intervals say little: {first_few(few)}"
    return [told] if few else []


@dataclass(frozen=True, kw_only=True)
class RemoteData(FederatedData):
    """What a server knows of remote clients: its own sets, the shape of a sample, and the sizes that clients report.

    Attributes:
        text: samples are tokens with a label at every position.

    Examples:
        >>> RemoteData(np.array([20, 30]), (1, 8, 8), 10).num_clients
        2
    """

    text: bool = False

    def pool(self, clients: Sequence[int], share: str = "train") -> tuple[Samples, list[Tensor]]:
        """Return an empty pool of the right shapes and types: the samples are elsewhere."""
        self._check(clients, share)
        shape, kind = self.input_shape, torch.float32 if self.num_classes is None else torch.int64
        none = Samples(torch.zeros(0, *shape), torch.zeros(0, dtype=kind))
        if self.text:
            none = Samples(torch.zeros(0, *shape, dtype=kind), torch.zeros(0, *shape, dtype=kind))
        return none, [torch.zeros(0, dtype=torch.int64) for _ in clients]

    def origin(self, share: str) -> Sequence[str]:
        """Return nothing: each participant's node keeps a fingerprint of its own data."""
        return ()

    def class_counts(self) -> NDArray[np.int64] | None:
        """Return None: the server does not know the counts."""
        return None
