"""Partitions of a data set over clients: what ``[data] partition`` can name, its options, and how it deals.

By size only: :class:`Iid`. By label: :class:`Dirichlet` draws a mix of classes for each client, :class:`Niid` spreads
each class over the clients, :class:`Pathological` gives a few classes to each. By clusters of clients, alike within a
cluster and different between clusters (iPFL section 6.1 and appendix E.5): :class:`Cluster` and :class:`Skew`. By the
source's own clients: :class:`Natural`. All to one client: :class:`Pooled`. The partition "mixture" is in
:mod:`hanse.data.mixtures`.

A class has the options as fields. Its method ``split`` returns the :class:`hanse.data.shares.Partition` of a data set
that went through its method ``prepared``. Those that go by labels, or by the number of samples alone (:class:`Deal`),
have a method ``deal``, which returns sorted indices for each client, no sample twice. Draws come from streams keyed by
the seed, so the same seed gives the same split everywhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.factories import Positive, Rate, call
from hanse.base.plain_text import quantity
from hanse.base.pytorch import torch
from hanse.base.streams import stream, torch_seed
from hanse.data.dataset import Dataset, largest_remainder
from hanse.data.samples import Samples
from hanse.data.shares import Cuts, Partition
from hanse.data.units import numbered, rows_of_each

Labels = NDArray[np.int64]
Indices = list[NDArray[np.int64]]

SizeLaw = Literal["power", "equal"]
Sampler = Literal["log", "float32-clamped"]

# draws before a request is given up: of _spread_classes, and of Dirichlet without all samples after its first
_NIID_DRAWS = 500
_SCALED_DRAWS = 100


class Deal(ABC):
    """A partition that goes by the labels of a data set, or by its number of samples alone.

    Attributes:
        by_class: whether it needs class labels.
    """

    by_class: ClassVar[bool] = True

    @abstractmethod
    def deal(self, labels: NDArray[Any], clients: int, seed: int, classes: int) -> Indices:
        """Return the sorted samples of each client, no sample twice; ``labels`` is ``[n]``."""

    def groups(self, clients: int, classes: int) -> NDArray[np.int64] | None:
        """Return the cluster of each client, ``[clients]``; None: there are no clusters."""
        return None

    def prepared(self, dataset: Dataset, clients: int, seed: int) -> Dataset:
        """Return the data set unchanged."""
        return dataset

    def split(self, dataset: Dataset, clients: int, cuts: Cuts) -> Partition:
        """Return who holds which sample in which share."""
        classes = dataset.num_classes or 0
        rows = self.deal(dataset.train.y.numpy(), clients, cuts.seed, classes)
        return Partition.dealt(rows, dataset, cuts, self.groups(clients, classes))


@dataclass(frozen=True)
class Iid(Deal):
    """Samples dealt at random.

    Attributes:
        samples_per_client: mean number of samples of a client. If left out, all samples are used.
        sizes: how clients' numbers of samples are drawn: 'equal', or 'power' for GreedyFed's power law.
        min_samples: least samples of a client, before its shares are cut.
    """

    name: ClassVar[str] = "iid"
    by_class = False
    samples_per_client: Positive | None = None
    sizes: SizeLaw = "equal"
    min_samples: Positive = 10

    def deal(self, labels: NDArray[Any], clients: int, seed: int = 0, classes: int = 0) -> Indices:
        """Distribute the samples over the clients at random; of ``labels [n]`` only their number is used."""
        wanted = _sizes_by(self, len(labels), clients, seed)
        order = stream(seed, "partition", start=4).permutation(len(labels))
        return [np.sort(part) for part in np.split(order[: wanted.sum()], np.cumsum(wanted)[:-1])]

    def split(self, dataset: Dataset, clients: int, cuts: Cuts) -> Partition:
        """Return who holds which sample in which share; units are dealt whole."""
        if dataset.train.units is None:
            return super().split(dataset, clients, cuts)
        return Partition.dealt(_dealt_units(dataset.train.units.numpy(), clients, cuts.seed), dataset, cuts)


def _dealt_units(units: NDArray[np.int64], clients: int, seed: int) -> Indices:
    """Return the rows of each client, of whole units that are dealt at random, each to the client with the fewest rows.

    Raises:
        UserError: there are more clients than units.
    """
    _, number, sizes = np.unique(units, return_inverse=True, return_counts=True)
    if clients > len(sizes):
        raise UserError(f"data.clients = {clients}: {len(sizes)} units cannot be dealt to more clients than they are")
    held, client_of = np.zeros(clients, np.int64), np.zeros(len(sizes), np.int64)
    for unit in stream(seed, "iid units").permutation(len(sizes)).tolist():
        client_of[unit] = held.argmin()
        held[client_of[unit]] += sizes[unit]
    return rows_of_each(client_of[number], clients)


@dataclass(frozen=True)
class Dirichlet(Deal):
    """A label mix ~ Dirichlet(alpha) and a power-law size per client (GreedyFed).

    Attributes:
        alpha: the concentration. The smaller it is, the more skewed are the mixes.
        sampler: 'log' is exact at any alpha; 'float32-clamped' draws as GreedyFed's published code did.
        use_all: whether to use all samples; clients served last then take what is left. false: every client keeps its
            mix, and only as many samples are used as the class that runs out first allows (as GreedyFed's published
            code does).
        samples_per_client: mean number of samples of a client. If left out, all samples are used.
        sizes: how clients' numbers of samples are drawn: 'power' or 'equal'.
        min_samples: least samples of a client, before its shares are cut.
    """

    name: ClassVar[str] = "dirichlet"
    alpha: Rate = 0.5
    sampler: Sampler = "log"
    use_all: bool = True
    samples_per_client: Positive | None = None
    sizes: SizeLaw = "power"
    min_samples: Positive = 10

    def deal(self, labels: Labels, clients: int, seed: int, classes: int) -> Indices:
        """Give every client a size and a label mix, and then samples according to both.

        With ``use_all``, this is GreedyFed's partition. Clients are served in random order, each by a multinomial draw
        from its mix. When a class runs out, the rest is drawn from the remaining classes, in the proportions of the
        mix. (Hsu et al. 2019 do so sample by sample.) The sizes are therefore exact, but the mixes only while samples
        last. If all samples are used, the last clients take what is left; fewer ``samples_per_client`` avoid that.

        Without ``use_all``, it is what GreedyFed's published code does: sizes and mixes are kept as drawn, as many
        samples are used as the class that runs out first allows, and counts are rounded down. Sizes and mixes are
        redrawn, at most 100 times, until every client has ``min_samples``. (An older version of the published code
        keeps the last draw.)

        Args:
            labels: the class of each sample, ``[n]``.
            clients: how many clients there are.
            seed: the seed of all draws.
            classes: the number of classes.

        Raises:
            UserError: there are not enough samples, or no draw gave every client ``min_samples``.

        Examples:
            >>> import numpy as np
            >>> from hanse.data.partitions import Dirichlet
            >>> labels = np.repeat([0, 1, 2], 40)  # 40 samples of each of three classes
            >>> def counts(alpha):
            ...     parts = Dirichlet(alpha, sizes="equal", samples_per_client=20).deal(labels, 3, 0, 3)
            ...     return [np.bincount(labels[part], minlength=3).tolist() for part in parts]
            >>> counts(alpha=100.0)  # every client has some of every class
            [[4, 7, 9], [9, 4, 7], [6, 9, 5]]
            >>> counts(alpha=0.01)  # nearly one class each
            [[0, 0, 20], [11, 1, 8], [0, 20, 0]]
        """
        if not self.use_all:
            return self._scaled(labels, clients, seed, classes)
        mixes = label_mixes(clients, classes, self.alpha, seed=seed, sampler=self.sampler)
        wanted = _sizes_by(self, len(labels), clients, seed)
        draw = stream(seed, "partition", start=2)
        # each class in a random order, of which clients take consecutive spans
        stock = [draw.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
        held = np.array([len(s) for s in stock], dtype=np.int64)
        left = held.copy()
        spans: Indices = [np.zeros(0, dtype=np.int64)] * clients
        for client in draw.permutation(clients):
            counts = _serve(mixes[client], int(wanted[client]), left, draw)
            first = held - left
            parts = [stock[c][first[c] : first[c] + counts[c]] for c in np.flatnonzero(counts)]
            spans[client] = np.sort(np.concatenate(parts))
            left -= counts
        return spans

    def _scaled(self, labels: Labels, clients: int, seed: int, classes: int) -> Indices:
        """Return the indices of each client where sizes and mixes are kept as drawn."""
        most = len(labels) if self.samples_per_client is None else clients * self.samples_per_client
        _check_room(len(labels), clients, self.min_samples)
        stock = np.bincount(labels, minlength=classes)
        best = 0
        for attempt in range(-1, _SCALED_DRAWS):
            logs = label_mixes(clients, classes, self.alpha, seed=seed, sampler=self.sampler, attempt=attempt)
            mixes = np.exp(logs)
            weights = power_weights(clients, seed, attempt) if self.sizes == "power" else np.ones(clients)
            weights = weights / weights.sum()
            # of each class, the part of all samples used; the scarcest one bounds how many can be
            asked = weights @ mixes
            used = float(np.divide(stock, asked, out=np.full(classes, np.inf), where=asked > 0).min())
            used = min(used, len(labels), most)
            counts = np.floor(mixes * np.floor(used * weights)[:, None]).astype(np.int64)
            # floating-point error may lift the counts of a class above what there is of it
            fits = (counts.sum(axis=0) <= stock).all()
            smallest = int(counts.sum(axis=1).min())
            best = max(best, smallest)
            if fits and smallest >= self.min_samples:
                break
        else:
            raise UserError(
                f"partition = 'dirichlet' without all samples: in {_SCALED_DRAWS + 1} draws with alpha = "
                f"{self.alpha:g} the smallest of {clients} clients had {quantity(best, 'sample')} at best; min_samples "
                f"= {self.min_samples} is not met: lower it, or clients, or raise alpha"
            )
        return _dealt(labels, counts, stream(seed, "partition", start=11))


@dataclass(frozen=True)
class Niid(Deal):
    """Each class spread over the clients ~ Dirichlet(alpha) (Li et al. 2022).

    Attributes:
        alpha: the concentration. The smaller it is, the more skewed are the shares.
        min_samples: least samples of a client, before its shares are cut.
    """

    name: ClassVar[str] = "niid"
    alpha: Rate = 0.5
    min_samples: Positive = 10

    def deal(self, labels: Labels, clients: int, seed: int, classes: int) -> Indices:
        """Spread each class over the clients in shares ~ Dirichlet(alpha). Every sample goes to one client.

        This is the partition of Li et al. 2022 ("Federated learning on non-IID data silos"), as their code does it: a
        client that already has the average number of samples gets none of the remaining classes. The whole draw is
        repeated until every client has ``min_samples``.

        Args:
            labels: the class of each sample, ``[n]``.
            clients: how many clients there are.
            seed: the seed of all draws.
            classes: the number of classes.

        Raises:
            UserError: there are not enough samples, or 500 draws did not give every client ``min_samples``.
        """
        _check_room(len(labels), clients, self.min_samples)
        draw, what = stream(seed, "partition", start=3), f"'niid' with alpha = {self.alpha:g} and {clients} clients"
        return _spread_classes(labels, classes, clients, self.alpha, self.min_samples, draw, what)


@dataclass(frozen=True)
class Pathological(Deal):
    """Exactly ``classes_per_client`` classes per client (after McMahan et al. 2017).

    Attributes:
        classes_per_client: number of classes of each client.
    """

    name: ClassVar[str] = "pathological"
    classes_per_client: Positive = 2

    def deal(self, labels: NDArray[Any], clients: int, seed: int = 0, classes: int = 0) -> Indices:
        """Give every client shards of ``classes_per_client`` classes.

        After McMahan et al. 2017, whose shards of label-sorted samples give most clients two classes. Here a class is
        cut into one nearly equal shard for each client that has it, so the number of classes is exact. The numbers of
        clients per class differ by at most one. Where clients times ``classes_per_client`` is less than the number of
        classes, some classes are not used. Of ``labels [n]``, the classes that are there count.

        Raises:
            UserError: fewer classes than ``classes_per_client``, or a class with fewer samples than clients that share
                it.
        """
        _check_room(len(labels), clients, 1)
        there, each = np.unique(labels), self.classes_per_client
        if each > len(there):
            known = quantity(len(there), "class", "classes")
            raise UserError(f"classes_per_client = {each}: the data has {known}; allowed: 1..{len(there)}")
        draw = stream(seed, "partition", start=5)
        has = np.zeros((clients, len(there)), dtype=np.bool_)
        for client in range(clients):
            # the classes that fewest clients have so far; ties at random, since lexsort's last key counts first
            has[client, np.lexsort((draw.random(len(there)), has.sum(axis=0)))[:each]] = True
        return _shared(labels, there, has, draw, f"clients = {clients} with classes_per_client = {each}")


@dataclass(frozen=True)
class Cluster(Deal):
    """Clusters of clients: alike inside, unlike between (iPFL).

    Attributes:
        clusters: number of clusters of clients.
        alpha_between: Dirichlet concentration between clusters.
        alpha_within: Dirichlet concentration inside a cluster.
        min_samples: least samples of a client, before its shares are cut.
    """

    name: ClassVar[str] = "cluster"
    clusters: Positive = 3
    alpha_between: Rate = 0.1
    alpha_within: Rate = 10.0
    min_samples: Positive = 10

    def deal(self, labels: Labels, clients: int, seed: int, classes: int) -> Indices:
        """Spread every class over clusters of clients, and then over the clients of each cluster.

        The shares are drawn from Dirichlet(alpha_between) and Dirichlet(alpha_within). iPFL says that heterogeneity is
        high between clusters (beta 0.1) and low inside them (beta 10), but not how the two draws are combined. Here
        both levels are drawn in the way in which :class:`Niid` draws its clients. Clusters are in order of client id,
        which differs from the paper's random clustering only in numbering.

        Args:
            labels: the class of each sample, ``[n]``.
            clients: how many clients there are in all clusters together.
            seed: the seed of all draws.
            classes: the number of classes.

        Raises:
            UserError: there are not enough samples, or 500 draws did not give every client ``min_samples``.
        """
        least = self.min_samples
        _check_room(len(labels), clients, least)
        members = np.bincount(self.groups(clients, classes))
        parts: Indices = []
        draw, what = stream(seed, "partition", start=8), f"'cluster' with alpha_between = {self.alpha_between:g}"
        apart = _spread_classes(
            labels, classes, self.clusters, self.alpha_between, least, draw, what, int(members.max())
        )
        what = f"'cluster' with alpha_within = {self.alpha_within:g}"
        for g, own in enumerate(apart):
            draw = stream(seed, "partition", start=9, client=g)
            inner = _spread_classes(labels[own], classes, int(members[g]), self.alpha_within, least, draw, what)
            parts.extend(own[part] for part in inner)
        return parts

    def groups(self, clients: int, classes: int) -> NDArray[np.int64]:
        """Return the cluster of each client, ``[clients]``: consecutive ids, clusters of nearly equal size."""
        return cluster_of(clients, self.clusters)


@dataclass(frozen=True)
class Skew(Deal):
    """Clusters of clients with the same few classes (iPFL).

    Attributes:
        classes_per_client: number of classes of each client.
    """

    name: ClassVar[str] = "skew"
    classes_per_client: Positive = 5

    def deal(self, labels: Labels, clients: int, seed: int, classes: int) -> Indices:
        """Give each cluster of clients its own few classes, and divide their samples evenly within the cluster.

        The classes are divided into consecutive groups of ``classes_per_client``, one for each cluster. All clients of
        a cluster have the same classes, in nearly the same numbers. Two clusters have no class in common (iPFL,
        "skew").

        Args:
            labels: the class of each sample, ``[n]``.
            clients: how many clients there are, at least one for each cluster.
            seed: the seed of the draws.
            classes: the number of classes.

        Raises:
            UserError: the classes do not divide evenly, or a cluster has more clients than samples of a class.
        """
        _check_room(len(labels), clients, 1)
        each = self.classes_per_client
        if classes % each:
            raise UserError(f"classes_per_client = {each} with partition = 'skew': must divide the {classes} classes")
        has = self.groups(clients, classes)[:, None] == np.arange(classes) // each
        draw, what = stream(seed, "partition", start=10), f"clients = {clients} with partition = 'skew'"
        # the odd samples of a class fall to other clients than those of the class before
        return _shared(labels, np.arange(classes), has, draw, what, turn=1)

    def groups(self, clients: int, classes: int) -> NDArray[np.int64]:
        """Return the cluster of each client, ``[clients]``, one for each group of classes."""
        return cluster_of(clients, classes // self.classes_per_client)


@dataclass(frozen=True)
class Natural:
    """The source's own clients.

    Attributes:
        choose: which of the source's clients take part: a 'random' choice, or the 'largest' ones.
        per_owner: each of the source's clients is divided into this many, which form a group.
        per_owner_alpha: with ``per_owner``: each class of an owner is spread over the owner's clients ~ Dirichlet with
            this concentration, as in niid. If left out, it is spread evenly.
        min_samples: least samples of a client, with ``per_owner_alpha``.
        test_owners: whose samples the test set holds. 'own': those of the owners that take part. 'next': those of as
            many other owners, the largest that do not take part, with all their samples; clients then train on all of
            their own samples.
    """

    name: ClassVar[str] = "natural"
    by_class: ClassVar[bool] = False
    choose: Literal["random", "largest"] = "random"
    per_owner: Positive = 1
    per_owner_alpha: Rate | None = None
    min_samples: Positive = 10
    test_owners: Literal["own", "next"] = "own"

    def __post_init__(self) -> None:
        if self.per_owner_alpha is not None and self.per_owner == 1:
            raise UserError(f"per_owner_alpha: {self.per_owner_alpha:g}: no effect with per_owner = 1; leave it out")
        if self.per_owner_alpha is None and self.min_samples != 10:
            raise UserError(f"min_samples: {self.min_samples}: has no effect without per_owner_alpha; leave it out")

    def owners(self, ids: NDArray[np.int64], clients: int, seed: int = 0) -> NDArray[np.int64]:
        """Return the sorted ids of the source's clients that take part, ``[clients / per_owner]``.

        Args:
            ids: the owner of each sample, ``[n]``. In a tie of the largest, the lower id takes part.
            clients: the wanted number of clients, a multiple of ``per_owner``.
            seed: the seed of the random choice.

        Raises:
            UserError: there are fewer owners, or ``clients`` is not a multiple of ``per_owner``.
        """
        known, sizes = np.unique(ids, return_counts=True)
        wanted, rest = divmod(clients, self.per_owner)
        if rest or wanted > len(known):
            allowed = f"1..{len(known)}" if self.per_owner == 1 else f"{self.per_owner} times 1..{len(known)}"
            raise UserError(f"data.clients = {clients}: the data have {len(known)} natural clients; allowed: {allowed}")
        if self.choose == "largest":
            chosen = np.argsort(-sizes, kind="stable")[:wanted]
        else:
            chosen = stream(seed, "partition", start=6).permutation(len(known))[:wanted]
        return known[np.sort(chosen)]

    def prepared(self, dataset: Dataset, clients: int, seed: int) -> Dataset:
        """Return the data set with a test set of the owners that take part, or of the next ones.

        The next ones are as many others: the largest that do not take part. Those who take part then train on all that
        they have in either set. iPFL's public code tests so on FEMNIST (the 20 writers after the 20 largest) and
        Shakespeare (10 roles after 10).

        Raises:
            UserError: the source does not say which client a sample belongs to, or has too few owners.
        """
        if self.test_owners == "own":
            if dataset.client_of is None or dataset.test_client_of is None:
                return dataset
            owners = self.owners(dataset.client_of, clients, seed)
            return dataset.keep_test(np.flatnonzero(np.isin(dataset.test_client_of, owners)))
        ids, whole = _ids(dataset, "data.partition.test_owners = 'next'"), dataset.train
        if dataset.test_client_of is not None and len(dataset.test_client_of):
            ids = np.concatenate([ids, dataset.test_client_of])
            whole = Samples.joined([dataset.train, dataset.test])
        owners = self.owners(ids, clients, seed)
        others, sizes = np.unique(ids[~np.isin(ids, owners)], return_counts=True)
        if len(others) < len(owners):
            raise UserError(
                f"data.partition.test_owners = 'next': {len(owners)} take part and {len(others)} are left to test on; "
                f"allowed: clients up to {(len(owners) + len(others)) // 2 * self.per_owner}"
            )
        tested = others[np.argsort(-sizes, kind="stable")[: len(owners)]]
        own, next_ones = (np.flatnonzero(np.isin(ids, some)) for some in (owners, tested))
        train, test = (whole.take(torch.from_numpy(rows)) for rows in (own, next_ones))
        return replace(dataset, train=train, test=test, client_of=ids[own], test_client_of=None, distributions=None)

    def split(self, dataset: Dataset, clients: int, cuts: Cuts) -> Partition:
        """Return who holds which sample in which share: clients of one owner after another, ``per_owner`` of each.

        Raises:
            UserError: the source does not say which client a sample belongs to, or an owner has too few samples to
                divide.
        """
        ids, rows = _ids(dataset, "data.partition: 'natural'"), list[NDArray[np.int64]]()
        chosen = self.owners(ids, clients, cuts.seed)
        # stable, so an owner's samples keep their order
        by_owner = np.argsort(ids, kind="stable")
        starts, ends = (np.searchsorted(ids[by_owner], chosen, side=side) for side in ("left", "right"))
        for owner, a, b in zip(chosen.tolist(), starts, ends, strict=True):
            rows += self._divided(by_owner[a:b], owner, dataset, cuts.seed)
        owners = np.repeat(chosen, self.per_owner)
        return Partition.dealt(rows, dataset, cuts, numbered(owners) if self.per_owner > 1 else None, owners)

    def _divided(self, span: NDArray[np.int64], owner: int, dataset: Dataset, seed: int) -> Indices:
        """Return the samples of each of the clients that an owner is divided into.

        Samples in order of time are divided into consecutive spans.

        Args:
            span: the owner's samples, ascending.
            owner: the owner's id.
            dataset: all samples.
            seed: the seed of all draws.

        Raises:
            UserError: there are too few samples.
        """
        draw = stream(seed, "per-owner", client=owner)
        if len(span) < self.per_owner:
            raise UserError(f"per_owner: {self.per_owner}: natural client {owner}: {quantity(len(span), 'sample')}")
        if self.per_owner_alpha is not None:  # iPFL's public code on PACS
            own, alpha = dataset.train.y.numpy()[span].astype(np.int64), self.per_owner_alpha
            what = f"natural client {owner} with per_owner_alpha = {alpha:g}"
            classes = dataset.num_classes or 0
            dealt = _spread_classes(own, classes, self.per_owner, alpha, self.min_samples, draw, what)
            return [span[part] for part in dealt]
        order = span if dataset.ordered or self.per_owner == 1 else draw.permutation(span)
        return [np.sort(part) for part in np.array_split(order, self.per_owner)]


def _ids(dataset: Dataset, where: str) -> NDArray[np.int64]:
    """Return the owner of each train sample. Raises UserError if the source does not say."""
    if dataset.client_of is None:
        raise UserError(f"{where}: source '{dataset.name}' does not say which client a sample belongs to")
    return dataset.client_of


@dataclass(frozen=True)
class Pooled(Deal):
    """One client with everything: centralised training.

    Attributes:
        of: the name or table of a partition; only 'dirichlet' is allowed. The client then gets only the samples that
            this partition would give to ``data.clients`` clients. If left out, it gets all samples.
    """

    name: ClassVar[str] = "pooled"
    by_class = False
    of: str | dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _ = self.whole  # for its mistakes

    @property
    def whole(self) -> Dirichlet | None:
        """The partition whose samples are pooled. Raises UserError for one that is not allowed, or its options."""
        if self.of is None:
            return None
        options = {"name": self.of} if isinstance(self.of, str) else dict(self.of)
        if (name := options.pop("name", Dirichlet.name)) != Dirichlet.name:
            raise UserError(f"of: {name!r}: allowed: '{Dirichlet.name}'")
        made: Dirichlet = call(Dirichlet, options, "data.partition.of")
        return made

    def deal(self, labels: NDArray[Any], clients: int, seed: int, classes: int) -> Indices:
        """Give all samples to one client, or all that the other partition would give to ``clients``."""
        if self.whole is None:
            return [np.arange(len(labels))]
        return [np.sort(np.concatenate(self.whole.deal(labels, clients, seed, classes)))]


def _check_room(samples: int, clients: int, min_samples: int) -> None:
    """Raise UserError unless ``clients`` can have ``min_samples`` (at least 1) each out of ``samples``."""
    if clients > samples:
        raise UserError(f"clients = {clients}: there are only {samples} samples; allowed: 1..{samples}")
    if clients * min_samples > samples:
        raise UserError(
            f"min_samples = {min_samples}: {clients} clients would need {clients * min_samples} samples and there are "
            f"{samples}; allowed: min_samples up to {samples // clients}, clients up to {samples // min_samples}"
        )


def client_sizes(
    samples: int, clients: int, *, seed: int, law: SizeLaw = "power", min_samples: int = 1, total: int | None = None
) -> NDArray[np.int64]:
    """Return the number of samples of each client, ``[clients]``.

    Args:
        samples: how many samples there are.
        clients: how many clients share them.
        seed: the seed of the sizes of the power law.
        law: how sizes are drawn. "power": in proportion to q with the density 3 q^2 on [0, 1] (GreedyFed, section 4.1;
            mean 0.75, standard deviation 0.19). "equal": each client gets the same number, and the first clients get
            one more each until nothing remains.
        min_samples: the least that a client gets. Smaller clients are raised to this number, and the others share the
            rest in proportion.
        total: what the sizes sum to. None: the number of all samples.

    Raises:
        UserError: ``total`` exceeds the number of samples, or there are too few for ``min_samples`` each.
    """
    if total is not None and total > samples:
        raise UserError(f"{total} samples are asked for and there are {samples}; allowed: 1..{samples}")
    count = samples if total is None else total
    _check_room(count, clients, min_samples)
    if law == "equal":
        return largest_remainder(np.ones(clients), count)
    return _with_floor(power_weights(clients, seed), count, min_samples)


def _sizes_by(law: Iid | Dirichlet, samples: int, clients: int, seed: int) -> NDArray[np.int64]:
    """Return :func:`client_sizes` by the options of a partition."""
    total = None if law.samples_per_client is None else clients * law.samples_per_client
    return client_sizes(samples, clients, seed=seed, law=law.sizes, min_samples=law.min_samples, total=total)


def power_weights(clients: int, seed: int, attempt: int = -1) -> NDArray[np.float64]:
    """Return relative sizes drawn with the density 3 q^2 on (0, 1], ``[clients]``.

    Args:
        clients: how many are drawn.
        seed: the seed of the draws.
        attempt: the number of a redraw, 0 or more. -1: the first draw.
    """
    # 1 - U lies in (0, 1]: no client has weight zero
    return np.cbrt(1.0 - stream(seed, "partition", round=attempt, start=0).random(clients))


def _with_floor(weights: NDArray[np.float64], total: int, least: int) -> NDArray[np.int64]:
    """Return sizes in proportion to ``weights [clients]`` that sum to ``total``, none below ``least``."""
    sizes = largest_remainder(weights, total)
    low = np.zeros(len(weights), dtype=np.bool_)
    # raising some to the floor takes from the others, of whom some may fall below it in turn
    while (sizes < least).any():
        low |= sizes < least
        sizes[low] = least
        rest = total - least * int(low.sum())
        if not low.all():
            sizes[~low] = largest_remainder(weights[~low], rest)
    return sizes


def label_mixes(
    clients: int, classes: int, alpha: float, *, seed: int, sampler: Sampler = "log", attempt: int = -1
) -> NDArray[np.float64]:
    """Return the log of each client's label mix ~ Dirichlet(alpha), ``[clients, classes]``.

    Args:
        clients: how many mixes are drawn.
        classes: the length of a mix.
        alpha: the concentration, above 0. With a small one, a mix is nearly a single class.
        seed: the seed of the draws.
        sampler: "log" is exact at any alpha. "float32-clamped" is what ``torch.distributions.Dirichlet`` draws in
            float32, and therefore what GreedyFed's published code uses. For alpha = 1e-4 the gamma variates underflow
            and are clamped. About half of the clients then get an exactly uniform mix instead of a single class.
        attempt: the number of a redraw, 0 or more. -1: the first draw.
    """
    if sampler == "log":
        return _log_dirichlet(alpha, (clients, classes), stream(seed, "partition", round=attempt, start=1))
    # torch's distribution draws from its global generator: it is seeded here for this draw and restored afterwards
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(torch_seed(seed, "partition", round=attempt, start=1))
        mixes = torch.distributions.Dirichlet(torch.full((classes,), alpha)).sample((clients,))
    return _log_softmax(np.log(mixes.numpy().astype(np.float64)))


def _log_softmax(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return logarithms of shares that sum to 1 over the last axis.

    It is SciPy's ``log_softmax``, to the last bit; importing that takes longer than a short run.
    """
    below = logs - logs.max(axis=-1, keepdims=True)
    found: NDArray[np.float64] = below - np.log(np.exp(below).sum(axis=-1, keepdims=True))
    return found


