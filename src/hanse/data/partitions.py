"""Partitions of a data set over clients: one sorted index array per client, with no sample used twice.

Each function here is one way to split. By size only: :func:`iid`. By label: :func:`dirichlet` and
:func:`scaled_dirichlet` draw a mix of classes for each client, :func:`niid` spreads each class over the clients,
:func:`pathological` gives a few classes to each. By clusters of clients, alike within a cluster and different between
clusters (iPFL section 6.1 and appendix E.5): :func:`cluster` and :func:`skew`. By the source's own clients:
:func:`natural`. All to one client: :func:`pooled`. The partition "mixture" is in :mod:`hanse.data.mixtures`.

An experiment reaches these through ``[data] partition``, whose options :mod:`hanse.data.choices` declares.
:func:`hanse.data.build.split` wraps the resulting indices into a :class:`Partition`. They can also be called directly
with an array of labels. Draws come from streams keyed by the seed, so the same seed gives the same split everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream, torch_seed
from hanse.data.dataset import largest_remainder

SizeLaw = Literal["power", "equal"]


def _check_room(samples: int, clients: int, min_samples: int) -> None:
    """Raise UserError unless ``clients`` can have ``min_samples`` (at least 1) each out of ``samples``."""
    if clients > samples:
        raise UserError(f"clients = {clients}: there are only {samples} samples; allowed: 1..{samples}")
    if clients * min_samples > samples:
        raise UserError(
            f"min_samples = {min_samples}: {clients} clients would need {clients * min_samples} samples "
            "and there are "
            f"{samples}; allowed: min_samples up to {samples // clients}, or up to "
            f"{samples // min_samples} clients"
        )


def client_sizes(
    samples: int,
    clients: int,
    *,
    seed: int,
    law: SizeLaw = "power",
    min_samples: int = 1,
    total: int | None = None,
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


Sampler = Literal["log", "float32-clamped"]

# draws before a request is given up: of _spread_classes, and of scaled_dirichlet after its first
_NIID_DRAWS = 500
_SCALED_DRAWS = 100


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
    return _log_normalise(logs)


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
    return _log_normalise(np.log(mixes.numpy().astype(np.float64)))


def dirichlet(
    labels: NDArray[np.int64],
    clients: int,
    *,
    alpha: float,
    seed: int = 0,
    sizes: SizeLaw = "power",
    min_samples: int = 10,
    sampler: Sampler = "log",
    total: int | None = None,
    num_classes: int | None = None,
) -> list[NDArray[np.int64]]:
    """Give every client a size and a label mix ~ Dirichlet(alpha), and then samples according to both.

    This is GreedyFed's partition. Clients are served in random order, each by a multinomial draw from its mix. When a
    class runs out, the rest is drawn from the remaining classes, in the proportions of the mix. (Hsu et al. 2019 do so
    sample by sample.) The sizes are therefore exact, but the mixes only while samples last. If all samples are used,
    the last clients take what is left. A ``total`` below the number of samples avoids that.

    Args:
        labels: the class of each sample, integers ``[n]`` from 0.
        clients: how many clients there are, N.
        alpha: the concentration, above 0. At 100 every client has about the mix of the whole set, at 0.01 nearly a
            single class.
        seed: the seed of all draws.
        sizes: how many samples each client gets; see :func:`client_sizes`.
        min_samples: the least that a client gets.
        sampler: how mixes are drawn; see :func:`label_mixes`.
        total: how many samples are distributed in all. None: all of them.
        num_classes: the number of classes, if some of them may be absent from ``labels``. None: the largest label plus
            1.

    Returns:
        The sorted sample indices of each client.

    Raises:
        UserError: there are not enough samples, or ``labels`` are not integer classes.

    Examples:
        >>> import numpy as np
        >>> from hanse.data.partitions import dirichlet
        >>> labels = np.repeat([0, 1, 2], 40)  # 40 samples of each of three classes
        >>> def counts(alpha):
        ...     parts = dirichlet(labels, 3, alpha=alpha, sizes="equal", total=60)
        ...     return [np.bincount(labels[part], minlength=3).tolist() for part in parts]
        >>> counts(alpha=100.0)  # every client has some of every class
        [[4, 7, 9], [9, 4, 7], [6, 9, 5]]
        >>> counts(alpha=0.01)  # nearly one class each
        [[0, 0, 20], [11, 1, 8], [0, 20, 0]]
    """
    classes = _num_classes(labels, num_classes)
    mixes = label_mixes(clients, classes, alpha, seed=seed, sampler=sampler)
    wanted = client_sizes(len(labels), clients, seed=seed, law=sizes, min_samples=min_samples, total=total)
    draw = stream(seed, "partition", start=2)
    # each class in a random order, of which clients take consecutive spans
    stock = [draw.permutation(np.flatnonzero(labels == c)) for c in range(classes)]
    held = np.array([len(s) for s in stock], dtype=np.int64)
    left = held.copy()
    spans: list[NDArray[np.int64]] = [np.zeros(0, dtype=np.int64)] * clients
    for client in draw.permutation(clients):
        counts = _serve(mixes[client], int(wanted[client]), left, draw)
        first = held - left
        parts = [stock[c][first[c] : first[c] + counts[c]] for c in np.flatnonzero(counts)]
        spans[client] = np.sort(np.concatenate(parts))
        left -= counts
    return spans


def scaled_dirichlet(
    labels: NDArray[np.int64],
    clients: int,
    *,
    alpha: float,
    seed: int = 0,
    sizes: SizeLaw = "power",
    min_samples: int = 10,
    sampler: Sampler = "log",
    total: int | None = None,
    num_classes: int | None = None,
) -> list[NDArray[np.int64]]:
    """Give every client a label mix ~ Dirichlet(alpha) and a proportional size, and keep both as drawn.

    This is what GreedyFed's published code does. As many samples are used as the class that runs out first allows (at
    most ``total``), and counts are rounded down. Sizes and mixes are redrawn, at most 100 times, until every client has
    ``min_samples``. If none of the 101 draws succeeds, an error is raised. (An older version of the published code
    keeps the last draw.)

    Args:
        labels: the class of each sample, integers ``[n]`` from 0.
        clients: how many clients there are, N.
        alpha: the concentration, above 0.
        seed: the seed of all draws.
        sizes: the law of the sizes, "power" or "equal".
        min_samples: the least that a client gets.
        sampler: how mixes are drawn, "log" or "float32-clamped".
        total: the most samples that are distributed in all. None: as many as possible.
        num_classes: the number of classes; None for the largest label plus 1.

    Returns:
        The sorted sample indices of each client.

    Raises:
        UserError: no draw gave every client ``min_samples``, or there are too few samples for that.
    """
    classes = _num_classes(labels, num_classes)
    _check_room(len(labels), clients, min_samples)
    stock = np.bincount(labels, minlength=classes)
    best = 0
    for attempt in range(-1, _SCALED_DRAWS):
        mixes = np.exp(label_mixes(clients, classes, alpha, seed=seed, sampler=sampler, attempt=attempt))
        weights = power_weights(clients, seed, attempt) if sizes == "power" else np.ones(clients)
        weights = weights / weights.sum()
        # of each class, the part of all samples used; the scarcest one bounds how many can be
        asked = weights @ mixes
        used = float(np.divide(stock, asked, out=np.full(classes, np.inf), where=asked > 0).min())
        used = min(used, len(labels), used if total is None else total)
        counts = np.floor(mixes * np.floor(used * weights)[:, None]).astype(np.int64)
        # floating-point error may lift the counts of a class above what there is of it
        fits = (counts.sum(axis=0) <= stock).all()
        smallest = int(counts.sum(axis=1).min())
        best = max(best, smallest)
        if fits and smallest >= min_samples:
            break
    else:
        raise UserError(
            f"partition = 'dirichlet' without all samples: in {_SCALED_DRAWS + 1} draws with alpha = {alpha:g} the "
            f"smallest of {clients} clients had {best} samples at best; min_samples = {min_samples} is not met: lower "
            "it, or clients, or raise alpha"
        )
    draw = stream(seed, "partition", start=11)
    parts: list[list[NDArray[np.int64]]] = [[] for _ in range(clients)]
    for c in range(classes):
        order = draw.permutation(np.flatnonzero(labels == c))
        for client, part in enumerate(np.split(order, np.cumsum(counts[:, c]))[:-1]):
            parts[client].append(part)
    return [np.sort(np.concatenate(part)) for part in parts]


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
        mix = np.exp(_log_normalise(logs[None, :])[0])
        counts += np.minimum(draw.multinomial(need, mix / mix.sum()), left - counts)
    return counts


def niid(
    labels: NDArray[np.int64],
    clients: int,
    *,
    alpha: float,
    seed: int = 0,
    min_samples: int = 10,
    num_classes: int | None = None,
) -> list[NDArray[np.int64]]:
    """Spread each class over the clients in shares ~ Dirichlet(alpha). Every sample goes to one client.

    This is the partition of Li et al. 2022 ("Federated learning on non-IID data silos"), as their code does it: a
    client that already has the average number of samples gets none of the remaining classes. The whole draw is repeated
    until every client has ``min_samples``.

    Args:
        labels: the class of each sample, integers ``[n]`` from 0.
        clients: how many clients there are, N.
        alpha: the concentration, above 0. With a small one, a class goes to few clients.
        seed: the seed of all draws.
        min_samples: the least that a client gets.
        num_classes: as in :func:`dirichlet`.

    Returns:
        The sorted sample indices of each client.

    Raises:
        UserError: there are not enough samples, or 500 draws did not give every client ``min_samples``.
    """
    classes = _num_classes(labels, num_classes)
    _check_room(len(labels), clients, min_samples)
    return _spread_classes(
        labels, classes, clients, alpha, min_samples, stream(seed, "partition", start=3),
        (f"partition = 'niid': in {_NIID_DRAWS} draws with alpha = {alpha:g} over {clients} clients the smallest "
         "client", "alpha, or lower clients or min_samples"),
    )  # fmt: skip


def _spread_classes(
    labels: NDArray[np.int64],
    classes: int,
    receivers: int,
    alpha: float,
    min_samples: int,
    draw: np.random.Generator,
    told: tuple[str, str],
    least: int | None = None,
) -> list[NDArray[np.int64]]:
    """Spread every class over the receivers in shares ~ Dirichlet(alpha), redrawn until each has enough samples.

    The receivers are clients, or clusters of them.

    Args:
        labels: the class of each sample, ``[n]``.
        receivers: how many share the samples.
        alpha: the concentration, above 0.
        min_samples: the option, for the message.
        draw: all draws come from it, one attempt after another.
        told: for the message: whose samples were too few, and what to raise.
        least: the least that each must get. None: ``min_samples``.

    Returns:
        The sorted positions of each receiver.

    Raises:
        UserError: 500 draws were not enough.
    """
    by_class = [np.flatnonzero(labels == c) for c in range(classes)]
    best = -1
    for _ in range(_NIID_DRAWS):
        counts = _spread([len(s) for s in by_class], receivers, alpha, draw)
        smallest = int(counts.sum(axis=0).min())
        best = max(best, smallest)
        if smallest >= (min_samples if least is None else least):
            parts = [
                np.split(draw.permutation(s), np.cumsum(row)[:-1]) for s, row in zip(by_class, counts, strict=True)
            ]
            return [np.sort(np.concatenate([p[k] for p in parts])) for k in range(receivers)]
    raise UserError(f"{told[0]} had {best} samples at best; min_samples = {min_samples} is not met: raise {told[1]}")


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
        shares = np.exp(_log_normalise(allowed)[0])
        ends = np.cumsum(shares)
        # the last open client ends at exactly 1 (ends / ends[-1]), so rounding leaves nothing to a client that is
        # full
        counts[c] = np.diff(np.floor(ends / ends[-1] * size).astype(np.int64), prepend=0)
        held += counts[c]
    return counts


def _log_normalise(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows of log weights, shifted so that their exponentials sum to 1."""
    top = logs.max(axis=1, keepdims=True)
    return np.asarray(logs - top - np.log(np.exp(logs - top).sum(axis=1, keepdims=True)))


