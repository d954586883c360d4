"""Splits a client's samples into train, validation and test shares, and a source's test set into the server's sets.

:func:`client_shares` cuts each client's own samples, and :func:`server_cut` cuts the source's test set into the
server's validation, test and root sets. If clients should train on all of their samples, :func:`borrowed` takes their
test shares from the server's test set instead. ``[data] client_test_from`` chooses how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.pytorch import Tensor, torch
from hanse.base.streams import stream
from hanse.data.dataset import Dataset, Distributions, largest_remainder, stratified_split
from hanse.data.partitions import Partition
from hanse.data.samples import Samples
from hanse.data.units import Divisible, split_units


@dataclass(frozen=True)
class Cuts:
    """How data are cut into shares: the settings of these names in ``[data]``.

    Attributes:
        client_test: the part of a client's samples that is its test share, rounded down.
        client_validation: the part that is its validation share, rounded down; together with ``client_test`` below 1.
        client_test_from: "own" cuts test shares from the clients' samples. All others take them from the server's test
            set: "equal" distributes it over the clients, each class evenly. "server": a client has its owner's samples
            if the source names owners, else ``client_test`` times as many as it trains on, drawn with its class
            mixture. "classes": a client has the whole set, or its owner's samples, weighted by :func:`class_weights`.
        validation: the part of the source's test set that is the server's validation set; the rest is its test set.
        root: the part of it on which the server itself trains.
        seed: the seed of all draws.
        validation_seed: the seed of the cut of the test set; None for ``seed``.
    """

    client_test: float = 0.0
    client_validation: float = 0.0
    client_test_from: Literal["own", "server", "equal", "classes"] = "own"
    validation: float = 0.5
    root: float = 0.0
    seed: int = 0
    validation_seed: int | None = None


def client_shares(partition: Partition, dataset: Dataset, cuts: Cuts) -> list[tuple[NDArray[np.int64], ...]]:
    """Return each client's sorted (train, validation, test) indices.

    The split is random, keyed by ``(seed, client)``, or in the given order. Shares drawn by the partition, or by who
    made the data set, take precedence. Units and times are those of all clients together (:mod:`hanse.data.units`).

    Args:
        partition: the samples of each client.
        dataset: the samples, with their units and times. If they are in order of time, the last ones are for
            validation and test.
        cuts: the parts.
    """
    client_test = cuts.client_test if cuts.client_test_from == "own" else 0.0
    if partition.kept is not None:
        return [(own, *kept) for own, kept in zip(partition.train, partition.kept, strict=True)]
    if (share_of := dataset.shares) is not None:
        return [tuple(own[share_of[own] == share] for share in range(3)) for own in partition.train]
    if dataset.train.units is not None or dataset.time is not None:
        return _shares_of_units(partition, dataset, client_test, cuts)
    ends = share_ends(partition.sizes, client_test, cuts.client_validation)
    shares: list[tuple[NDArray[np.int64], ...]] = []
    for client, index in enumerate(partition.train):
        order = index
        # a client of which nothing is cut keeps its order and needs no draw
        if ends[client, 0] < len(index) and not dataset.ordered:
            order = stream(cuts.seed, "shares", client=client).permutation(index)
        shares.append(tuple(np.sort(part) for part in np.split(order, ends[client, :2])))
    return shares


def _shares_of_units(
    partition: Partition, dataset: Dataset, client_test: float, cuts: Cuts
) -> list[tuple[NDArray[np.int64], ...]]:
    """Return the same for samples with units or times. Each client trains on at least one sample.

    Raises:
        UserError: nothing is left for a client to train on.
    """
    rows, owner = np.concatenate(partition.train), np.zeros(len(dataset.train), np.int64)
    owner[rows] = np.repeat(np.arange(len(partition.train)), partition.sizes)
    units = None if dataset.train.units is None else dataset.train.units.numpy()
    labels = dataset.train.y.numpy() if dataset.num_classes is not None and dataset.train.y.ndim == 1 else None
    of = Divisible(owner, labels, units, dataset.time, dataset.cut).take(rows)
    share_of = of.shares(client_test, cuts.client_validation, cuts.seed)
    shares = [
        tuple(np.sort(rows[(of.owner == client) & (share_of == share)]) for share in range(3))
        for client in range(len(partition.train))
    ]
    if (none := next((c for c, (train, *_) in enumerate(shares) if not len(train)), None)) is not None:
        raise UserError(
            f"data.client_test = {client_test:g}: client {none} has nothing left to train on: its units, or its rows' "
            "dates, do not allow these shares; lower data.client_test or data.client_validation, or leave it out"
        )
    return shares


def share_ends(sizes: NDArray[np.int64], client_test: float, client_validation: float) -> NDArray[np.int64]:
    """Return where each client's train, validation and test shares end in its own order, ``[clients, 3]``.

    Args:
        sizes: samples of each client, ``[clients]``.
        client_test: the part of a client's samples for testing, rounded down.
        client_validation: the part of a client's samples for validation, rounded down.
    """
    test = np.floor(sizes * client_test).astype(np.int64)
    validation = np.floor(sizes * client_validation).astype(np.int64)
    return np.stack([sizes - test - validation, sizes - test, sizes], axis=1)


def server_cut(
    test: Samples,
    num_classes: int | None,
    cuts: Cuts,
    distributions: Distributions | None = None,
    owner_of: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted positions of the server's (validation, test, root) sets in a source's test set.

    The split is stratified by class, and by distribution if there are several. Texts, which have a class at each
    position, are stratified by owner.

    Args:
        test: the source's test samples.
        num_classes: None for regression, where the cut is random.
        cuts: the parts.
        distributions: the distribution of each test sample, if there are several.
        owner_of: ``[n]``, the client of each test sample, if it is known.
    """
    validation, seed = cuts.validation, cuts.seed if cuts.validation_seed is None else cuts.validation_seed
    labels = None if num_classes is None else owner_of if test.y.ndim > 1 else test.y.numpy()
    if test.units is not None:
        units, none = test.units.numpy(), np.zeros(len(test), np.int64)
        classes = labels if test.y.ndim == 1 else None
        rest, cut = split_units(none, classes, validation, stream(seed, "server-validation"), units)
        own, share = None if classes is None else classes[rest], cuts.root / (1 - validation)
        kept, trained = split_units(none[rest], own, share, stream(seed, "server-root"), units[rest])
        return cut, rest[kept], rest[trained]
    if distributions is not None:
        labels = distributions.test if labels is None else labels * len(distributions.names) + distributions.test
    size, held = round(len(test) * validation), round(len(test) * cuts.root)
    rest, cut = stratified_split(labels, len(test), size, stream(seed, "server-validation"))
    own = None if labels is None else labels[rest]
    kept, trained = stratified_split(own, len(rest), held, stream(seed, "server-root"))
    return cut, rest[kept], rest[trained]


