"""GreedyFed's tables as data: printed cells against the paper, settings, numbers of runs."""

import pytest

from hanse.base.errors import UserError
from hanse_papers.catalogue import find_table
from hanse_papers.runner import expand
from hanse_papers.tables import PaperTable, filtered, on_device, with_seeds


def paper(name: str) -> PaperTable:
    return find_table("greedyfed", name, "paper")


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
    assert [c.setting for c in filtered(table, ["FMNIST alpha=0.1 ucb"]).cells] == ["FMNIST, alpha=0.1"]
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
