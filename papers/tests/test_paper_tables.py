"""How a table's file is read: a small paper written for the test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mistaken import mistakes

from hanse_papers import tables
from hanse_papers.tables import PaperTable, Printed, Recipe, Scale

PAPER = """
citation = "Nobody, 2026"
tables = ["table1"]
seeds = { paper = 5, smoke = 2 }
changes = { paper = [], smoke = ["fewer rounds"] }
notes = ["of all tables"]
groups = [
  "digits",
  { name = "tiny", like = "digits", printed = "digits", scales = ["smoke"], experiment.data.clients = 3 },
]

[experiment]
data = { clients = 4, partition.alpha = 0.1 }
mechanism.clients_per_round = "{M}"
train = { lr = { paper = 0.01, small = 0.1 }, epochs = { small = 2 }, mu = "{mu}" }
run.rounds = { paper = 400, smoke = 6 }

[values]
M = 2
mu = "none"

[group.digits]
experiment.data.source.name = "digits"

[row.a]
experiment.mechanism.name = "fedavg"
variants = [
  { name = "lr=1", experiment.train.lr = 1.0 },
  { name = "lr=2", experiment.train.lr = 2.0, scales = ["paper"] },
]
"""
TABLE = """
title = "Table 1"
notes = ["first", "..."]
rows = ["a", { name = "b", like = "a", values.mu = 0.5, columns = ["T={T}"], variants = [{ name = "" }] }]
columns = [
  { name = "T={T}", values.T = 100, at = "{T}", metric = ["x/{T}", "y"] },
  { name = "sum", without = ["data.partition", "mechanism"], over = 4, published_over = 2 },
]

[published.digits]
a = [[90.0, 0.5], 10]
b = ["-", 8]
"""
Read = Callable[..., PaperTable]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    monkeypatch.setattr(tables, "files", lambda package: tmp_path)  # a paper lies in the package, and nowhere else
    tables._file.cache_clear()

    def table(
        scale: Scale = "paper", text: str = TABLE, recipe: Recipe = "paper", authors: str | None = None
    ) -> PaperTable:
        (tmp_path / "ours").mkdir(exist_ok=True)
        (tmp_path / "ours" / "paper.toml").write_text(PAPER)
        (tmp_path / "ours" / "table1.toml").write_text(text)
        if authors is not None:
            (tmp_path / "ours" / "authors.toml").write_text(authors)
        tables._file.cache_clear()
        return tables.build_table("ours", "table1", scale, recipe, computed={"twice": lambda cells, values: [1.5, 2.5]})

    return table


def test_a_cell_is_a_group_a_column_and_a_row(read: Read) -> None:
    cells = read().cells
    assert [(c.group, c.column, c.algorithm) for c in cells] == [
        ("digits", "T=100", "a"),
        ("digits", "T=100", "b"),
        ("digits", "sum", "a"),
    ]
    first, second, third = cells
    assert [v.name for v in first.variants] == ["lr=1", "lr=2"]
    assert first.variants[0].sections == {
        "data": {"clients": 4, "partition": {"alpha": 0.1}, "source": {"name": "digits"}},
        "mechanism": {"clients_per_round": 2, "name": "fedavg"},
        "train": {"lr": 1.0},
        "run": {"rounds": 400},
    }
    assert (first.at, first.metric, first.published) == (100, ("x/100", "y"), Printed(90.0, 0.5))
    assert second.variants[0].sections["train"] == {"lr": 0.01, "mu": 0.5}
    assert second.published is None
    assert third.variants[0].sections["data"] == {"clients": 4, "source": {"name": "digits"}}
    assert third.variants[0].sections["mechanism"] == {"name": "fedavg"}
    assert (third.at, third.factor, third.published) == (400, 0.25, Printed(5.0))


@pytest.mark.parametrize(
    ("left_out", "partition"),
    [("partition.alpha", None), ("partition", None), ("partition.sampler", {"alpha": 0.1}), ("x.y", {"alpha": 0.1})],
)
def test_a_table_that_is_emptied_goes(read: Read, left_out: str, partition: Any) -> None:
    text = TABLE.replace('without = ["data.partition"', f'without = ["data.{left_out}"')
    assert read(text=text).cells[2].variants[0].sections["data"].get("partition") == partition


def test_scales(read: Read) -> None:
    small, smoke = read("small"), read("smoke")
    assert (read().seeds, small.seeds, smoke.seeds) == (5, 5, 2)
    assert (small.changes, smoke.changes) == ((), ("fewer rounds",))
    assert small.notes == ("first", "of all tables")
    assert small.cells[1].variants[0].sections["train"] == {"lr": 0.1, "epochs": 2, "mu": 0.5}
    assert {c.group for c in smoke.cells} == {"digits", "tiny"}
    assert [c.published for c in smoke.cells if c.group == "tiny"] == [c.published for c in small.cells]
    assert {v.name for c in smoke.cells for v in c.variants} == {"lr=1", ""}
    assert smoke.cells[-1].variants[0].sections["data"]["clients"] == 3


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("notes = ", "measur = 'best'\nnotes = ", "measur: there is no such name; did you mean 'measure'?"),
        ("over = 4", "ovr = 4", "ovr: there is no such name; did you mean 'over'?"),
        ("\na = [[", "\naa = [[", "aa: there is no such name; did you mean 'a'?"),
        ("published.digits", "published.digit", "digit: there is no such name; did you mean 'digits'?"),
    ],
)
def test_words_that_mean_nothing(read: Read, old: str, new: str, said: str) -> None:
    assert mistakes(read, text=TABLE.replace(old, new, 1)) == (f"ours/table1.toml: {said}",)


AUTHORS = """
seeds = 3
without = ["data.partition"]
notes = ["as the code has it"]

[experiment.train]
momentum = 0.9
epochs = { small = 3 }

[group.digits]
experiment.data.source.scale = "unit"

[[differences]]
setting = "train.momentum"
paper = "not said"
authors = "0.9"
source = "train.py"
"""
OWN = """
[authors]
rows = ["a", { name = "c", like = "a", recipes = ["authors"] }, { name = "d", like = "a", recipes = ["paper"] }]

[authors.experiment.train]
steps = 500
"""


def test_the_authors_recipe_is_laid_over_the_papers_and_a_tables_own_over_that(read: Read) -> None:
    by = read("small", TABLE.replace("[published.digits]", OWN + "[published.digits]"), "authors", AUTHORS)
    assert (by.recipe, by.seeds, by.notes) == ("authors", 3, ("first", "as the code has it"))
    assert list(dict.fromkeys(c.algorithm for c in by.cells)) == ["a", "c"]
    assert by.cells[0].variants[0].sections["data"] == {"clients": 4, "source": {"name": "digits", "scale": "unit"}}
    assert by.cells[0].variants[0].sections["train"] == {"lr": 1.0, "momentum": 0.9, "epochs": 3, "steps": 500}
    assert tables.differences("ours")[0]["setting"] == "train.momentum"
