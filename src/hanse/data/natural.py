"""Sources whose samples belong to natural clients, read from files: plays, handwritten characters, pictures.

Each reader returns a :class:`hanse.data.dataset.Dataset` with the client of each sample, for the partition "natural".
In :func:`shakespeare` and :func:`shakespeare_next`, every speaking role is a client that learns to predict the next
character of its lines. In :func:`femnist`, each writer of handwritten characters is a client, in LEAF's format (Caldas
et al. 2018). In :func:`pacs` (Li et al. 2017), each of four styles of pictures, of seven kinds of things, is a client.

:func:`hanse.data.sources.load` calls the readers, and passes them the folders to search.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from hanse.base.errors import UserError, gated
from hanse.base.pytorch import torch
from hanse.base.streams import stream
from hanse.data.dataset import Dataset, Distributions, image_samples, stratified_split
from hanse.data.download import fetch_file, fetching
from hanse.data.samples import Samples

WINDOW = 80
LEAST_WINDOWS = 20
"""Roles with less text than this many windows are left out: 16 to train on, 4 to test on."""
TEXT_TEST_SHARE = 0.2

FILE = "shakespeare.txt"
ADDRESS = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def shakespeare(folders: Sequence[Path], download: bool) -> Dataset:
    """Return next-character prediction on "tiny Shakespeare": x int64 ``[n, 80]``, and y, the characters that follow.

    A client is a speaking role with at least 20 windows. Clients are in order of name. A name that several plays use,
    such as FIRST CITIZEN, is one client. Windows do not overlap. The first 80 % of a role's windows, in the order of
    the plays, are its train samples and the rest its test samples. Classes are the file's characters in order of their
    code points.

    Args:
        folders: the folders to search, in this order. A download goes to the last one.
        download: whether a text that is not found may be downloaded.

    Raises:
        UserError: the file is not found and cannot be fetched, or has no roles.
    """

    def cut(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        return tuple(sliding_window_view(one, WINDOW)[::WINDOW] for one in (codes[:-1], codes[1:]))

    return _of_roles("shakespeare", folders, download, cut)


LEAF_LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
"""The 80 characters of LEAF's Shakespeare, in its order; the first is also what it pads with."""


