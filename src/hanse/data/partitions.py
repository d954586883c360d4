"""Partitions of a data set over clients: from labels to one sorted index array a client, no sample twice.

Every draw comes from ``stream(seed, "partition")``, so that the same seed gives the same split wherever it is
made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data.dirichlet import dirichlet, label_mixes, niid
from hanse.data.sizes import SizeLaw, check_count, check_room, client_sizes

__all__ = [
    "PARTITIONS",
    "Choose",
    "Partition",
    "dirichlet",
    "iid",
    "label_mixes",
    "natural",
    "natural_owners",
    "niid",
    "pathological",
    "pooled",
]

Indices = list[NDArray[np.int64]]
Choose = Literal["random", "largest"]


@dataclass(frozen=True)
class Partition:
    """The samples of each client: sorted int64 indices into the train set, no sample twice.

    ``labels [n]`` are those of the whole train set and ``num_classes`` their number (``None``: no classes).
    ``owners [clients]``: the source's own client that each client is or is part of, where it has clients.
    ``groups [clients]``: the cluster of each client, where the partition makes clusters. ``kept``: what each client
    keeps for (validation, test), where the partition itself draws these; ``train`` is then without them.
    Raises UserError where an index is out of range, a sample is used twice, or a client has none.
    """

    train: tuple[NDArray[np.int64], ...]
    labels: NDArray[np.int64] | None = None
    num_classes: int | None = None
    groups: NDArray[np.int64] | None = None
    owners: NDArray[np.int64] | None = None
    kept: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] | None = None

    def __post_init__(self) -> None:
        empty = [k for k, index in enumerate(self.train) if len(index) == 0]
        if not self.train or empty:
            raise UserError(f"partition of {len(self.train)} clients: no samples for clients {empty[:10]}")
        kept = [share for pair in self.kept or () for share in pair]
        used = np.sort(np.concatenate([*self.train, *kept]))
        if (used[1:] == used[:-1]).any():
            raise UserError("a partition may not give a sample to a client twice, or to two clients")
        if used[0] < 0 or (self.labels is not None and used[-1] >= len(self.labels)):
            raise UserError(f"a partition's indices span {used[0]}..{used[-1]}, beyond the data set's samples")

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of samples in ``train`` of each client, ``[clients]``."""
        return np.array([len(index) for index in self.train], dtype=np.int64)

    def counts(self) -> NDArray[np.int64]:
        """Return how many samples of each class each client has, ``[clients, classes]``."""
        if self.labels is None or self.num_classes is None:
            raise UserError("class counts need class labels; this partition has none")
        rows = [np.bincount(self.labels[index], minlength=self.num_classes) for index in self.train]
        return np.stack(rows).astype(np.int64)


def iid(
    labels: NDArray[np.generic],
    clients: int,
    *,
    seed: int = 0,
    sizes: SizeLaw = "equal",
    min_samples: int = 1,
    total: int | None = None,
) -> Indices:
    """Deal the samples at random: equal sizes, or GreedyFed's power law; all of them, or ``total``.

    Raises UserError for a request that cannot be met.
    """
    wanted = client_sizes(len(labels), clients, seed=seed, law=sizes, min_samples=min_samples, total=total)
    order = stream(seed, "partition", start=4).permutation(len(labels))
    return [np.sort(part) for part in np.split(order[: wanted.sum()], np.cumsum(wanted)[:-1])]


def pathological(labels: NDArray[np.int64], clients: int, *, classes_per_client: int = 2, seed: int = 0) -> Indices:
    """Give every client exactly ``classes_per_client`` classes, in shards of one class each.

    After McMahan et al. 2017, whose shards of label-sorted samples give most clients two classes. Here a
    class is cut into one nearly equal shard for each client that has it, so the number of classes is exact.
    Classes are dealt evenly (their numbers of clients differ by at most one); with fewer seats than classes,
    some classes are not used. Raises UserError for a request that cannot be met.
    """
    check_room(len(labels), clients, 1)
    check_count("classes_per_client", classes_per_client)
    classes = np.unique(labels)
    if classes_per_client > len(classes):
        raise UserError(
            f"classes_per_client = {classes_per_client}: the data has {len(classes)} classes; allowed: "
            f"1..{len(classes)}"
        )
    draw = stream(seed, "partition", start=5)
    has = np.zeros((clients, len(classes)), dtype=np.bool_)
    for client in range(clients):
        # the classes dealt least so far, ties at random
        has[client, np.lexsort((draw.random(len(classes)), has.sum(axis=0)))[:classes_per_client]] = True
    parts: list[Indices] = [[] for _ in range(clients)]
    for column, label in enumerate(classes):
        holders = np.flatnonzero(has[:, column])
        stock = draw.permutation(np.flatnonzero(labels == label))
        if len(holders) > len(stock):
            raise UserError(
                f"clients = {clients} with classes_per_client = {classes_per_client}: {len(holders)} "
                "clients would share the "
                f"{len(stock)} samples of class {label}; lower either"
            )
        if len(holders):
            for client, shard in zip(holders.tolist(), np.array_split(stock, len(holders)), strict=True):
                parts[client].append(shard)
    return [np.sort(np.concatenate(part)) for part in parts]


