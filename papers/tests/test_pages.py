"""The pages of results: what is kept of a table without running it, a claim's word and numbers, an index of all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hanse.lab.job import Job
from hanse.lab.kept import KeptFile
from hanse_papers.catalogue import find_table
from hanse_papers.compare import rows
from hanse_papers.runner import expand, kept_outcome

ROWS = {"10 iterations": (0.70, 0.72, 0.77), "50 iterations": (0.61, 0.60, 0.68)}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with two rows of iPFL's Table 9 at scale small, three seeds each, and a third row with one."""
    table = find_table("ipfl", "table9", "small")
    runs: dict[str, tuple[Job, dict[str, Any]]] = {}  # columns that read the same run share it
    _, readings = expand(table, 3, checked=False)
    for reading in readings:
        values = ROWS.get(reading.cell.algorithm, (0.5,) if reading.cell.algorithm == "100 iterations" else ())
        if reading.seed < len(values):
            result = finished(reading.job, values[reading.seed], reading.cell.at)
            runs[reading.job.key] = reading.job, result
    for run in runs.values():
        KeptFile(tmp_path / "ipfl").write(*run)
    (tmp_path / "data.json").write_text(json.dumps({"cifar10": "half of it", "fashion_mnist": ""}))
    return tmp_path


def finished(job: Job, accuracy: float, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {"key": job.key, "label": job.label, "given": job.sections, "status": "done"}
    every = job.experiment.eval.every
    tested = [number for number in range(1, rounds + 1) if number % every == 0 or number == rounds]
    curves = {"client/test_accuracy": [accuracy] * len(tested), "utility/mean": [20.0] * len(tested)}
    costs = {"seconds": 36.0, "ms_per_round": 3600.0, "cpu_seconds": 36.0}
    return found | {"experiment": job.experiment.sections(), "tested": tested, "curves": curves} | costs


def test_a_table_is_read_from_what_is_kept_and_nothing_is_run(results: Path) -> None:
    found = kept_outcome(find_table("ipfl", "table9", "small"), results / "ipfl")
    assert (found.played, found.seeds, len(found.results)) == (0, 3, 7)
    by_name = {(r.cell.algorithm, r.cell.column): r for r in rows(found)}
    ten = by_name["10 iterations", "accuracy %"]
    assert (ten.best.mean, ten.best.n) == (pytest.approx(73.0), 3)
    assert by_name["100 iterations", "accuracy %"].best.n == 1
    assert by_name["200 iterations", "accuracy %"].best.mean is None


def test_seeds_beyond_the_tables_own_are_found(results: Path) -> None:
    table = find_table("ipfl", "table9", "small")
    [*_, last] = expand(table, 5, checked=False)[0]
    KeptFile(results / "ipfl").write(last, finished(last, 0.5, 10))
    assert kept_outcome(table, results / "ipfl").seeds == 5
    assert kept_outcome(table, results / "ipfl", 2).seeds == 2
