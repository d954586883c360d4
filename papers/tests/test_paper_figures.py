"""What is drawn of a finished table: the points and axes of each kind of picture, and the numbers in its CSV."""

import csv
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_cases import cell, made_up, sections, table

from hanse.reports.chart import Chart, Curve, to_csv
from hanse_papers import figures
from hanse_papers.runner import TableOutcome, run_table
from hanse_papers.tables import Cell, Variant

Curves = Callable[[float, int], Mapping[str, list[float]]]


def of(lr: float, samples: int = 100) -> Variant:
    """The runs that a learning rate tells apart."""
    given = sections()
    return Variant(
        "", {**given, "train": {"lr": lr}, "data": {**given["data"], "partition": {"samples_per_client": samples}}}
    )


def outcome(folder: Path, spec: Mapping[str, Any], curves: Curves, *cells: Cell, **more: Any) -> TableOutcome:
    """Two seeds of a table whose curves follow from the learning rate and the seed."""

    def work(job: Any, step: Any) -> dict[str, Any]:
        lr, seed = job.sections["train"]["lr"], job.sections["run"]["seed"]
        found = made_up(job, step)
        known = curves(lr, seed)
        clients = {"clients": known["clients"]} if "clients" in known else {}
        return found | {"curves": {k: v for k, v in known.items() if k != "clients"}} | clients

    return run_table(table(*cells, figures=(spec,), **more), seeds=2, workers=1, folder=folder, work=work)


def lines(chart: Chart) -> dict[str, Curve]:
    return {line.name: line for line in chart.marks.lines}


def test_curves_have_the_printed_number_at_its_round(tmp_path: Path) -> None:
    def curves(lr: float, seed: int) -> dict[str, list[float]]:
        return {"test/accuracy": [lr, lr + 0.1, lr + 0.2 + 0.1 * seed]}

    cells = cell("a", of(0.1), published=44.0), cell("b", of(0.2))
    [chart] = figures.charts(outcome(tmp_path, {"kind": "curves"}, curves, *cells), "table1-smoke")
    drawn = lines(chart)
    assert (chart.key, chart.x, chart.y) == ("table1-smoke", "rounds played", "test accuracy %")
    assert drawn["a"].x.tolist() == [1, 2, 3]
    assert drawn["a"].y == pytest.approx([10, 20, 35])
    assert drawn["a"].high == pytest.approx([10, 20, 35 + 50**0.5])
    assert (drawn["a, printed"].x.tolist(), drawn["a, printed"].y.tolist()) == ([3], [44])
    assert drawn["a, printed"].hollow
    assert set(drawn) == {"a", "b", "a, printed"}
    assert chart.marks.hollow == "hollow: the paper's"
    assert list(csv.DictReader(io.StringIO(to_csv(chart))))[2] == {
        "series": "a",
        "rounds played": "3",
        "test accuracy %": "35",
        "low": "27.92893219",
        "high": "42.07106781",
    }


def test_a_cdf_is_of_the_clients_where_they_are_kept(tmp_path: Path) -> None:
    def kept(lr: float, seed: int) -> dict[str, Any]:
        each = {str(c): lr + 0.1 * c for c in (2, 0, 1)}
        return {"test/q10": [0, 0, 0.2], "test/q90": [0, 0, 0.6 + 0.2 * seed], "clients": each if lr == 0.1 else {}}

    cells = [
        cell(name, of(lr), column=f"q{q}", metric=f"test/q{q}")
        for name, lr in (("a", 0.1), ("b", 0.2))
        for q in (10, 90)
    ]
    mean = cell("a", of(0.1), column="mean", metric="test/q90", published=33.0)
    [chart] = figures.charts(outcome(tmp_path, {"kind": "cdf", "each": "clients"}, kept, *cells, mean), "f")
    drawn = lines(chart)
    assert drawn["a"].x == pytest.approx([10, 20, 30])
    assert drawn["a"].y == pytest.approx([0, 0.5, 1])
    assert (drawn["a, printed mean"].x.tolist(), drawn["a, printed mean"].y.tolist()) == ([33], [0])
    assert (chart.x, chart.y) == ("test accuracy %", "share of clients")
    assert set(drawn) == {"a", "a, printed mean"}  # of the other no client is kept


def test_bars_have_the_papers_beside_ours(tmp_path: Path) -> None:
    def two(lr: float, seed: int) -> dict[str, list[float]]:
        return {"test/accuracy": [0, 0, lr + 0.1 * seed], "utility/mean": [0, 0, 10 * lr - seed]}

    cells = [cell("a", of(0.5), column="accuracy", published=60.0), cell("b", of(0.1), column="accuracy")]
    other = cell("a", of(0.5), column="utility", metric="utility/mean")
    done = outcome(tmp_path, {"kind": "bars", "columns": ["accuracy"]}, two, *cells, other)
    [chart] = figures.charts(done, "f")
    ours, theirs = chart.marks.series
    assert (chart.marks.labels, ours.name, theirs.name) == (("a", "b"), "accuracy", "accuracy, the paper's")
    assert ours.values == pytest.approx([55, 15])
    assert ours.errors == pytest.approx([50**0.5, 50**0.5])
    assert (theirs.values[0], np.isnan(theirs.values[1])) == (60, True)
