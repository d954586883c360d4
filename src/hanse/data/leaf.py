"""FEMNIST in LEAF's format (Caldas et al. 2018): characters by the people who wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.data.dataset import Dataset
from hanse.data.samples import Samples

__all__ = ["femnist", "read_leaf"]

CLASSES, SIDE = 62, 28
_PLACES = ("femnist", "femnist/data", "leaf/data/femnist/data")
_REMEDY = (
    "make it with the scripts of https://github.com/TalwalkarLab/leaf (data/femnist: ./preprocess.sh -s niid --sf 1.0 "
    "-k 0 -t sample) and set HANSE_DATA to a folder that holds femnist/train/*.json and femnist/test/*.json"
)


def femnist(folders: Sequence[Path], download: bool) -> Dataset:
    """Return 28 x 28 characters in 62 classes, pixels 0 to 1 as LEAF has them (paper is 1), a client a writer.

    Clients are in order of the writers' names; test samples belong to their writer too. LEAF publishes scripts and no
    file, so there is nothing to download. Raises UserError where the files are missing or not in LEAF's format.
    """
    del download
    for folder in folders:
        for place in _PLACES:
            files = {share: sorted((folder / place / share).glob("*.json")) for share in ("train", "test")}
            if all(files.values()):
                return _load(files)
    raise UserError(f"source 'femnist' was not found in {', '.join(map(str, folders))}; {_REMEDY}")


def _load(files: dict[str, list[Path]]) -> Dataset:
    users = {share: dict(user for path in found for user in read_leaf(path)) for share, found in files.items()}
    names = sorted(users["train"])
    samples: dict[str, Samples] = {}
    owners: dict[str, NDArray[np.int64]] = {}
    for share, found in users.items():
        mine = [(k, *found[name]) for k, name in enumerate(names) if name in found and len(found[name][1])]
        if not mine:
            raise UserError(f"source 'femnist': {files[share][0].parent}: no samples of writers with train samples")
        x = np.concatenate([x for _, x, _ in mine]).reshape(-1, 1, SIDE, SIDE)
        samples[share] = Samples(torch.from_numpy(x), torch.from_numpy(np.concatenate([y for _, _, y in mine])))
        owners[share] = np.concatenate([np.full(len(y), k, dtype=np.int64) for k, _, y in mine])
    return Dataset(
        "femnist",
        samples["train"],
        samples["test"],
        CLASSES,
        (1, SIDE, SIDE),
        client_of=owners["train"],
        test_client_of=owners["test"],
        client_names=tuple(names),
    )


def read_leaf(path: Path) -> Iterator[tuple[str, tuple[NDArray[np.float32], NDArray[np.int64]]]]:
    """Yield ``user, (x float32 [n, 784], y int64 [n])`` of one of LEAF's json files. Raises UserError by file name."""
    try:
        told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name in told["users"]:
            data = told["user_data"][name]
            x = np.asarray(data["x"], dtype=np.float32).reshape(len(data["x"]), -1)
            y = np.asarray(data["y"], dtype=np.int64)
            if y.shape != (len(x),) or (len(x) and x.shape[1] != SIDE * SIDE):
                raise ValueError(f"user {name}: x {x.shape}, y {y.shape}; {SIDE * SIDE} pixels and a label are needed")
            yield name, (x, y)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a file of LEAF's FEMNIST: {error!r}") from error
