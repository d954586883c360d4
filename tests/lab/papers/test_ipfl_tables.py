"""iPFL's tables as data: printed numbers against the paper, settings, the fit of Table 7."""

from __future__ import annotations

import pytest

from hanse.lab.papers.catalogue import PAPERS, find_table
from hanse.lab.papers.computed import fit
from hanse.lab.papers.runner import expand
from hanse.lab.papers.tables import SCALES, read_table

NAMES = [f"figure{i}" for i in range(2, 9)] + ["table4", "table5", "table7", "table8", "table9", "table1"]


def published(name: str, group: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = read_table("ipfl", name, "paper")["published"][group]
    return found


SAMPLES = (50000, 25000, 10000, 5000, 2500, 1000, 500, 250)
TABLE4 = published("table4", "CIFAR-10 NIID, client 0")
TABLE5 = published("table5", "CIFAR-10 inclusive market")
TABLE7 = dict(zip(SAMPLES, published("table7", "CIFAR-10")["local"], strict=True))
TABLE9 = published("table9", "CIFAR-10 Cluster")


def test_all_tables_are_there() -> None:
    assert list(PAPERS["ipfl"].tables) == NAMES


# typed from the paper's pages, apart from the data in the package
def test_printed_numbers() -> None:
    assert TABLE4["size x0.1"] == [66.933, -513.410]
    assert TABLE4["honest"] == [75.430, 617.295]
    assert published("figure6", "CIFAR-10 inclusive market")["client 10"] == [4353]
    assert TABLE5["10 buyer"] == [71.50, 73.68, -59.36, 6.05]
    assert TABLE5["1 seller"][3] == 102.67
    assert sum(line[2] for line in TABLE5.values()) == pytest.approx(-0.01)  # I18: balanced up to rounding
    assert TABLE7[2500] == 48.454
    assert TABLE7[250] == 29.483
    assert TABLE9["200 iterations"] == [73.268, 111.3]
    assert TABLE9["10 iterations"] == [60.434, 106.9]


def test_the_printed_fit_is_not_the_least_squares_one() -> None:
    found = fit(TABLE7)
    assert found["p1"] == pytest.approx(-609.92, abs=0.01)
    assert found["p2"] == pytest.approx(64.03, abs=0.01)
    assert found["R2"] == pytest.approx(0.9482, abs=1e-4)
    assert published("table8", "fit of the printed Table 7")["least squares"][0] == -698.87
    ours = {cell.column: cell.computed for cell in find_table("ipfl", "table8", "paper").cells}
    assert ours == found
    exact = {n: -500 / n**0.5 + 60 for n in (100, 400, 900)}
    assert fit(exact) == pytest.approx({"p1": -500, "p2": 60, "R2": 1, "RMSE": 0})


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", [n for n in NAMES if n != "figure6"])
def test_every_table_is_made_of_valid_experiments(name: str, scale: str) -> None:
    table = find_table("ipfl", name, scale)
    jobs, readings = expand(table, 1)
    assert len(readings) == sum(len(cell.variants) for cell in table.cells)
    for job in jobs:
        assert job.experiment.run.rounds >= 1


def test_settings_of_the_paper() -> None:
    table = find_table("ipfl", "figure2", "paper")
    assert len({cell.setting for cell in table.cells}) == 12
    assert len(table.cells) == 6 * (9 + 8)
    cell = next(c for c in table.cells if c.setting == "FMNIST Skew, utility" and c.algorithm == "iPFL")
    given = cell.variants[0].sections
    assert given["mechanism"] == {"name": "ipfl", "lam": 0.001, "eta": 5.0, "keep_best": False}
    assert given["data"]["partition"] == "skew"
    assert given["data"]["clients"] == 10
    assert given["train"] == {"steps": 200, "batch_size": 64, "lr": 0.01}
    assert given["run"] == {"rounds": 50}
    assert given["clients"]["profiles"] == {"name": "uniform", "cost": 1.0, "eagerness": 5e5}
    settings = {c.algorithm: c.variants[0].sections["mechanism"] for c in table.cells}
    assert settings["FedProx"]["mu"] == 0.1
    assert settings["Ditto"]["lam"] == 1.0
    assert settings["FedFomo"]["models"] == 6
    assert (settings["CFL"]["eps1"], settings["CFL"]["eps2"]) == (2.0, 2.5)
    small = find_table("ipfl", "table4", "small")
    assert small.seeds == 3
    assert small.cells[0].variants[0].sections["run"]["rounds"] == 10
    assert small.cells[0].variants[0].sections["train"]["steps"] == 40
    honest = next(c for c in small.cells if c.algorithm == "honest" and c.column == "utility")
    assert honest.published is not None
    assert honest.published.mean == pytest.approx(617.295 / 49)


def test_figure6_counts_the_clients_data_without_training() -> None:
    table = find_table("ipfl", "figure6", "smoke")
    assert len(table.cells) == 22
    assert all(c.computed is not None and not c.variants for c in table.cells)
    assert all(0 < c.computed <= 100 for c in table.cells if c.column == "largest class %")  # type: ignore[operator]
