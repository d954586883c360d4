"""Sources that come with clients: roles of plays, writers, styles of pictures; and EMNIST. Files are made here."""

import gzip
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_sources import _no_user_files, idx  # noqa: F401

from hanse.base.errors import UserError
from hanse.data import DataSpec, FederatedData, build, load
from hanse.data.download import read_emnist
from hanse.data.natural import CLASSES, DOMAINS, LEAF_LETTERS, LEAST_WINDOWS, WINDOW, parse_roles
from hanse.data.sources import is_here


def play(lengths: dict[str, int]) -> str:
    """Return a play in which each role says this many characters, in speeches of 90, taking turns."""
    letters = np.random.default_rng(0).choice(list("abcdefgh \n"), 40_000)
    left, blocks, at = dict(lengths), [], 0
    while any(left.values()):
        for role in lengths:
            if said := min(90, left[role]):
                line = "x" + "".join(letters[at : at + said - 2]).replace("\n\n", "ab") + "y"
                blocks.append(f"{role}:\n{line[:said]}")
                left[role] -= said
                at += said
    return "\n\n".join(blocks) + "\n"


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    folder = tmp_path / "plays"
    folder.mkdir()
    lengths = {"ANN": 2_500, "BOB": 4_000, "CYD": 3_300, "DOT": WINDOW * LEAST_WINDOWS - 200, "EVE": 5_000}
    (folder / "shakespeare.txt").write_text(play(lengths))
    return folder


