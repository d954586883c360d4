"""Clients whose data are mixtures of a few distributions, with different mixtures for training and testing.

This is the setting of PI-FL section 4.1 (the laws 10:90, 30:70, linear and random; test mixtures equal or inverse).
PI-FL took it from FedSoft (Ruan and Joe-Wong 2022) and its code. A sample's distribution is that of its class, the
rotation of its image (:func:`by_rotation`), or what the source says. :func:`mixes` makes each client's shares of them,
:func:`inverse` the opposite shares for testing, and :class:`MixturePartition` distributes the samples accordingly:
``[data] partition = "mixture"``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.base.errors import UserError
from hanse.base.factories import Positive
from hanse.base.pytorch import torch
from hanse.base.streams import stream
from hanse.data.dataset import Dataset, Distributions, largest_remainder, stratified_split
from hanse.data.partitions import SizeLaw, client_sizes
from hanse.data.samples import Samples
from hanse.data.shares import Cuts, Partition, share_ends
from hanse.data.units import SHARES

Floats = NDArray[np.float64]

_TURNS = 4


@dataclass(frozen=True)
class MixturePartition:
    """Each client's data mix two or more distributions; for testing, the mix is the same or inverted (PI-FL).

    Attributes:
        mix: the train mixture: 'a:b' (b % come from a client's main distribution), 'linear' (client k of N has the
            share (k + 0.5) / N of the first of two distributions), or 'random'.
        test_mix: how a client's test and validation shares are mixed: the 'same' as for training, or 'inverse', with
            the shares of opposite distributions exchanged.
        validation_mix: whether a client's validation share follows its 'test' or its 'train' mixture ('train' in the
            code of PI-FL's authors).
        distributions: what distinguishes the distributions: groups of classes, images turned by steps of 90 degrees, or
            the source itself. The source is the default if it has distributions; otherwise classes are.
        num_distributions: number of distributions made by classes (consecutive groups) or rotation; default 2.
        samples_per_client: mean number of samples of a client. If left out, as many as the scarcest distribution
            allows.
        sizes: how clients' numbers of samples are drawn: 'equal' or 'power'.
        min_samples: least samples of a client, before its shares are cut.
    """

    name: ClassVar[str] = "mixture"
    by_class: ClassVar[bool] = False
    mix: str = "10:90"
    test_mix: Literal["same", "inverse"] = "same"
    validation_mix: Literal["test", "train"] = "test"
    distributions: Literal["classes", "rotation", "source"] | None = None
    num_distributions: Annotated[int, Field(ge=2)] | None = None
    samples_per_client: Positive | None = None
    sizes: SizeLaw = "equal"
    min_samples: Positive = 10

    def __post_init__(self) -> None:
        try:
            check_mix(self.mix)
        except ValueError as wrong:
            raise UserError(f"mix: {self.mix!r}: {wrong}") from None

    def prepared(self, dataset: Dataset, clients: int, seed: int) -> Dataset:
        """Return a data set whose samples are assigned to distributions; its test set keeps those that are.

        Args:
            dataset: the data set.
            clients: is not used.
            seed: the seed of rotations.

        Raises:
            UserError: the data set cannot be divided in this way.
        """
        known, count = dataset.distributions, self.num_distributions
        fits = known is not None and count in (None, len(known.names))
        kind = self.distributions or ("source" if fits else "classes")
        if kind == "source" and not fits:
            has = "none" if known is None else ", ".join(known.names)
            raise UserError(
                f"data.partition.distributions = 'source': source '{dataset.name}' does not say which distribution its "
                f"samples come from, or has others than num_distributions (it has {has}); allowed: 'classes', "
                "'rotation'"
            )
        if kind == "rotation":
            dataset = by_rotation(dataset, count or 2, seed=seed)
        elif kind == "classes":
            dataset = _by_classes(dataset, count or 2)
        assert dataset.distributions is not None
        return dataset.keep_test(np.flatnonzero(dataset.distributions.test >= 0))

    def split(self, dataset: Dataset, clients: int, cuts: Cuts) -> Partition:
        """Return who holds which sample in which share, so that each client has its mixtures. No sample is used twice.

        Of a client's samples, the shares ``client_test`` and ``client_validation`` (rounded down) are drawn by its test
        mixture. The rest, on which it trains, is drawn by its train mixture (papers.md P23). Both hold up to rounding.
        Mixtures are exact: without ``samples_per_client``, as many samples are used as the scarcest distribution
        allows, and the rest is unused. A client's group is the distribution that it trains on most.

        Args:
            dataset: samples that are assigned to distributions.
            clients: how many clients there are.
            cuts: the parts that a client keeps for testing and validation, and the seed of all draws.

        Raises:
            UserError: a distribution has fewer samples than are needed.
        """
        if dataset.distributions is None:
            dataset = self.prepared(dataset, clients, cuts.seed)
        assert dataset.distributions is not None  # prepared sees to it
        of_each, seed = dataset.distributions.train, cuts.seed
        pools = [np.flatnonzero(of_each == d) for d in range(len(dataset.distributions.names))]
        train = mixes(self.mix, clients, len(pools), seed=seed)
        test = inverse(train) if self.test_mix == "inverse" else train
        mixed = np.stack([train, train if self.validation_mix == "train" else test, test], axis=1)
        stock = np.array([len(pool) for pool in pools], dtype=np.int64)

        def demand(samples: int) -> NDArray[np.int64]:
            """Return how many samples of each distribution go to each client and share, ``[clients, 3, D]``."""
            least = self.min_samples
            sizes = client_sizes(samples, clients, seed=seed, law=self.sizes, min_samples=least, total=samples)
            counts = np.diff(share_ends(sizes, cuts.client_test, cuts.client_validation), axis=1, prepend=0)
            rows = [largest_remainder(*one) for one in zip(mixed.reshape(-1, len(pools)), counts.flat, strict=True)]
            return np.stack(rows).reshape(mixed.shape)

        if self.samples_per_client is None:
            wanted = _largest(stock, demand, clients * self.min_samples)
        else:
            wanted = demand(clients * self.samples_per_client)
        needed = wanted.sum(axis=(0, 1))
        if (needed > stock).any():
            d = int(np.argmax(needed - stock))
            raise UserError(
                f"partition = 'mixture': {clients} clients need {needed[d]} samples of distribution {d} and there are "
                f"{stock[d]}; lower clients, samples_per_client or min_samples"
            )
        owner, share_of = np.full(len(dataset.train), -1, np.int64), np.full(len(dataset.train), -1, np.int8)
        # distribution by distribution, a random order is dealt client after client, share after share
        for d, pool in enumerate(pools):
            place = np.repeat(np.arange(clients * len(SHARES)), wanted[:, :, d].ravel())
            rows = stream(seed, "mixture", start=d).permutation(pool)[: len(place)]
            owner[rows], share_of[rows] = np.divmod(place, len(SHARES))
        return Partition(owner, share_of, train.argmax(axis=1).astype(np.int64))


def _by_classes(dataset: Dataset, count: int) -> Dataset:
    """Return the data set with ``count`` distributions of consecutive classes.

    Raises:
        UserError: the data set has no classes, or fewer.
    """
    classes = dataset.num_classes
    if classes is None:
        raise UserError(f"data.partition.distributions = 'classes': source '{dataset.name}' has no classes")
    if count > classes:
        raise UserError(
            f"data.partition.num_distributions = {count}: source '{dataset.name}' has {classes} classes to split; "
            f"allowed: up to {classes}"
        )
    groups = np.array_split(np.arange(classes), count)
    group_of = np.repeat(np.arange(count), [len(group) for group in groups])
    names = tuple(f"classes {own[0]}-{own[-1]}" if len(own) > 1 else f"classes {own[0]}" for own in groups)
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
        raise UserError(f"data.partition.distributions = 'rotation': needs square images; samples have shape {shape}")
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
