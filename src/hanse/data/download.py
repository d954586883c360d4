"""Fetches the published files of an image source, checked by their published md5, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hanse.data.emnist import ARCHIVE, read_emnist
from hanse.data.parsers import read_cifar10_archive, read_idx_gz

__all__ = ["REMOTES", "Remote", "fetch", "fetch_text"]

Arrays = dict[str, NDArray[np.uint8]]


@dataclass(frozen=True)
class Remote:
    """Where a source is published: base addresses tried in order, ``{file: md5}``, and how its files are
    read.
    """

    bases: tuple[str, ...]
    files: Mapping[str, str]
    read: Callable[[Path], Arrays]
    folder: str = ""  # where the files are kept, if several sources share them


def _read_idx_folder(folder: Path) -> Arrays:
    return {
        f"{letter}_{share}": read_idx_gz(folder / f"{prefix}-{kind}-ubyte.gz")
        for share, prefix in (("train", "train"), ("test", "t10k"))
        for letter, kind in (("x", "images-idx3"), ("y", "labels-idx1"))
    }


def _read_emnist_folder(folder: Path, *, split: str) -> Arrays:
    return read_emnist(folder / ARCHIVE, split)


REMOTES: Mapping[str, Remote] = {
    "mnist": Remote(
        bases=("https://ossci-datasets.s3.amazonaws.com/mnist/", "http://yann.lecun.com/exdb/mnist/"),
        files={
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        read=_read_idx_folder,
    ),
    "fashion_mnist": Remote(
        bases=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        files={
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        read=_read_idx_folder,
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
            read=partial(_read_emnist_folder, split=split),
            folder="emnist",
        )
        for split in ("byclass", "balanced")
    },
}


def fetch(source: str, cache: Path, remotes: Mapping[str, Remote] = REMOTES) -> Arrays:
    """Download a source's files into ``cache/<source>/`` and return x_train, y_train, x_test, y_test.

    Files that are there already with the right md5 are not fetched again. Raises OSError or ValueError with
    one line that says which address failed and how.
    """
    remote = remotes[source]
    folder = cache / (remote.folder or source)
    for name, md5 in remote.files.items():
        _fetch_file(name, f"md5:{md5}", remote.bases, folder)
    return remote.read(folder)


def fetch_text(address: str, sha256: str, path: Path) -> Path:
    """Download one file to ``path``, checked. Raises OSError with one line that says what failed."""
    base, _, name = address.rpartition("/")
    _fetch_file(name, f"sha256:{sha256}", (base + "/",), path.parent, path.name)
    return path


def _fetch_file(name: str, known_hash: str, bases: tuple[str, ...], folder: Path, saved_as: str = "") -> None:
    import pooch  # late, as requests below: most runs download nothing

    pooch.get_logger().setLevel("ERROR")
    failures: list[str] = []
    for base in bases:
        bar = _Bar(name)
        try:
            pooch.retrieve(
                base + name,
                known_hash=known_hash,
                fname=saved_as or name,
                path=folder,
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=30),
            )
            return
        except (OSError, ValueError) as error:  # what requests raises is an OSError
            failures.append(f"{base + name}: {_short(error)}")
        finally:
            bar.close()
    raise OSError("; ".join(failures))


def _short(error: Exception) -> str:
    import requests

    if isinstance(error, requests.ConnectionError):
        return "no connection"
    return " ".join(str(error).split())[:200] or type(error).__name__


class _Bar:
    """A progress bar in the form that pooch drives: ``total``, ``update``, ``reset``, ``close``."""

    def __init__(self, name: str) -> None:
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        self.total: int | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            transient=True,
        )
        self._task = self._progress.add_task(name, total=None)

    def update(self, amount: int) -> None:
        self._progress.start()
        self._progress.update(self._task, advance=amount, total=self.total)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop()
