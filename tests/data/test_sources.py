"""Sources: the bundled digits, files looked up, published formats parsed, downloads that fail, what is loaded once for
many runs, and how pixels are scaled and changed.
"""

import gzip
import hashlib
import io
import sys
import tarfile
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import pytest
import requests
import torch
from sklearn.datasets import load_digits

from hanse.base.errors import UserError
from hanse.data import SOURCES, Dataset, DataSpec, Samples, build, load
from hanse.data import sources as sources_module
from hanse.data.augment import Augment
from hanse.data.download import REMOTES, parse_idx, read_cifar10, read_idx_files
from hanse.data.sources import Wanted, keeping
from hanse.data.spec import parse_spec


@pytest.fixture(autouse=True)
def _no_user_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANSE_DATA", raising=False)
    monkeypatch.setattr(sources_module, "cache_dir", lambda: tmp_path / "cache")

    def refuse(*args: Any, **options: Any) -> None:
        raise requests.ConnectionError("no route")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", refuse)


def idx(array: np.ndarray[Any, Any]) -> bytes:
    head = bytes([0, 0, 8, array.ndim]) + b"".join(int(n).to_bytes(4, "big") for n in array.shape)
    return head + array.astype(np.uint8).tobytes()


def made_npz(folder: Path, name: str, shape: tuple[int, ...], train: int = 40, test: int = 20) -> None:
    draw, arrays = np.random.default_rng(0), dict[str, Any]()
    for share, n in (("train", train), ("test", test)):
        arrays[f"x_{share}"] = draw.integers(0, 256, (n, *shape), dtype=np.uint8)
        arrays[f"y_{share}"] = (np.arange(n) % 10).astype(np.uint8)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / f"{name}.npz", **arrays)


