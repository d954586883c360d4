"""GreedyFed's tables as data: printed cells against the paper, settings, numbers of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from hanse.base.errors import UserError
from hanse.runs.config import Experiment
from hanse_papers.catalogue import PAPERS, find_table
from hanse_papers.runner import expand
from hanse_papers.tables import SCALES, PaperTable, Printed, filtered, on_device, with_seeds

CELLS = {
    (name, cell.group, cell.column, cell.algorithm): cell.published
    for name in ("table1", "table2", "table3", "table4")
    for cell in find_table("greedyfed", name, "paper").cells
    if cell.published is not None
}


# typed from the paper's pages, apart from the data in the package
@pytest.mark.parametrize(
    ("where", "mean", "sd"),
    [
        (("table1", "MNIST", "alpha=1e-4 (clamped)", "GreedyFed"), 94.06, 0.19),
        (("table1", "MNIST", "alpha=0.1", "FedAvg"), 88.86, 2.09),
        (("table1", "FMNIST", "alpha=1e-4 (clamped)", "Power-Of-Choice"), 69.46, 7.34),
        (("table1", "CIFAR-10", "alpha=100", "Centralized"), 53.22, 1.06),
        (("table1", "CIFAR-10", "alpha=0.1", "UCB"), 43.02, 2.75),
        (("table2", "MNIST", "T=150", "GreedyFed"), 91.12, 0.32),
        (("table2", "MNIST", "T=350", "FedAvg"), 89.50, 0.88),
        (("table2", "FMNIST", "T=250", "FedAvg"), 72.64, 12.22),
        (("table2", "CIFAR-10", "T=100", "S-FedAvg"), 34.38, 7.00),
        (("table3", "MNIST", "x=0.9", "FedProx"), 88.45, 5.77),
        (("table3", "FMNIST", "x=0.9", "S-FedAvg"), 74.66, 10.17),
        (("table4", "MNIST", "sigma=0.1", "GreedyFed"), 87.33, 0.68),
        (("table4", "CIFAR-10", "sigma=0.1", "S-FedAvg"), 31.89, 12.33),
        (("table4", "FMNIST", "sigma=0.05", "Power-Of-Choice"), 69.47, 5.08),
    ],
)
def test_printed_cells(where: tuple[str, str, str, str], mean: float, sd: float) -> None:
    assert CELLS[where] == Printed(mean, sd)


def test_all_cells_are_there_and_the_shared_column_is_the_same() -> None:
    assert len(CELLS) == 4 * 3 * 3 * 7
    for (table, group, column, algorithm), printed in CELLS.items():
        if column == "alpha=1e-4 (clamped)":
            assert table == "table1"
            assert printed == CELLS["table3", group, "x=0", algorithm] == CELLS["table4", group, "sigma=0", algorithm]


def paper(name: str) -> PaperTable:
    return find_table("greedyfed", name, "paper")


def test_settings_are_the_papers() -> None:
    jobs, _ = expand(paper("table1"), 5)
    for job in jobs:
        e = job.experiment
        image = e.data.source.name != "cifar10"
        assert e.run.rounds == (400 if image else 200)
        assert (e.train.epochs, e.train.batches_per_epoch, e.train.lr, e.train.momentum) == (5, 5, 0.01, 0.5)
        assert e.model.name == ("mlp" if image else "cnn_greedyfed")
        assert e.data.source.scale == "unit"
        assert (e.data.validation, e.data.seed, e.eval.every) == (0.5, e.run.seed, 10)
        if e.mechanism.name != "centralised":
            assert e.data.clients == (300 if image else 200)
            assert e.mechanism.table["clients_per_round"] == (3 if image else 20)
            assert e.data.partition.alpha in (1e-4, 0.1, 100)


def test_mnist_block_of_table1() -> None:
    block = filtered(paper("table1"), ["mnist"])
    jobs, _ = expand(block, 5)
    # 5 averagings + 4 mu + 4 others in 4 columns, and one centralised run for all columns
    assert len(jobs) == 5 * (13 * 4 + 1)
    assert sum(job.rounds for job in jobs) == 265 * 400
    columns = [c.column for c in block.cells if c.algorithm == "FedAvg"]
    assert columns == ["alpha=1e-4 (clamped)", "alpha=1e-4 (true)", "alpha=0.1", "alpha=100"]
    assert all((c.published is None) == (c.column == "alpha=1e-4 (true)") for c in block.cells)


def test_tables_share_runs() -> None:
    clamped = {j.key for j in expand(filtered(paper("table1"), ["clamped"]), 1)[0]}
    assert {j.key for j in expand(paper("table2"), 1)[0]} == clamped  # one run, read at three times
    for name, column in (("table3", "x=0"), ("table4", "sigma=0")):
        keys = {j.key for j in expand(paper(name), 1)[0]}
        assert {j.key for j in expand(filtered(paper(name), [column]), 1)[0]} == clamped
        assert len(keys) == 3 * (3 * 13 + 1)
    true = {j.key for j in expand(filtered(paper("table1"), ["true"]), 1)[0]}
    assert {j.key for j in expand(paper("table2-true"), 1)[0]} == true


def test_table2_reads_and_figure1() -> None:
    reads = {(c.group, c.at) for c in paper("table2").cells}
    assert reads == {(g, t) for g in ("MNIST", "FMNIST") for t in (150, 250, 350)} | {
        ("CIFAR-10", t) for t in (100, 150, 200)
    }
    figure = paper("figure1")
    assert {c.group for c in figure.cells} == {"CIFAR-10"}
    assert figure.figures == ({"kind": "curves"},)


def test_heterogeneity_reaches_the_experiments() -> None:
    found = {(c.column, a) for c in paper("table3").cells for v in c.variants if c.algorithm == "UCB"
             for a in [v.sections.get("behaviour", {}).get("straggler", {}).get("fraction")]}  # fmt: skip
    assert found == {("x=0", None), ("x=0.5", 0.5), ("x=0.9", 0.9)}
    noise = {v.sections.get("behaviour", {}).get("noisy", {}).get("sigma") for c in paper("table4").cells
             for v in c.variants if c.algorithm == "FedAvg"}  # fmt: skip
    assert noise == {None, 0.05, 0.1}


@pytest.mark.parametrize("scale", SCALES)
def test_every_table_at_every_scale_is_valid(scale: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSE_DATA", str(tmp_path))
    monkeypatch.setattr("hanse.data.sources.cache_dir", lambda: tmp_path)
    for name in PAPERS["greedyfed"].tables:
        table = find_table("greedyfed", name, scale)
        jobs, readings = expand(table, 1)
        assert jobs
        assert len(readings) >= len(table.cells)
        assert (table.changes == ()) == (scale == "paper")
        if scale == "smoke":
            assert table.seeds == 2
            assert all(j.rounds >= 3 and j.experiment.data.source.name == "digits" for j in jobs)
            assert any("digits stands in" in change for change in table.changes)


def test_small_says_what_it_leaves_out() -> None:
    small = find_table("greedyfed", "table1", "small")
    assert {c.group for c in small.cells} == {"MNIST", "FMNIST"}
    assert with_seeds(small, None, 5).changes[0] == "3 seeds instead of 5"
    assert with_seeds(small, 1, 5).changes[0] == "1 seed instead of 5"
    assert with_seeds(small, 5, 5).changes == small.changes
    computed = find_table("ipfl", "table8", "smoke")  # which is the same for every seed
    assert with_seeds(computed, 2, 3).changes == computed.changes
    assert {j.key for j in expand(small, 3)[0]} < {j.key for j in expand(paper("table1"), 5)[0]}


def test_names_that_do_not_exist() -> None:
    with pytest.raises(UserError, match="no such paper; did you mean 'greedyfed'") as wrong:
        find_table("greedyfd", "table1", "smal")
    assert "did you mean 'small'" in wrong.value.lines[1]
    with pytest.raises(UserError, match="no such table; did you mean 'table"):
        find_table("greedyfed", "tabel1", "small")


def test_only() -> None:
    table = paper("table1")
    assert {c.group for c in filtered(table, ["mnist"]).cells} == {"MNIST"}
    one = filtered(table, ["FMNIST alpha=0.1 ucb"])
    assert [c.setting for c in one.cells] == ["FMNIST, alpha=0.1"]
    assert len(filtered(table, ["mnist,ucb", "cifar10,ucb"]).cells) == 8
    assert "only the cells of FMNIST" in filtered(table, ["FMNIST"]).changes[-1]
    with pytest.raises(UserError, match="--only mnits: table1 has no such setting; did you mean 'mnist'"):
        filtered(table, ["mnits"])
    with pytest.raises(UserError, match="no cell with all of them"):
        filtered(table, ["mnist cifar10"])


def test_experiments_round_trip() -> None:
    jobs, _ = expand(filtered(paper("table4"), ["mnist sigma=0.1"]), 1)
    for job in jobs:
        assert isinstance(job.experiment, Experiment)
        assert job.experiment.data.download


def test_another_device_is_another_run() -> None:
    table = filtered(paper("figure1"), ["t=200"])
    moved = on_device(table, "cuda")
    assert on_device(table, "cpu") is table
    assert {j.experiment.engine.device for j in expand(moved, 1)[0]} == {"cuda"}
    assert moved.changes == (*table.changes, "trained on cuda")
    assert {j.key for j in expand(moved, 1)[0]}.isdisjoint(j.key for j in expand(table, 1)[0])
