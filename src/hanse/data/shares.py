"""Who holds which sample in which share: the clients' train, validation and test shares, and the server's sets.

A :class:`Partition` says it of a source's train samples; :meth:`Partition.dealt` cuts shares from what each client has.
:func:`server_cut` cuts the source's test set into the server's validation, test and root sets. If clients should train
on all of their samples, :func:`borrowed` takes their test shares from the server's test set instead.
``[data] client_test_from`` chooses how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.pytorch import Tensor, torch
from hanse.base.streams import stream
from hanse.data.dataset import Dataset, Distributions, largest_remainder, stratified_split
from hanse.data.samples import Samples
from hanse.data.units import SHARES, Divisible, Ints, rows_of_each, split_units


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


@dataclass(frozen=True)
class Partition:
    """Who holds which train sample of a source, in which share.

    Attributes:
        owner: ``[n]``, int64, the client of each sample, from 0 on; -1: nobody's.
        share_of: ``[n]``, int8, the share of its client that each sample is in: 0, 1 or 2 for train, validation or
            test. -1: in none, since it is nobody's, or its unit has samples on the other side of a date.
        groups: ``[clients]``, the cluster of each client, where the partition makes clusters.
        owners: ``[clients]``, given if the source itself has clients: for each client, which of the source's clients it
            is, or is a part of.

    Examples:
        >>> held = Partition(np.array([0, 1, 0, 1, -1]), np.array([0, 0, 2, 0, -1], np.int8))
        >>> held.sizes, held.shares[0]
        (array([2, 2]), (array([0]), array([], dtype=int64), array([2])))
    """

    owner: Ints
    share_of: NDArray[np.int8]
    groups: Ints | None = None
    owners: Ints | None = None

    @staticmethod
    def dealt(
        rows: Sequence[Ints], dataset: Dataset, cuts: Cuts, groups: Ints | None = None, owners: Ints | None = None
    ) -> Partition:
        """Return the partition in which each client has some samples, of which its shares are cut.

        The split is random, keyed by ``(seed, client)``, or in the given order. Shares drawn by who made the data set
        take precedence. Units and times are those of all clients together (:mod:`hanse.data.units`).

        Args:
            rows: the sorted samples of each client.
            dataset: the samples, with their units and times. If they are in order of time, the last ones are for
                validation and test.
            cuts: the parts.
            groups: as the attribute.
            owners: as the attribute.

        Raises:
            UserError: there is no such sample, one is used twice, or a client has none, or none left to train on.
        """
        n, sizes = len(dataset.train), np.array([len(own) for own in rows], dtype=np.int64)
        if not len(sizes) or not sizes.all():
            raise UserError(
                f"partition of {len(sizes)} clients: no samples for clients {np.flatnonzero(sizes == 0)[:10]}"
            )
        used = np.concatenate(rows)
        if not 0 <= used.min() <= used.max() < n:
            raise UserError(f"a partition's indices are {used.min()} to {used.max()}; allowed: 0 to {n - 1}")
        owner = np.full(n, -1, np.int64)
        owner[used] = np.repeat(np.arange(len(rows)), sizes)
        if np.count_nonzero(owner >= 0) < len(used):
            raise UserError("a partition may not give a sample to a client twice, or to two clients")
        client_test = cuts.client_test if cuts.client_test_from == "own" else 0.0
        if dataset.shares is not None:
            share_of = np.where(owner < 0, np.int8(-1), dataset.shares)
        elif dataset.train.units is not None or dataset.time is not None:
            share_of = _shares_of_units(owner, used, dataset, client_test, cuts)
        else:
            share_of = np.full(n, -1, np.int8)
            ends = share_ends(sizes, client_test, cuts.client_validation)
            for client, own in enumerate(rows):
                # a client of which nothing is cut needs no draw
                drawn = ends[client, 0] < len(own) and not dataset.ordered
                order = stream(cuts.seed, "shares", client=client).permutation(own) if drawn else own
                share_of[order] = np.repeat(np.arange(len(SHARES)), np.diff(ends[client], prepend=0))
        return Partition(owner, share_of, groups, owners)

    @cached_property
    def sizes(self) -> Ints:
        """The number of samples of each client, in all shares or none, ``[clients]``."""
        return np.bincount(self.owner[self.owner >= 0])

    @cached_property
    def shares(self) -> list[tuple[Ints, ...]]:
        """Each client's sorted (train, validation, test) samples."""
        held, kinds = np.flatnonzero(self.share_of >= 0), len(SHARES)
        place = self.owner[held] * kinds + self.share_of[held]
        parts = [held[rows] for rows in rows_of_each(place, kinds * len(self.sizes))]
        return [tuple(parts[k : k + kinds]) for k in range(0, len(parts), kinds)]


def _shares_of_units(owner: Ints, used: Ints, dataset: Dataset, client_test: float, cuts: Cuts) -> NDArray[np.int8]:
    """Return the share of its client that each sample with a unit or a time is in, ``[n]``.

    Args:
        owner: ``[n]``, the client of each sample, or -1.
        used: the samples of one client after another.
        dataset: the samples.
        client_test: the part of a client's samples that is cut for testing.
        cuts: the other parts.

    Raises:
        UserError: nothing is left for a client to train on.
    """
    units = None if dataset.train.units is None else dataset.train.units.numpy()
    labels = dataset.train.y.numpy() if dataset.num_classes is not None and dataset.train.y.ndim == 1 else None
    of, share_of = Divisible(owner, labels, units, dataset.time, dataset.cut), np.full(len(owner), -1, np.int8)
    share_of[used] = of.take(used).shares(client_test, cuts.client_validation, cuts.seed)
    if len(none := np.setdiff1d(owner[used], owner[share_of == 0])):
        raise UserError(
            f"data.client_test = {client_test:g}: client {none[0]} has nothing left to train on: its units, or its "
            "rows' dates, do not allow these shares; lower data.client_test or data.client_validation, or leave it out"
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
    tests: Samples | None, dataset: Dataset, partition: Partition, cut: NDArray[np.int64], cuts: Cuts
) -> tuple[tuple[Tensor, ...], tuple[NDArray[np.float64], ...] | None]:
    """Return which of the server's test samples each client is tested on.

    Args:
        tests: the server's test set; None if there is none.
        dataset: the source, whose test set the shares come from.
        partition: the clients' samples and owners.
        cut: the positions of ``tests`` in the source's test set, ``[m]``.
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
        counts = [np.bincount(labels[own], minlength=dataset.num_classes) for own, *_ in partition.shares]
        if way == "equal":
            index = _equal_tests(by_class, len(counts), cuts.seed)
        elif way == "server":
            index = _lent_tests(by_class, counts, cuts.client_test, cuts.seed)
        else:
            index = [np.arange(len(tests)) for _ in counts] if owned is None else owned
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