def _log_dirichlet(alpha: float, shape: tuple[int, int], draw: np.random.Generator) -> NDArray[np.float64]:
    """Return the logarithms of draws from a symmetric Dirichlet(alpha), with the given shape ``[draws, parts]``.

    Works in log space, so it stays exact where the parts themselves underflow (alpha = 1e-4 and far below). A
    Gamma(a) variate is Gamma(a + 1) U^(1/a) (Marsaglia and Tsang 2000, section 6), and -log U is exponential.
    """
    gamma = np.log(draw.standard_gamma(alpha + 1.0, size=shape))
    wait = draw.standard_exponential(size=shape)
    # only differences count after normalising: with the row's smallest wait taken off, one part stays finite for every
    # alpha
    with np.errstate(over="ignore"):
        logs = gamma - (wait - wait.min(axis=1, keepdims=True)) / alpha
    return _log_softmax(logs)


def _serve(
    log_mix: NDArray[np.float64], size: int, left: NDArray[np.int64], draw: np.random.Generator
) -> NDArray[np.int64]:
    """Return how many samples of each class a client gets, ``[classes]``.

    Args:
        log_mix: the logarithm of its label mix, ``[classes]``.
        size: how many it gets in all.
        left: how many of each class are left, ``[classes]``.
        draw: the multinomial draws come from it.
    """
    counts = np.zeros_like(left)
    while (need := size - int(counts.sum())) > 0:
        logs = np.where(left > counts, log_mix, -np.inf)
        if np.isneginf(logs).all():  # its mix says nothing about the classes left
            logs = np.where(left > counts, 0.0, -np.inf)
        mix = np.exp(_log_softmax(logs))
        counts += np.minimum(draw.multinomial(need, mix / mix.sum()), left - counts)
    return counts


