"""Cuts: each client's samples into train, validation and test shares, a test set into the server's two sets."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data.dataset import Distributions, stratified_split
from hanse.data.partitions import Partition
from hanse.data.samples import Samples

__all__ = ["client_shares", "server_cut", "share_ends", "taken"]


def client_shares(
    partition: Partition, client_test: float, client_validation: float, seed: int, ordered: bool
) -> list[tuple[NDArray[np.int64], ...]]:
    """Return each client's sorted (train, validation, test) indices ``[n]``: cut at random, or in order of time."""
    if partition.kept is not None:
        return [(own, *kept) for own, kept in zip(partition.train, partition.kept, strict=True)]
    ends = share_ends(partition.sizes, client_test, client_validation)
    shares: list[tuple[NDArray[np.int64], ...]] = []
    for client, index in enumerate(partition.train):
        order = index
        if ends[client, 0] < len(index) and not ordered:
            order = stream(seed, "shares", client=client).permutation(index)
        shares.append(tuple(np.sort(part) for part in np.split(order, ends[client, :2])))
    return shares


def share_ends(sizes: NDArray[np.int64], client_test: float, client_validation: float) -> NDArray[np.int64]:
    """Return where a client's train, validation and test shares end, ``[clients, 3]``. Raises UserError."""
    for name, value in (("client_test", client_test), ("client_validation", client_validation)):
        if not 0 <= value < 1:
            raise UserError(f"{name} = {value!r}; allowed: at least 0 and less than 1")
    if client_test + client_validation >= 1:
        raise UserError(f"client_test + client_validation = {client_test + client_validation:g}; allowed: less than 1")
    test = np.floor(sizes * client_test).astype(np.int64)
    validation = np.floor(sizes * client_validation).astype(np.int64)
    return np.stack([sizes - test - validation, sizes - test, sizes], axis=1)


def server_cut(
    test: Samples,
    num_classes: int | None,
    validation: float,
    seed: int,
    told: Distributions | None = None,
    owner_of: NDArray[np.int64] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the sorted positions of the server's (validation, test) sets in a test set; validation is this share of
    it, stratified by class (by owner where a sample has many classes, as text has) and distribution.
    """
    if not 0 <= validation < 1:
        raise UserError(f"validation = {validation!r}; allowed: at least 0 and less than 1")
    size = round(len(test) * validation)
    labels = None if num_classes is None else owner_of if test.y.ndim > 1 else test.y.numpy()
    if told is not None:
        labels = told.test if labels is None else labels * len(told.names) + told.test
    rest, cut = stratified_split(labels, len(test), size, stream(seed, "server-validation"))
    return cut, rest


def taken(samples: Samples, index: NDArray[np.int64]) -> Samples | None:
    """Return the samples at positions ``index [m]``; all of them as they are, without a copy; None for none."""
    if len(index) == len(samples):
        return samples if len(samples) else None
    return samples.take(torch.from_numpy(index)) if len(index) else None