def taken(samples: Samples, index: NDArray[np.int64]) -> Samples | None:
    """Return the samples at positions ``index [m]``. All of them are returned without a copy; none of them is None."""
    if len(index) == len(samples):
        return samples if len(samples) else None
    return samples.take(torch.from_numpy(index)) if len(index) else None


def _classes(tests: Samples, dataset: Dataset, way: str) -> int:
    """Return how many classes there are. Raises UserError, naming ``client_test_from``, if samples have none."""
    if dataset.num_classes is None or tests.y.ndim > 1:
        raise UserError(f"data.client_test_from = '{way}': source '{dataset.name}' has no classes; allowed: 'own'")
    return dataset.num_classes


def class_weights(
    tests: Samples, dataset: Dataset, train: Sequence[NDArray[np.int64]], index: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[NDArray[np.float64], ...]]:
    """Return the test samples of each client, and the weights of these samples.

    A class has the weight that it has among the client's train samples, shared equally by its test samples. The
    weighted accuracy therefore estimates the accuracy under the client's own class mix. iPFL's public code does the
    same (``utils/evaluation.py:compute_local_test_accuracy``; it divides by a class's share in the test set). A class
    without test samples is left out, and the other weights are renormalised.

    Args:
        tests: the server's test set.
        dataset: the source, for the classes of its train samples.
        train: the train indices of each client.
        index: for each client the positions in ``tests`` that it may be tested on, ``[n]``.

    Returns:
        For each client the remaining positions, and their weights, which sum to 1.

    Raises:
        UserError: the source has no classes, or none of a client's classes is in the tests.
    """
    classes = _classes(tests, dataset, "classes")
    labels, asked = dataset.train.y.numpy(), tests.y.numpy()
    kept, weights = [], []
    for client, (own, places) in enumerate(zip(train, index, strict=True)):
        counts = np.bincount(labels[own], minlength=classes)
        there = np.bincount(asked[places.numpy()], minlength=classes)
        if not counts[there > 0].any():
            raise UserError(
                f"data.client_test_from = 'classes': client {client} has no test samples of its classes; lower "
                "data.validation"
            )
        each = np.where(there > 0, counts, 0) / np.maximum(there, 1)
        positions = places[torch.from_numpy(each[asked[places.numpy()]] > 0)]
        weight = each[asked[positions.numpy()]]
        kept.append(positions)
        weights.append(weight / weight.sum())
    return tuple(kept), tuple(weights)


