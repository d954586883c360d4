"""Partitions of a data set over clients: from labels to one sorted index array a client, no sample twice.

By size alone, by label (Dirichlet draws of a mix of classes per client, or of clients per class; a few classes each),
by clusters of clients that are alike inside and unlike between (iPFL section 6.1 and appendix E.5), or as the source
has its clients. Every draw comes from ``stream(seed, "partition")``, so that the same seed gives the same split
wherever it is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream, torch_seed
from hanse.data.dataset import largest_remainder

SizeLaw = Literal["power", "equal"]


def check_room(samples: int, clients: int, min_samples: int) -> None:
    """Raise UserError, with the numbers, unless ``clients`` can have ``min_samples`` (at least 1) each."""
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
    """Return the number of samples of each client, ``[clients]``, which sums to ``total`` (default: all
    samples).

    ``"power"``: in proportion to q ~ pdf 3 q^2 on [0, 1] (GreedyFed, section 4.1; mean 0.75, standard
    deviation 0.19). A client whose proportion is less than ``min_samples`` gets ``min_samples``, and the
    others share the rest in proportion, so that the sum stays. ``"equal"``: the same number each, the
    remainder one each to the first clients. Raises UserError for a request that cannot be met.
    """
    if total is not None and total > samples:
        raise UserError(f"{total} samples are asked for and there are {samples}; allowed: 1..{samples}")
    count = samples if total is None else total
    check_room(count, clients, min_samples)
    if law == "equal":
        return largest_remainder(np.ones(clients), count)
    return _with_floor(power_weights(clients, seed), count, min_samples)


def power_weights(clients: int, seed: int, attempt: int = -1) -> NDArray[np.float64]:
    """Return sizes in proportion, q ~ pdf 3 q^2 on (0, 1], ``[clients]``; ``attempt`` numbers redraws."""
    # 1 - U lies in (0, 1]: no client has weight zero
    return np.cbrt(1.0 - stream(seed, "partition", round=attempt, start=0).random(clients))


def _with_floor(weights: NDArray[np.float64], total: int, least: int) -> NDArray[np.int64]:
    sizes = largest_remainder(weights, total)
    low = np.zeros(len(weights), dtype=np.bool_)
    while (sizes < least).any():
        low |= sizes < least
        sizes[low] = least
        rest = total - least * int(low.sum())
        if not low.all():
            sizes[~low] = largest_remainder(weights[~low], rest)
    return sizes


Sampler = Literal["log", "float32-clamped"]

_NIID_DRAWS = 500
_SCALED_DRAWS = 100


def log_dirichlet(alpha: float, shape: tuple[int, int], draw: np.random.Generator) -> NDArray[np.float64]:
    """Return the logarithms of ``shape[0]`` draws of a symmetric Dirichlet(alpha), each of ``shape[1]``
    parts.

    Works in log space, so that it stays exact where the parts themselves underflow (alpha = 1e-4 and far
    below): a Gamma(a) variate is Gamma(a + 1) U^(1/a) (Marsaglia and Tsang 2000, section 6), and -log U is
    exponential.
    """
    gamma = np.log(draw.standard_gamma(alpha + 1.0, size=shape))
    wait = draw.standard_exponential(size=shape)
    # only differences count: with the row's smallest wait taken off, one part stays finite for every alpha
    with np.errstate(over="ignore"):
        logs = gamma - (wait - wait.min(axis=1, keepdims=True)) / alpha
    return _log_normalise(logs)


def label_mixes(
    clients: int, classes: int, alpha: float, *, seed: int, sampler: Sampler = "log", attempt: int = -1
) -> NDArray[np.float64]:
    """Return the log of each client's label mix ~ Dirichlet(alpha), ``[clients, classes]``.

    ``sampler="float32-clamped"`` is what ``torch.distributions.Dirichlet`` draws in float32, and so what
    GreedyFed's published code uses: for alpha = 1e-4 the gamma variates underflow and are clamped, so that
    about half of the clients get an exactly uniform mix instead of a single class. ``attempt`` numbers redraws.
    """
    if sampler == "log":
        return log_dirichlet(alpha, (clients, classes), stream(seed, "partition", round=attempt, start=1))
    # the distribution draws from torch's global generator: keyed here, and put back afterwards
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
    """Give every client a label mix ~ Dirichlet(alpha) and a size, then its samples; no sample twice.

    The partition of GreedyFed: sizes follow :func:`hanse.data.partitions.client_sizes` and use all samples, or
    ``total`` of them. Clients are served in a random order, each by a multinomial draw from its mix. When a
    class runs out, what a client still needs is drawn from the classes left, in the proportions its mix gives
    them (Hsu et al. 2019 do so sample by sample). Sizes are met exactly, mixes as far as the samples last: if
    all samples are used, the clients served last take what is left, whatever their mix; ``total`` below the
    number of samples avoids that.

    Returns the sorted sample indices of each client. Raises UserError for a request that cannot be met.
    """
    classes = _num_classes(labels, num_classes)
    mixes = label_mixes(clients, classes, alpha, seed=seed, sampler=sampler)
    wanted = client_sizes(len(labels), clients, seed=seed, law=sizes, min_samples=min_samples, total=total)
    draw = stream(seed, "partition", start=2)
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
    """Give every client a label mix ~ Dirichlet(alpha) and a proportional size, and never bend either.

    As GreedyFed's published code: as many samples are used as the class that runs out first allows (at most ``total``),
    the rest by nobody, and counts are rounded down. Sizes and mixes are redrawn, at most 100 times, until every client
    has ``min_samples`` (an older published version keeps the last draw if none of 101 gave what it asks for; here it is
    refused). Returns the sorted sample indices of each client. Raises UserError for what cannot be met.
    """
    classes = _num_classes(labels, num_classes)
    check_room(len(labels), clients, min_samples)
    stock = np.bincount(labels, minlength=classes)
    best = 0
    for attempt in range(-1, _SCALED_DRAWS):
        mixes = np.exp(label_mixes(clients, classes, alpha, seed=seed, sampler=sampler, attempt=attempt))
        weights = power_weights(clients, seed, attempt) if sizes == "power" else np.ones(clients)
        weights = weights / weights.sum()
        asked = weights @ mixes
        used = float(np.divide(stock, asked, out=np.full(classes, np.inf), where=asked > 0).min())
        used = min(used, len(labels), used if total is None else total)
        counts = np.floor(mixes * np.floor(used * weights)[:, None]).astype(np.int64)
        # mixes of one class may sum to a hair more than the stock
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
    """Return how many of each class a client gets: ``size`` in all, at most ``left`` of each."""
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
    """Spread each class over the clients in shares ~ Dirichlet(alpha); every sample goes to one client.

    Li et al. 2022 ("Federated learning on non-IID data silos"), as their code does it: a client that already
    holds ``n / clients`` samples gets nothing of the classes that follow. The whole draw is repeated until
    every client has ``min_samples``.

    Returns the sorted sample indices of each client. Raises UserError for a request that cannot be met, or
    that 500 draws did not meet.
    """
    classes = _num_classes(labels, num_classes)
    check_room(len(labels), clients, min_samples)
    parts, best = spread_classes(labels, classes, clients, alpha, min_samples, stream(seed, "partition", start=3))
    if parts is None:
        raise UserError(
            f"partition = 'niid': in {_NIID_DRAWS} draws with alpha = {alpha:g} over {clients} clients the "
            "smallest client had "
            f"{best} samples at best; min_samples = {min_samples} is not met: raise alpha, or lower clients or "
            "min_samples"
        )
    return parts


def spread_classes(
    labels: NDArray[np.int64], classes: int, receivers: int, alpha: float, min_samples: int, draw: np.random.Generator
) -> tuple[list[NDArray[np.int64]] | None, int]:
    """Spread every class over the receivers in shares ~ Dirichlet(alpha), redrawn until each has ``min_samples``.

    Returns the sorted positions of each receiver (None if 500 draws were not enough), and the largest of the smallest
    receivers of all draws.
    """
    by_class = [np.flatnonzero(labels == c) for c in range(classes)]
    best = -1
    for _ in range(_NIID_DRAWS):
        counts = _spread([len(s) for s in by_class], receivers, alpha, draw)
        smallest = int(counts.sum(axis=0).min())
        best = max(best, smallest)
        if smallest >= min_samples:
            parts = [
                np.split(draw.permutation(s), np.cumsum(row)[:-1]) for s, row in zip(by_class, counts, strict=True)
            ]
            return [np.sort(np.concatenate([p[k] for p in parts])) for k in range(receivers)], best
    return None, best


def _spread(stock: list[int], clients: int, alpha: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """Return one draw of how many of each class each client gets, ``[classes, clients]``."""
    counts = np.zeros((len(stock), clients), dtype=np.int64)
    held = np.zeros(clients, dtype=np.int64)
    limit = sum(stock) / clients
    for c, size in enumerate(stock):
        logs = log_dirichlet(alpha, (1, clients), draw)
        if size == 0:  # and everybody may be full
            continue
        open_ = held < limit
        allowed = np.where(open_, logs, -np.inf)
        if np.isneginf(allowed).all():
            allowed = np.where(open_[None, :], 0.0, -np.inf)
        shares = np.exp(_log_normalise(allowed)[0])
        ends = np.cumsum(shares)
        # ends / ends[-1] is exactly 1 from the last open client on: nobody else gets a remainder
        counts[c] = np.diff(np.floor(ends / ends[-1] * size).astype(np.int64), prepend=0)
        held += counts[c]
    return counts


def _log_normalise(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return rows of log weights with a constant taken off, so that their exponentials sum to 1."""
    top = logs.max(axis=1, keepdims=True)
    return np.asarray(logs - top - np.log(np.exp(logs - top).sum(axis=1, keepdims=True)))