@pytest.mark.parametrize("found", [True, False])
def test_digits_are_scikit_learn_s(found: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not found:  # a release that keeps its file elsewhere
        monkeypatch.setattr(sources_module, "find_spec", lambda name: None)
    bunch, digits = load_digits(), load("digits")
    rows = torch.cat([digits.train.x, digits.test.x]).flatten(1) * 16
    ours = np.column_stack([rows.numpy(), torch.cat([digits.train.y, digits.test.y]).numpy()])
    theirs = np.column_stack([bunch.data, bunch.target])
    assert np.array_equal(np.unique(ours, axis=0), np.unique(theirs, axis=0))
    assert np.array_equal(ours.sum(0), theirs.sum(0))
    assert (len(digits.train), digits.train.x.dtype, digits.train.y.dtype) == (1297, torch.float32, torch.int64)
    assert (torch.bincount(digits.test.y) / 500 - torch.bincount(digits.train.y) / 1297).abs().max() < 0.003


def test_root_comes_before_hanse_data_and_the_cache_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSE_DATA", str(tmp_path / "data"))
    for name, shape, mean, std in (("mnist", (28, 28), 0.1307, 0.3081), ("cifar10", (32, 32, 3), 0.4914, 0.2470)):
        made_npz(tmp_path / "cache", name, shape, train=10)
        assert len(load(name).train) == 10
        made_npz(tmp_path / "data", name, shape)
        found = load(name)
        assert found.train.x.shape == (40, *found.input_shape) == (40, *(shape[2:] or (1,)), *shape[:2])
        assert found.note == f"split is not the official one: 40 train and 20 test samples as in {name}.npz"
        raw = np.load(tmp_path / "data" / f"{name}.npz")["x_train"].reshape(40, *shape[:2], -1)
        assert float(found.train.x[5, 0, 3, 4]) == pytest.approx((raw[5, 3, 4, 0] / 255 - mean) / std, abs=1e-5)
        made_npz(tmp_path / "root", name, shape, train=30)
        assert len(load(name, root=tmp_path / "root").train) == 30


def test_a_failed_download_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSE_DATA", str(tmp_path / "data"))
    with pytest.raises(UserError) as error:
        load("cifar10")
    [line] = error.value.lines
    assert all(one in line for one in ("'cifar10'", "www.cs.toronto.edu", str(tmp_path / "data" / "cifar10.npz")))
    with pytest.raises(UserError, match="download is off"):
        load("mnist", download=False)


def test_fetched_files_are_parsed_and_cached_as_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "cache" / "mnist"
    folder.mkdir(parents=True)
    files = {}
    for prefix, n in (("train", 12), ("t10k", 5)):
        for kind, array in (("images-idx3", np.full((n, 28, 28), n)), ("labels-idx1", np.arange(n) % 10)):
            data = gzip.compress(idx(array))
            name = f"{prefix}-{kind}-ubyte.gz"
            (folder / name).write_bytes(data)
            files[name] = hashlib.md5(data).hexdigest()
    # files that are there with the right checksum are not fetched again
    monkeypatch.setitem(REMOTES, "mnist", replace(REMOTES["mnist"], files=files))  # type: ignore[arg-type]
    assert len(load("mnist").train) == 12
    assert (tmp_path / "cache" / "mnist.npz").is_file()
    assert [p.name for p in (tmp_path / "cache").iterdir() if p.suffix == ".part"] == []
    monkeypatch.setattr(sources_module, "fetch", None)
    assert load("mnist").test.y.tolist() == [0, 1, 2, 3, 4]


def test_idx_is_parsed_and_checked(tmp_path: Path) -> None:
    array = np.arange(24).reshape(2, 3, 4)
    assert np.array_equal(parse_idx(idx(array)), array)
    for bad in (b"", b"\1\0\x08\1", b"\0\0\x0d\1\0\0\0\0", b"\0\0\x08\3\0\0", idx(array)[:-1], idx(array) + b"x"):
        with pytest.raises(ValueError, match=r"IDX|reshape|buffer|offset"):
            parse_idx(bad)
    (tmp_path / "bad.gz").write_bytes(b"not gzip")
    with pytest.raises(ValueError, match=r"bad\.gz"):
        read_idx_files(tmp_path, {"x_train": "bad.gz"})


def test_cifars_binary_archive_is_read(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        for i, name in enumerate([*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]):
            row = bytes([i]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes([3]) * 1024
            info = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            info.size = 2 * len(row)
            archive.addfile(info, io.BytesIO(row + row))
    found = read_cifar10(tmp_path / "cifar.tar.gz")
    assert found["y_train"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert found["y_test"].tolist() == [5, 5]
    assert found["x_test"].shape == (2, 32, 32, 3)
    assert found["x_train"][0, 5, 6].tolist() == [1, 2, 3]


BAD: dict[str, dict[str, Any]] = {
    "junk": {},
    "missing": {"y_test": None},
    "object": {"y_test": np.array([{}, {}, {}], dtype=object)},
    "shape": {"x_test": np.zeros((3, 28, 5), np.uint8)},
    "ten": {"y_test": np.array([0, 1, 10], np.uint8)},
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_local_file_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    x, y = np.zeros((3, 28, 28), dtype=np.uint8), np.zeros(3, dtype=np.uint8)
    arrays = {"x_train": x, "y_train": y, "x_test": x, "y_test": y, **BAD[kind]}
    np.savez(tmp_path / "mnist.npz", **{name: one for name, one in arrays.items() if one is not None})
    if kind == "junk":
        (tmp_path / "mnist.npz").write_bytes(b"junk")
    with pytest.raises(UserError, match="labels span" if kind == "ten" else r"mnist\.npz"):
        load("mnist", root=tmp_path)


def test_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = Samples(torch.zeros(4, 2), torch.zeros(4))
    made = Dataset("mine", samples, samples, None, (2,))
    module: Any = types.ModuleType("own_source")
    module.good, module.bare = lambda **options: made, lambda: made
    module.none, module.more = lambda **options: None, lambda wanted: made
    monkeypatch.setitem(sys.modules, "own_source", module)
    assert load("own_source:good") is load("own_source:bare") is made
    for name, words in (
        ("own_source:none", "returned NoneType"),
        ("own_source:more", "cannot be called with root="),
        ("own_source:nothing", "has no 'nothing'"),
        ("mnits", "did you mean 'mnist'"),
        ("synthetic", "client by client"),
    ):
        with pytest.raises(UserError, match=words):
            load(name)


def test_a_data_set_that_contradicts_itself_is_refused() -> None:
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    good = Samples(x, y)
    for train, classes, shape, ids in (
        (Samples(x, y[:3]), 2, (2,), None),
        (good, 2, (3,), None),
        (good, None, (2,), None),
        (Samples(x, y.float()), 2, (2,), None),
        (Samples(x, y - 1), 2, (2,), None),
        (Samples(x[:0], y[:0]), 2, (2,), None),
        (good, 2, (2,), np.zeros(3, dtype=np.int64)),
    ):
        with pytest.raises(UserError, match="source 'bad'"):
            Dataset("bad", train, good, classes, shape, client_of=ids)


def test_a_source_is_loaded_once_whatever_the_seed() -> None:
    alone = load("digits")
    with keeping():
        first = load("digits", seed=0)
        assert load("digits", seed=9) is first
        with keeping():
            assert load("digits") is first
        assert load("digits") is first  # the inner block does not end the outer one
    assert torch.equal(first.train.x, alone.train.x)
    assert torch.equal(first.test.y, alone.test.y)
    assert load("digits") is not first


def test_crop_flip_is_a_window_of_the_padded_image() -> None:
    x = torch.rand(400, 2, 6, 5)
    found = Augment("crop-flip", (-1.0, -3.0))(x, np.random.default_rng(0))
    padded = torch.cat([torch.full((400, 1, 14, 13), -1.0), torch.full((400, 1, 14, 13), -3.0)], 1)
    padded[:, :, 4:10, 4:9] = x
    places = []
    for image, made in zip(padded, found, strict=True):
        wide = image.unfold(1, 6, 1).unfold(2, 5, 1)  # every window, [2, 9, 9, 6, 5]
        for mirrored in (False, True):
            window = wide.flip(4) if mirrored else wide
            same = (window == made[:, None, None]).all(4).all(3).all(0)
            places += [(*at, mirrored) for at in torch.nonzero(same).tolist()[:1]]
    assert len(places) == 400  # each is such a window
    assert {(top, left) for top, left, _ in places} >= {(0, 0), (8, 8), (0, 8), (8, 0)}  # 81 places, 400 images
    assert 0.4 < np.mean([mirrored for _, _, mirrored in places]) < 0.6


def test_scales_and_what_black_is(tmp_path: Path) -> None:
    images = np.arange(40 * 784, dtype=np.int64).reshape(40, 28, 28).astype(np.uint8)
    labels = (np.arange(40) % 10).astype(np.uint8)
    np.savez(tmp_path / "fashion_mnist.npz", x_train=images, y_train=labels, x_test=images[:20], y_test=labels[:20])
    pixel = torch.from_numpy(images[:, None] / 255.0).float()
    for scale, mean, std in (("unit", 0, 1), ("centred", 0.5, 0.5), ("inverted", 0.5, -0.5)):
        found = load("fashion_mnist", root=tmp_path, scale=scale)  # type: ignore[arg-type]
        assert torch.allclose(found.train.x, (pixel - mean) / std, atol=1e-6)
        assert found.black == (-mean / std,)
    with pytest.raises(UserError, match=r"data.source.scale.*'imagenet'"):
        load("fashion_mnist", root=tmp_path, scale="imagenet")
    source = {"name": "fashion_mnist", "scale": "centred"}
    spec = {"source": source, "path": str(tmp_path), "partition": "iid", "clients": 2, "augment": "crop-flip"}
    assert build(parse_spec(spec)).augment == Augment("crop-flip", (-1.0,))


@pytest.mark.parametrize("name", SOURCES.own)
def test_an_entry_says_what_comes_with_a_source(name: str, tmp_path: Path) -> None:
    entry, spec = SOURCES[name], DataSpec(source=name)
    come = type(spec.source), spec.partition.name, spec.clients
    assert come == (entry.options, entry.partition, entry.clients or 20)
    if not entry.here(Wanted(spec.source, tmp_path)):
        with pytest.raises(UserError, match=r"found|package"):
            load(spec.source, root=tmp_path, download=False)


def test_what_is_no_image_is_refused() -> None:
    with pytest.raises(UserError, match=r"data.augment.*'crop-flip'"):
        build(parse_spec({"source": "fedsoft_linear", "partition": "iid", "clients": 2, "augment": "crop-flip"}))