def _num_classes(labels: NDArray[np.int64], num_classes: int | None) -> int:
    """Return the number of classes, given or found in ``labels [n]``; refuse labels that are not integers in range."""
    if labels.dtype.kind not in "ui" or labels.ndim != 1:
        raise UserError(
            f"labels are {labels.dtype} of shape {labels.shape}; a partition by label needs integer classes (n,)"
        )
    classes = int(labels.max()) + 1 if len(labels) else 1
    if len(labels) and (labels.min() < 0 or (num_classes is not None and classes > num_classes)):
        raise UserError(f"labels span {labels.min()}..{labels.max()}; allowed: 0..{(num_classes or classes) - 1}")
    return num_classes if num_classes is not None else classes


Indices = list[NDArray[np.int64]]
Choose = Literal["random", "largest"]


@dataclass(frozen=True)
class Partition:
    """The samples of each client: sorted int64 indices into the train set; no sample is used twice.

    Attributes:
        train: the indices of each client's samples.
        groups: ``[clients]``, the cluster of each client, where the partition makes clusters.
        owners: ``[clients]``, given if the source itself has clients: for each client, which of the source's clients it
            is, or is a part of.
        kept: the indices (validation, test) that each client holds out, if the partition draws these itself. ``train``
            then does not contain them.

    Raises:
        UserError: an index is below 0, a sample is used twice, or a client has none.

    Examples:
        >>> Partition((np.array([0, 1, 2]), np.array([3, 4, 5]))).sizes
        array([3, 3])
    """

    train: tuple[NDArray[np.int64], ...]
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
        if used[0] < 0:
            raise UserError(f"a partition's indices begin with {used[0]}; allowed: 0 and above")

    @property
    def sizes(self) -> NDArray[np.int64]:
        """The number of samples in ``train`` of each client, ``[clients]``."""
        return np.array([len(index) for index in self.train], dtype=np.int64)