def shakespeare_next(folders: Sequence[Path], download: bool) -> Dataset:
    """Return the same text in LEAF's form: x int64 ``[n, 80]``, and y ``[n]``, the one character that follows.

    There is a window at *every* position of a role's lines. The classes are LEAF's 80 characters; other characters
    become spaces. Clients are those of :func:`shakespeare`, and so is the split in time: the first 80 % of a role's
    windows are for training, the rest for testing. The first test windows overlap the end of the train part. The whole
    text needs 0.6 GB.

    Raises:
        UserError: as :func:`shakespeare`.
    """

    def cut(codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        return sliding_window_view(codes[:-1], WINDOW), codes[WINDOW:]

    return _of_roles("shakespeare_next", folders, download, cut, LEAF_LETTERS)


def _of_roles(
    name: str,
    folders: Sequence[Path],
    download: bool,
    cut: Callable[[NDArray[np.int64]], tuple[NDArray[np.int64], ...]],
    letters: str = "",
) -> Dataset:
    """Return the data set of the plays' roles, each a client whose last windows are for testing.

    Args:
        name: the source's name.
        folders: the folders to search.
        download: whether the text may be downloaded.
        cut: returns windows and targets of a role's characters, in order.
        letters: the classes; other characters become spaces. Empty: the text's own characters, in order.

    Raises:
        UserError: the file is not found and cannot be fetched, or no role has enough text.
    """
    paths = [folder / FILE for folder in folders]
    path = next((path for path in paths if path.is_file()), paths[-1])
    if not path.is_file():
        with fetching(name, paths, f"set HANSE_DATA to a folder that holds {FILE}", download):
            fetch_file(ADDRESS, f"sha256:{SHA256}", path)
    with gated(f"{path}: is not a readable text file"):
        text = path.read_text(encoding="utf-8")
    note = "" if hashlib.sha256(text.encode()).hexdigest() == SHA256 else f"{path.name} is not the published text"
    roles, number = parse_roles(text), {c: i for i, c in enumerate(letters or sorted(set(text)))}
    names = [role for role in sorted(roles) if (len(roles[role]) - 1) // WINDOW >= LEAST_WINDOWS]
    if not names:
        raise UserError(
            f"{path}: no role has {LEAST_WINDOWS} windows of {WINDOW} characters; a speech is a paragraph whose first "
            "line is 'NAME:'"
        )
    parts: dict[str, _Parts] = {"train": [], "test": []}
    for client, role in enumerate(names):
        x, y = cut(np.array([number.get(c, number.get(" ", 0)) for c in roles[role]], dtype=np.int64))
        first = len(y) - int(len(y) * TEXT_TEST_SHARE)
        parts["train"].append((x[:first], y[:first], client))
        parts["test"].append((x[first:], y[first:], client))
    return _of_clients(name, parts, len(number), (WINDOW,), names, note=note, ordered=True)


_Parts = list[tuple[NDArray[Any], NDArray[np.int64], int]]


def _of_clients(
    name: str, parts: Mapping[str, _Parts], classes: int, shape: tuple[int, ...], names: Sequence[str], **more: Any
) -> Dataset:
    """Return a data set of clients' samples.

    Args:
        name: the source's name.
        parts: inputs, labels and client of each part, under "train" and "test".
        classes: the number of classes.
        shape: the shape of an input.
        names: the clients' names.
        more: other fields of the data set.
    """
    (train, owners), (test, test_owners) = (_joined(parts[share]) for share in ("train", "test"))
    more |= {"client_of": owners, "test_client_of": test_owners, "client_names": tuple(names)}
    return Dataset(name, train, test, classes, shape, **more)


def _joined(parts: _Parts) -> tuple[Samples, NDArray[np.int64]]:
    """Return all parts' samples, one after another, and the client of each."""
    x, y = (torch.from_numpy(np.concatenate([part[k] for part in parts])) for k in (0, 1))
    return Samples(x, y), np.concatenate([np.full(len(own), client, dtype=np.int64) for _, own, client in parts])


def parse_roles(text: str) -> dict[str, str]:
    """Return each role's lines, in order, joined by line ends. A speech is a paragraph that starts with ``NAME:``."""
    speeches: dict[str, list[str]] = {}
    for block in text.split("\n\n"):
        head, _, lines = block.strip("\n").partition("\n")
        if head.endswith(":") and len(head) > 1 and lines:
            speeches.setdefault(head[:-1], []).append(lines)
    return {name: "\n".join(said) for name, said in speeches.items()}


LEAF_CLASSES, LEAF_SIDE = 62, 28
_LEAF_PLACES = ("femnist", "femnist/data", "leaf/data/femnist/data")
_REMEDY = (
    "make it with the scripts of https://github.com/TalwalkarLab/leaf (data/femnist: ./preprocess.sh -s niid --sf 1.0 "
    "-k 0 -t sample) and set HANSE_DATA to a folder that holds femnist/train/*.json and femnist/test/*.json"
)


def femnist(folders: Sequence[Path]) -> Dataset:
    """Return 28 x 28 characters in 62 classes, one client for each writer.

    Pixels are 0 to 1 as LEAF has them, where 1 is paper. Clients are in order of the writers' names; test samples
    belong to their writer too. LEAF publishes scripts, not a file, so nothing can be downloaded.

    Raises:
        UserError: the files are missing or not in LEAF's format.
    """
    if (files := leaf_files(folders)) is None:
        raise UserError(f"source 'femnist' was not found in {', '.join(map(str, folders))}; {_REMEDY}")
    users = {share: dict(user for path in found for user in _read_leaf(path)) for share, found in files.items()}
    names = sorted(users["train"])  # writers without train samples are left out
    parts: dict[str, _Parts] = {}
    for share, found in users.items():
        parts[share] = [(*found[name], k) for k, name in enumerate(names) if name in found and len(found[name][1])]
        if not parts[share]:
            raise UserError(f"source 'femnist': {files[share][0].parent}: no samples of writers with train samples")
    return _of_clients("femnist", parts, LEAF_CLASSES, (1, LEAF_SIDE, LEAF_SIDE), names)


def leaf_files(folders: Sequence[Path]) -> dict[str, list[Path]] | None:
    """Return LEAF's files for "train" and "test" from the first folder that has both, or None."""
    for folder in folders:
        for place in _LEAF_PLACES:
            files = {share: sorted((folder / place / share).glob("*.json")) for share in ("train", "test")}
            if all(files.values()):
                return files
    return None


def _read_leaf(path: Path) -> Iterator[tuple[str, tuple[NDArray[np.float32], NDArray[np.int64]]]]:
    """Yield ``user, (x float32 [n, 1, 28, 28], y int64 [n])`` of one of LEAF's json files.

    Raises:
        UserError: names the file and what is wrong with it.
    """
    with gated(f"{path}: is not a file of LEAF's FEMNIST"):
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for name in content["users"]:
            data = content["user_data"][name]
            y = np.asarray(data["y"], dtype=np.int64)
            yield name, (np.asarray(data["x"], dtype=np.float32).reshape(len(y), 1, LEAF_SIDE, LEAF_SIDE), y)


DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
SIDE = 64
"""Images of 227 x 227 are made smaller: the whole set is then half a gigabyte and not six."""
TEST_SHARE = 0.2
_PLACES = ("PACS/kfold", "PACS/images", "PACS", "pacs/images", "pacs")
_TYPES = (".jpg", ".jpeg", ".png")


def pacs(folders: Sequence[Path]) -> Dataset:
    """Return 3 x 64 x 64 pictures in seven classes, with pixels from 0 to 1.

    Each of the four domains (styles) is a client and a distribution. The published folders are
    ``<domain>/<class>/<picture>``. The test set is a fifth of each domain and class, and always the same one. The
    official folds instead hold out a whole domain. PACS must be downloaded by hand.

    Raises:
        UserError: the folders are missing, or a picture cannot be read.
    """
    if (folder := pacs_folder(folders)) is None:
        raise UserError(
            f"source 'pacs' was not found in {', '.join(map(str, folders))}; set HANSE_DATA to a folder that holds "
            f"PACS/kfold/<{', '.join(DOMAINS)}>/<class>/ as its authors publish it "
            "(https://domaingeneralization.github.io)"
        )
    images: list[NDArray[np.uint8]] = []
    cells: list[tuple[int, int]] = []
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            pictures = sorted(p for p in (folder / domain / name).glob("*") if p.suffix.lower() in _TYPES)
            images.extend(_read_picture(path) for path in pictures)
            cells.extend([(d, c)] * len(pictures))
    if not images:
        raise UserError(f"source 'pacs': {folder}: no pictures in <domain>/<class>/; classes: {', '.join(CLASSES)}")
    domains, labels = np.array(cells, dtype=np.int64).T
    rest, cut = stratified_split(
        domains * len(CLASSES) + labels, len(labels), round(len(labels) * TEST_SHARE), stream(0, "pacs")
    )
    samples = image_samples(np.stack(images), labels)
    train, test = (Samples(samples.x[index], samples.y[index]) for index in map(torch.from_numpy, (rest, cut)))
    note = f"split is not an official one; pictures at {SIDE} x {SIDE}"
    return Dataset(
        "pacs", train, test, len(CLASSES), (3, SIDE, SIDE), note=note, client_of=domains[rest],
        test_client_of=domains[cut], client_names=DOMAINS,
        distributions=Distributions(DOMAINS, domains[rest], domains[cut]),
    )  # fmt: skip


def pacs_folder(folders: Sequence[Path]) -> Path | None:
    """Return the first folder that has a folder for every domain, or None."""
    places = (folder / place for folder in folders for place in _PLACES)
    return next((place for place in places if all((place / domain).is_dir() for domain in DOMAINS)), None)


def _read_picture(path: Path) -> NDArray[np.uint8]:
    """Return a picture as RGB bytes ``[SIDE, SIDE, 3]``."""
    from PIL import Image  # only this source needs it

    with gated(f"source 'pacs': {path}: is not a readable picture"), Image.open(path) as picture:
        return np.asarray(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.uint8)