def _spread_classes(
    labels: Labels,
    classes: int,
    receivers: int,
    alpha: float,
    min_samples: int,
    draw: np.random.Generator,
    what: str,
    members: int = 1,
) -> Indices:
    """Spread every class over the receivers in shares ~ Dirichlet(alpha), redrawn until each has enough samples.

    The receivers are clients, or clusters of them.

    Args:
        labels: the class of each sample, ``[n]``.
        classes: the number of classes.
        receivers: how many share the samples.
        alpha: the concentration, above 0.
        min_samples: the least that a client gets.
        draw: all draws come from it, one attempt after another.
        what: the partition and its concentration, for the message.
        members: the most clients that a receiver stands for.

    Returns:
        The sorted positions of each receiver.

    Raises:
        UserError: 500 draws were not enough.
    """
    stock, best = np.bincount(labels, minlength=classes).tolist(), -1
    for _ in range(_NIID_DRAWS):
        counts = _spread(stock, receivers, alpha, draw)
        smallest = int(counts.sum(axis=0).min())
        best = max(best, smallest)
        if smallest >= min_samples * members:
            return _dealt(labels, counts.T, draw)
    raise UserError(
        f"partition = {what}: in {_NIID_DRAWS} draws the smallest of {receivers} parts had {quantity(best, 'sample')} "
        f"at best; min_samples = {min_samples} is not met: raise the concentration, or lower clients or min_samples"
    )


