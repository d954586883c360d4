"""EMNIST (Cohen et al. 2017) as NIST publishes it: one zip of gzipped IDX files for all of its splits.

In these files images lie on their side (rows and columns exchanged); they come out upright. Classes of ``byclass``: 0-9
digits, 10-35 upper case, 36-61 lower case.
"""

from __future__ import annotations

import gzip
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hanse.data.dataset import Distributions
from hanse.data.parsers import parse_idx

__all__ = ["ARCHIVE", "CASED", "cased", "cased_distributions", "find_emnist", "read_emnist"]

ARCHIVE = "gzip.zip"
CASED = 52
"""Classes of the letters with both cases: 0-25 lower case a-z, 26-51 upper case A-Z."""

_PLACES = (ARCHIVE, ".", "gzip", "emnist", "EMNIST/raw")
_FILES = {
    f"{letter}_{share}": f"{share}-{kind}-ubyte.gz"
    for share in ("train", "test")
    for letter, kind in (("x", "images-idx3"), ("y", "labels-idx1"))
}


def find_emnist(folders: Sequence[Path], split: str) -> Path | None:
    """Return where the published files of a split ("byclass", "balanced") are: the zip, or a folder of the gzipped
    files; None if nowhere.
    """
    for folder in folders:
        for place in _PLACES:
            path = folder / place
            if path.is_file() or all((path / f"emnist-{split}-{name}").is_file() for name in _FILES.values()):
                return path
    return None


def read_emnist(path: Path, split: str) -> dict[str, NDArray[np.uint8]]:
    """Read x_train, y_train, x_test, y_test of a split from the zip or the folder; images ``[n, 28, 28]``, upright.

    Raises ValueError naming the file and what is wrong with it.
    """
    out: dict[str, NDArray[np.uint8]] = {}
    for key, name in _FILES.items():
        name = f"emnist-{split}-{name}"
        try:
            out[key] = parse_idx(gzip.decompress(_bytes(path, name)))
        except (ValueError, OSError, EOFError, KeyError, zlib.error, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: {name}: {error}") from error
        if out[key].ndim != (3 if key[0] == "x" else 1):
            raise ValueError(f"{path}: {name}: {out[key].ndim} axes")
    for share in ("train", "test"):
        out[f"x_{share}"] = np.ascontiguousarray(out[f"x_{share}"].transpose(0, 2, 1))
    return out


def _bytes(path: Path, name: str) -> bytes:
    if path.is_dir():
        return (path / name).read_bytes()
    with zipfile.ZipFile(path) as archive:
        found = [member for member in archive.namelist() if member.rsplit("/", 1)[-1] == name]
        if not found:
            raise ValueError("not in the archive")
        return archive.read(found[0])


def cased(arrays: dict[str, NDArray[np.uint8]]) -> dict[str, NDArray[np.uint8]]:
    """Keep the letters of ``byclass`` (images ``[n, 28, 28]``, labels ``[n]``), renumbered: lower case 0-25, upper case
    26-51 (PI-FL's D_A and D_B).
    """
    out = {}
    for share in ("train", "test"):
        labels = arrays[f"y_{share}"].astype(np.int64)
        letters = np.flatnonzero(labels >= 10)
        kept = labels[letters]
        out[f"x_{share}"] = arrays[f"x_{share}"][letters]
        out[f"y_{share}"] = np.where(kept >= 36, kept - 36, kept + 16).astype(np.uint8)
    return out


def cased_distributions(train: NDArray[np.int64], test: NDArray[np.int64]) -> Distributions:
    """Return the two distributions of the cased letters, by their labels ``train [n]`` and ``test [m]``."""
    return Distributions(("lower case", "upper case"), train // 26, test // 26)
