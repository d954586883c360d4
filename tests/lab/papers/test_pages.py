"""The pages of results: what is kept of a table without running it, verdicts with their numbers, an index of all."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hanse.base.errors import UserError
from hanse.lab.job import Job, key_of
from hanse.lab.kept import KeptFile
from hanse.lab.papers.catalogue import PAPERS, find_table
from hanse.lab.papers.compare import rows, seed_values
from hanse.lab.papers.runner import expand, kept_outcome

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
    assert seed_values(found, ten) == pytest.approx({0: 70, 1: 72, 2: 77})


def test_seeds_beyond_the_tables_own_are_found(results: Path) -> None:
    table = find_table("ipfl", "table9", "small")
    [*_, last] = expand(table, 5, checked=False)[0]
    KeptFile(results / "ipfl").write(last, finished(last, 0.5, 10))
    assert kept_outcome(table, results / "ipfl").seeds == 5
    assert kept_outcome(table, results / "ipfl", 2).seeds == 2


def test_a_verdict_stands_beside_its_paired_interval(pages: ModuleType, ipfl_only: None, results: Path) -> None:
    text = VERDICT.format(verdict="not confirmed", other="50 iterations") + 'expects = "below"\n'
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
    path.write_text(confirmed + 'expects = "none"\n')
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
    path.write_text(VERDICT.format(verdict="not decided", other="800 iterations"))
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[verdicts", "cannot be read: "),
        ("verdicts = 5", r"verdicts: must be written as \[\[verdicts\]\]"),
        ("verdicts = [5]", r"verdicts: must be written as \[\[verdicts\]\]"),
        ("[[verdict]]", "verdict: there is no such key; allowed: verdicts"),
        ("{whole}because = 5", "entry 1: because is 5; must be a text"),
        ("{whole}runs = '7'", "entry 1: runs is '7'; must be a whole number"),
        ("{whole}hours = -1", "entry 1: hours is -1; must be a number above 0"),
        ("{whole}groups = 'CIFAR-10 Cluster'", "groups is 'CIFAR-10 Cluster'; must be a list of names"),
        ("{whole}{whole}", "'more iterations are better' is judged 2 times"),
        ('{whole}pairs = [["10 iterations", "10 iterations"]]', "10 iterations is compared with itself"),
        ('{whole}pairs = [["printed", "10 iterations"]]', "'printed' must be the second of two"),
    ],
)
def test_verdicts_that_mean_nothing_are_one_line_and_none_is_left_out(
    pages: ModuleType, ipfl_only: None, results: Path, text: str, said: str
) -> None:
    entry = VERDICT.format(verdict="not decided", other="50 iterations")
    whole = "\n".join(line for line in entry.splitlines() if not line.startswith(("because", "pairs"))) + "\n"
    (results / "ipfl" / "verdicts.toml").write_text(text.replace("{whole}", whole))
    with pytest.raises(UserError, match=f"ipfl/verdicts.toml: .*{said}"):
        made(pages, results)


@pytest.mark.parametrize(("verdict", "expects"), [("not confirmed", "above"), ("partly", "below")])
def test_a_verdict_that_all_its_intervals_contradict_is_refused(
    pages: ModuleType, ipfl_only: None, results: Path, verdict: str, expects: str
) -> None:
    path = results / "ipfl" / "verdicts.toml"
    text = VERDICT.format(verdict=verdict, other="50 iterations")
    path.write_text(text)
    with pytest.raises(UserError, match=f"'{verdict}' with pairs needs expects; allowed: above, below, none"):
        made(pages, results)
    path.write_text(text + f'expects = "{expects}"\n')
    with pytest.raises(UserError, match=f"'{verdict}' with expects = '{expects}', against CIFAR-10 Cluster"):
        made(pages, results)
    path.write_text(text + f'expects = "{"below" if expects == "above" else "above"}"\n')
    assert f"**{verdict.capitalize()}**" in made(pages, results)["ipfl.md"].text


def test_a_claim_is_not_confirmed_by_a_part_of_its_differences(
    pages: ModuleType, ipfl_only: None, results: Path
) -> None:
    text = VERDICT.format(verdict="confirmed", other="50 iterations") + 'expects = "above"\n'
    text = text.replace("pairs = [", 'pairs = [["10 iterations", "800 iterations"], ')
    (results / "ipfl" / "verdicts.toml").write_text(text)
    with pytest.raises(UserError, match="'confirmed', and only 1 of the 2 differences that it names have numbers"):
        made(pages, results)


@pytest.mark.parametrize("text", ["{", "[1]", '{"mnist": 5}'])
def test_a_damaged_list_of_the_data_is_one_line(pages: ModuleType, results: Path, text: str) -> None:
    (results / "data.json").write_text(text)
    with pytest.raises(UserError, match=r"data\.json: "):
        made(pages, results)


def test_a_verdict_that_is_not_as_what_is_kept_is_refused(pages: ModuleType, ipfl_only: None, results: Path) -> None:
    path = results / "ipfl" / "verdicts.toml"
    open_ones = VERDICT.format(verdict="not run", other="50 iterations")
    path.write_text(open_ones + '[[verdicts]]\ntable = "table4"\nclaim = "x"\nverdict = "not decided"\n')
    with pytest.raises(UserError) as wrong:
        made(pages, results)
    assert wrong.value.lines == (
        "ipfl/verdicts.toml: table9: 'not run', and runs of it are finished: say 'not decided', or decide",
        "ipfl/verdicts.toml: table4: 'not decided', and no run of it is finished: say 'not run'",
    )


def test_a_verdict_that_is_older_than_its_runs_says_so(pages: ModuleType, ipfl_only: None, results: Path) -> None:
    path = results / "ipfl" / "verdicts.toml"
    text = VERDICT.format(verdict="partly", other="50 iterations") + 'expects = "above"\n'
    path.write_text(text + "runs = 7\n")
    assert "Ten are ahead..\n" in made(pages, results)["ipfl.md"].text
    path.write_text(text + "runs = 1\n")
    assert "Ten are ahead.. (Written when 1 run was finished; 7 are now.)\n" in made(pages, results)["ipfl.md"].text
    path.write_text(text + "runs = 8\n")  # the eighth run would come, and nothing would say that the verdict is older
    with pytest.raises(UserError, match="runs is 8, and 7 runs were finished: say how many the verdict knows"):
        made(pages, results)


def test_results_that_no_table_reads_are_named(pages: ModuleType, ipfl_only: None, results: Path) -> None:
    old = {"label": "an old one, seed 3", "given": {}, "status": "failed", "error": "ValueError: x"}
    job = Job(key_of({}), "", {})
    KeptFile(results / "ipfl").write(job, {"key": job.key, **old})
    (results / "ipfl" / "verdicts.toml").write_text(VERDICT.format(verdict="not decided", other="50 iterations"))
    found = made(pages, results)
    assert f"- {job.key}: an old one, seed 3: failed, ValueError: x\n" in found["ipfl.md"].text
    assert "**Not decided**" in found["ipfl.md"].text
    assert ": **not decided** |" in found["index.md"].text
    assert "(from a round's cost in 7 runs by recipe paper)" in found["ipfl.md"].text


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


def test_a_verdict_on_a_computed_table_is_held_against_what_is_printed(pages: ModuleType) -> None:
    table = find_table("gtflat", "example1", "paper")
    kept = pages.Kept(pages.TableOutcome(table, 1, (), (), results={}, failures={}, played=0), table)
    ours = {"groups": ["omega, the weights"], "rows": ["integers"]}
    pages._hold_computed("here", ours | {"verdict": "confirmed"}, kept)
    with pytest.raises(UserError, match=r"here: 'confirmed', and .*u\[2\], s=\(1, 0, 1\): -0.43 against the printed"):
        pages._hold_computed("here", {"verdict": "confirmed"}, kept)
    pages._hold_computed("here", {"verdict": "partly"}, kept)
    with pytest.raises(UserError, match="none of its numbers is printed"):
        pages._hold_computed("here", {"verdict": "confirmed", "rows": []}, kept)
    pages._hold_computed("here", {"verdict": "not confirmed"}, kept)
    with pytest.raises(UserError, match="'not confirmed', and every number is the printed one"):
        pages._hold_computed("here", ours | {"verdict": "not confirmed"}, kept)
    with pytest.raises(UserError, match="pairs are compared over seeds, and this table is computed"):
        pages._hold_computed("here", ours | {"verdict": "confirmed", "pairs": [["integers", "closed form"]]}, kept)
    first = pages.Kept(pages.replace(kept.outcome, table=pages.replace(table, cells=table.cells[:1])), table)
    with pytest.raises(UserError, match=r"omega\[0\], integers: no number against the printed 0.08"):
        pages._hold_computed("here", ours | {"verdict": "confirmed"}, first)


def test_a_printed_zero_at_the_end_is_a_digit(pages: ModuleType) -> None:
    table = find_table("gtflat", "example1", "paper")
    first = pages.replace(table.cells[0], computed=0.54)
    assert (first.setting, first.published.mean, first.published.decimals) == ("X, the final state, X[0,1]", 0.5, 2)
    outcome = pages.TableOutcome(pages.replace(table, cells=(first,)), 1, (), (), {}, {}, 0)
    entry = {"verdict": "confirmed", "columns": ["X[0,1]"], "rows": ["integers"]}
    with pytest.raises(UserError, match=r"0.54 against the printed 0.50"):
        pages._hold_computed("here", entry, pages.Kept(outcome, table))


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
    assert "- figure2 (recipe paper): not run, more than " in table
    unknown = "hours not known: no run of lenet on cifar10 or lenet on fashion_mnist is kept"  # that recipe's model
    assert f"(recipe authors): not run, {unknown}" in table
    assert lines["figure8"].endswith("| `hanse reproduce ipfl figure8 --scale paper` |")


def test_what_was_not_run_goes_on_by_the_recipe_of_the_runs_that_are_kept(
    pages: ModuleType, ipfl_only: None, results: Path
) -> None:
    jobs, _ = expand(find_table("ipfl", "table9", "small", "authors"), 2, checked=False)
    for job in jobs:
        KeptFile(results / "ipfl").write(job, finished(job, 0.5, 10))
    index = made(pages, results)["index.md"].text.splitlines()
    [line] = [line for line in index if line.startswith("| figure8 ")]
    assert "(from a round's cost in 12 runs by recipe authors)" in line
    assert "`hanse reproduce ipfl figure8 --recipe authors --scale paper`" in line


def test_a_share_of_seeds_is_counted_and_has_no_interval_of_a_normal_variable(pages: ModuleType) -> None:
    shares = [(b, c, pages.Shares(3 + b, 3 + c, b, 9)) for b in range(4) for c in range(4)]
    for b, c, found in shares:
        wanted = 1.0 if b + c == 0 else stats.binomtest(b, b + c, 0.5).pvalue
        assert found.p == pytest.approx(wanted)
    assert str(pages.Shares(4, 1, 3, 5)) == "4 of 5 seeds against 1 of 5, sign test p = 0.25"
    assert not pages.Shares(5, 0, 5, 5).is_on("above")  # p = 0.0625: five seeds are too few
    assert pages.Shares(6, 0, 6, 6).is_on("above")
    assert not pages.Shares(6, 0, 6, 6).is_on("below")
    assert pages.Shares(0, 6, 0, 6).is_on("below")


def test_pages_tell_a_share_of_seeds_by_its_counts(
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(pages, "PAPERS", {"pifl": PAPERS["pifl"]})
    (tmp_path / "data.json").write_text(json.dumps({"fashion_mnist": ""}))
    held = {"PI-FL (I)": (1, 1, 0), "PI-FL (NI)": (0, 1, 0)}
    with pages.data_as_kept(tmp_path, update=False) as data:
        _, readings = expand(pages.find_table("pifl", "table4-fmnist", "small", "paper"), 3, checked=False)
        for reading in (r for r in readings if r.cell.algorithm in held and r.cell.group == "Fashion-MNIST 10:90"):
            result = finished(reading.job, 0.5, reading.cell.at)
            separated = {"test/separated": [float(held[reading.cell.algorithm][reading.seed])]}
            if KeptFile(tmp_path / "pifl").read(reading.job) is None:
                KeptFile(tmp_path / "pifl").write(reading.job, result | {"curves": separated})
        text = {page.name: page for page in pages.pages(tmp_path, data)}["pifl.md"].text
    assert "| PI-FL (I) | 67 (2 of 3) (3 of 5) |" in text
    said = "separated, % of seeds: PI-FL (I) − PI-FL (NI): 2 of 3 seeds against 1 of 3, sign test p = 1\n"
    assert f"- Fashion-MNIST 10:90, {said}" in text


def test_an_end_of_an_interval_has_as_many_digits_as_its_sign_needs(pages: ModuleType) -> None:
    assert str(pages.Difference(-0.37, (-0.742, -0.0031), 5)) == "-0.37 [-0.74, -0.003], 5 seeds"
    assert str(pages.Difference(0.0, (0.0, 0.0), 5)) == "+0.00 [+0.00, +0.00], 5 seeds"
    assert str(pages.Difference(1.0, (-0.00001, 2.0), 5)) == "+1.00 [-0.0000, +2.00], 5 seeds"


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
    pages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("HANSE_DATA", raising=False)  # the same on a machine without data
    monkeypatch.chdir(tmp_path)  # and wherever it is called from
    with pages.data_as_kept(pages.RESULTS, update=False) as data:
        found = pages.pages(pages.RESULTS, data)
    assert pages.stale(found, pages.PAGES) == []
    index = next(page.text for page in found if page.name == "index.md").splitlines()
    tables = [line.split(" | ")[0].strip("| ") for line in index if "| `" in line]
    assert tables == [name for paper in PAPERS.values() for name in paper.tables]


def test_our_verdicts_are_decided_where_all_runs_are_finished_and_quote_what_the_page_says(pages: ModuleType) -> None:
    wrong = []
    with pages.data_as_kept(pages.RESULTS, update=False):
        for paper in PAPERS:
            for entry in pages.verdicts(paper, pages.RESULTS):
                here = pages.kept_tables(paper, entry["table"], pages.RESULTS)
                of = [k for k in here if (k.table.recipe, k.table.scale) == (entry.get("recipe"), entry.get("scale"))]
                said = " ".join(str(difference) for k in of for _, difference in pages.differences(entry, k))
                quoted = re.findall(r"\[[-+]?\d[\d.]*, [-+]?\d[\d.]*\]", entry.get("because", ""))
                wrong += [f"{paper} {entry['table']}: {text} is not on the page" for text in quoted if text not in said]
                done = any(k.outcome.jobs and not pages._partly(k) for k in here)
                if entry["verdict"] == "not decided" and done:
                    wrong.append(f"{paper} {entry['table']}: not decided, and all of its runs are finished")
                if entry["verdict"] not in pages.OPEN and any(k.outcome.jobs for k in of) and "runs" not in entry:
                    wrong.append(f"{paper} {entry['table']}: runs, how many were finished, is missing")
    assert wrong == []
