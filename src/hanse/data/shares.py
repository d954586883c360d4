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
            mixture. "classes": a client has the whole set, or its owner's samples, weighted by its class mixture.
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
    share_of = dataset.shares
    if share_of is None and (dataset.train.units is not None or dataset.time is not None):
        share_of = _shares_of_units(partition, dataset, client_test, cuts)
    if share_of is not None:
        return [tuple(own[share_of[own] == share] for share in range(3)) for own in partition.train]
    ends = share_ends(partition.sizes, client_test, cuts.client_validation)
    shares: list[tuple[NDArray[np.int64], ...]] = []
    for client, index in enumerate(partition.train):
        order = index
        # a client of which nothing is cut keeps its order and needs no draw
        if ends[client, 0] < len(index) and not dataset.ordered:
            order = stream(cuts.seed, "shares", client=client).permutation(index)
        shares.append(tuple(np.sort(part) for part in np.split(order, ends[client, :2])))
    return shares


def _shares_of_units(partition: Partition, dataset: Dataset, client_test: float, cuts: Cuts) -> NDArray[np.int8]:
    """Return the share of its client that each sample with a unit or a time is in, ``[n]``.

    Raises:
        UserError: nothing is left for a client to train on.
    """
    rows, owner = np.concatenate(partition.train), np.zeros(len(dataset.train), np.int64)
    owner[rows] = np.repeat(np.arange(len(partition.train)), partition.sizes)
    units = None if dataset.train.units is None else dataset.train.units.numpy()
    labels = dataset.train.y.numpy() if dataset.num_classes is not None and dataset.train.y.ndim == 1 else None
    of, share_of = Divisible(owner, labels, units, dataset.time, dataset.cut), np.full(len(owner), -1, np.int8)
    share_of[rows] = of.take(rows).shares(client_test, cuts.client_validation, cuts.seed)
    if (none := next((c for c, own in enumerate(partition.train) if not (share_of[own] == 0).any()), None)) is not None:
        raise UserError(
            f"data.client_test = {client_test:g}: client {none} has nothing left to train on: its units, or its rows' "
            "dates, do not allow these shares; lower data.client_test or data.client_validation, or leave it out"
        )
    return share_of


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
        UserError: the server has no test set, there is nothing in it for a client, or samples need classes and have
            none.
    """
    where, way = f"data.client_test_from = '{cuts.client_test_from}'", cuts.client_test_from
    if tests is None:
        raise UserError(f"{where}: the server has no test set; lower data.validation")
    owned, weights, index = None, None, list[NDArray[np.int64]]()
    if way != "equal" and partition.owners is not None and dataset.test_client_of is not None:
        owned = [np.flatnonzero(dataset.test_client_of[cut] == owner) for owner in partition.owners.tolist()]
    if way == "server" and owned is not None:
        index = owned
    elif dataset.num_classes is None or tests.y.ndim > 1:
        raise UserError(f"{where}: source '{dataset.name}' has no classes; allowed: 'own'")
    else:
        labels, asked = dataset.train.y.numpy(), tests.y.numpy()
        by_class = [np.flatnonzero(asked == c) for c in range(dataset.num_classes)]
        counts = [np.bincount(labels[own], minlength=dataset.num_classes) for own in train]
        if way == "equal":
            index = _equal_tests(by_class, len(train), cuts.seed)
        elif way == "server":
            index = _lent_tests(by_class, counts, cuts.client_test, cuts.seed)
        else:
            index = [np.arange(len(tests)) for _ in train] if owned is None else owned
            index, weights = _class_weights(asked, counts, index)
    if (none := next((client for client, own in enumerate(index) if not len(own)), None)) is not None:
        raise UserError(
            f"{where}: client {none} has no test samples (of its own, or of its classes) in the server's test set of "
            f"{len(tests)}; lower data.validation or data.clients, or raise data.client_test"
        )
    return tuple(map(torch.from_numpy, index)), weights


def _class_weights(
    asked: NDArray[np.int64], counts: Sequence[NDArray[np.int64]], index: Sequence[NDArray[np.int64]]
) -> tuple[list[NDArray[np.int64]], tuple[NDArray[np.float64], ...]]:
    """Return the test samples of each client, and the weights of these samples, which sum to 1.

    A class has the weight that it has among the client's train samples, shared equally by its test samples. The
    weighted accuracy therefore estimates the accuracy under the client's own class mix. iPFL's public code does the
    same (``utils/evaluation.py:compute_local_test_accuracy``; it divides by a class's share in the test set). A class
    without test samples is left out, and the other weights are renormalised.

    Args:
        asked: the class of each test sample.
        counts: the train samples of each class, for each client.
        index: for each client the positions of the tests that it may be tested on, ``[n]``.
    """
    kept, weights = [], []
    for own, places in zip(counts, index, strict=True):
        there = np.bincount(asked[places], minlength=len(own))
        each = (np.where(there > 0, own, 0) / np.maximum(there, 1))[asked[places]]
        kept.append(places[each > 0])
        weights.append(each[each > 0] / each[each > 0].sum())
    return kept, tuple(weights)


def _lent_tests(
    by_class: Sequence[NDArray[np.int64]], counts: Sequence[NDArray[np.int64]], share: float, seed: int
) -> list[NDArray[np.int64]]:
    """Return for each client sorted positions of tests, drawn with the class mixture of its train samples.

    iPFL tests a client on its own distribution and does not say how. The code of pFedGraph, by the same group, weighs
    the accuracy on the whole test set by the client's train mixture; this draws samples in that mixture from it. A
    client gets ``share`` times its number of train samples, or fewer where the scarcest of its classes does not
    suffice. No sample is drawn twice for a client. Two clients may be tested on the same sample, and nobody trains on
    any.

    Args:
        by_class: the positions of the tests of each class.
        counts: the train samples of each class, for each client.
        share: test samples for each train sample of a client, above 0.
        seed: keys the draws, with the client.
    """
    stock, lent = np.array([len(index) for index in by_class], dtype=np.int64), []
    for client, own in enumerate(counts):
        wanted, draw = _fitting(own, stock, int(own.sum() * share)), stream(seed, "lent-tests", client=client)
        chosen = [draw.permutation(by_class[c])[: wanted[c]] for c in np.flatnonzero(wanted).tolist()]
        lent.append(np.sort(np.concatenate([*chosen, np.zeros(0, np.int64)])))
    return lent


def _equal_tests(by_class: Sequence[NDArray[np.int64]], clients: int, seed: int) -> list[NDArray[np.int64]]:
    """Return for each client its positions of tests: the same number of every class, rounded down, no sample twice."""
    draw = stream(seed, "dealt-tests")
    order = [draw.permutation(own) for own in by_class]
    each = [own[: len(own) // clients * clients].reshape(clients, -1) for own in order]
    return [*np.sort(np.concatenate(each, axis=1), axis=1)]


def _fitting(counts: NDArray[np.int64], stock: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Return numbers in proportion to ``counts [classes]``: at most ``size`` in all, at most ``stock`` of a class."""
    held = counts > 0
    size = min(size, int((stock[held] * (counts.sum() / counts[held])).min()))
    while (wanted := largest_remainder(counts.astype(np.float64), size) if size else np.zeros_like(counts)).sum() > 0:
        if (wanted <= stock).all():
            break
        size -= 1
    return wanted
