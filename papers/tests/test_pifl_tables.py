"""PI-FL's tables as data, and one that is really run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hanse.cli import app
from hanse.learning.models import build_module
from hanse_papers.catalogue import PAPERS, find_table
from hanse_papers.tables import Recipe, Scale

ARMS = (
    *("PI-FL (I)", "PI-FL (NI)"),
    *(f"PI-FL (I), rewards x {weight}" for weight in ("0.1", "0.25", "1", "2")),
    *("PI-FL (I), net of payments", "rewards alone", "Algorithm 1", "Algorithm 1, T_h 0.9"),
)


def published(table: str) -> dict[tuple[str, str, str], float]:
    cells = PAPERS["pifl"].tables[table]("paper").cells
    return {(c.group, c.column, c.algorithm): c.published.mean for c in cells if c.published is not None}


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


@pytest.mark.slow
def test_a_smoke_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "pifl", "table4", "--seeds", "2", "--workers", "1", "--out", str(tmp_path), "--json"]
    assert not app(arguments, standalone_mode=False)
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (found["paper"], found["table"], found["scale"], found["seeds"]) == ("pifl", "table4", "smoke", 2)
    assert all(row["n"] == 2 and 0 <= row["mean"] <= 100 for row in found["rows"])
    assert {row["algorithm"] for row in found["rows"]} == set(ARMS)


def _experiments(table: str, scale: Scale, recipe: Recipe = "paper") -> dict[tuple[str, str], dict[str, Any]]:
    cells = find_table("pifl", table, scale, recipe).cells
    return {(cell.group, cell.algorithm): dict(cell.variants[0].sections) for cell in cells}


def test_the_text_s_network_has_3136_features_at_full_scale() -> None:
    for name, shape in (("table2", (3, 32, 32)), ("table2-fmnist", (1, 28, 28))):
        for sections in _experiments(name, "paper").values():
            module = build_module(**sections["model"], input_shape=shape, num_classes=10, seed=0)
            assert [m.in_features for m in module.modules() if isinstance(m, nn.Linear)] == [3136, 128]
            assert sum(isinstance(m, nn.Conv2d) for m in module.modules()) == 3
            assert not any(isinstance(m, nn.Dropout) for m in module.modules())
