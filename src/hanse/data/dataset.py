"""A data set: train and test samples with the facts that models and partitions need.

Every source and every form of users' own data becomes a :class:`Dataset`, which checks shapes, types and label ranges.
The functions below it are shared by several sources: scaling images, rounding shares to whole samples, stratified
splits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.pytorch import torch
from hanse.data.samples import Inputs, Samples, as_tensors
from hanse.data.units import Cut

IGNORED = -100
"""The label of a text's positions that do not count; PyTorch's own mark."""


@dataclass(frozen=True)
class Distributions:
    """The distribution, out of several, from which each sample was drawn.

    Some sources have samples of different kinds, such as drawing styles, or upper and lower case. The partition
    "mixture" gives every client its own mix of the kinds.

    Attributes:
        names: the name of each distribution.
        train: ``[n_train]``, int64, each train sample's distribution, as an index into ``names``. -1: the sample is in
            none.
        test: ``[n_test]``, the same for the test samples.
    """

    names: tuple[str, ...]
    train: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True)
class Dataset:
    """Train and test samples of one source, before they are split over clients.

    Samples may be given as numpy arrays or tensors (see :func:`hanse.data.samples.as_tensors` for the types); they are
    stored as tensors.

    Attributes:
        name: the source's name in messages and records.
        train: the samples that are distributed to clients, at least one.
        test: the samples that the server holds back. It may be empty.
        num_classes: the number of classes; labels are int64 from 0 to ``num_classes - 1``. None: regression, with
            float32 targets.
        input_shape: the shape of one input, without the sample axis. For samples with several inputs (``Samples`` made
            from a dictionary), it is instead the width of the row that holds all inputs.
        note: a note for readers of results, such as "the split is not the official one".
        notes: what may be meant otherwise than it was read, told once before a run.
        client_of: ``[n_train]``, int64, the client of each train sample, if the source comes with clients.
        distributions: which distribution each sample comes from, if there are several.
        test_client_of: ``[n_test]``, the client of each test sample. -1: that client has no train samples.
        client_names: the names of the clients, indexed by the numbers in ``client_of``.
        ordered: a client's samples are in order of time, so its test share is cut from the end.
        black: the value of a black pixel in each channel after scaling. Augmentation pads images with it. Empty: 0.
        doubt: why rows may be several of one person, though nobody says so; "" if there is no reason.
        time: ``[n_train]``, when each train sample was observed. A client's test share is then its latest samples.
        cut: whether the date that divides them is each client's own, or one for all.
        shares: ``[n_train]``, int8, the share of its client that each train sample is in: 0, 1 or 2 for train,
            validation or test, -1 for none. None: the experiment's shares are drawn.
        left_out: rows that are in neither set, since their units have rows on both sides of a date.

    Raises:
        UserError: the fields contradict each other, a label is out of range, or there are no train samples.

    Examples:
        >>> import torch
        >>> from hanse.data.samples import Samples
        >>> train = Samples(torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1]))
        >>> test = Samples(torch.randn(2, 3), torch.tensor([0, 1]))
        >>> owners = np.array([0, 0, 0, 1, 1, 1])
        >>> dataset = Dataset("mine", train, test, num_classes=2, input_shape=(3,), client_of=owners)
        >>> len(dataset.train), dataset.inputs.parts
        (6, ())
    """

    name: str
    train: Samples
    test: Samples
    num_classes: int | None
    input_shape: tuple[int, ...]
    note: str = ""
    client_of: NDArray[np.int64] | None = None
    distributions: Distributions | None = None
    test_client_of: NDArray[np.int64] | None = None
    client_names: tuple[str, ...] = ()
    ordered: bool = False
    black: tuple[float, ...] = ()
    notes: tuple[str, ...] = ()
    time: NDArray[np.float64] | None = None
    cut: Cut = "each_client"
    doubt: str = ""
    shares: NDArray[np.int8] | None = None
    left_out: int = 0

    def __post_init__(self) -> None:
        if self.inputs:
            object.__setattr__(self, "input_shape", (self.train.x.shape[1],))
        for share in ("train", "test"):
            where = f"source '{self.name}': {share}"
            samples = as_tensors(getattr(self, share), where, classes=self.num_classes is not None)
            object.__setattr__(self, share, samples)
            self._check(where, samples)
        if len(self.train) == 0:
            raise UserError(f"source '{self.name}': no train samples; at least 1 is needed")
        for ids, field, share, samples in (
            (self.client_of, "client_of", "train", self.train),
            (self.test_client_of, "test_client_of", "test", self.test),
            (self.train.units, "train.units", "train", self.train),
            (self.test.units, "test.units", "test", self.test),
            (self.time, "time", "train", self.train),
            (self.shares, "shares", "train", self.train),
        ):
            whole = field == "time" or "int" in str(getattr(ids, "dtype", "int"))
            if ids is not None and not (whole and tuple(ids.shape) == (len(samples),)):
                raise UserError(
                    f"source '{self.name}': {field} is {ids.dtype} of shape {tuple(ids.shape)}; "
                    f"one number for each of the {len(samples)} {share} samples is needed"
                )
        dists = self.distributions
        if dists is not None and (len(dists.train), len(dists.test)) != (len(self.train), len(self.test)):
            raise UserError(
                f"source '{self.name}': distributions of {len(dists.train)} train and {len(dists.test)} test samples; "
                f"there are {len(self.train)} and {len(self.test)}"
            )

    @property
    def inputs(self) -> Inputs:
        """Where each of several inputs lies in a sample's row; empty if samples have one input."""
        return self.train.inputs

    def keep_test(self, kept: NDArray[np.int64]) -> Dataset:
        """Return the data set with only some of its test samples, or the same object if all are kept.

        Args:
            kept: positions in the test set, ``[m]``, int64, ascending.
        """
        if len(kept) == len(self.test):
            return self
        dists, ids = self.distributions, self.test_client_of
        return replace(
            self,
            test=self.test.take(torch.from_numpy(kept)),
            distributions=None if dists is None else replace(dists, test=dists.test[kept]),
            test_client_of=None if ids is None else ids[kept],
        )

    def _check(self, where: str, samples: Samples) -> None:
        """Raise UserError unless a share's inputs and targets fit each other and the declared shape and classes."""
        if samples.x.ndim < 1 or samples.y.ndim < 1:
            raise UserError(f"{where} inputs have shape {tuple(samples.x.shape)}; the first axis must count samples")
        if samples.x.shape[0] != samples.y.shape[0]:
            raise UserError(f"{where} has {samples.x.shape[0]} inputs and {samples.y.shape[0]} targets")
        if samples.inputs != self.inputs:
            raise UserError(f"{where} inputs are {samples.inputs.shapes}, the train samples' {self.inputs.shapes}")
        if tuple(samples.x.shape[1:]) != self.input_shape:
            raise UserError(f"{where} inputs have shape {tuple(samples.x.shape[1:])}; {self.input_shape} was announced")
        if self.num_classes is None:
            if not samples.y.is_floating_point():
                raise UserError(f"{where} targets are {samples.y.dtype}; regression needs float32")
            return
        if samples.y.dtype != torch.int64 or samples.y.ndim not in (1, 2):
            raise UserError(
                f"{where} labels are {samples.y.dtype} of shape {tuple(samples.y.shape)}; int64 of shape (n,), or "
                "(n, positions), is needed"
            )
        counted = samples.y[samples.y != IGNORED] if samples.y.ndim == 2 else samples.y
        if counted.numel() and not 0 <= int(counted.min()) <= int(counted.max()) < self.num_classes:
            raise UserError(
                f"{where} labels span {int(counted.min())}..{int(counted.max())}; allowed: 0..{self.num_classes - 1}"
            )


