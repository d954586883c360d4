"""Downloads published image sets once, checks them by their published md5, and reads them without unpickling.

:func:`fetch` downloads the files of a source that :data:`REMOTES` lists, and returns its arrays. :func:`fetching` adds
a helpful message to a failed download. The readers of the formats (IDX, CIFAR-10's binary version, EMNIST's archive)
can also be used on files that are here already.

EMNIST (Cohen et al. 2017) is one zip of gzipped IDX files for all of its splits. Its images are stored transposed, and
are returned upright. Classes of ``byclass`` are 0-9 for digits, 10-35 for upper case and 36-61 for lower case.
"""

from __future__ import annotations

import gzip
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError, gated
from hanse.data.dataset import Distributions

Arrays = dict[str, NDArray[np.uint8]]
"""Images under ``x_train`` and ``x_test``, ``[n, rows, columns]`` or ``[n, rows, columns, channels]``; labels ``[n]``
under ``y_train`` and ``y_test``.
"""


def parse_idx(data: bytes) -> NDArray[np.uint8]:
    """Return the unsigned bytes of an IDX file (the format of MNIST) in the shape that its header gives.

    The header is two zero bytes, the type (0x08: unsigned byte), the number of axes, then each axis as a big-endian
    32-bit number.

    Raises:
        ValueError: the header or the length is wrong.
    """
    if len(data) < 4 or data[:3] != b"\0\0\x08":
        raise ValueError("not an IDX file of unsigned bytes")
    start = 4 + 4 * data[3]
    shape = np.frombuffer(data[4:start], dtype=">u4").tolist()
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def read_cifar10(path: Path) -> Arrays:
    """Return the arrays in ``cifar-10-binary.tar.gz``, read without unpacking it to disk.

    A row is one label byte and 3,072 pixels: first the red plane, then the green and the blue.
    """
    files = {"train": [f"data_batch_{i}.bin" for i in range(1, 6)], "test": ["test_batch.bin"]}
    out: Arrays = {}
    with tarfile.open(path, "r:gz") as archive:
        found = {Path(member.name).name: member for member in archive if member.isfile()}
        for share, names in files.items():
            members = [archive.extractfile(found[name]) for name in names]
            content = b"".join(member.read() for member in members if member is not None)
            rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, 1 + 3 * 32 * 32)
            pixels = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            out |= {f"x_{share}": np.ascontiguousarray(pixels), f"y_{share}": rows[:, 0].copy()}
    return out


ARCHIVE = "gzip.zip"
CASED = 52
"""Classes of the letters with both cases: 0-25 lower case a-z, 26-51 upper case A-Z."""


def _idx_files(prefix: str, test: str) -> dict[str, str]:
    """Return the names of a set's four IDX files by array; those of the test files have the word ``test``."""
    return {
        f"{letter}_{share}": f"{prefix}{word}-{kind}-ubyte.gz"
        for share, word in (("train", "train"), ("test", test))
        for letter, kind in (("x", "images-idx3"), ("y", "labels-idx1"))
    }


def find_emnist(folders: Sequence[Path]) -> Path | None:
    """Return EMNIST's zip in the first of the folders that has it; None if none has."""
    return next((folder / ARCHIVE for folder in folders if (folder / ARCHIVE).is_file()), None)


def read_emnist(path: Path, split: str) -> Arrays:
    """Return the arrays of an EMNIST split from the zip. The images are upright.

    The files of "letters" count classes from 1 to 26 (both cases of a letter are one class). Here they are counted from
    0 to 25.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    out = read_idx_files(path, _idx_files(f"emnist-{split}-", "test"))
    for share in ("train", "test"):
        out[f"x_{share}"] = np.ascontiguousarray(out[f"x_{share}"].transpose(0, 2, 1))
        if split == "letters":
            out[f"y_{share}"] = out[f"y_{share}"] - 1
    return out


def read_idx_files(path: Path, files: Mapping[str, str]) -> Arrays:
    """Return the arrays of gzipped IDX files in a folder or a zip.

    Args:
        path: the folder, or the zip, in which the files may lie anywhere.
        files: file names by the key of the array. Keys that begin with "x" stand for images, the others for labels.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    out: Arrays = {}
    for key, name in files.items():
        with gated(f"{path}: {name}"):
            out[key] = parse_idx(gzip.decompress(_bytes(path, name)))
            if out[key].ndim != (3 if key[0] == "x" else 1):
                raise ValueError(f"{out[key].ndim} axes")
    return out


