"""What a table changes against its recipe: the list against the configurations that it is about."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rotation import rotating

from hanse.base.toml import flat
from hanse.data.sources import split_note
from hanse.federation.policy import build_profiles
from hanse.runs.config import Experiment
from hanse_papers.catalogue import PAPERS, find_table
from hanse_papers.changes import changed
from hanse_papers.tables import RECIPES, SCALES, Cell, PaperTable, Variant

UNSAID = ("engine.", "data.seed", "run.seed", "data.path", "data.download")


def settings(variant: Variant) -> dict[str, Any]:
    experiment = Experiment(**variant.sections)
    build_profiles(experiment.clients.profiles, experiment.data.clients, seed=0)  # raises what would end the run
    found = dict(flat(experiment.sections()))
    return {name: value for name, value in found.items() if not name.startswith(UNSAID)}


@pytest.mark.parametrize("case", rotating(list(product(RECIPES, sorted(PAPERS))), 4, pytest.mark.slow))
def test_every_setting_that_differs_is_named_with_both_values(case: tuple[str, str]) -> None:
    (recipe, paper), compared = case, 0
    for name in PAPERS[paper].tables:
        full = find_table(paper, name, "paper", recipe)
        theirs = {(*c.place, v.name): settings(v) for c in full.cells for v in c.variants}
        for scale in SCALES:
            table = find_table(paper, name, scale, recipe)
            lines = changed(table, full)
            said = "; ".join(lines)
            for cell in table.cells:
                for variant in cell.variants:
                    if (old := theirs.get((*cell.place, variant.name))) is None:
                        assert any(word in said for word in (*cell.place, variant.name) if word)
                        continue
                    ours = settings(variant)
                    for key in ours.keys() | old.keys():
                        if ours.get(key) != old.get(key):
                            compared += 1
                            new, was = (_text(v.get(key)) for v in (ours, old))
                            assert f"{key} {new} instead of {was}" in said
            here = {(*c.place, v.name) for c in table.cells for v in c.variants}
            assert theirs.keys() <= here or f"{len(theirs.keys() & here)} of {len(theirs)} cells and variants" in lines
            for axis in range(4):
                gone = {place[axis] for place in theirs} - {place[axis] for place in here} - {""}
                without = "; ".join(line for line in lines if line.startswith("without"))
                assert all(name in without for name in gone)
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


def test_it_says_in_how_many_runs_a_setting_differs() -> None:
    ours = table(
        cell("A", "one", 9, ("mu=1",), lr=0.2),
        cell("A", "two", 9),
        cell("B", "one", 50, momentum=0.9),
        cell("C", "two", 1),
    )
    assert changed(replace(ours, changes=("in words",)), FULL) == [
        "in words",
        "with the group C",
        "without the variant mu=2",
        "3 of 5 cells and variants",
        "train.lr 0.2 instead of 0.1 (1 of 3 runs)",
        "run.rounds 9 instead of 100 (2 of 3 runs)",
        "train.momentum 0.9 instead of 0 (1 of 3 runs)",
    ]


def test_what_concerns_every_run_needs_no_count() -> None:
    full = table(cell("A", "one", 9), cell("A", "two", 9))
    assert changed(table(*(replace(c, at=7) for c in full.cells)), full) == ["read after round 7 instead of 9"]
    assert changed(FULL, FULL) == []
    plain = full.cells[0]
    sections = {**plain.variants[0].sections, "data": {"source": "digits", "seed": 42}}
    fixed = table(replace(plain, variants=(Variant("", sections),)))
    assert changed(fixed, table(plain)) == ["data.seed 42 instead of none"]


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
