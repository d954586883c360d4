"""GreedyFed's tables as data: printed cells against the paper, settings, numbers of runs."""

import pytest

from hanse.base.errors import UserError
from hanse_papers.catalogue import find_table
from hanse_papers.runner import expand
from hanse_papers.tables import PaperTable, filtered, on_device, with_seeds

CELLS = {
    (name, cell.group, cell.column, cell.algorithm): cell.published
    for name in ("table1", "table2", "table3", "table4")
    for cell in find_table("greedyfed", name, "paper").cells
    if cell.published is not None
}


def test_all_cells_are_there_and_the_shared_column_is_the_same() -> None:
    assert len(CELLS) == 4 * 3 * 3 * 7
    for (table, group, column, algorithm), printed in CELLS.items():
        if column == "alpha=1e-4 (clamped)":
            assert table == "table1"
            assert printed == CELLS["table3", group, "x=0", algorithm] == CELLS["table4", group, "sigma=0", algorithm]


def paper(name: str) -> PaperTable:
    return find_table("greedyfed", name, "paper")


def test_tables_share_runs() -> None:
    clamped = {j.key for j in expand(filtered(paper("table1"), ["clamped"]), 1)[0]}
    assert {j.key for j in expand(paper("table2"), 1)[0]} == clamped  # one run, read at three times
    for name, column in (("table3", "x=0"), ("table4", "sigma=0")):
        keys = {j.key for j in expand(paper(name), 1)[0]}
        assert {j.key for j in expand(filtered(paper(name), [column]), 1)[0]} == clamped
        assert len(keys) == 3 * (3 * 13 + 1)
    true = {j.key for j in expand(filtered(paper("table1"), ["true"]), 1)[0]}
    assert {j.key for j in expand(paper("table2-true"), 1)[0]} == true


def test_small_says_what_it_leaves_out() -> None:
    small = find_table("greedyfed", "table1", "small")
    assert with_seeds(small, None, 5).changes[0] == "3 seeds instead of 5"
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


def test_another_device_is_another_run() -> None:
    table = filtered(paper("figure1"), ["t=200"])
    moved = on_device(table, "cuda")
    assert on_device(table, "cpu") is table
    assert {j.experiment.engine.device for j in expand(moved, 1)[0]} == {"cuda"}
    assert moved.changes == (*table.changes, "trained on cuda")
    assert {j.key for j in expand(moved, 1)[0]}.isdisjoint(j.key for j in expand(table, 1)[0])
