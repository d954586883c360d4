"""The pages of results: what is kept of a table without running it, verdicts with their numbers, an index of all."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hanse.base.errors import UserError
from hanse.lab.job import Job
from hanse.lab.papers.catalogue import PAPERS, find_table
from hanse.lab.papers.compare import rows, seed_values
from hanse.lab.papers.runner import expand, kept_outcome
from hanse.lab.player import Store

ROWS = {"10 iterations": (0.70, 0.72, 0.77), "50 iterations": (0.61, 0.60, 0.68)}
VERDICT = """
[[verdicts]]
table = "table9"
claim = "more iterations are better"
scale = "small"
verdict = "{verdict}"
because = "Ten are ahead."
pairs = [["10 iterations", "{other}"]]
columns = ["accuracy %"]
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A folder with two rows of iPFL's Table 9 at scale small, three seeds each, and a third row with one."""
    table = find_table("ipfl", "table9", "small")
    store = Store(tmp_path / "ipfl" / "jobs")
    _, readings = expand(table, 3, checked=False)
    for reading in readings:
        values = ROWS.get(reading.cell.algorithm, (0.5,) if reading.cell.algorithm == "100 iterations" else ())
        if reading.seed < len(values):
            store.write(reading.job, finished(reading.job, values[reading.seed], reading.cell.at))
    (tmp_path / "data.json").write_text(json.dumps({"cifar10": "half of it", "fashion_mnist": ""}))
    return tmp_path


def finished(job: Job, accuracy: float, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {"key": job.key, "label": job.label, "given": job.sections, "status": "done"}
    curves = {"client/test_accuracy": [accuracy], "utility/mean": [20.0]}
    costs = {"seconds": 36.0, "ms_per_round": 3600.0, "cpu_seconds": 36.0}
    return found | {"experiment": job.experiment.sections(), "tested": [rounds], "curves": curves} | costs


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
    assert seed_values(found, ten) == pytest.approx({0: 70, 1: 72, 2: 77})


def test_seeds_beyond_the_tables_own_are_found(results: Path) -> None:
    table = find_table("ipfl", "table9", "small")
    [*_, last] = expand(table, 5, checked=False)[0]
    Store(results / "ipfl" / "jobs").write(last, finished(last, 0.5, 10))
    assert kept_outcome(table, results / "ipfl").seeds == 5
    assert kept_outcome(table, results / "ipfl", 2).seeds == 2


def test_a_verdict_stands_beside_its_paired_interval(pages: ModuleType, ipfl_only: None, results: Path) -> None:
    text = VERDICT.format(verdict="not confirmed", other="50 iterations")
    (results / "ipfl" / "verdicts.toml").write_text(text)
    page = made(pages, results)["ipfl.md"].text
    d = 100 * (np.array(ROWS["10 iterations"]) - np.array(ROWS["50 iterations"]))
    low, high = stats.ttest_1samp(d, 0.0).confidence_interval(0.95)
    said = f"| {d.mean():+.2f} [{low:+.2f}, {high:+.2f}], 3 seeds |"
    assert f"| CIFAR-10 Cluster, accuracy %: 10 iterations - 50 iterations {said}" in page
    assert "more iterations are better. **Not confirmed**. Ten are ahead." in page
    assert "cifar10: half of it" in page  # what the data were when the pages were written


def test_a_verdict_against_the_printed_number_and_one_between_columns(
    pages: ModuleType, ipfl_only: None, results: Path
) -> None:
    with pages.data_as_kept(results, update=False):
        [kept] = pages.kept_tables("ipfl", "table9", results)
        entry = {"pairs": [["10 iterations", "printed"]], "columns": ["accuracy %"]}
        [(what, said)] = pages.differences(entry, kept)
        printed = np.array([70.0, 72.0, 77.0]) - 60.434
        low, high = stats.ttest_1samp(printed, 0.0).confidence_interval(0.95)
        assert what == "CIFAR-10 Cluster, accuracy %: 10 iterations - printed"
        assert str(said) == f"{printed.mean():+.2f} [{low:+.2f}, {high:+.2f}], 3 seeds"
        between = {"between": "columns", "pairs": [["accuracy %", "utility"]], "rows": ["100 iterations"]}
        [(what, said)] = pages.differences(between, kept)
        assert what == "CIFAR-10 Cluster, 100 iterations: accuracy % - utility"
        assert str(said) == "+48.00, 1 seed: no interval"


def test_a_verdict_confirmed_is_held_against_its_intervals(pages: ModuleType, ipfl_only: None, results: Path) -> None:
    path = results / "ipfl" / "verdicts.toml"
    confirmed = VERDICT.format(verdict="confirmed", other="50 iterations")  # ten are ahead in every seed
    path.write_text(confirmed)
    with pytest.raises(UserError, match="'confirmed' needs expects; allowed: above, below"):
        made(pages, results)
    path.write_text(confirmed + 'expects = "below"\n')
    with pytest.raises(UserError, match="'confirmed' with expects = 'below', against CIFAR-10 Cluster"):
        made(pages, results)
    path.write_text(confirmed + 'expects = "above"\n')
    assert "**Confirmed**" in made(pages, results)["ipfl.md"].text
    path.write_text(VERDICT.format(verdict="confirmed", other="100 iterations") + 'expects = "above"\n')
    with pytest.raises(UserError, match="1 seed: no interval"):  # one seed confirms nothing
        made(pages, results)


def test_a_verdict_without_numbers_and_one_of_unknown_words_are_refused(
    pages: ModuleType, ipfl_only: None, results: Path
) -> None:
    path = results / "ipfl" / "verdicts.toml"
    path.write_text(VERDICT.format(verdict="confirmed", other="800 iterations"))
    with pytest.raises(UserError, match="the verdict 'confirmed' has no pair with finished runs"):
        made(pages, results)
    path.write_text(VERDICT.format(verdict="not run", other="800 iterations"))
    assert "**Not decided**" in made(pages, results)["ipfl.md"].text
    path.write_text(VERDICT.format(verdict="confirmd", other="50 iterations") + 'tabel = "table9"\n')
    with pytest.raises(UserError, match="did you mean 'confirmed'") as wrong:
        made(pages, results)
    assert "tabel" in str(wrong.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('verdict = "{verdict}"', ""), "entry 1: 'verdict' is missing"),
        (("10 iterations", "10 iteratoins"), "10 iteratoins: there is none of its rows called so; did you mean"),
        (("accuracy %", "acuracy %"), "acuracy %: there is none of its columns called so; did you mean"),
        (('[["10 iterations", "{other}"]]', '["10 iterations"]'), r"pairs: must be a list of \[A, B\]"),
    ],
)
def test_a_verdict_that_compares_nothing_is_refused(
    pages: ModuleType, ipfl_only: None, results: Path, change: tuple[str, str], said: str
) -> None:
    text = VERDICT.replace(*change).format(verdict="confirmed", other="50 iterations")
    (results / "ipfl" / "verdicts.toml").write_text(text)
    with pytest.raises(UserError, match=said):
        made(pages, results)