def image_samples(images: NDArray[np.uint8], labels: NDArray[np.integer]) -> Samples:
    """Return images as float32 samples ``[n, C, H, W]`` from 0 to 1.

    Args:
        images: ``[n, H, W]`` for one channel, or ``[n, H, W, C]``, with pixels from 0 to 255.
        labels: the class of each image, ``[n]``.
    """
    x = torch.from_numpy(np.ascontiguousarray(images))
    x = x.unsqueeze(1) if x.ndim == 3 else x.permute(0, 3, 1, 2).contiguous()
    # in place: one float32 copy of the images at most is held
    return Samples(x.to(torch.float32).div_(255.0), torch.from_numpy(labels.astype(np.int64)))


def largest_remainder(weights: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Return non-negative integers in proportion to ``weights`` that sum to ``total``, ``[m]``.

    Shares are rounded down. The remainder is given one each to the largest fractions, and in ties to the lower index,
    so the result does not depend on the machine.

    Args:
        weights: ``[m]``, non-negative with a positive sum.
        total: the sum of the result.
    """
    exact = weights / weights.sum() * total
    whole: NDArray[np.int64] = np.floor(exact).astype(np.int64)
    missing = total - int(whole.sum())
    order = np.argsort(whole - exact, kind="stable")
    whole[order[:missing]] += 1
    return whole


def stratified_split(
    labels: NDArray[np.int64] | None, n: int, size: int, draw: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split the positions ``0..n-1`` into a rest and a cut that takes the same share of every class.

    Args:
        labels: the class of each position, ``[n]``; None for a plain random cut.
        n: number of positions.
        size: how many of them are cut.
        draw: the random generator.

    Returns:
        Two sorted index arrays, ``(rest [n - size], cut [size])``. The share of a class in the cut is exact up to
        rounding.
    """
    groups = [np.arange(n)] if labels is None else [np.flatnonzero(labels == c) for c in np.unique(labels)]
    if size == 0 or n == 0:
        return np.arange(n), np.arange(0)
    counts = largest_remainder(np.array([len(g) for g in groups], dtype=np.float64), size)
    parts = [draw.permutation(g)[:m] for g, m in zip(groups, counts, strict=True)]
    cut: NDArray[np.int64] = np.sort(np.concatenate(parts))
    rest: NDArray[np.int64] = np.setdiff1d(np.arange(n), cut, assume_unique=True)
    return rest, cut
