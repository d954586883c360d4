"""Sources of samples by name: bundled, from a local folder, downloaded once, or made by the user's own function.

:func:`load` is the entry point; :data:`SOURCES` says what is known of each name. Image sources are looked for as
``<name>.npz`` in the folder given, in the folder that the environment variable ``HANSE_DATA`` names, and in the user's
cache directory. If not found, they are downloaded into the cache. Sources that come with clients are in
:mod:`hanse.data.natural`, tables in :mod:`hanse.data.tables`. Wings may add sources, such as texts for language models.
"""

from __future__ import annotations

import inspect
import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_dir

from hanse.base.errors import UserError, gated
from hanse.base.factories import Positive, Weight, call
from hanse.base.files import write_whole
from hanse.base.imports import import_path
from hanse.base.pytorch import torch
from hanse.base.streams import stream
from hanse.base.wings import Names
from hanse.data.dataset import Dataset, image_samples, stratified_split
from hanse.data.download import ARCHIVE, CASED, Arrays, cased, fetch, fetching, find_emnist, read_emnist
from hanse.data.natural import FILE, femnist, leaf_files, pacs, pacs_folder, shakespeare, shakespeare_next
from hanse.data.samples import Samples
from hanse.data.synthetic import fedsoft_linear
from hanse.data.tables import TABLES, load_table

Scale = Literal["standard", "unit", "centred", "inverted", "imagenet"]


class Source(Protocol):
    """A chosen source with its options: one of the classes here and in :mod:`hanse.data.spec`, or a wing's."""

    @property
    def name(self) -> str:
        """The source's name, or the import path of a function."""


@dataclass(frozen=True)
class PlainSource:
    """A source without options.

    Attributes:
        name: the source's name.
    """

    name: str


@dataclass(frozen=True)
class Images:
    """A source of images.

    Attributes:
        name: the source's name.
        scale: 'standard' (mean 0, deviation 1 over the train set; for femnist and pacs the same as 'unit'), 'unit' (0
            to 1), 'centred' (-1 to 1), 'inverted' (1 to -1) or 'imagenet' (its published means and deviations; only for
            RGB images).
    """

    name: str
    scale: Scale = "standard"


@dataclass(frozen=True)
class Generated:
    """A source that makes each client's samples on demand (:class:`hanse.data.synthetic.Synthetic`).

    Attributes:
        name: the source's name.
        alpha: the variance of the models' means.
        beta: the variance of the inputs' means.
        samples_per_client: each client's number of samples. If left out, it is lognormal.
    """

    name: str
    alpha: Weight = 0.5
    beta: Weight = 0.5
    samples_per_client: Positive | None = None


@dataclass(frozen=True)
class Wanted:
    """What is asked of a source.

    Attributes:
        source: the source with its options.
        root: a folder to look in first.
        seed: the seed of sources with random draws.
        download: whether what is not found may be downloaded.
    """

    source: Any
    root: Path | None = None
    seed: int = 0
    download: bool = True

    @property
    def folders(self) -> list[Path]:
        """Where to look, in this order; the last one is the cache, to which downloads go."""
        return _folders(self.root)


@dataclass(frozen=True)
class SourceEntry:
    """What is known of a named source, of hanse's or a wing's.

    Attributes:
        load: returns its data set. None: it has none, since each client's samples are made on demand
            (:mod:`hanse.data.synthetic`).
        here: whether it can be loaded without the network.
        options: the class of its options, a frozen dataclass whose first field is ``name``. Those of :class:`Images`
            are pixels from 0 to 1 when they are loaded, and are scaled afterwards.
        partition: the name of the partition that it comes with.
        clients: how many clients it has, if they are fewer than an experiment's usual number.
        drawn: its samples depend on the seed, so they are never kept for several runs.
    """

    load: Callable[[Wanted], Dataset] | None
    here: Callable[[Wanted], bool] = lambda wanted: False
    options: type[Any] = PlainSource
    partition: str = "dirichlet"
    clients: int | None = None
    drawn: bool = False


@dataclass(frozen=True)
class _Images:
    """What is known of an image source.

    Attributes:
        sizes: train and test samples of the official split.
        shape: the shape of one image: rows, columns and, if there are several, channels.
        mean: for each channel, over the official train pixels scaled to [0, 1]; the figures in common use. Empty:
            measured on the train samples that were found.
        std: for each channel, the standard deviation, found in the same way.
        first_labels: the first labels of the official test set, in its order; enough to recognise the official split.
        classes: the number of classes.
    """

    sizes: tuple[int, int]
    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    first_labels: str
    classes: int = 10


