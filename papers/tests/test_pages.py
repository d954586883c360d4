"""The pages of results: what is kept of a table without running it, a claim's word and numbers, an index of all."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hanse.base.errors import UserError
from hanse.lab.job import Job
from hanse.lab.kept import KeptFile
from hanse_papers.catalogue import PAPERS, find_table
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


@pytest.fixture
def ipfl_only(pages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAPERS", {"ipfl": PAPERS["ipfl"]})


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


def test_a_computed_table_is_read_from_its_own_file_alone(pages: ModuleType, tmp_path: Path) -> None:
    table = find_table("gtflat", "example1", "paper")
    lines = [{"setting": c.setting, "algorithm": c.algorithm, "mean": c.computed} for c in table.cells]
    whole = {"paper": "gtflat", "table": "example1", "recipe": "paper", "scale": "paper", "rows": lines}
    path = tmp_path / "example1-paper.json"
    path.write_text(json.dumps(whole))
    assert len(pages._computed(table, tmp_path).table.cells) == len(table.cells)
    wrong = [
        ("{", "cannot be read"),
        (json.dumps(whole | {"scale": "smoke"}), "is not example1 by this recipe at this scale"),
        (json.dumps(whole | {"rows": [lines[0] | {"mean": 9.0}, *lines[1:]]}), "9 is kept, and 0.5 is computed now"),
        (json.dumps(whole | {"rows": lines[:3]}), "has not each cell of example1 once"),
        (json.dumps(whole | {"rows": lines * 2}), "has not each cell of example1 once"),
    ]
    for text, said in wrong:
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            pages._computed(table, tmp_path)


def test_pages_that_are_not_what_the_results_give_are_found(
    pages: ModuleType, ipfl_only: None, results: Path, tmp_path: Path
) -> None:
    with pages.data_as_kept(results, update=False) as data:
        found = pages.pages(results, data)
    folder = tmp_path / "docs"
    assert set(pages.stale(found, folder)) == {"index.md", "ipfl.md"}
    pages.write(found, folder)
    assert pages.stale(found, folder) == []
    (folder / "figures").mkdir(exist_ok=True)
    (folder / "figures" / "old.svg").write_bytes(b"")
    (folder / "index.md").write_text("changed by hand")
    assert pages.stale(found, folder) == ["index.md", "old.svg"]
    pages.write(found, folder)
    assert not (folder / "figures" / "old.svg").exists()


@pytest.mark.slow
def test_the_pages_are_what_the_kept_results_give(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HANSE_DATA", raising=False)  # the same on a machine without data
    monkeypatch.chdir(tmp_path)  # and wherever it is called from
    with pages.data_as_kept(pages.RESULTS, update=False) as data:
        found = pages.pages(pages.RESULTS, data)
    assert pages.stale(found, pages.PAGES) == []
