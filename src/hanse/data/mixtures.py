"""Clients whose data are mixtures of a few distributions, with different mixtures for training and testing.

This is the setting of PI-FL section 4.1 (the laws 10:90, 30:70, linear and random; test mixtures equal or inverse).
PI-FL took it from FedSoft (Ruan and Joe-Wong 2022) and its code. :func:`with_distributions` says which distribution
each sample belongs to: by class, by rotation of the images, or as the source says. :func:`mixes` makes each client's
shares of them, :func:`inverse` the opposite shares for testing, and :func:`mixture` distributes the samples
accordingly. ``[data] partition = "mixture"`` does all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data.dataset import Dataset, Distributions, largest_remainder, stratified_split
from hanse.data.partitions import SizeLaw, client_sizes
from hanse.data.samples import Samples
from hanse.data.shares import share_ends

_TURNS = 4


def with_distributions(
    dataset: Dataset, kind: str | None, count: int | None, class_groups: Sequence[Sequence[int]] | None, seed: int
) -> Dataset:
    """Return the data set with a distribution assigned to every sample; test samples without one are dropped.

    Args:
        dataset: the data set, whose samples stay as they are unless images are turned.
        kind: "classes" (groups of classes), "rotation" (of images), or "source" (as the source says). None: "source" if
            the source has distributions and no setting contradicts this, else "classes".
        count: the number of distributions. None: as many as ``class_groups`` or the source have, else 2.
        class_groups: the classes of each distribution; None for ``count`` groups of consecutive classes.
        seed: the seed that determines which images are turned.

    Raises:
        UserError: the data lack the classes, square images or distributions that are needed.
    """
    dists = dataset.distributions
    if kind is None:
        kind = (
            "source" if dists is not None and class_groups is None and count in (None, len(dists.names)) else "classes"
        )
    if kind == "source":
        if dists is None:
            raise UserError(
                f"data.partition.distributions = 'source': source '{dataset.name}' does not say which distribution its "
                "samples come from; allowed: 'classes', 'rotation'"
            )
        if count not in (None, len(dists.names)):
            raise UserError(
                f"data.partition.num_distributions = {count}: source '{dataset.name}' has {len(dists.names)}: "
                + ", ".join(dists.names)
            )
        assigned = dataset
    elif kind == "rotation":
        assigned = by_rotation(dataset, 2 if count is None else count, seed=seed)
    else:
        assigned = by_classes(dataset, class_groups or _consecutive(dataset, 2 if count is None else count))
    assert assigned.distributions is not None
    return assigned.keep_test(np.flatnonzero(assigned.distributions.test >= 0))


def by_classes(dataset: Dataset, groups: Sequence[Sequence[int]]) -> Dataset:
    """Return the data set with distribution d made of the samples whose class is in ``groups[d]``.

    Samples of other classes are in no distribution (-1).

    Raises:
        UserError: the data have no classes, or lack a class that a group names.
    """
    classes = dataset.num_classes
    if classes is None:
        raise UserError(f"data.partition.distributions = 'classes': source '{dataset.name}' has no classes")
    wrong = [c for group in groups for c in group if not 0 <= c < classes]
    if wrong:
        raise UserError(
            f"data.partition.class_groups: class {wrong[0]}: source '{dataset.name}' has classes 0..{classes - 1}"
        )
    group_of = np.full(classes, -1, dtype=np.int64)
    for d, group in enumerate(groups):
        group_of[list(group)] = d
    names = tuple(f"classes {_spans(sorted(group))}" for group in groups)
    train, test = (group_of[samples.y.numpy()] for samples in (dataset.train, dataset.test))
    return replace(dataset, distributions=Distributions(names, train, test))


def by_rotation(dataset: Dataset, count: int, *, seed: int) -> Dataset:
    """Return the data set in which distribution d consists of images turned counter-clockwise by d times 90 degrees.

    With two distributions these are 0 and 90 degrees, as in FedSoft. The seed puts every train and test image into
    exactly one distribution; each distribution gets the same share of each class. No image occurs in two orientations.

    Args:
        dataset: square images, ``[n, channels, size, size]``.
        count: how many distributions, 2 to 4.
        seed: the seed of the draw of each image's distribution.

    Raises:
        UserError: samples are not square images, or ``count`` is not from 2 to 4.
    """
    shape = dataset.input_shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise UserError(
            f"data.partition.distributions = 'rotation': square images are needed; samples have shape {shape}"
        )
    if not 2 <= count <= _TURNS:
        raise UserError(
            f"data.partition.num_distributions = {count} with rotation; allowed: 2 to {_TURNS}, steps of 90 degrees"
        )
    train, train_of = _turned(dataset.train, count, seed, 0)
    test, test_of = _turned(dataset.test, count, seed, 1)
    names = tuple(f"turned by {90 * d}" for d in range(count))
    return replace(dataset, train=train, test=test, distributions=Distributions(names, train_of, test_of))


def _turned(samples: Samples, count: int, seed: int, share: int) -> tuple[Samples, NDArray[np.int64]]:
    """Return samples ``[n, C, H, W]`` with some of them turned, and the number of quarter turns of each, ``[n]``."""
    of = np.zeros(len(samples), dtype=np.int64)
    rest = np.arange(len(samples))
    labels = samples.y.numpy()
    draw = stream(seed, "rotation", start=share)
    x = samples.x.clone()
    for d in range(count - 1, 0, -1):
        # one of the d + 1 equal parts that are still to be made of the rest
        left, cut = stratified_split(labels[rest], len(rest), round(len(rest) / (d + 1)), draw)
        chosen, rest = rest[cut], rest[left]
        of[chosen] = d
        index = torch.from_numpy(chosen)
        x[index] = torch.rot90(samples.x[index], d, (2, 3))
    return Samples(x, samples.y), of


def _consecutive(dataset: Dataset, count: int) -> list[list[int]]:
    """Return ``count`` nearly equal groups of consecutive classes."""
    classes = dataset.num_classes
    if classes is None:
        raise UserError(f"data.partition.distributions = 'classes': source '{dataset.name}' has no classes")
    if count > classes:
        raise UserError(
            f"data.partition.num_distributions = {count}: source '{dataset.name}' has {classes} classes to split; "
            f"allowed: up to {classes}"
        )
    return [group.tolist() for group in np.array_split(np.arange(classes), count)]


def _spans(classes: Sequence[int]) -> str:
    """Return sorted numbers as ranges: "0-4, 7"."""
    spans: list[list[int]] = []
    for c in classes:
        if spans and c == spans[-1][1] + 1:
            spans[-1][1] = c
        else:
            spans.append([c, c])
    return ", ".join(f"{a}-{b}" if b > a else f"{a}" for a, b in spans)


Floats = NDArray[np.float64]
Indices = NDArray[np.int64]
Shares = tuple[Indices, Indices, Indices]

MIX_RULE = "allowed: two percentages 'a:b' with a <= b and a + b = 100, such as '10:90', or 'linear', or 'random'"
_RATIO = re.compile(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)")


def check_mix(law: str) -> tuple[float, float] | None:
    """Return the two shares of a ratio such as "10:90" as (0.1, 0.9), or None for a law with a name.

    Raises:
        ValueError: the text is neither, or its percentages are not ascending or do not sum to 100.
    """
    if law in ("linear", "random"):
        return None
    match = _RATIO.fullmatch(law)
    if match is None:
        raise ValueError(f"no such mixture; {MIX_RULE}")
    low, high = (float(part) for part in match.groups())
    if low > high or abs(low + high - 100.0) > 1e-9:
        raise ValueError(f"percentages are not in order, or do not sum to 100; {MIX_RULE}")
    return low / 100.0, high / 100.0


def mixes(law: str, clients: int, distributions: int, *, seed: int) -> Floats:
    """Return each client's share of every distribution, ``[clients, distributions]``. Rows sum to 1.

    Args:
        law: "a:b": clients fall into as many equal groups as there are distributions, in order of id. Group d has b %
            of distribution d, and the others share a %. "linear": with two distributions, client k of N has the share
            (k + 0.5) / N of the first. For N = 100 this is the printed (0.5 + k) %. With more distributions, the same
            path runs from the last to the first. "random": ``distributions - 1`` uniform points cut [0, 1] into pieces,
            and a client's shares are the lengths of these pieces.
        clients: how many rows.
        distributions: how many columns, at least 2.
        seed: the seed of the draw of "random".

    Raises:
        UserError: fewer than two distributions.
    """
    if distributions < 2:
        raise UserError(f"num_distributions = {distributions!r}; allowed: an integer of at least 2")
    ratio = check_mix(law)
    if law == "random":
        cuts = np.sort(stream(seed, "partition", start=7).random((clients, distributions - 1)), axis=1)
        ends = np.concatenate([np.zeros((clients, 1)), cuts, np.ones((clients, 1))], axis=1)
        return np.diff(ends, axis=1)
    k = np.arange(clients)
    if ratio is None:
        place = (1.0 - (k + 0.5) / clients) * (distributions - 1)
        return np.maximum(0.0, 1.0 - np.abs(place[:, None] - np.arange(distributions)))
    low, high = ratio
    out = np.full((clients, distributions), low / (distributions - 1))
    out[k, k * distributions // clients] = high
    return out


def inverse(mix: Floats) -> Floats:
    """Return the mixtures ``[clients, S]`` with the shares of opposite distributions exchanged: 1 - mix for two.

    The opposite of distribution d among S is S - 1 - d. PI-FL defines this only for two distributions. Here it is
    extended to more.
    """
    return mix[:, ::-1].copy()


def mixture(
    pools: Sequence[Indices],
    train_mix: Floats,
    test_mix: Floats,
    *,
    seed: int = 0,
    client_test: float = 0.0,
    client_validation: float = 0.0,
    sizes: SizeLaw = "equal",
    min_samples: int = 10,
    total: int | None = None,
    validation_mix: Literal["test", "train"] = "test",
) -> list[Shares]:
    """Distribute samples so that each client has its mixtures. No sample is used twice.

    Of a client's samples, the shares ``client_test`` and ``client_validation`` (rounded down) are drawn by its test
    mixture. The rest, on which it trains, is drawn by its train mixture (papers.md P23). Both hold up to rounding.
    Mixtures are exact: without ``total``, as many samples are used as the scarcest distribution allows, and the rest is
    unused.

    Args:
        pools: the sample indices of each distribution, D arrays.
        train_mix: ``[clients, D]``, each client's mixture for training. Rows sum to 1.
        test_mix: ``[clients, D]``, the shares that each client is tested on.
        seed: the seed of all draws.
        client_test: the part of a client's samples that it keeps for testing, 0 or more.
        client_validation: the part that it keeps for validation, 0 or more.
        sizes: how many samples each client gets; see :func:`hanse.data.partitions.client_sizes`.
        min_samples: the least that a client gets.
        total: how many samples are distributed in all. None: as many as possible.
        validation_mix: which mixture, "train" or "test", the validation share is drawn by.

    Returns:
        Sorted indices (train, validation, test) for each client.

    Raises:
        UserError: a distribution has fewer samples than are needed.
    """
    clients = len(train_mix)
    stock = np.array([len(pool) for pool in pools], dtype=np.int64)

    def demand(samples: int) -> NDArray[np.int64]:
        counts = client_sizes(samples, clients, seed=seed, law=sizes, min_samples=min_samples, total=samples)
        validated = train_mix if validation_mix == "train" else test_mix
        return _counts(counts, (train_mix, validated, test_mix), client_test, client_validation)

    wanted = _largest(stock, demand, clients * min_samples) if total is None else demand(total)
    needed = wanted.sum(axis=(0, 1))
    if (needed > stock).any():
        d = int(np.argmax(needed - stock))
        raise UserError(
            f"partition = 'mixture': {clients} clients need {needed[d]} samples of distribution {d} and there are "
            f"{stock[d]}; lower clients, samples_per_client or min_samples"
        )
    # distribution by distribution, a random order is dealt client after client, share after share
    parts: list[list[list[Indices]]] = [[[], [], []] for _ in range(clients)]
    for d, pool in enumerate(pools):
        order = stream(seed, "mixture", start=d).permutation(pool)
        ends = np.cumsum(wanted[:, :, d].ravel())
        for place, part in enumerate(np.split(order[: ends[-1]], ends[:-1])):
            parts[place // 3][place % 3].append(part)
    return [(np.sort(np.concatenate(a)), np.sort(np.concatenate(b)), np.sort(np.concatenate(c))) for a, b, c in parts]


def _counts(
    sizes: NDArray[np.int64], mixes: tuple[Floats, Floats, Floats], client_test: float, client_validation: float
) -> NDArray[np.int64]:
    """Return how many samples of each distribution go to each client and share, ``[clients, 3, D]``.

    Args:
        sizes: the samples of each client, ``[clients]``.
        mixes: the mixtures ``[clients, D]`` of the shares train, validation and test.
        client_test: the part of a client's samples that is its test share.
        client_validation: the part that is its validation share.
    """
    counts = np.diff(share_ends(sizes, client_test, client_validation), axis=1, prepend=0)
    shares = np.stack(mixes, axis=1)
    return np.stack(
        [
            np.stack([largest_remainder(mix, int(n)) for mix, n in zip(own, many, strict=True)])
            for own, many in zip(shares, counts, strict=True)
        ]
    )


def _largest(stock: NDArray[np.int64], demand: Callable[[int], NDArray[np.int64]], least: int) -> NDArray[np.int64]:
    """Return the demand of the largest total that the stock ``[D]`` can meet, up to rounding.

    Args:
        stock: how many samples of each distribution there are.
        demand: the counts ``[clients, 3, D]`` for a total.
        least: a total below which nothing is tried; its demand is returned even if it cannot be met.
    """
    total = int(stock.sum())
    while True:
        wanted = demand(total)
        needed = wanted.sum(axis=(0, 1))
        if (needed <= stock).all() or total <= least:
            return wanted
        # the demand grows in proportion to the total, up to rounding
        scale = float((stock / np.maximum(needed, 1)).min())
        total = max(least, min(total - 1, int(total * scale)))