_IMAGES: Mapping[str, _Images] = {
    "mnist": _Images((60_000, 10_000), (28, 28), (0.1307,), (0.3081,), "7210414959"),
    "fashion_mnist": _Images((60_000, 10_000), (28, 28), (0.2860,), (0.3530,), "9211614657"),
    "cifar10": _Images((50_000, 10_000), (32, 32, 3), (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), "3880661631"),
    # what the first test labels are is not published; the sizes tell enough
    "emnist_byclass": _Images((697_932, 116_323), (28, 28), (), (), "", classes=62),
    "emnist_balanced": _Images((112_800, 18_800), (28, 28), (), (), "", classes=47),
    "emnist_letters": _Images((124_800, 20_800), (28, 28), (), (), "", classes=26),
}


IMAGES = (*_IMAGES, "emnist_cased")
"""Sources of images in one file of arrays."""

_IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_BY_VALUE = {"unit": (0.0, 1.0), "centred": (0.5, 0.5), "inverted": (0.5, -0.5)}


_kept: dict[tuple[Source, Path | None], Dataset] | None = None  # None: every run loads its own


def load(
    source: str | Source, *, root: Path | None = None, seed: int = 0, download: bool = True, **options: Any
) -> Dataset:
    """Return the data set of a source.

    Within :func:`keeping`, a source without random draws is loaded once.

    Args:
        source: a name of :data:`SOURCES`, or ``"package.module:function"``; or a named source with its options.
        root: a folder to look in before ``HANSE_DATA``.
        seed: the seed of sources with random draws.
        download: whether a source that is not found may be downloaded.
        options: the options of a source that is named. Images other than digits have ``scale``: "standard" (mean 0 and
            deviation 1 over the train set), "unit" (0 to 1), "centred" ((x - 0.5) / 0.5), "inverted" ((0.5 - x) / 0.5),
            or "imagenet" (ImageNet's published means and deviations). Under "standard", femnist and pacs are from 0 to
            1.

    Raises:
        UserError: the name is unknown, a file cannot be read, or a download failed.

    Examples:
        >>> from hanse.data import load
        >>> digits = load("digits")  # comes with scikit-learn, so nothing is downloaded
        >>> len(digits.train), len(digits.test), digits.num_classes
        (1297, 500, 10)
        >>> digits.train.x.shape, digits.train.y.dtype  # images [n, channels, height, width] and their classes
        (torch.Size([1297, 1, 8, 8]), torch.int64)
    """
    name = source if isinstance(source, str) else source.name
    entry: SourceEntry | None = SOURCES.get(name)
    make = entry.options if entry else PlainSource
    chosen: Source = call(make, options, "source", first=(source,)) if isinstance(source, str) else source
    wanted = Wanted(chosen, root, seed, download)
    if _kept is None or entry is None or entry.drawn:
        return _load(entry, wanted)
    if (key := (chosen, root)) not in _kept:
        _kept[key] = _load(entry, wanted)
    return _kept[key]


@contextmanager
def keeping() -> Iterator[None]:
    """Load sources once for the many runs of this block (until the outermost one ends) and the processes that it forks.
    All runs share the samples, so nobody may write to them. Outside of it a single run can free its data.
    """
    global _kept
    before = _kept
    _kept = {} if before is None else before
    try:
        yield
    finally:
        _kept = before


def _load(entry: SourceEntry | None, wanted: Wanted) -> Dataset:
    """Return the data set of a source, read anew. Without an entry, its name is the import path of a function."""
    chosen = wanted.source
    if entry is None:
        dataset = imported(chosen.name, root=wanted.root, seed=wanted.seed, download=wanted.download)
        if not isinstance(dataset, Dataset):
            said = f"it returned {type(dataset).__name__}; a hanse.data.Dataset is needed"
            raise UserError(f"source = '{chosen.name}': {said}")
        return dataset
    if entry.load is None:
        raise UserError(f"source '{chosen.name}' is generated client by client: use hanse.data.build, not load")
    dataset = entry.load(wanted)
    return _scaled(dataset, chosen.scale) if isinstance(chosen, Images) else dataset


def imported(source: str, *, root: Path | None, seed: int, download: bool) -> Any:
    """Call the function at an import path and return its result.

    The function gets ``root``, ``seed`` and ``download``, as far as it accepts them.

    Raises:
        UserError: there is no such function, or it needs other arguments.
    """
    loader = import_path(source, "source", SOURCES)
    known = {"root": root, "seed": seed, "download": download}
    with gated(f"data.source: '{source}': cannot be called with root=, seed=, download=, or without arguments"):
        parameters = inspect.signature(loader).parameters
        if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            known = {name: value for name, value in known.items() if name in parameters}
        inspect.signature(loader).bind(**known)
    with gated(f"data.source: '{source}'"):
        return loader(**known)