def _num_classes(labels: NDArray[np.int64], num_classes: int | None) -> int:
    if labels.dtype.kind not in "ui" or labels.ndim != 1:
        raise UserError(
            f"labels are {labels.dtype} of shape {labels.shape}; a partition by label needs integer classes (n,)"
        )
    found = int(labels.max()) + 1 if len(labels) else 1
    if len(labels) and (labels.min() < 0 or (num_classes is not None and found > num_classes)):
        raise UserError(f"labels span {labels.min()}..{labels.max()}; allowed: 0..{(num_classes or found) - 1}")
    return num_classes if num_classes is not None else found


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
    per_owner_alpha: float | None = None,
    min_samples: int = 10,
    num_classes: int | None = None,
) -> Indices:
    """Follow the source's own clients: ``ids [n]`` says whose each sample is; clients are numbered by sorted
    id.

    ``clients`` keeps some of them (see :func:`natural_owners`); with ``per_owner`` above 1 each is divided evenly into
    that many clients, at random, or in time if its samples are ``ordered``; or, with ``per_owner_alpha``, each of its
    classes ~ Dirichlet over them as :func:`niid` does, ``min_samples`` each (iPFL's public code on PACS). Raises
    UserError for ids of the wrong length or type, or more clients than there are.
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
        if per_owner_alpha is not None:
            draw = stream(seed, "per-owner", client=owner)
            classes = _num_classes(labels.astype(np.int64), num_classes)
            own, best = spread_classes(
                labels[span].astype(np.int64), classes, per_owner, per_owner_alpha, min_samples, draw
            )
            if own is None:
                raise UserError(
                    f"per_owner_alpha = {per_owner_alpha:g}: the smallest part of natural client {owner} had {best} "
                    f"samples at best; min_samples = {min_samples} is not met: raise per_owner_alpha"
                )
            parts.extend(span[part] for part in own)
            continue
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


def cluster_of(clients: int, clusters: int) -> NDArray[np.int64]:
    """Return the cluster of each client, ``[clients]``: nearly equal clusters, in order of id."""
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
    """Spread every class over the clusters ~ Dirichlet(alpha_between), then inside each over its clients ~
    Dirichlet(alpha_within).

    iPFL says that heterogeneity is high between (beta 0.1) and low inside clusters (beta 10), not how the draws
    nest; both levels are drawn as ``niid`` draws its clients. Clusters are in order of id; the paper's random
    clustering is the same up to names.

    Returns each client's sorted indices and its cluster ``[clients]``. Raises UserError for what cannot be met.
    """
    check_room(len(labels), clients, min_samples)
    groups = cluster_of(clients, clusters)
    classes = num_classes if num_classes is not None else int(labels.max()) + 1
    members = np.bincount(groups)
    parts: Indices = []
    draw = stream(seed, "partition", start=8)
    outer, best = spread_classes(labels, classes, clusters, alpha_between, min_samples * int(members.max()), draw)
    if outer is None:
        raise _short(f"alpha_between = {alpha_between:g}: the smallest of {clusters} clusters", best, min_samples)
    for g, own in enumerate(outer):
        inner, best = spread_classes(
            labels[own],
            classes,
            int(members[g]),
            alpha_within,
            min_samples,
            stream(seed, "partition", start=9, client=g),
        )
        if inner is None:
            raise _short(f"alpha_within = {alpha_within:g}: the smallest client of cluster {g}", best, min_samples)
        parts.extend(own[part] for part in inner)
    return parts, groups


def _short(what: str, best: int, min_samples: int) -> UserError:
    return UserError(
        f"partition = 'cluster' with {what} had {best} samples at best; min_samples = {min_samples} is not met: raise "
        "the alphas, or lower clients, clusters or min_samples"
    )


def skew(
    labels: NDArray[np.int64],
    clients: int,
    *,
    classes_per_client: int = 5,
    seed: int = 0,
    num_classes: int | None = None,
) -> tuple[Indices, NDArray[np.int64]]:
    """Divide the classes into clusters of ``classes_per_client``, in order, and each cluster's samples evenly over its
    clients.

    Inside a cluster every client has all of its classes in the same shares. Returns each client's sorted indices and
    its cluster ``[clients]``. Raises UserError if the classes do not divide evenly or there are too few clients.
    """
    check_room(len(labels), clients, 1)
    classes = num_classes if num_classes is not None else int(labels.max()) + 1
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
        # the shares that are one larger fall to other members for each class
        shards = np.array_split(stock, len(members))
        for place, client in enumerate(members.tolist()):
            parts[client].append(shards[(place + c) % len(members)])
    return [np.sort(np.concatenate(part)) for part in parts], groups