def test_shakespeare_is_split_by_role_and_by_time(plays: Path) -> None:
    found = load("shakespeare", root=plays)
    assert found.client_names == ("ANN", "BOB", "CYD", "EVE")  # DOT says too little
    assert found.input_shape == (WINDOW,)
    assert found.train.x.dtype == found.train.y.dtype == torch.int64
    assert found.note == "shakespeare.txt is not the published text"
    text = (plays / "shakespeare.txt").read_text()
    letters = sorted(set(text))
    assert found.num_classes == len(letters)
    roles = parse_roles(text)
    for client, name in enumerate(found.client_names):
        train, test = (
            (samples.x[torch.from_numpy(ids == client)], samples.y[torch.from_numpy(ids == client)])
            for samples, ids in ((found.train, found.client_of), (found.test, found.test_client_of))
        )
        count = (len(roles[name]) - 1) // WINDOW
        assert (len(train[0]), len(test[0])) == (count - count // 5, count // 5)
        assert "".join(letters[c] for c in torch.cat([train[0], test[0]]).flatten()) == roles[name][: count * WINDOW]
        after = "".join(letters[c] for c in torch.cat([train[1], test[1]]).flatten())
        assert after == roles[name][1 : count * WINDOW + 1]


def test_natural_clients_test_on_their_own_later_text(plays: Path) -> None:
    spec = DataSpec(
        source="shakespeare", path=str(plays), partition={"name": "natural", "choose": "largest"}, clients=2,
        client_test=0.2, client_test_from="server", client_validation=0.1,
    )  # fmt: skip
    whole, data = load("shakespeare", root=plays), build(spec)
    assert data.names == ("BOB", "EVE")
    tests, index = data.pool([0, 1], "test")
    assert tests is data.server_test
    assert torch.equal(torch.cat(index).sort().values, torch.arange(len(tests)))  # only those who take part
    later, first = whole.test.x[whole.test_client_of == 3], whole.train.x[torch.from_numpy(whole.client_of == 3)]
    assert all((row == later).all(dim=1).any() for row in tests.x[index[1]])
    pool, [held] = data.pool([1], "validation")
    assert torch.equal(pool.x[held], first[len(first) - int(len(first) * 0.1) :])  # the end of the train part
    cut = build(spec.model_copy(update={"client_test_from": "own", "client_validation": 0.0}))
    pool, [test] = cut.pool([1], "test")
    assert torch.equal(pool.x[test], first[len(first) - int(len(first) * 0.2) :])


def test_the_next_character_has_a_window_at_every_position(plays: Path) -> None:
    found, roles = load("shakespeare_next", root=plays), parse_roles((plays / "shakespeare.txt").read_text())
    assert found.client_names == ("ANN", "BOB", "CYD", "EVE")
    assert (found.num_classes, len(LEAF_LETTERS), LEAF_LETTERS.index("\n")) == (80, 80, 0)
    for client, name in enumerate(found.client_names):
        train, test = np.flatnonzero(found.client_of == client), np.flatnonzero(found.test_client_of == client)
        count = len(roles[name]) - WINDOW
        assert (len(train), len(test)) == (count - count // 5, count // 5)
        for samples, places, start in ((found.train, train, 0), (found.test, test, len(train))):
            for k in (0, 7, len(places) - 1):
                said = "".join(LEAF_LETTERS[c] for c in samples.x[int(places[k])])
                assert said == roles[name][start + k : start + k + WINDOW]
                assert LEAF_LETTERS[int(samples.y[int(places[k])])] == roles[name][start + k + WINDOW]


def test_files_are_found_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("shakespeare", "shakespeare_next", "femnist", "pacs")
    monkeypatch.setenv("HANSE_DATA", str(tmp_path))
    (tmp_path / "shakespeare.txt").write_text(play({"ANN": 2_000}))
    write_leaf(tmp_path, "train", {"a": [1]})  # its test part is missing
    for domain in DOMAINS:
        assert [is_here(name) for name in names] == [True, True, False, False]
        (tmp_path / "PACS" / "kfold" / domain).mkdir(parents=True)
    write_leaf(tmp_path, "test", {"a": [1]})
    assert [is_here(name) for name in names] == [True] * 4


def test_shakespeare_that_is_missing_or_no_play_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "shakespeare.txt"
    for content, download, said in (
        (None, True, r"'shakespeare'.*no connection.*HANSE_DATA"),
        (None, False, "download is off"),
        (b"just words", True, r"20 windows.*80 characters"),
        (b"\xff\xfe\xff", True, "readable text"),
    ):
        if content:
            file.write_bytes(content)
        with pytest.raises(UserError, match=said):
            load("shakespeare", root=tmp_path, download=download)
    file.write_text("ANN:\n" + "a$" * 900)
    found = load("shakespeare_next", root=tmp_path)
    assert {LEAF_LETTERS[int(c)] for c in found.train.x.unique()} == {"a", " "}  # LEAF has no $


def write_leaf(folder: Path, share: str, users: dict[str, list[int]], file: str = "all_data_0.json") -> None:
    draw = np.random.default_rng(len(file))
    data = {
        name: {"x": draw.random((len(labels), 784)).round(4).tolist(), "y": labels} for name, labels in users.items()
    }
    (folder / "femnist" / share).mkdir(parents=True, exist_ok=True)
    told = {"users": list(users), "num_samples": [len(v) for v in users.values()], "user_data": data}
    (folder / "femnist" / share / file).write_text(json.dumps(told))


def of_largest(folder: Path, clients: int, tests: str = "own", scale: str = "standard", **more: Any) -> FederatedData:
    """The largest writers of FEMNIST in a folder."""
    partition = {"name": "natural", "choose": "largest", "test_owners": tests}
    source, of = {"name": "femnist", "scale": scale}, str(folder)
    return build(DataSpec(source=source, path=of, partition=partition, clients=clients, validation=0.0, **more))


def test_femnist_is_read_by_writer_from_leafs_files(tmp_path: Path) -> None:
    write_leaf(tmp_path, "train", {"f0_b": [1, 2, 61], "f0_a": [5, 5]})
    write_leaf(tmp_path, "train", {"f1_c": [0, 7, 8, 9]}, "all_data_11.json")
    write_leaf(tmp_path, "test", {"f1_c": [3, 3], "f0_a": [4], "unseen": [9], "f0_b": [1]})
    found = load("femnist", root=tmp_path)
    assert found.client_names == ("f0_a", "f0_b", "f1_c")
    assert found.num_classes == 62
    assert found.client_of.tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2]
    assert found.train.y.tolist() == [5, 5, 1, 2, 61, 0, 7, 8, 9]
    assert found.test_client_of.tolist() == [0, 1, 2, 2]
    assert found.test.y.tolist() == [4, 1, 3, 3]
    raw = json.loads((tmp_path / "femnist" / "train" / "all_data_11.json").read_text())["user_data"]["f1_c"]["x"]
    assert found.train.x[6].flatten().tolist() == pytest.approx(raw[1])
    data = of_largest(tmp_path, 2, client_test=0.1, client_test_from="server")
    assert data.names == ("f0_b", "f1_c")
    tests, index = data.pool([0, 1], "test")
    assert [tests.y[i].tolist() for i in index] == [[1], [3, 3]]
    # as iPFL's code: the largest writers train on all that they wrote, and the next largest are the test set
    data = of_largest(tmp_path, 1, "next", scale="inverted")
    assert data.names == ("f1_c",)
    pool, [own] = data.pool([0])
    assert pool.y[own].tolist() == [0, 7, 8, 9, 3, 3]
    assert pool.x[own[2]].flatten().tolist() == pytest.approx([(0.5 - v) / 0.5 for v in raw[2]], abs=1e-6)
    assert data.server_test.y.tolist() == [1, 2, 61, 1]  # all of f0_b's


def test_femnists_next_writers_are_weighted_by_the_clients_classes(tmp_path: Path) -> None:
    write_leaf(tmp_path, "train", {"a": [1, 1, 1, 2, 5], "b": [1, 2, 2, 7]})
    write_leaf(tmp_path, "test", {"a": [2], "b": [2]})
    data = of_largest(tmp_path, 1, "next", client_test_from="classes")
    tests, [index] = data.pool([0], "test")
    # client a: 3 of class 1, 2 of class 2, 1 of class 5 that the tests lack; b's test samples: 1, 2, 2, 7, 2
    assert tests.y[index].tolist() == [1, 2, 2, 2]
    assert data.test_weights[0].tolist() == pytest.approx([3 / 5, 2 / 15, 2 / 15, 2 / 15])


def test_files_that_are_not_leafs_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'femnist'.*preprocess"):
        load("femnist")
    write_leaf(tmp_path, "train", {"a": [1]})
    write_leaf(tmp_path, "test", {"a": [1]})
    for text in ("{", "[]", '{"users": ["a"]}', '{"users": ["a"], "user_data": {"a": {"x": [[1, 2]], "y": [3]}}}'):
        (tmp_path / "femnist" / "train" / "bad.json").write_text(text)
        with pytest.raises(UserError, match=r"bad\.json"):
            load("femnist", root=tmp_path)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with PACS: 5 to 8 pictures of each class, of one colour that says domain and class."""
    image = pytest.importorskip("PIL.Image")
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            folder = tmp_path / "PACS" / "kfold" / domain / name
            folder.mkdir(parents=True)
            for i in range(5 + d):
                colour = np.full((227, 227, 3), (d * 60, c * 30, i * 20), dtype=np.uint8)
                image.fromarray(colour).save(folder / f"pic_{i}.png")
    return tmp_path


def test_pacs_is_read_by_domain(pictures: Path) -> None:
    found = load("pacs", root=pictures)
    assert found.input_shape == (3, 64, 64)
    assert len(found.train) + len(found.test) == 7 * (5 + 6 + 7 + 8)
    assert np.array_equal((found.train.x[:, 0, 0, 0] * 255 / 60).round().numpy(), found.client_of)
    assert torch.equal((found.train.x[:, 1, 5, 5] * 255 / 30).round().long(), found.train.y)
    assert len(found.test) == 36  # a fifth of 182
    assert set(np.unique(found.test_client_of * 7 + found.test.y.numpy())) == set(range(28))  # of every cell
    # iPFL's eight clients: two a domain, and their domain is their cluster
    data = build(
        DataSpec(
            source="pacs", path=str(pictures), partition={"name": "natural", "per_owner": 2}, clients=8, client_test=0.2
        )
    )
    assert data.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert data.names[:3] == ("art_painting 0", "art_painting 1", "cartoon 0")
    kinds = found.distributions.train
    counts = np.stack([np.bincount(kinds[own], minlength=4) for own in data.pool(range(8))[1]])
    assert (counts.argmax(axis=1) == data.groups).all()
    assert ((counts > 0).sum(axis=1) == 1).all()


def test_classes_of_pacs_spread_unevenly_inside_a_domain(pictures: Path) -> None:
    """As in iPFL's code: a client tests on its domain's fifth, by its classes."""
    data = build(
        DataSpec(
            source={"name": "pacs", "scale": "imagenet"},
            path=str(pictures),
            partition={"name": "natural", "per_owner": 2, "per_owner_alpha": 0.5, "min_samples": 3},
            clients=8,
            client_test_from="classes",
            validation=0.0,
            augment="crop-flip",
        )
    )
    counts = data.class_counts()
    assert (counts.sum(axis=1).min() >= 3, int(counts.sum())) == (True, 182 - 36)
    (pool, trained), (tests, index) = data.pool(range(8)), data.pool(range(8), "test")
    for client in range(8):
        for samples, own in ((pool, trained), (tests, index)):
            red = samples.x[own[client], 0, 0, 0] * 0.229 + 0.485
            assert torch.allclose(red, torch.full_like(red, client // 2 * 60 / 255), atol=1e-6)
        label = tests.y[index[client]].numpy()
        shares = [data.test_weights[client][label == c].sum() for c in range(7)]
        assert shares == pytest.approx((counts[client] / counts[client].sum()).tolist())
    assert data.augment.black == pytest.approx((-0.485 / 0.229, -0.456 / 0.224, -0.406 / 0.225))


def test_pictures_that_are_broken_or_not_there(pictures: Path) -> None:
    (pictures / "PACS" / "kfold" / "photo" / "dog" / "broken.jpg").write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"broken\.jpg"):
        load("pacs", root=pictures)
    with pytest.raises(UserError, match=r"'pacs'.*art_painting"):
        load("pacs")


def zipped(folder: Path, files: dict[str, bytes], inside: str = "gzip/") -> None:
    with zipfile.ZipFile(folder / "gzip.zip", "w") as archive:
        for name, data in files.items():
            archive.writestr(f"{inside}{name}", data)


def emnist_files(split: str, classes: int, first: int = 0) -> dict[str, bytes]:
    out = {}
    for share, n in (("train", 124), ("test", 62)):
        images = np.zeros((n, 28, 28), dtype=np.uint8)
        images[:, 20, 3] = 200  # as published: on its side
        images[:, 10:20] = 120
        images[:, 0, 0] = np.arange(n) % 256
        out[f"emnist-{split}-{share}-images-idx3-ubyte.gz"] = gzip.compress(idx(images))
        out[f"emnist-{split}-{share}-labels-idx1-ubyte.gz"] = gzip.compress(idx(np.arange(n) % classes + first))
    return out


def test_emnist_is_read_from_the_published_files_or_an_npz(tmp_path: Path) -> None:
    zipped(tmp_path, emnist_files("byclass", 62))
    found = load("emnist_byclass", root=tmp_path, scale="unit")
    (tmp_path / "npz").mkdir()
    arrays: Any = read_emnist(tmp_path / "gzip.zip", "byclass")
    np.savez(tmp_path / "npz" / "emnist_byclass.npz", **arrays)
    assert torch.equal(load("emnist_byclass", root=tmp_path / "npz", scale="unit").train.x, found.train.x)
    assert (found.num_classes, found.train.x.shape) == (62, (124, 1, 28, 28))
    assert float(found.train.x[7, 0, 3, 20]) == pytest.approx(200 / 255)  # upright
    assert float(found.train.x[7, 0, 20, 3]) == 0
    assert found.train.y[:5].tolist() == [0, 1, 2, 3, 4]
    assert found.note.startswith("split is not the official one: 124 train and 62 test samples")
    standard = load("emnist_byclass", root=tmp_path).train.x
    assert (float(standard.mean()), float(standard.std())) == pytest.approx((0, 1), abs=1e-3)
    # PI-FL's letters: lower case first, each case its own distribution
    cased = load("emnist_cased", root=tmp_path, scale="unit")
    assert (cased.num_classes, len(cased.train), cased.distributions.names) == (52, 104, ("lower case", "upper case"))
    published = (cased.train.x[:, 0, 0, 0] * 255).round().long() % 62
    moved = [c - 36 if c >= 36 else c + 16 for c in published.tolist()]  # 10 is "A", 36 is "a"
    assert cased.train.y.tolist() == moved
    assert np.array_equal(cased.distributions.train, cased.train.y.numpy() // 26)


def test_emnist_letters_count_from_zero_and_what_is_missing_or_damaged_is_one_line(tmp_path: Path) -> None:
    zipped(tmp_path, emnist_files("letters", 26, first=1))  # as published: 1 to 26
    found = load("emnist_letters", root=tmp_path, scale="centred")
    assert (found.num_classes, found.train.y[:28].tolist()) == (26, [*range(26), 0, 1])
    assert float(found.train.x[0, 0, 3, 20]) == pytest.approx(2 * 200 / 255 - 1)  # from -1 to 1
    with pytest.raises(UserError, match=r"biometrics\.nist\.gov.*gzip\.zip"):
        load("emnist_cased")
    files = emnist_files("balanced", 47).items()
    zipped(tmp_path, {name: data if "labels" in name else data[:40] for name, data in files}, inside="")
    for split in ("emnist_balanced", "emnist_byclass"):  # cut short, and not in the archive
        with pytest.raises(UserError, match=r"gzip\.zip: emnist-.*ubyte\.gz"):
            load(split, root=tmp_path)