def _bytes(path: Path, name: str) -> bytes:
    """Return a file's bytes from a folder, or from anywhere inside a zip."""
    if path.is_dir():
        return (path / name).read_bytes()
    with zipfile.ZipFile(path) as archive:
        return archive.read(next((one for one in archive.namelist() if one.rsplit("/", 1)[-1] == name), name))


def cased(arrays: Arrays) -> tuple[Arrays, Distributions]:
    """Return only the letters of ``byclass``, renumbered: lower case 0-25, upper case 26-51, and the case of each as
    its distribution (PI-FL's D_A and D_B).
    """
    out: Arrays = {}
    for share in ("train", "test"):
        labels = arrays[f"y_{share}"].astype(np.int64)
        letters = np.flatnonzero(labels >= 10)
        kept = labels[letters]
        out[f"x_{share}"] = arrays[f"x_{share}"][letters]
        out[f"y_{share}"] = np.where(kept >= 36, kept - 36, kept + 16).astype(np.uint8)
    train, test = (out[f"y_{share}"].astype(np.int64) // 26 for share in ("train", "test"))
    return out, Distributions(("lower case", "upper case"), train, test)


@dataclass(frozen=True)
class Remote:
    """Where a source is published.

    Attributes:
        base: the address of its files.
        files: the md5 of each file, by name.
        read: a function that returns the arrays from the folder that holds the files.
        folder: the folder of the files, if several sources share it. Empty: the source has its own.
    """

    base: str
    files: Mapping[str, str]
    read: Callable[[Path], Arrays]
    folder: str = ""


def _emnist(split: str) -> Remote:
    """Return where an EMNIST split is published."""
    return Remote(
        "https://biometrics.nist.gov/cs_links/EMNIST/",
        {ARCHIVE: "58c8d27c78d21e728a6bc7b3cc06412e"},
        lambda folder: read_emnist(folder / ARCHIVE, split),
        "emnist",
    )


def _mnist(base: str, *md5: str) -> Remote:
    """Return where a set in MNIST's four files is published."""
    files = _idx_files("", "t10k")
    return Remote(base, dict(zip(files.values(), md5, strict=True)), partial(read_idx_files, files=files))


REMOTES: Mapping[str, Remote] = {
    "mnist": _mnist(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c",
    ),
    "fashion_mnist": _mnist(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310",
    ),
    "cifar10": Remote(
        "https://www.cs.toronto.edu/~kriz/", {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        lambda folder: read_cifar10(folder / "cifar-10-binary.tar.gz"),
    ),
    **{f"emnist_{split}": _emnist(split) for split in ("byclass", "balanced", "letters")},
}  # fmt: skip


def fetch(source: str, cache: Path) -> Arrays:
    """Download a source's files into the cache and return its arrays.

    Files that are there already with the right md5 are not fetched again.

    Args:
        source: a key of :data:`REMOTES`.
        cache: the folder in which each source has a folder of its own.

    Raises:
        OSError: the address could not be reached. One line says which one failed and how.
        ValueError: a file is not what was published.
    """
    remote = REMOTES[source]
    folder = cache / (remote.folder or source)
    for name, md5 in remote.files.items():
        fetch_file(remote.base + name, f"md5:{md5}", folder / name)
    return remote.read(folder)


def fetch_file(address: str, known_hash: str, path: Path) -> None:
    """Download one file to ``path``, checked by ``known_hash`` ("md5:..." or "sha256:...").

    Raises:
        OSError: the download failed. One line says how.
    """
    import pooch  # late, as requests below: most runs download nothing
    from requests import ConnectionError as NoConnection

    try:
        pooch.retrieve(address, known_hash, path.name, path.parent, downloader=pooch.HTTPDownloader(timeout=30))
    except (OSError, ValueError) as error:  # what requests raises is an OSError
        said = "no connection" if isinstance(error, NoConnection) else " ".join(str(error).split())[:200]
        raise OSError(f"{address}: {said or type(error).__name__}") from error


@contextmanager
def fetching(source: str, looked: Sequence[Path], remedy: str, download: bool) -> Iterator[None]:
    """Wrap the download of a source that was not found locally.

    Args:
        source: the source's name, for messages.
        looked: the places that were searched.
        remedy: what the user can do instead of downloading.
        download: whether a download is allowed.

    Raises:
        UserError: ``download`` is off, or the block fails. The message has the places that were searched and the
            remedy.
    """
    places = f"looked for {', '.join(map(str, looked))}"
    if not download:
        raise UserError(f"source '{source}' was not found and download is off; {places}; {remedy}, or allow download")
    try:
        yield
    except (OSError, ValueError) as error:
        raise UserError(f"source '{source}' could not be downloaded ({error}); {places}; {remedy}") from error
