"""PI-FL's tables as data, and one that is really run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from torch import nn

from hanse.cli import app
from hanse.learning.models import build_module
from hanse_papers.catalogue import PAPERS, find_table
from hanse_papers.runner import expand
from hanse_papers.tables import Recipe, Scale

NAMES = (
    *(f"table{n}" for n in (1, 2, 3, 4, 5)),
    *(f"figure{n}" for n in (1, 2, 3, 4, 5)),
    *("table2-fmnist", "table3-fmnist", "table4-fmnist", "table5-fmnist"),
    *("figure2-fmnist", "figure3-fmnist", "figure4-fmnist", "figure5-fmnist"),
    "figure5-cifar10",
)

ARMS = (
    *("PI-FL (I)", "PI-FL (NI)"),
    *(f"PI-FL (I), rewards x {weight}" for weight in ("0.1", "0.25", "1", "2")),
    *("PI-FL (I), net of payments", "rewards alone", "Algorithm 1", "Algorithm 1, T_h 0.9"),
)


def published(table: str) -> dict[tuple[str, str, str], float]:
    cells = PAPERS["pifl"].tables[table]("paper").cells
    return {(c.group, c.column, c.algorithm): c.published.mean for c in cells if c.published is not None}


def test_every_table_is_there() -> None:
    assert sorted(PAPERS["pifl"].tables) == sorted([*NAMES, "twins", "tiers", "shared", "joining"])


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
    assert sections["data"]["partition"]["test_mix"] == "inverse"
    assert (sections["train"]["lr"], sections["train"]["batch_size"]) == (0.01, 128)
    same = PAPERS["pifl"].tables["table1"]("paper").cells[0].variants[0].sections
    assert same["data"]["partition"]["test_mix"] == "same"
    assert PAPERS["pifl"].tables["table4"]("paper").cells[0].at == 200
    assert PAPERS["pifl"].tables["figure5"]("paper").cells[0].variants[0].sections["mechanism"]["tiers"] == 4


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


def test_the_incentive_of_table_4_reads_fits_and_rewards_and_algorithm_1_reads_none() -> None:
    for name, group in (("table4", "CIFAR-10 10:90"), ("table4-fmnist", "Fashion-MNIST linear")):
        found = _experiments(name, "small")
        policies = {arm: found[group, arm]["clients"]["policy"] for arm in ARMS}
        weights = {arm: p["weight"] for arm, p in policies.items() if arm.startswith("PI-FL (I)")}
        assert all(policies[arm]["name"] == "reward_seeking" for arm in weights)
        assert all("fit" not in policies[arm] for arm in weights)  # 1, the default: importance weights count
        assert sorted(weights.values()) == [0.1, 0.25, 0.5, 0.5, 1.0, 2.0]
        assert policies["rewards alone"] == {"name": "reward_seeking", "weight": 1.0, "fit": 0.0}
        assert policies["Algorithm 1"] == "best_tier"
        assert policies["Algorithm 1, T_h 0.9"] == {"name": "best_tier", "threshold": 0.9}
        assert policies["PI-FL (NI)"] == "random_tiers"
        told = {arm: found[group, arm]["mechanism"].get("settle", {}).get("tell") for arm in ARMS}
        assert told["PI-FL (I)"] == told["rewards alone"] == "rewards"
        assert told["PI-FL (I), net of payments"] == "net"


def test_the_text_s_network_has_3136_features_at_full_scale() -> None:
    for name, shape in (("table2", (3, 32, 32)), ("table2-fmnist", (1, 28, 28))):
        for sections in _experiments(name, "paper").values():
            module = build_module(**sections["model"], input_shape=shape, num_classes=10, seed=0)
            assert [m.in_features for m in module.modules() if isinstance(m, nn.Linear)] == [3136, 128]
            assert sum(isinstance(m, nn.Conv2d) for m in module.modules()) == 3
            assert not any(isinstance(m, nn.Dropout) for m in module.modules())


def test_small_scale_has_all_four_mixtures() -> None:
    for name in ("table2", "table2-fmnist", "table5", "table5-fmnist", "figure2", "figure4-fmnist", "figure5-fmnist"):
        mixes = {sections["data"]["partition"]["mix"] for sections in _experiments(name, "small").values()}
        assert mixes == {"10:90", "30:70", "linear", "random"}


def test_the_authors_recipe() -> None:
    [found] = [s for (group, _), s in _experiments("table2", "paper", "authors").items() if group == "CIFAR-10 random"]
    assert found["train"] == {"optimizer": "adadelta", "lr": 0.01, "batch_size": 128, "epochs": 5}
    assert found["model"] == {"name": "cnn_pifl", "convolutions": 4, "dropout": True}
    mechanism = found["mechanism"]
    assert (mechanism["by_contribution"], mechanism["at_random"], mechanism["value"]) == (10, 5, "first_order")
    assert (mechanism["personal_from"], mechanism["settle"]["score_on"]) == ("test", "validation")
    assert found["clients"] == {"policy": "best_tier", "grant": 500}
    data = found["data"]
    test, validation = (int(300 * data[key]) for key in ("client_test", "client_validation"))
    assert (data["partition"]["samples_per_client"], 300 - test - validation, validation, test) == (300, 200, 50, 50)


@pytest.mark.parametrize("scale", get_args(Scale))
@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_of_the_authors_recipe_is_valid(name: str, scale: Scale) -> None:
    jobs, _ = expand(find_table("pifl", name, scale, "authors"), 1)
    assert jobs
    assert all(job.experiment.train.optimizer == "adadelta" for job in jobs)