def natural(
    labels: NDArray[np.generic],
    ids: NDArray[np.int64],
    *,
    clients: int | None = None,
    seed: int = 0,
    choose: Choose = "random",
    per_owner: int = 1,
    ordered: bool = False,
) -> Indices:
    """Follow the source's own clients: ``ids [n]`` says whose each sample is; clients are numbered by sorted
    id.

    ``clients`` keeps some of them (see :func:`natural_owners`); with ``per_owner`` above 1 each is divided evenly into
    that many clients, at random, or in time if its samples are ``ordered``. Raises UserError for ids of the wrong
    length or type, or more clients than there are.
    """
    if ids.shape != (len(labels),) or ids.dtype.kind not in "ui":
        raise UserError(
            f"ids are {ids.dtype} of shape {ids.shape}; one integer for each of the {len(labels)} train "
            "samples is needed"
        )
    owners = natural_owners(ids, clients, seed=seed, choose=choose, per_owner=per_owner)
    order = np.argsort(ids, kind="stable")
    starts = np.searchsorted(ids[order], owners, side="left")
    ends = np.searchsorted(ids[order], owners, side="right")
    spans = [order[a:b] for a, b in zip(starts, ends, strict=True)]
    if per_owner == 1:
        return spans
    parts: Indices = []
    for owner, span in zip(owners.tolist(), spans, strict=True):
        if len(span) < per_owner:
            raise UserError(f"per_owner = {per_owner}: natural client {owner} has {len(span)} samples")
        dealt = span if ordered else stream(seed, "per-owner", client=owner).permutation(span)
        parts.extend(np.sort(part) for part in np.array_split(dealt, per_owner))
    return parts


def natural_owners(
    ids: NDArray[np.int64],
    clients: int | None,
    *,
    seed: int = 0,
    choose: Choose = "random",
    per_owner: int = 1,
) -> NDArray[np.int64]:
    """Return the sorted ids ``[m]`` of the natural clients that take part: ``clients / per_owner``, or all for None.

    ``choose``: "random" from the seed, or "largest": those with most samples, ties to the lower id. Raises UserError
    for a number that there is not.
    """
    check_count("per_owner", per_owner)
    owners, sizes = np.unique(ids, return_counts=True)
    if clients is None:
        return owners
    check_count("clients", clients)
    wanted, rest = divmod(clients, per_owner)
    if rest or wanted > len(owners):
        allowed = f"1..{len(owners)}" if per_owner == 1 else f"{per_owner} times 1..{len(owners)}"
        raise UserError(f"clients = {clients}: the source has {len(owners)} natural clients; allowed: {allowed}")
    if choose == "largest":
        chosen = np.argsort(-sizes, kind="stable")[:wanted]
    else:
        chosen = stream(seed, "partition", start=6).permutation(len(owners))[:wanted]
    return owners[np.sort(chosen)]


def pooled(labels: NDArray[np.generic]) -> Indices:
    """Give all samples, ``labels [n]``, to one client: centralised training."""
    if len(labels) == 0:
        raise UserError("partition = 'pooled': there are 0 samples; at least 1 is needed")
    return [np.arange(len(labels), dtype=np.int64)]


PARTITIONS: Mapping[str, str] = MappingProxyType(
    {
        "iid": "samples dealt at random",
        "dirichlet": "a label mix ~ Dirichlet(alpha) and a power-law size per client (GreedyFed)",
        "niid": "each class spread over the clients ~ Dirichlet(alpha) (Li et al. 2022)",
        "mixture": "mixtures of two or more distributions, the test mixture equal or inverse (PI-FL)",
        "cluster": "clusters of clients: alike inside, unlike between (iPFL)",
        "skew": "clusters of clients with the same few classes (iPFL)",
        "pathological": "exactly classes_per_client classes per client (after McMahan et al. 2017)",
        "natural": "the source's own clients",
        "pooled": "one client with everything: centralised training",
    }
)
"""Names and what they do."""
