"""Clients in clusters: alike inside a cluster, unlike between clusters (iPFL section 6.1 and appendix E.5)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data.dirichlet import spread_classes
from hanse.data.sizes import check_count, check_room

__all__ = ["cluster", "cluster_of", "skew"]

Indices = list[NDArray[np.int64]]


def cluster_of(clients: int, clusters: int) -> NDArray[np.int64]:
    """Return the cluster of each client, ``[clients]``: nearly equal clusters, in order of id."""
    check_count("clients", clients)
    check_count("clusters", clusters)
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
    for name, value in (("alpha_between", alpha_between), ("alpha_within", alpha_within)):
        if not 0 < value < float("inf"):
            raise UserError(f"{name} = {value!r}; allowed: a finite number above 0")
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
    check_count("classes_per_client", classes_per_client)
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