def test_results_that_no_table_reads_are_named_and_a_table_with_runs_is_not_called_not_run(
    pages: ModuleType, ipfl_only: None, results: Path
) -> None:
    jobs = results / "ipfl" / "jobs"
    (jobs / "00.json").write_text('{"label": "an old one, seed 3", "status": "failed", "error": "ValueError: x"}')
    (jobs / "01.json").write_text("{")
    (results / "ipfl" / "verdicts.toml").write_text(VERDICT.format(verdict="not run", other="50 iterations"))
    found = made(pages, results)
    assert "- 00: an old one, seed 3: failed, ValueError: x\n- 01: cannot be read\n" in found["ipfl.md"].text
    assert "**Not decided**" in found["ipfl.md"].text
    assert ": **not decided** |" in found["index.md"].text
    assert "(reckoned from a round's cost in 7 runs by recipe paper)" in found["ipfl.md"].text


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
        (json.dumps(whole | {"rows": [lines[0] | {"mean": 9.0}]}), "9 is kept, and 0.5 is computed now"),
    ]
    for text, said in wrong:
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            pages._computed(table, tmp_path)


def test_the_index_has_a_line_for_every_table_and_says_why_it_was_not_run(
    pages: ModuleType, ipfl_only: None, results: Path
) -> None:
    found = made(pages, results)
    lines = {line.split(" | ")[0].strip("| "): line for line in found["index.md"].text.splitlines() if "| `" in line}
    assert set(lines) == set(PAPERS["ipfl"].tables)
    command = "`hanse reproduce ipfl table9 --scale small`"
    assert lines["table9"] == f"| table9 | paper, small (7 of 18 runs) | 1 to 3 of 3 | none yet | {command} |"
    assert "| data not here (mixed_finance, finance_code) |" in lines["table1"]
    assert "| not run, more than " in lines["table4"]  # at the cost a round of smaller runs
    table = found["ipfl.md"].text
    assert "| 10 iterations | 73.00 ± 3.61 / 60.43 |" in table
    assert "without the rows 200 iterations, 400 iterations, 800 iterations" in table
    assert "- figure2 (recipe paper and authors): not run" in table


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
    (folder / "figures" / "old.png").write_bytes(b"")
    (folder / "index.md").write_text("changed by hand")
    assert pages.stale(found, folder) == ["index.md", "old.png"]
    pages.write(found, folder)
    assert not (folder / "figures" / "old.png").exists()


def test_the_pages_are_what_the_kept_results_give_and_none_is_missing(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HANSE_DATA", raising=False)  # the same on a machine without data
    with pages.data_as_kept(pages.RESULTS, update=False) as data:
        found = pages.pages(pages.RESULTS, data)
    assert pages.stale(found, pages.PAGES) == []
    index = next(page.text for page in found if page.name == "index.md").splitlines()
    tables = [line.split(" | ")[0].strip("| ") for line in index if "| `" in line]
    assert tables == [name for paper in PAPERS.values() for name in paper.tables]
