"""The pages of results: what is kept of a table without running it, a claim's word and numbers, an index of all."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hanse.base.errors import UserError
from hanse.lab.job import Job
from hanse.lab.kept import KeptFile
from hanse.lab.statistics import Effect, Judged
from hanse_papers.catalogue import PAPERS, find_table
from hanse_papers.claims.claim import load_claims
from hanse_papers.claims.judge import Verdict
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


def made(pages: ModuleType, results: Path) -> dict[str, Any]:
    with pages.data_as_kept(results, update=False) as data:
        return {page.name: page for page in pages.pages(results, data)}


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


@pytest.mark.parametrize("text", ["{", "[1]", '{"mnist": 5}'])
def test_a_damaged_list_of_the_data_is_one_line(pages: ModuleType, results: Path, text: str) -> None:
    (results / "data.json").write_text(text)
    with pytest.raises(UserError, match=r"data\.json: "):
        made(pages, results)


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


def verdict(name: str, word: Any, mean: float | None = None, half: float = 0.5, seeds: int = 5, **more: Any) -> Verdict:
    """Return one of GreedyFed's claims with a word of ours."""
    claim = next(c for c in load_claims("greedyfed") if c.name == name)
    effect = None if mean is None else Effect(mean, half / 2, 4, 0, up=0.01, down=0.99, small=0.5)
    low, high = (0.0, 0.0) if mean is None else (mean - half, mean + half)
    needed = 20 if word == "open" else None
    return Verdict(replace(claim, **more), Judged(word, effect, low, high, needed=needed), seeds, None)


def test_an_answer_counts_words_and_says_what_the_twin_and_the_claims_show(pages: ModuleType) -> None:
    given = [
        verdict("round-robin", "confirmed", 5.5),
        verdict("whose value, baseline", "open", 12.5, 13.0, seeds=10),
        verdict("whose value, twin", "no such effect", 0.25),
        verdict("noise: UCB", "not run", seeds=0),
    ]
    assert pages.answer(given) == [
        "Of 3 claims: 1 confirmed (round-robin), 1 open, 1 not run.",
        "Does the game itself help? **no such effect**: 5 seeds beside "
        "'GreedyFed, shuffled values', +0.25 [-0.25, +0.75] points.",
        "Nearest to a decision: whose value, baseline (+12.5 [-0.50, +25.5], 10 of 20 seeds).",
    ]
    assert pages.answer(given, named=False)[0] == "Of 3 claims: 1 confirmed, 1 open, 1 not run."
    own = [*given, verdict("stragglers: UCB", "contradicted", -3.0, where="ours")]
    assert pages.answer(own, named=False)[0].endswith("1 not run. Of 1 of ours: 1 contradicted.")
    assert pages.name_of(own[-1]) == "stragglers: UCB†"
    assert pages.name_of(given[2]) == "whose value, against GreedyFed, shuffled values"
    assert pages.answer([verdict("round-robin", "confirmed", 5.5, why="It stays with the first.")])[-1] == (
        "It stays with the first. (round-robin)"
    )


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