def cache_dir() -> Path:
    """Return the user's cache directory, for downloaded data and engines that agreed (it may not exist yet)."""
    return Path(user_cache_dir("hanse"))  # as pooch.os_cache, without pooch, which brings requests along


def _digits(wanted: Wanted) -> Dataset:
    """Return scikit-learn's 1,797 digits of 8 x 8 pixels (UCI optical recognition, test part).

    The split into 1,297 train and 500 test samples is the same for every seed; pixels are in 0 to 1.
    """
    table = _digits_table()
    x = torch.from_numpy((table[:, :-1].reshape(-1, 8, 8) / 16.0).astype(np.float32)).unsqueeze(1)
    labels: NDArray[np.int64] = table[:, -1].astype(np.int64)
    samples = Samples(x, torch.from_numpy(labels))
    train, test = stratified_split(labels, len(labels), 500, stream(0, "digits"))
    return Dataset("digits", samples.take(torch.from_numpy(train)), samples.take(torch.from_numpy(test)), 10, (1, 8, 8))


def _digits_table() -> NDArray[np.float64]:
    """Return the digits ``[1797, 65]``: 64 pixels from 0 to 16 and a label each.

    They are read from the file in scikit-learn's folder, since importing scikit-learn would take as long as importing
    torch. Where that file is missing, scikit-learn is asked for them.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        if (file := Path(folder, "datasets", "data", "digits.csv.gz")).is_file():
            return np.loadtxt(file, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def _image_source(wanted: Wanted) -> Dataset:
    """Return an image source from its file, with pixels from 0 to 1; "emnist_cased" is made from the file of
    "emnist_byclass".
    """
    name, file = wanted.source.name, _file_of(wanted.source.name)
    arrays, path = _find(file, wanted.folders, wanted.download)
    note, classes, distributions = _note(arrays, _IMAGES[file], path), _IMAGES[file].classes, None
    if name == "emnist_cased":
        (arrays, distributions), classes = cased(arrays), CASED
    train, test = (image_samples(arrays[f"x_{share}"], arrays[f"y_{share}"]) for share in ("train", "test"))
    return Dataset(name, train, test, classes, tuple(train.x.shape[1:]), note=note, distributions=distributions)


def _file_of(name: str) -> str:
    """Return the image source whose file holds this one's arrays."""
    return "emnist_byclass" if name == "emnist_cased" else name


def _scaled(dataset: Dataset, scale: Scale) -> Dataset:
    """Return a data set of images in [0, 1], of which nobody else knows, with its pixels in another scale."""
    channels, facts = dataset.input_shape[0], _IMAGES.get(dataset.name)
    mean, std = ((number,) * channels for number in _BY_VALUE.get(scale, (0.0, 1.0)))
    if scale == "imagenet":
        if channels != 3:
            raise UserError(
                f"data.source.scale = 'imagenet': the images have {channels} channel; its means are of 3, RGB"
            )
        mean, std = _IMAGENET
    elif scale == "standard" and facts is not None and facts.mean:
        mean, std = facts.mean, facts.std
    elif scale == "standard" and dataset.name in IMAGES:
        # one channel: exact from the counts of the 256 levels, without a copy of all pixels
        pieces = ((piece * 255).round_().flatten().to(torch.int64) for piece in torch.split(dataset.train.x, 4096))
        counts = sum((torch.bincount(piece, minlength=256).numpy() for piece in pieces), np.zeros(256))
        counts, levels = counts / counts.sum(), np.arange(256) / 255.0
        mean = (float(counts @ levels),)
        std = (max(float(np.sqrt(counts @ (levels - mean[0]) ** 2)), 1e-6),)
    shape = (1, channels, 1, 1)
    for own in (dataset.train, dataset.test):
        own.x.sub_(torch.tensor(mean).view(shape)).div_(torch.tensor(std).view(shape))
    return replace(dataset, black=tuple(-m / s for m, s in zip(mean, std, strict=True)))


def _note(arrays: Mapping[str, NDArray[np.uint8]], facts: _Images, path: Path) -> str:
    """Return a note if a file's split is not the official one, judged by its sizes and the first test labels."""
    sizes = (len(arrays["y_train"]), len(arrays["y_test"]))
    first = "".join(str(v) for v in arrays["y_test"][: len(facts.first_labels)])
    if sizes == facts.sizes and first == facts.first_labels:
        return ""
    return f"split is not the official one: {sizes[0]:,} train and {sizes[1]:,} test samples as in {path.name}"


def split_note(source: str) -> str:
    """Return a note if an image source's file does not have the official split; "" if it has it, or cannot be read.

    Only the labels are read.
    """
    for path in (folder / f"{source}.npz" for folder in _folders(None)):
        if source in _IMAGES and path.is_file():
            # a run that reads it says what is wrong
            with suppress(Exception), np.load(path, allow_pickle=False) as stored:
                labels = {name: stored[name].reshape(-1) for name in ("y_train", "y_test")}
                return _note(labels, _IMAGES[source], path)
            return ""
    return ""


