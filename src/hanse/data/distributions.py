"""Which distribution each sample comes from: by classes, by rotation of the images, or as the source itself says.

PI-FL and FedSoft give clients mixtures of a few distributions D_A, D_B, ...: :mod:`hanse.data.mixtures` deals them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data.dataset import Dataset, Distributions, stratified_split
from hanse.data.samples import Samples

__all__ = ["by_classes", "by_rotation", "with_distributions"]

_TURNS = 4


def with_distributions(
    dataset: Dataset, kind: str | None, count: int | None, class_groups: Sequence[Sequence[int]] | None, seed: int
) -> Dataset:
    """Return the data set with its samples told apart into distributions; without test samples that are in none.

    ``kind``: "classes", "rotation", "source", or None: as the source says if it does, else by classes. ``count`` is
    their number (None: 2, or what ``class_groups`` or the source have). Raises UserError for what the data cannot do.
    """
    told = dataset.distributions
    if kind is None:
        kind = "source" if told is not None and class_groups is None and count in (None, len(told.names)) else "classes"
    if kind == "source" and told is not None and count not in (None, len(told.names)):
        raise UserError(
            f"data.num_distributions = {count}: source '{dataset.name}' has {len(told.names)}: {', '.join(told.names)}"
        )
    count = 2 if count is None else count
    if kind == "source":
        if dataset.distributions is None:
            raise UserError(
                f"data.distributions = 'source': source '{dataset.name}' does not say which distribution its samples "
                "come from; allowed: 'classes', 'rotation'"
            )
        found = dataset
    elif kind == "rotation":
        found = by_rotation(dataset, count, seed=seed)
    else:
        found = by_classes(dataset, class_groups or _consecutive(dataset, count))
    assert found.distributions is not None
    return found.keep_test(np.flatnonzero(found.distributions.test >= 0))


def by_classes(dataset: Dataset, groups: Sequence[Sequence[int]]) -> Dataset:
    """Let distribution d be the samples whose class is in ``groups[d]``; other classes are in none (-1)."""
    classes = dataset.num_classes
    if classes is None:
        raise UserError(f"data.distributions = 'classes': source '{dataset.name}' has no classes")
    wrong = [c for group in groups for c in group if not 0 <= c < classes]
    if wrong:
        raise UserError(f"data.class_groups: class {wrong[0]}: source '{dataset.name}' has classes 0..{classes - 1}")
    group_of = np.full(classes, -1, dtype=np.int64)
    for d, group in enumerate(groups):
        group_of[list(group)] = d
    names = tuple(f"classes {_spans(sorted(group))}" for group in groups)
    train, test = (group_of[samples.y.numpy()] for samples in (dataset.train, dataset.test))
    return replace(dataset, distributions=Distributions(names, train, test))


def by_rotation(dataset: Dataset, count: int, *, seed: int) -> Dataset:
    """Let distribution d be images turned by d times 90 degrees, counter-clockwise: 0 and 90 (FedSoft), or more.

    Every image, of the train and of the test set, is in exactly one distribution, drawn from the seed, with the same
    share of each class in each; so no image is met in two positions.
    """
    shape = dataset.input_shape
    if len(shape) != 3 or shape[1] != shape[2]:
        raise UserError(f"data.distributions = 'rotation': square images are needed; samples have shape {shape}")
    if not 2 <= count <= _TURNS:
        raise UserError(f"data.num_distributions = {count} with rotation; allowed: 2 to {_TURNS}, steps of 90 degrees")
    train, train_of = _turned(dataset.train, count, seed, 0)
    test, test_of = _turned(dataset.test, count, seed, 1)
    names = tuple(f"turned by {90 * d}" for d in range(count))
    return replace(dataset, train=train, test=test, distributions=Distributions(names, train_of, test_of))


def _turned(samples: Samples, count: int, seed: int, share: int) -> tuple[Samples, NDArray[np.int64]]:
    of = np.zeros(len(samples), dtype=np.int64)
    rest = np.arange(len(samples))
    labels = samples.y.numpy()
    draw = stream(seed, "rotation", start=share)
    x = samples.x.clone()
    for d in range(count - 1, 0, -1):
        left, cut = stratified_split(labels[rest], len(rest), round(len(rest) / (d + 1)), draw)
        chosen, rest = rest[cut], rest[left]
        of[chosen] = d
        index = torch.from_numpy(chosen)
        x[index] = torch.rot90(samples.x[index], d, (2, 3))
    return Samples(x, samples.y), of


def _consecutive(dataset: Dataset, count: int) -> list[list[int]]:
    classes = dataset.num_classes
    if classes is None:
        raise UserError(f"data.distributions = 'classes': source '{dataset.name}' has no classes")
    if count > classes:
        raise UserError(
            f"data.num_distributions = {count}: source '{dataset.name}' has {classes} classes to split; allowed: up to "
            f"{classes}"
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
