"""iPFL's tables as data: printed numbers against the paper, settings, the fit of Table 7."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from paper_cases import made_up

from hanse.lab.kept import KeptFile
from hanse_papers.catalogue import PAPERS, find_table
from hanse_papers.computed import fit, kept_table7
from hanse_papers.runner import expand, job_of
from hanse_papers.tables import SCALES, read_table

NAMES = [f"figure{i}" for i in range(2, 9)] + ["table4", "table5", "table7", "table8", "table9"]
NAMES += ["table1", "settings"]


def published(name: str, group: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = read_table("ipfl", name, "paper")["published"][group]
    return found


SAMPLES = (50000, 25000, 10000, 5000, 2500, 1000, 500, 250)
TABLE4 = published("table4", "CIFAR-10 NIID, client 0")
TABLE5 = published("table5", "CIFAR-10 inclusive market")
TABLE7 = dict(zip(SAMPLES, published("table7", "CIFAR-10")["local"], strict=True))
TABLE9 = published("table9", "CIFAR-10 Cluster")


def test_all_tables_are_there() -> None:
    assert list(PAPERS["ipfl"].tables) == [*NAMES, "twins", "lies", "capture", "theorems"]


# typed from the paper's pages, apart from the data in the package
def test_printed_numbers() -> None:
    assert TABLE4["size x0.1"] == [66.933, -513.410]
    assert TABLE4["honest"] == [75.430, 617.295]
    assert published("figure6", "CIFAR-10 counts")["client 10"] == [4353]
    assert TABLE5["10 buyer"] == [71.50, 73.68, -59.36, 6.05]
    assert TABLE5["1 seller"][3] == 102.67
    assert sum(line[2] for line in TABLE5.values()) == pytest.approx(-0.01)  # I18: balanced up to rounding
    assert TABLE7[2500] == 48.454
    assert TABLE7[250] == 29.483
    assert TABLE9["200 iterations"] == [73.268, 111.3]
    assert TABLE9["10 iterations"] == [60.434, 106.9]


def test_the_printed_fit_is_not_the_least_squares_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where no runs of table 7 are kept
    found = fit(TABLE7)
    assert found["p1"] == pytest.approx(-609.92, abs=0.01)
    assert found["p2"] == pytest.approx(64.03, abs=0.01)
    assert found["R2"] == pytest.approx(0.9482, abs=1e-4)
    assert published("table8", "fit of Table 7")["the printed numbers"][0] == -698.87
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
    settings = {cell.setting.split(",")[0] for cell in table.cells}
    assert settings >= {f"{data} {split}" for data in ("CIFAR-10", "FMNIST") for split in ("NIID", "Cluster", "Skew")}
    cell = next(c for c in table.cells if c.setting == "FMNIST Skew, utility" and c.algorithm == "iPFL")
    given = cell.variants[0].sections
    assert given["mechanism"] == {
        "name": "hanse_papers.authors:ipfl", "lam": 0.001, "eta": 5.0, "keep_best": False, "bounded": False,
        "last_market": True,
    }  # fmt: skip
    assert given["data"] == {
        "source": {"name": "fashion_mnist"}, "partition": {"name": "skew"}, "clients": 10,
        "client_test_from": "classes", "validation": 0.0,
    }  # fmt: skip
    assert given["train"] == {"steps": 200, "batch_size": 64, "lr": 0.01}
    assert given["run"] == {"rounds": 50}
    assert given["clients"]["profiles"] == {"name": "uniform", "cost": 1.0, "eagerness": 5e5}
    mechanisms = {c.algorithm: c.variants[0].sections["mechanism"] for c in table.cells}
    assert mechanisms["FedProx"]["mu"] == 0.1
    assert mechanisms["Ditto"]["lam"] == 1.0
    assert mechanisms["FedFomo"]["models"] == 6
    assert (mechanisms["CFL"]["eps1"], mechanisms["CFL"]["eps2"]) == (2.0, 2.5)
    small = find_table("ipfl", "table4", "small")
    assert small.seeds == 3
    assert small.cells[0].variants[0].sections["run"]["rounds"] == 10
    assert small.cells[0].variants[0].sections["train"]["steps"] == 40
    honest = next(c for c in small.cells if c.algorithm == "honest" and c.column == "utility")
    assert honest.published is not None
    assert honest.published.mean == pytest.approx(617.295 / 50)  # a market a round, of 50 rounds


def by_algorithm(name: str, group: str, recipe: str) -> dict[str, dict[str, Any]]:
    cells = find_table("ipfl", name, "paper", recipe).cells
    return {c.algorithm: dict(c.variants[0].sections) for c in cells if c.setting.startswith(group)}


def test_settings_of_the_authors() -> None:
    runs = by_algorithm("figure2", "CIFAR-10 NIID", "authors")
    assert runs["iPFL"]["train"] == {
        "steps": 200, "batch_size": 64, "lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5,
    }  # fmt: skip
    assert runs["iPFL"]["model"] == {"name": "lenet"}
    assert {name: given["eval"]["model"] for name, given in runs.items() if given["eval"]["model"] != "trained"} == {
        "FedAvg": "deployed",
        "FedProx": "deployed",
    }
    market = runs["iPFL"]["mechanism"]
    assert (market["stop"], market["pull_alone"], market["bounded"]) == ("break", True, False)
    assert runs["FedProx"]["mechanism"]["mu"] == 0.01
    assert (runs["FedAMP"]["mechanism"]["name"], runs["FedAMP"]["mechanism"]["pull_from"]) == ("heur_fedamp", 1)
    assert runs["CFL"]["mechanism"]["linkage"] == "complete"
    fomo = runs["FedFomo"]["mechanism"]
    assert (fomo["sent"], fomo["share"], fomo["entry"]) == ("drawn", "train", 1e-6)
    assert fomo["settle"] == {
        "name": "hanse_papers.authors:AuthorsUtilities", "last_market": True, "count": "received",
    }  # fmt: skip
    assert runs["pFedGraph"]["mechanism"]["sign"] == "repel"
    assert by_algorithm("figure2", "FMNIST Skew", "authors")["iPFL"]["data"]["augment"] == "crop-flip"


@pytest.mark.parametrize("recipe", ["paper", "authors"])
def test_the_inclusive_market_has_the_printed_clients(recipe: str) -> None:
    table = find_table("ipfl", "table5", "paper", recipe)
    given = next(c for c in table.cells if c.column == "utility" and c.group.startswith("CIFAR")).variants[0].sections
    profiles = given["clients"]["profiles"]
    assert profiles["role"][4] == "trader"
    assert profiles["eagerness"][4] == round(563596 * 0.82)  # client 5, K in proportion to the samples here
    assert profiles["cost"][3:7] == [0.85, 0.82, 0.0, 0.78]
    assert profiles["cost"][1] == {"paper": 1e9, "authors": 1000.0}[recipe]
    assert given["data"]["seed"] == 0  # client 5 is the same one with every seed
    assert given["train"]["steps"] == {"paper": 200, "authors": 500}[recipe]
    assert given["mechanism"]["eta"] == {"paper": 5.0, "authors": 10.0}[recipe]
    assert given["behaviour"]["attacker"]["kind"] == {"paper": "random", "authors": "shuffle"}[recipe]
    counted = read_table("ipfl", "figure6", "paper", recipe)  # figure 6 counts the data that table 5 trains on
    assert counted["group"]["CIFAR-10 inclusive market"]["experiment"]["data"] == {
        key: given["data"][key] for key in ("source", "partition", "clients", "seed")
    }


def test_attackers_of_figure_5() -> None:
    def conduct(recipe: str) -> dict[str, tuple[Any, Any, Any]]:
        cells = find_table("ipfl", "figure5", "paper", recipe).cells
        runs = {c.column.split(":")[0]: c.variants[0].sections for c in cells if c.algorithm == "iPFL"}
        return {
            name: (run.get("behaviour", {}).get("attacker"), run["clients"]["profiles"], run.get("behaviour", {}))
            for name, run in runs.items()
        }

    paper, authors = conduct("paper"), conduct("authors")
    assert paper["flip"][0] == {"clients": [8], "kind": "flip", "start": "sent"}
    assert authors["flip"][0] == {"clients": [8], "kind": "flip", "of": "model"}
    assert authors["flip"][1]["eagerness"] == [4.1e5] * 8 + [0.0]
    assert authors["same"][1]["eagerness"] == [4.1e5] * 9
    assert authors["same"][1]["cost"] == [1.0] * 8 + [0.0]
    assert authors["same"][2]["liar"] == {"clients": [8], "says": {"cost": 1.0}}
    assert "liar" not in authors["flip"][2]
    assert authors["no attack"][0] is None


def test_both_readings_of_the_market_are_rows() -> None:
    for recipe in ("paper", "authors"):
        runs = by_algorithm("settings", "CIFAR-10 Cluster", recipe)
        found = {name: (m["bounded"], m["stop"]) for name, run in runs.items() if "stop" in (m := run["mechanism"])}
        assert found == {
            "literal, break": (False, "break"),
            "literal, skip": (False, "skip"),
            "bounded, break": (True, "break"),
            "bounded, skip": (True, "skip"),
        }


@pytest.mark.parametrize("recipe", ["paper", "authors"])
def test_what_is_not_here_is_ready(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hanse_papers.tables.is_here", lambda source: True)
    table = find_table("ipfl", "figure2", "small", recipe)
    runs, _ = expand(table, 1)
    sources = {job.experiment.data.source.name for job in runs}
    assert sources == {"cifar10", "fashion_mnist", "pacs", "femnist", "shakespeare_next"}
    leaf = next(j.experiment for j in runs if j.experiment.data.source.name == "femnist")
    assert leaf.data.partition.test_owners == {"paper": "own", "authors": "next"}[recipe]
    text = by_algorithm("figure2", "Shakespeare", recipe)["iPFL"]
    assert (text["mechanism"]["lam"], text["mechanism"]["eta"]) == (2.0, 5000.0)


def test_figure6_counts_the_clients_data_without_training() -> None:
    table = find_table("ipfl", "figure6", "smoke")
    assert not any("utilit" in note for note in table.notes)  # those are table 5's, whose clients it counts
    assert len(table.cells) == 144
    assert all(c.computed is not None and not c.variants for c in table.cells)
    assert all(0 < c.computed <= 100 for c in table.cells if c.column == "largest class %")  # type: ignore[operator]
    samples = sum(c.computed for c in table.cells if c.column == "samples")  # type: ignore[misc]
    assert samples == 1297  # all of the digits that are trained on
    assert sum(c.computed for c in table.cells if c.column.startswith("class ")) == samples  # type: ignore[misc]


def test_table8_fits_our_own_table7_where_its_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = find_table("ipfl", "table7", "smoke")
    exact = {n: -100 / n**0.5 + 60 for n in (1200, 600, 240, 120, 60, 24, 20)}
    for seed, cell in ((s, c) for s in range(table.seeds) for c in table.cells):
        job = job_of(cell, cell.variants[0], seed)
        value = (exact[job.sections["data"]["partition"]["samples_per_client"]] + (1 if seed else -1)) / 100
        kept = made_up(job, lambda rounds: None) | {"tested": [job.rounds], "curves": {"test/accuracy": [value]}}
        if KeptFile(tmp_path).read(job) is None:  # two columns are the same run at this scale
            KeptFile(tmp_path).write(job, kept)
        if cell is table.cells[0]:
            assert kept_table7([tmp_path], "smoke", "paper") is None
    ours = kept_table7([tmp_path], "smoke", "paper")
    assert ours == pytest.approx(exact)
    assert ours is not None
    assert fit(ours)["p1"] == pytest.approx(-100)
    assert [c.algorithm for c in find_table("ipfl", "table8", "smoke").cells] == ["the printed numbers"] * 4
    cells = find_table("ipfl", "table8", "smoke", kept=[tmp_path]).cells  # as 'reproduce --out' gives it
    assert {c.column: c.computed for c in cells if c.algorithm == "our numbers"}["p1"] == pytest.approx(-100)