def _lend_tests(
    tests: Samples, dataset: Dataset, train: Sequence[NDArray[np.int64]], share: float, seed: int
) -> tuple[Tensor, ...]:
    """Return for each client sorted positions in ``tests``, drawn with the class mixture of its train samples.

    iPFL tests a client on its own distribution and does not say how. The code of pFedGraph, by the same group, weighs
    the accuracy on the whole test set by the client's train mixture; this draws samples in that mixture from it. A
    client gets ``share`` times its number of train samples, or fewer where the scarcest of its classes does not
    suffice. No sample is drawn twice for a client. Two clients may be tested on the same sample, and nobody trains on
    any.

    Args:
        tests: the server's test set.
        dataset: the source, for the classes of its train samples.
        train: the train indices of each client.
        share: test samples for each train sample of a client, above 0.
        seed: keys the draws, with the client.

    Raises:
        UserError: the source has no classes, or a client would get no test sample.
    """
    classes = _classes(tests, dataset, "server")
    by_class = [np.flatnonzero(tests.y.numpy() == c) for c in range(classes)]
    stock = np.array([len(index) for index in by_class], dtype=np.int64)
    labels = dataset.train.y.numpy()
    lent = []
    for client, own in enumerate(train):
        counts = np.bincount(labels[own], minlength=classes)
        wanted = _fitting(counts, stock, int(len(own) * share))
        if wanted.sum() == 0:
            raise UserError(
                f"data.client_test_from = 'server': client {client} would get no test samples of its classes; raise "
                "data.client_test, or lower data.validation"
            )
        draw = stream(seed, "lent-tests", client=client)
        chosen = [draw.permutation(by_class[c])[: wanted[c]] for c in np.flatnonzero(wanted)]
        lent.append(torch.from_numpy(np.sort(np.concatenate(chosen))))
    return tuple(lent)


def borrowed(
    tests: Samples | None,
    dataset: Dataset,
    partition: Partition,
    cut: NDArray[np.int64],
    train: Sequence[NDArray[np.int64]],
    cuts: Cuts,
) -> tuple[tuple[Tensor, ...], tuple[NDArray[np.float64], ...] | None]:
    """Return which of the server's test samples each client is tested on.

    Args:
        tests: the server's test set; None if there is none.
        dataset: the source, whose test set the shares come from.
        partition: the clients' samples and owners.
        cut: the positions of ``tests`` in the source's test set, ``[m]``.
        train: the train indices of each client.
        cuts: where test shares come from: not from the clients' "own" samples.

    Returns:
        The positions of each client's test share in ``tests``, and the weights of these samples (None: all count
        alike).

    Raises:
        UserError: the server has no test set, or there is nothing in it for a client.
    """
    test_from = cuts.client_test_from
    if tests is None:
        raise UserError(f"data.client_test_from = '{test_from}': the server has no test set; lower data.validation")
    if test_from == "equal":
        return _equal_tests(tests, dataset, len(train), cuts.seed), None
    owned = None
    if partition.owners is not None and dataset.test_client_of is not None:
        owned = own_tests(dataset.test_client_of[cut], partition.owners, test_from)
    if test_from == "classes":
        everything = tuple(torch.arange(len(tests)) for _ in train)
        return class_weights(tests, dataset, train, everything if owned is None else owned)
    return _lend_tests(tests, dataset, train, cuts.client_test, cuts.seed) if owned is None else owned, None


def _equal_tests(test: Samples, dataset: Dataset, clients: int, seed: int) -> tuple[Tensor, ...]:
    """Return for each client its positions in ``test``: the same number of every class, rounded down, no sample twice.

    Raises:
        UserError: samples have no class, or no class has a sample for each client.
    """
    labels, draw = test.y.numpy(), stream(seed, "dealt-tests")
    order = [draw.permutation(np.flatnonzero(labels == c)) for c in range(_classes(test, dataset, "equal"))]
    each = [own[: len(own) // clients * clients].reshape(clients, -1) for own in order]
    dealt = np.sort(np.concatenate(each, axis=1), axis=1)
    if dealt.shape[1] == 0:
        raise UserError(
            f"data.client_test_from = 'equal': {clients} clients, and the server's test set has at most "
            f"{max(map(len, order))} samples of a class; lower data.clients or data.validation"
        )
    return tuple(torch.from_numpy(dealt))


def own_tests(owner_of: NDArray[np.int64], owners: NDArray[np.int64], way: str = "server") -> tuple[Tensor, ...]:
    """Return for each client the positions of its owner's test samples.

    Args:
        owner_of: the owner of each test sample, ``[n]``.
        owners: the owner of each client, ``[clients]``.
        way: the value of ``client_test_from`` that messages name.

    Raises:
        UserError: a client's owner has no test sample.
    """
    lent = []
    for client, owner in enumerate(owners.tolist()):
        positions = np.flatnonzero(owner_of == owner)
        if len(positions) == 0:
            raise UserError(
                f"data.client_test_from = '{way}': client {client} has no test samples of its own in the server's "
                "test set; lower data.validation or data.clients"
            )
        lent.append(torch.from_numpy(positions))
    return tuple(lent)


def _fitting(counts: NDArray[np.int64], stock: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return numbers in proportion to ``counts [classes]``: at most ``size`` in all, at most ``stock`` of a class."""
    held = counts > 0
    size = min(size, int((stock[held] * (counts.sum() / counts[held])).min()))
    while (wanted := largest_remainder(counts.astype(np.float64), size) if size else np.zeros_like(counts)).sum() > 0:
        if (wanted <= stock).all():
            break
        size -= 1
    return wanted