def iid(
    labels: NDArray[np.generic],
    clients: int,
    *,
    seed: int = 0,
    sizes: SizeLaw = "equal",
    min_samples: int = 1,
    total: int | None = None,
) -> Indices:
    """Distribute the samples over the clients at random.

    Args:
        labels: one entry per sample, ``[n]``. Only their number is used.
        clients: how many clients there are, N.
        seed: the seed of the draws.
        sizes: "equal", or "power" for GreedyFed's power law; see :func:`client_sizes`.
        min_samples: the least that a client gets.
        total: how many samples are distributed in all. None: all of them.

    Returns:
        The sorted sample indices of each client.

    Raises:
        UserError: there are not enough samples.
    """
    wanted = client_sizes(len(labels), clients, seed=seed, law=sizes, min_samples=min_samples, total=total)
    order = stream(seed, "partition", start=4).permutation(len(labels))
    return [np.sort(part) for part in np.split(order[: wanted.sum()], np.cumsum(wanted)[:-1])]


def pathological(labels: NDArray[np.int64], clients: int, *, classes_per_client: int = 2, seed: int = 0) -> Indices:
    """Give every client exactly ``classes_per_client`` classes, in shards of one class each.

    After McMahan et al. 2017, whose shards of label-sorted samples give most clients two classes. Here a class is cut
    into one nearly equal shard for each client that has it, so the number of classes is exact. The numbers of clients
    per class differ by at most one. Where clients times ``classes_per_client`` is less than the number of classes, some
    classes are not used.

    Args:
        labels: the class of each sample, integers ``[n]`` from 0.
        clients: how many clients there are, N.
        classes_per_client: how many classes each client has.
        seed: the seed of all draws.

    Returns:
        The sorted sample indices of each client.

    Raises:
        UserError: fewer classes than ``classes_per_client``, or a class with fewer samples than clients that share it.
    """
    _check_room(len(labels), clients, 1)
    classes = np.unique(labels)
    if classes_per_client > len(classes):
        raise UserError(
            f"classes_per_client = {classes_per_client}: the data has {len(classes)} classes; allowed: "
            f"1..{len(classes)}"
        )
    draw = stream(seed, "partition", start=5)
    has = np.zeros((clients, len(classes)), dtype=np.bool_)
    for client in range(clients):
        # the classes that fewest clients have so far; ties at random, since lexsort's last key counts first
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
    per_owner_alpha: float | None = None,
    min_samples: int = 10,
    num_classes: int | None = None,
) -> Indices:
    """Use the source's own clients. Each of them becomes one client, or several.

    Args:
        labels: one entry per sample, ``[n]``. They are classes if ``per_owner_alpha`` is given.
        ids: the owner of each sample, integers ``[n]``. Clients are numbered in the order of the sorted ids.
        clients: the number of clients wanted. None: all. See :func:`natural_owners` for the choice.
        seed: the seed of all draws.
        choose: which owners take part if not all do: "random" or "largest".
        per_owner: into how many clients each owner is divided, evenly and at random.
        ordered: the samples are in order of time, so owners are divided into consecutive spans.
        per_owner_alpha: the concentration with which each class of an owner is divided over its clients ~ Dirichlet, as
            :func:`niid` does (iPFL's public code on PACS). None: it is divided evenly.
        min_samples: the least that a client gets, with ``per_owner_alpha`` alone.
        num_classes: as in :func:`dirichlet`, with ``per_owner_alpha`` alone.

    Returns:
        The sorted sample indices of each client.

    Raises:
        UserError: ids of the wrong length or type, more clients than there are, an owner with too few samples to
            divide.
    """
    if ids.shape != (len(labels),) or ids.dtype.kind not in "ui":
        raise UserError(
            f"ids are {ids.dtype} of shape {ids.shape}; one integer for each of the {len(labels)} train "
            "samples is needed"
        )
    owners = natural_owners(ids, clients, seed=seed, choose=choose, per_owner=per_owner)
    # stable, so an owner's samples keep their order
    by_owner = np.argsort(ids, kind="stable")
    starts, ends = (np.searchsorted(ids[by_owner], owners, side=side) for side in ("left", "right"))
    spans = [by_owner[a:b] for a, b in zip(starts, ends, strict=True)]
    if per_owner == 1:
        return spans
    parts: Indices = []
    for owner, span in zip(owners.tolist(), spans, strict=True):
        if len(span) < per_owner:
            raise UserError(f"per_owner = {per_owner}: natural client {owner} has {len(span)} samples")
        if per_owner_alpha is not None:
            draw = stream(seed, "per-owner", client=owner)
            classes = _num_classes(labels.astype(np.int64), num_classes)
            told = (
                f"per_owner_alpha = {per_owner_alpha:g}: the smallest part of natural client {owner}",
                "per_owner_alpha",
            )
            own = labels[span].astype(np.int64)
            dealt = _spread_classes(own, classes, per_owner, per_owner_alpha, min_samples, draw, told)
            parts.extend(span[part] for part in dealt)
            continue
        order = span if ordered else stream(seed, "per-owner", client=owner).permutation(span)
        parts.extend(np.sort(part) for part in np.array_split(order, per_owner))
    return parts


