"""PACS (Li et al. 2017): pictures of seven kinds of things in four styles, a natural client a style."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data.dataset import Dataset, Distributions, image_samples, stratified_split
from hanse.data.samples import Samples

__all__ = ["CLASSES", "DOMAINS", "pacs"]

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
SIDE = 64
"""Images of 227 x 227 are made smaller: the whole set is then half a gigabyte and not six."""
TEST_SHARE = 0.2
_PLACES = ("PACS/kfold", "PACS/images", "PACS", "pacs/images", "pacs")
_TYPES = (".jpg", ".jpeg", ".png")


def pacs(folders: Sequence[Path], download: bool) -> Dataset:
    """Return 3 x 64 x 64 pictures, pixels 0 to 1, in seven classes; client and distribution are the domain.

    The published folders: ``<domain>/<class>/<picture>``. A fifth of each domain and class, always the same, is the
    test set; the official split is into folds that hold out a domain. PACS is offered by hand only, so there is
    nothing to download. Raises UserError where the folders are missing, or a picture cannot be read.
    """
    del download
    for folder in folders:
        for place in _PLACES:
            if all((folder / place / domain).is_dir() for domain in DOMAINS):
                return _load(folder / place)
    raise UserError(
        f"source 'pacs' was not found in {', '.join(map(str, folders))}; set HANSE_DATA to a folder that holds "
        f"PACS/kfold/<{', '.join(DOMAINS)}>/<class>/ as its authors publish it "
        "(https://domaingeneralization.github.io)"
    )


def _load(folder: Path) -> Dataset:
    images: list[NDArray[np.uint8]] = []
    cells: list[tuple[int, int]] = []
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            found = sorted(p for p in (folder / domain / name).glob("*") if p.suffix.lower() in _TYPES)
            images.extend(_read(path) for path in found)
            cells.extend([(d, c)] * len(found))
    if not images:
        raise UserError(f"source 'pacs': {folder}: no pictures in <domain>/<class>/; classes: {', '.join(CLASSES)}")
    domains, labels = np.array(cells, dtype=np.int64).T
    rest, cut = stratified_split(
        domains * len(CLASSES) + labels, len(labels), round(len(labels) * TEST_SHARE), stream(0, "pacs")
    )
    samples = image_samples(np.stack(images), labels, (0.0,) * 3, (1.0,) * 3)
    train, test = (Samples(samples.x[index], samples.y[index]) for index in map(torch.from_numpy, (rest, cut)))
    return Dataset(
        "pacs",
        train,
        test,
        len(CLASSES),
        (3, SIDE, SIDE),
        note=f"split is not an official one; pictures at {SIDE} x {SIDE}",
        client_of=domains[rest],
        test_client_of=domains[cut],
        client_names=DOMAINS,
        distributions=Distributions(DOMAINS, domains[rest], domains[cut]),
    )


def _read(path: Path) -> NDArray[np.uint8]:
    from PIL import Image  # only this source needs it

    try:
        with Image.open(path) as picture:
            return np.asarray(picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR), dtype=np.uint8)
    except OSError as error:
        raise UserError(f"source 'pacs': {path} is not a readable picture: {error}") from error
