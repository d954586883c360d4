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
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.data.dataset import Distributions

Arrays = dict[str, NDArray[np.uint8]]

_CIFAR_ROW = 1 + 3 * 32 * 32
_CIFAR_TRAIN = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_CIFAR_TEST = ("test_batch.bin",)


def parse_idx(data: bytes) -> NDArray[np.uint8]:
    """Return the unsigned bytes of an IDX file (the format of MNIST) in the shape that its header gives.

    The header is two zero bytes, the type (0x08: unsigned byte), the number of axes, then each axis as a big-endian
    32-bit number.

    Raises:
        ValueError: the header or the length is wrong.
    """
    if len(data) < 4 or data[0] != 0 or data[1] != 0:
        raise ValueError("not an IDX file: it does not start with two zero bytes")
    if data[2] != 0x08:
        raise ValueError(f"IDX type 0x{data[2]:02x}; only 0x08 (unsigned bytes) is read")
    start = 4 + 4 * data[3]
    if data[3] == 0 or len(data) < start:
        raise ValueError(f"IDX header of {data[3]} axes is cut short")
    shape = tuple(int(v) for v in np.frombuffer(data[4:start], dtype=">u4"))
    size = 1
    for axis in shape:
        size *= axis
    if len(data) - start != size:
        raise ValueError(f"IDX shape {shape} needs {size} bytes; the file has {len(data) - start}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def parse_cifar10(data: bytes) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return images ``[n, 32, 32, 3]`` and labels ``[n]`` of one file of CIFAR-10's binary version.

    A row is one label byte and 3,072 pixels: first the red plane, then the green and the blue.

    Raises:
        ValueError: the length is wrong, or a label is above 9.
    """
    if not data or len(data) % _CIFAR_ROW:
        raise ValueError(f"{len(data)} bytes are not rows of {_CIFAR_ROW} (CIFAR-10, binary version)")
    rows = np.frombuffer(data, dtype=np.uint8).reshape(-1, _CIFAR_ROW)
    labels = rows[:, 0].copy()
    if labels.max() > 9:
        raise ValueError(f"label {labels.max()} in a CIFAR-10 file; allowed: 0..9")
    images = rows[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), labels


def read_cifar10_archive(path: Path) -> Arrays:
    """Return the arrays in ``cifar-10-binary.tar.gz``, read without unpacking it to disk.

    Returns:
        x_train and x_test, images ``[n, 32, 32, 3]``; y_train and y_test, labels ``[n]``.

    Raises:
        ValueError: something in the file is missing or wrong. The message names the file and the fault.
    """
    arrays: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                name = member.name.rsplit("/", 1)[-1]
                stream = archive.extractfile(member) if name in (*_CIFAR_TRAIN, *_CIFAR_TEST) else None
                if stream is not None:
                    arrays[name] = stream.read()
        missing = [name for name in (*_CIFAR_TRAIN, *_CIFAR_TEST) if name not in arrays]
        if missing:
            raise ValueError(f"no {', '.join(missing)} in the archive")
        out: Arrays = {}
        for share, names in (("train", _CIFAR_TRAIN), ("test", _CIFAR_TEST)):
            images, labels = zip(*(parse_cifar10(arrays[name]) for name in names), strict=True)
            out[f"x_{share}"], out[f"y_{share}"] = np.concatenate(images), np.concatenate(labels)
    except (ValueError, OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ValueError(f"{path}: {error}") from error
    return out


ARCHIVE = "gzip.zip"
CASED = 52
"""Classes of the letters with both cases: 0-25 lower case a-z, 26-51 upper case A-Z."""

LETTERS = 26
_PLACES = (ARCHIVE, ".", "gzip", "emnist", "EMNIST/raw")


def _idx_files(test: str) -> dict[str, str]:
    """Return the names of a set's four IDX files by array; those of the test files begin with ``test``."""
    return {
        f"{letter}_{share}": f"{prefix}-{kind}-ubyte.gz"
        for share, prefix in (("train", "train"), ("test", test))
        for letter, kind in (("x", "images-idx3"), ("y", "labels-idx1"))
    }


_MNIST_FILES, _EMNIST_FILES = _idx_files("t10k"), _idx_files("test")


def find_emnist(folders: Sequence[Path], split: str) -> Path | None:
    """Return the zip, or the folder of gzipped files, that holds an EMNIST split; None if not found.

    Args:
        folders: the folders to search, in this order, each with the subfolders in which people unpack the files.
        split: "byclass", "balanced" or "letters".
    """
    for folder in folders:
        for place in _PLACES:
            path = folder / place
            if path.is_file() or all((path / f"emnist-{split}-{name}").is_file() for name in _EMNIST_FILES.values()):
                return path
    return None


def read_emnist(path: Path, split: str) -> Arrays:
    """Return the arrays of an EMNIST split from the zip or the folder. The images are upright.

    The files of "letters" count classes from 1 to 26 (both cases of a letter are one class). Here they are counted from
    0 to 25.

    Returns:
        x_train and x_test, images ``[n, 28, 28]``; y_train and y_test, labels ``[n]``.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    out = read_idx_files(path, {key: f"emnist-{split}-{name}" for key, name in _EMNIST_FILES.items()})
    if split == "letters":
        for key in ("y_train", "y_test"):
            if len(out[key]) and not 1 <= int(out[key].min()) <= int(out[key].max()) <= LETTERS:
                raise ValueError(f"{path}: {key}: labels {out[key].min()}..{out[key].max()}; allowed: 1..{LETTERS}")
            out[key] = out[key] - 1
    return out | {key: np.ascontiguousarray(out[key].transpose(0, 2, 1)) for key in ("x_train", "x_test")}


def _read_emnist_archive(folder: Path, split: str) -> Arrays:
    """Return the arrays of an EMNIST split from the zip in a folder (:func:`read_emnist`)."""
    return read_emnist(folder / ARCHIVE, split)


def read_idx_files(path: Path, files: Mapping[str, str]) -> Arrays:
    """Return the arrays of gzipped IDX files in a folder or a zip.

    Args:
        path: the folder, or the zip.
        files: file names by the key of the array. Keys that begin with "x" stand for images, the others for labels.

    Returns:
        Images ``[n, rows, columns]`` and labels ``[n]`` by key.

    Raises:
        ValueError: names the file and what is wrong with it.
    """
    out: Arrays = {}
    for key, name in files.items():
        try:
            out[key] = parse_idx(gzip.decompress(_bytes(path, name)))
        except (ValueError, OSError, EOFError, KeyError, zlib.error, zipfile.BadZipFile) as error:
            raise ValueError(f"{path}: {name}: {error}") from error
        if out[key].ndim != (3 if key[0] == "x" else 1):
            raise ValueError(f"{path}: {name}: {out[key].ndim} axes")
    return out


def _bytes(path: Path, name: str) -> bytes:
    """Return a file's bytes from a folder, or from anywhere inside a zip."""
    if path.is_dir():
        return (path / name).read_bytes()
    with zipfile.ZipFile(path) as archive:
        members = [member for member in archive.namelist() if member.rsplit("/", 1)[-1] == name]
        if not members:
            raise ValueError("not in the archive")
        return archive.read(members[0])


def cased(arrays: Arrays) -> Arrays:
    """Return only the letters of ``byclass``, renumbered: lower case 0-25, upper case 26-51 (PI-FL's D_A and D_B).

    Args:
        arrays: "byclass" by name: images ``x_train`` and ``x_test`` ``[n, 28, 28]``, and their labels ``y_train`` and
            ``y_test`` ``[n]``. The answer has the same names.
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


@dataclass(frozen=True)
class Remote:
    """Where a source is published.

    Attributes:
        bases: base addresses, tried in order.
        files: the md5 of each file, by name.
        read: a function that returns the arrays from the folder that holds the files.
        folder: the folder of the files, if several sources share it. Empty: the source has its own.
    """

    bases: tuple[str, ...]
    files: Mapping[str, str]
    read: Callable[[Path], Arrays]
    folder: str = ""  # where the files are kept, if several sources share them


REMOTES: Mapping[str, Remote] = {
    "mnist": Remote(
        bases=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        files={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        read=partial(read_idx_files, files=_MNIST_FILES),
    ),
    "fashion_mnist": Remote(
        bases=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        files={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        read=partial(read_idx_files, files=_MNIST_FILES),
    ),
    "cifar10": Remote(
        bases=("https://www.cs.toronto.edu/~kriz/",),
        files={"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        read=lambda folder: read_cifar10_archive(folder / "cifar-10-binary.tar.gz"),
    ),
    **{
        f"emnist_{split}": Remote(
            bases=("https://biometrics.nist.gov/cs_links/EMNIST/",),
            files={ARCHIVE: "58c8d27c78d21e728a6bc7b3cc06412e"},
            read=partial(_read_emnist_archive, split=split),
            folder="emnist",
        )
        for split in ("byclass", "balanced", "letters")
    },
}


def fetch(source: str, cache: Path, remotes: Mapping[str, Remote] = REMOTES) -> Arrays:
    """Download a source's files into the cache and return its arrays.

    Files that are there already with the right md5 are not fetched again.

    Args:
        source: a key of ``remotes``.
        cache: the folder in which each source has a folder of its own.
        remotes: where sources are published.

    Returns:
        x_train, y_train, x_test and y_test.

    Raises:
        OSError: no address could be reached. One line says which one failed and how.
        ValueError: a file is damaged or incomplete.
    """
    remote = remotes[source]
    folder = cache / (remote.folder or source)
    for name, md5 in remote.files.items():
        _fetch_file(name, f"md5:{md5}", remote.bases, folder)
    return remote.read(folder)


def fetch_text(address: str, sha256: str, path: Path) -> None:
    """Download one file to ``path`` and check its SHA-256.

    Args:
        address: an address with http or https.
        sha256: the digest that the file must have, 64 hexadecimal digits.
        path: where the file is put.

    Raises:
        OSError: the download failed. One line says how.
    """
    base, _, name = address.rpartition("/")
    _fetch_file(name, f"sha256:{sha256}", (base + "/",), path.parent, path.name)


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
    except (OSError, ValueError) as error:  # what requests raises is an OSError
        raise UserError(f"source '{source}' could not be downloaded ({error}); {places}; {remedy}") from error


def _fetch_file(name: str, known_hash: str, bases: tuple[str, ...], folder: Path, saved_as: str = "") -> None:
    """Download one file from the first address that has it, checked by ``known_hash`` ("md5:..." or "sha256:...")."""
    import pooch  # late, as requests below: most runs download nothing
    from requests import ConnectionError as NoConnection

    failures: list[str] = []
    for base in bases:
        try:
            reader = pooch.HTTPDownloader(timeout=30)
            pooch.retrieve(base + name, known_hash, saved_as or name, folder, downloader=reader)
            return
        except (OSError, ValueError) as error:  # what requests raises is an OSError
            said = "no connection" if isinstance(error, NoConnection) else " ".join(str(error).split())[:200]
            failures.append(f"{base + name}: {said or type(error).__name__}")
    raise OSError("; ".join(failures))