def natural_owners(
    ids: NDArray[np.int64],
    clients: int | None,
    *,
    seed: int = 0,
    choose: Choose = "random",
    per_owner: int = 1,
) -> NDArray[np.int64]:
    """Return the sorted ids of the natural clients that take part, ``[m]``.

    Args:
        ids: the owner of each sample, ``[n]``.
        clients: the wanted number of clients, a multiple of ``per_owner``; None for all owners.
        seed: the seed of the random choice.
        choose: "random" from the seed, or "largest": the clients with most samples; in a tie, the lower id.
        per_owner: into how many clients each owner is divided; ``clients / per_owner`` owners take part.

    Raises:
        UserError: there are fewer owners, or ``clients`` is not a multiple of ``per_owner``.
    """
    owners, sizes = np.unique(ids, return_counts=True)
    if clients is None:
        return owners
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


def cluster_of(clients: int, clusters: int) -> NDArray[np.int64]:
    """Return the cluster of each client, ``[clients]``: consecutive ids, clusters of nearly equal size."""
    if clusters > clients:
        raise UserError(f"clusters = {clusters}: there are only {clients} clients; allowed: 1..{clients}")
    return np.asarray(np.arange(clients) * clusters // clients)


def cluster(
    labels: NDArray[np.int64],
    clients: int,
    *,
    clusters: int = 3,
    alpha_between: float = 0.1,
    alpha_within: float = 10.0,
    seed: int = 0,
    min_samples: int = 10,
    num_classes: int | None = None,
) -> tuple[Indices, NDArray[np.int64]]:
    """Spread every class over clusters of clients, and then over the clients of each cluster.

    The shares are drawn from Dirichlet(alpha_between) and Dirichlet(alpha_within). iPFL says that heterogeneity is high
    between clusters (beta 0.1) and low inside them (beta 10), but not how the two draws are combined. Here both levels
    are drawn in the way in which :func:`niid` draws its clients. Clusters are in order of client id, which differs from
    the paper's random clustering only in numbering.

    Args:
        labels: the class of each sample, integers ``[n]`` from 0.
        clients: how many clients there are in all clusters together.
        clusters: how many clusters the clients form; at most ``clients``.
        alpha_between: the concentration between clusters, above 0.
        alpha_within: the concentration inside a cluster, above 0.
        seed: the seed of all draws.
        min_samples: the least that a client gets.
        num_classes: as in :func:`dirichlet`.

    Returns:
        Each client's sorted indices, and its cluster ``[clients]``.

    Raises:
        UserError: there are not enough samples, or 500 draws did not give every client ``min_samples``.
    """
    _check_room(len(labels), clients, min_samples)
    groups = cluster_of(clients, clusters)
    classes = _num_classes(labels, num_classes)
    members = np.bincount(groups)
    parts: Indices = []
    draw = stream(seed, "partition", start=8)
    raised = "the alphas, or lower clients, clusters or min_samples"
    told = f"partition = 'cluster' with alpha_between = {alpha_between:g}: the smallest of {clusters} clusters", raised
    least = min_samples * int(members.max())
    for g, own in enumerate(_spread_classes(labels, classes, clusters, alpha_between, min_samples, draw, told, least)):
        draw = stream(seed, "partition", start=9, client=g)
        told = f"partition = 'cluster' with alpha_within = {alpha_within:g}: the smallest client of cluster {g}", raised
        inner = _spread_classes(labels[own], classes, int(members[g]), alpha_within, min_samples, draw, told)
        parts.extend(own[part] for part in inner)
    return parts, groups


def skew(
    labels: NDArray[np.int64],
    clients: int,
    *,
    classes_per_client: int = 5,
    seed: int = 0,
    num_classes: int | None = None,
) -> tuple[Indices, NDArray[np.int64]]:
    """Give each cluster of clients its own few classes, and divide their samples evenly within the cluster.

    The classes are divided into consecutive groups of ``classes_per_client``, one for each cluster. All clients of a
    cluster have the same classes, in nearly the same numbers. Two clusters have no class in common (iPFL, "skew").

    Args:
        labels: the class of each sample, integers ``[n]`` from 0.
        clients: how many clients there are, at least one for each cluster.
        classes_per_client: the number of classes of a cluster; must divide the number of classes.
        seed: the seed of the draws.
        num_classes: as in :func:`dirichlet`.

    Returns:
        Each client's sorted indices, and its cluster ``[clients]``.

    Raises:
        UserError: the classes do not divide evenly, or a cluster has more clients than samples of a class.
    """
    _check_room(len(labels), clients, 1)
    classes = _num_classes(labels, num_classes)
    if classes % classes_per_client:
        raise UserError(
            f"classes_per_client = {classes_per_client} with partition = 'skew': must divide the {classes} classes"
        )
    groups = cluster_of(clients, classes // classes_per_client)
    parts: list[Indices] = [[] for _ in range(clients)]
    draw = stream(seed, "partition", start=10)
    for c in range(classes):
        members = np.flatnonzero(groups == c // classes_per_client)
        stock = draw.permutation(np.flatnonzero(labels == c))
        if len(stock) < len(members):
            raise UserError(
                f"clients = {clients} with partition = 'skew': {len(members)} clients would share the {len(stock)} "
                f"samples of class {c}; lower clients"
            )
        # array_split makes the first shards one larger; turning their order by c spreads that surplus over the members
        shards = np.array_split(stock, len(members))
        for place, client in enumerate(members.tolist()):
            parts[client].append(shards[(place + c) % len(members)])
    return [np.sort(np.concatenate(part)) for part in parts], groups