def _spread(stock: list[int], clients: int, alpha: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return one draw of how many samples of each class each client gets, ``[classes, clients]``."""
    counts = np.zeros((len(stock), clients), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    limit = sum(stock) / clients
    for c, size in enumerate(stock):
        logs = _log_dirichlet(alpha, (1, clients), draw)
        # a class without samples can come last, when every client is full and there is nothing to normalise over
        if size == 0:
            continue
        open_ = held < limit
        allowed = np.where(open_, logs, -np.inf)
        if np.isneginf(allowed).all():
            allowed = np.where(open_[None, :], 0.0, -np.inf)
        shares = np.exp(_log_softmax(allowed)[0])
        ends = np.cumsum(shares)
        # the last open client ends at exactly 1 (ends / ends[-1]), so rounding leaves nothing to a client that is
        # full
        counts[c] = np.diff(np.floor(ends / ends[-1] * size).astype(np.int64), prepend=0)
        held += counts[c]
    return counts


def _dealt(labels: Labels, counts: NDArray[np.int64], draw: np.random.Generator) -> Indices:
    """Return sorted samples for each client, so many of each class as ``counts [clients, classes]`` says."""
    parts: list[Indices] = [[] for _ in counts]
    for c, ends in enumerate(np.cumsum(counts, axis=0).T):
        for part, own in zip(parts, np.split(draw.permutation(np.flatnonzero(labels == c)), ends), strict=False):
            part.append(own)
    return [np.sort(np.concatenate(part)) for part in parts]


def _shared(
    labels: NDArray[Any],
    there: NDArray[Any],
    has: NDArray[np.bool_],
    draw: np.random.Generator,
    what: str,
    turn: int = 0,
) -> Indices:
    """Return sorted samples for each client: a class is cut into nearly equal shards for the clients that have it.

    Args:
        labels: the class of each sample, ``[n]``.
        there: the classes.
        has: ``[clients, classes]``, which client has which.
        draw: the random generator.
        what: the words with which a message begins.
        turn: by how many clients the larger shards move on from one class to the next.

    Raises:
        UserError: a class has fewer samples than clients that share it.
    """
    parts: list[Indices] = [[] for _ in has]
    for c, label in enumerate(there.tolist()):
        holders, stock = np.flatnonzero(has[:, c]), draw.permutation(np.flatnonzero(labels == label))
        if len(holders) > len(stock):
            raise UserError(
                f"{what}: {len(holders)} clients share {quantity(len(stock), 'sample')} of class {label}; lower either"
            )
        shards = np.array_split(stock, max(1, len(holders)))
        for place, client in enumerate(holders.tolist()):
            parts[client].append(shards[(place + turn * c) % len(holders)])
    return [np.sort(np.concatenate(part)) for part in parts]


def cluster_of(clients: int, clusters: int) -> NDArray[np.int64]:
    """Return the cluster of each client, ``[clients]``: consecutive ids, clusters of nearly equal size."""
    if clusters > clients:
        raise UserError(f"clusters = {clusters}: there are only {clients} clients; allowed: 1..{clients}")
    return np.asarray(np.arange(clients) * clusters // clients)