def _find(name: str, folders: Sequence[Path], download: bool) -> tuple[Arrays, Path]:
    """Return the arrays of an image source, and the file they came from: a local one, else downloaded."""
    paths = [folder / f"{name}.npz" for folder in folders]
    for path in paths:
        if path.is_file():
            return _read_npz(path, _IMAGES[name]), path
    published = find_emnist(folders) if name.startswith("emnist_") else None
    if published is not None:
        return read_emnist(published, name.removeprefix("emnist_")), published
    published_too = f" or EMNIST's published {ARCHIVE}" if name.startswith("emnist_") else ""
    with fetching(name, paths, f"set HANSE_DATA to a folder that holds {name}.npz{published_too}", download):
        packed = io.BytesIO()
        np.savez_compressed(packed, **fetch(name, folders[-1]))  # type: ignore[arg-type]
        write_whole(paths[-1], packed.getvalue())
    return _read_npz(paths[-1], _IMAGES[name]), paths[-1]


def _folders(root: Path | None) -> list[Path]:
    """Return where sources are looked for, in this order; the last one is the cache, to which downloads go."""
    env = os.environ.get("HANSE_DATA")
    return [f for f in (root, Path(env).expanduser() if env else None, cache_dir()) if f is not None]


def is_here(source: str) -> bool:
    """Return whether a named source can be loaded without the network."""
    entry: SourceEntry | None = SOURCES.get(source)
    return entry is not None and entry.here(Wanted(entry.options(source)))


def _always(wanted: Wanted) -> bool:
    """Return that a source comes with a library that hanse needs, or is made."""
    return True


def _image_is_here(wanted: Wanted) -> bool:
    """Return whether an image source has a file."""
    file, folders = _file_of(wanted.source.name), wanted.folders
    here = any((folder / f"{file}.npz").is_file() for folder in folders)
    return here or (file.startswith("emnist_") and find_emnist(folders) is not None)


def _text_is_here(wanted: Wanted) -> bool:
    """Return whether the plays are here."""
    return any((folder / FILE).is_file() for folder in wanted.folders)


def _table_is_here(wanted: Wanted) -> bool:
    """Return whether a table's package is installed, and pandas, which reads it."""
    return all(find_spec(package) for package in (TABLES[wanted.source.name].package, "pandas"))


def _read_npz(path: Path, facts: _Images) -> Arrays:
    """Return the four arrays of an image file, checked against what is known of the source.

    Raises:
        UserError: the file cannot be read, lacks an array, or has images of another shape or type.
    """
    arrays: Arrays = {}
    with gated(f"{path}: is not a readable data file"), np.load(path, allow_pickle=False) as file:
        for share in ("train", "test"):
            images, labels = np.asarray(file[f"x_{share}"]), np.asarray(file[f"y_{share}"])
            if images.dtype != np.uint8 or images.shape != (labels.size, *facts.shape):
                needed = f"uint8 of shape {facts.shape} are needed, and a label for each"
                raise ValueError(f"x_{share} is {images.dtype} {images.shape}, y_{share} {labels.shape}; {needed}")
            arrays |= {f"x_{share}": images, f"y_{share}": labels.reshape(-1)}
    return arrays


SOURCES = Names({
    "digits": SourceEntry(_digits, _always),
    **dict.fromkeys(IMAGES, SourceEntry(_image_source, _image_is_here, Images)),
    "fedsoft_linear": SourceEntry(lambda wanted: fedsoft_linear(wanted.seed), _always, partition="mixture", drawn=True),
    "shakespeare": SourceEntry(
        lambda wanted: shakespeare(wanted.folders, wanted.download), _text_is_here, partition="natural"),
    "shakespeare_next": SourceEntry(
        lambda wanted: shakespeare_next(wanted.folders, wanted.download), _text_is_here, partition="natural"),
    "femnist": SourceEntry(
        lambda wanted: femnist(wanted.folders), lambda wanted: bool(leaf_files(wanted.folders)), Images, "natural"),
    "pacs": SourceEntry(
        lambda wanted: pacs(wanted.folders), lambda wanted: bool(pacs_folder(wanted.folders)), Images, "natural", 4),
    **{name: SourceEntry(
        lambda wanted: load_table(wanted.source.name, wanted.seed), _table_is_here, partition="natural",
        clients=table.clients, drawn=True) for name, table in TABLES.items()},
    # its clients come with it: no other partition is possible
    "synthetic": SourceEntry(None, _always, Generated, "natural", drawn=True),
}, "sources")  # fmt: skip
"""The named sources, each a :class:`SourceEntry`."""
