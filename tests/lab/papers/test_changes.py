"""What a table changes against its recipe: the list against the configurations that it is about."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hanse.base.toml import flat
from hanse.data.sources import split_note
from hanse.lab.papers.catalogue import PAPERS, find_table
from hanse.lab.papers.changes import changed, differing
from hanse.lab.papers.tables import RECIPES, SCALES, Cell, PaperTable, Variant
from hanse.runs.config import Experiment

UNSAID = ("engine.", "data.seed", "run.seed", "data.path", "data.download")


def settings(variant: Variant) -> dict[str, Any]:
    found = dict(flat(Experiment(**variant.sections).sections()))
    return {name: value for name, value in found.items() if not name.startswith(UNSAID)}


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_every_setting_that_differs_is_named_with_both_values(paper: str, recipe: str) -> None:
    compared = 0
    for name in PAPERS[paper].tables:
        full = find_table(paper, name, "paper", recipe)
        theirs = {(*c.place, v.name): v for c in full.cells for v in c.variants}
        for scale in SCALES:
            table = find_table(paper, name, scale, recipe)
            lines = changed(table, full)
            said = "; ".join(lines)
            for cell in table.cells:
                for variant in cell.variants:
                    if (old := theirs.get((*cell.place, variant.name))) is None:
                        assert any(w in said for w in (*cell.place, cell.group, cell.column, variant.name) if w)
                        continue
                    ours, its = settings(variant), settings(old)
                    for key in ours.keys() | its.keys():
                        if ours.get(key) != its.get(key):
                            compared += 1
                            new, was = (_text(v.get(key)) for v in (ours, its))
                            assert f"{key} {new} instead of {was}" in said
            gone = {c.place[0]: c.group for c in full.cells if c.place[0] not in {d.place[0] for d in table.cells}}
            stays = {c.group for c in full.cells if c.place[0] not in gone}  # of a numbered block a part is here
            assert all((place if group in stays else group) in said for place, group in gone.items())
            here = {c.place for c in table.cells}
            axes = [{place[axis] for place in here} for axis in range(3)]
            for place in {c.place for c in full.cells if c.variants} - here:
                whole = [word for axis, word in enumerate(place) if word not in axes[axis]]  # groups, rows that are out
                whole += [gone[place[0]]] if place[0] in gone and gone[place[0]] not in stays else []
                without = [line for line in lines if "without" in line]
                assert any(word in line for word in whole for line in without) or (
                    not whole and any(all(word in line for word in place) for line in without)
                ), place
    assert compared > 100 or paper == "greedyfed"


def _text(value: Any) -> str:
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def table(*cells: Cell, changes: tuple[str, ...] = ()) -> PaperTable:
    return PaperTable(paper="ours", name="table1", title="t", scale="paper", cells=cells, changes=changes)


def cell(group: str, row: str, rounds: int, variants: tuple[str, ...] = ("",), **train: Any) -> Cell:
    sections = {
        "data": {"source": "digits"},
        "mechanism": {"name": "fedavg"},
        "train": train,
        "run": {"rounds": rounds},
    }
    made = tuple(Variant(name, sections) for name in variants)
    return Cell(group=group, column="x", algorithm=row, variants=made, at=rounds, place=(group, "x", row))


FULL = table(
    cell("A", "one", 100, ("mu=1", "mu=2"), lr=0.1), cell("A", "two", 100), cell("B", "one", 50), cell("B", "two", 50)
)


def test_it_says_where_a_setting_differs() -> None:
    ours = table(
        cell("A", "one", 9, ("mu=1",), lr=0.2),
        cell("A", "two", 9),
        cell("B", "one", 50, momentum=0.9),
        cell("C", "two", 1),
    )
    assert changed(replace(ours, changes=("in words",)), FULL) == [
        "in words",
        "with the group C, not in the full table",
        "B: without two in x",
        "one without mu=2",
        "A, x, one, mu=1: train.lr 0.2 instead of 0.1",
        "A: run.rounds 9 instead of 100",
        "B: train.momentum 0.9 instead of 0",
    ]


def test_cells_that_are_missing_between_others_are_named_together() -> None:
    rows = ("one", "two", "three")
    full = table(*(cell(group, row, 9) for group in "ABC" for row in rows))
    ours = replace(full, cells=tuple(c for c in full.cells if c.group == "A" or c.algorithm == "one"))
    assert changed(ours, full) == ["B, C: without two; three in x"]


def test_names_that_the_file_leaves_open_or_numbers_are_told_by_what_they_become() -> None:
    def at(group: str, column: str, row: str, place: str) -> Cell:
        return replace(cell(group, row, 9), column=column, place=(place, "T={rounds}", row))

    rows = ("one", "one, two")
    full = table(*(at("A", "T=9", row, "A") for row in rows), *(at("A", "T=7", row, "A (2)") for row in rows))
    assert changed(replace(full, cells=full.cells[:2]), full) == ["without the group A (2) (T=7)"]
    assert changed(replace(full, cells=full.cells[:3]), full) == ["A (2) (T=7): without one, two"]
    assert changed(replace(full, cells=full.cells[1::2]), full) == ["without the row one"]
    of_b = cell("B", "one", 9)
    assert changed(table(of_b), replace(full, cells=(*full.cells, of_b))) == [
        "without the group A",  # all of a numbered block: its numbers say nothing
        "without the column T=9 or T=7",
        "without the row one, two",
    ]
    more = replace(full, cells=(*full.cells, at("A", "T=9", "three", "A")))
    assert changed(replace(full, cells=(full.cells[0], full.cells[2])), more) == ["without the rows one, two; three"]


def test_a_variant_of_another_name_and_a_split_that_is_fixed_are_compared() -> None:
    plain, tried = table(cell("A", "one", 9)), table(cell("A", "one", 9, ("mu=1", "mu=2"), lr=0.5))
    assert differing(tried, plain) == {"train.lr"}
    sections = {**plain.cells[0].variants[0].sections, "data": {"source": "digits", "seed": 42}}
    fixed = table(replace(plain.cells[0], variants=(Variant("", sections),)))
    assert differing(fixed, plain) == {"data.seed"}
    assert changed(fixed, plain) == ["data.seed 42 instead of none"]


def test_what_concerns_every_run_needs_no_place() -> None:
    assert changed(table(*(replace(c, at=7) for c in FULL.cells)), FULL) == [
        "A: read after round 7 instead of 100",
        "B: read after round 7 instead of 50",
    ]
    assert changed(FULL, FULL) == []


def test_a_file_with_a_split_of_its_own_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HANSE_DATA", str(tmp_path))
    labels = np.zeros(60_000, np.uint8), np.array([int(d) for d in "7210414959"] + [0] * 9_990, np.uint8)
    np.savez(tmp_path / "mnist.npz", y_train=labels[0], y_test=labels[1])
    assert split_note("mnist") == ""  # as published: sizes, and the first labels of the test set
    np.savez(tmp_path / "mnist.npz", y_train=labels[0][:-1], y_test=labels[1])
    assert "59,999 train and 10,000 test samples as in mnist.npz" in split_note("mnist")
    assert split_note("digits") == ""
    (tmp_path / "mnist.npz").write_text("no arrays")
    assert split_note("mnist") == ""
