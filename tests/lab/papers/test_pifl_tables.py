"""PI-FL's tables as data, and one that is really run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from hanse.cli import app
from hanse.lab.papers.catalogue import PAPERS
from hanse.lab.papers.runner import expand
from hanse.lab.papers.tables import Scale

NAMES = (
    *(f"table{n}" for n in (1, 2, 3, 4, 5)),
    *(f"figure{n}" for n in (1, 2, 3, 4, 5)),
    *("table2-fmnist", "table3-fmnist", "table4-fmnist", "table5-fmnist"),
    *("figure2-fmnist", "figure3-fmnist", "figure4-fmnist", "figure5-fmnist"),
    "figure5-cifar10",
)


def published(table: str) -> dict[tuple[str, str, str], float]:
    cells = PAPERS["pifl"].tables[table]("paper").cells
    return {(c.group, c.column, c.algorithm): c.published.mean for c in cells if c.published is not None}


def test_every_table_is_there() -> None:
    assert sorted(PAPERS["pifl"].tables) == sorted(NAMES)


def test_published_cells() -> None:
    assert published("table1")["synthetic 30:70", "c1 on theta1", "FedSoft"] == 50.04
    assert published("table2")["CIFAR-10 linear", "c1 on theta0", "PI-FL"] == 12.08
    assert published("table3")["CIFAR-10 random", "c1", "FedSoft"] == 33.12
    assert published("table4")["CIFAR-10 10:90", "c1", "PI-FL (NI)"] == 52.8
    assert published("table5")["CIFAR-10 30:70", "c1 on theta1", "FedSoft"] == 0.08
    assert published("figure1")["synthetic 10:90", "mean", "PI-FL"] == 45.9
    counts = {"table1": 16, "table2": 16, "table3": 16, "table4": 16, "table5": 16, "figure1": 4}
    assert {name: len(published(name)) for name in counts} == counts
    assert not published("figure5")
    assert not published("table3-fmnist")  # Fashion-MNIST is not in the paper


@pytest.mark.parametrize("scale", get_args(Scale))
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_is_valid(name: str, scale: Scale) -> None:
    table = PAPERS["pifl"].tables[name](scale)
    jobs, readings = expand(table, 1)
    assert jobs
    assert len(readings) == len(table.cells)
    for job in jobs:
        seats = job.experiment.mechanism.table
        assert seats["name"] in ("pifl", "fedsoft", "ifca", "ditto", "fedprox", "local")


def test_the_paper_s_settings() -> None:
    [cell, *_] = PAPERS["pifl"].tables["table3"]("paper").cells
    sections = cell.variants[0].sections
    assert sections["run"]["rounds"] == cell.at == 500
    assert sections["data"]["clients"] == 100
    assert sections["data"]["test_mix"] == "inverse"
    assert (sections["train"]["lr"], sections["train"]["batch_size"]) == (0.01, 128)
    assert PAPERS["pifl"].tables["table1"]("paper").cells[0].variants[0].sections["data"]["test_mix"] == "same"
    assert PAPERS["pifl"].tables["table4"]("paper").cells[0].at == 200
    assert PAPERS["pifl"].tables["figure5"]("paper").cells[0].variants[0].sections["mechanism"]["tiers"] == 4


def test_a_smoke_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "pifl", "table4", "--seeds", "2", "--workers", "1", "--out", str(tmp_path), "--json"]
    assert not app(arguments, standalone_mode=False)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["paper"], found["table"], found["scale"], found["seeds"]) == ("pifl", "table4", "smoke", 2)
    assert all(row["n"] == 2 and 0 <= row["mean"] <= 100 for row in found["rows"])
    assert {row["algorithm"] for row in found["rows"]} == {"PI-FL (I)", "PI-FL (NI)", "PI-FL, rewards"}
