"""The screens of the papers: they are what is kept gives, short, and say no more than the runs do."""

import csv
import re
import tomllib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from paper_cases import load_claims
from scipy import stats

from hanse.data.partitions import label_mixes
from hanse_papers.catalogue import PAPERS, find_table

ROOT = Path(__file__).parents[2]
SCREENS = ROOT / "docs" / "results"
Row = dict[str, str]


def text(name: str) -> str:
    return (SCREENS / name).read_text()


def rows(name: str) -> list[Row]:
    return list(csv.DictReader(text(name).splitlines()))


def claims(paper: str) -> dict[str, Row]:
    return {row["name"]: row for row in rows(f"{paper}-claims.csv")}


def questions(paper: str) -> list[list[str]]:
    lines = [line for line in text(f"{paper}.md").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def mean(paper: str, table: str, scale: str, column: str, row: str, group: str = "", *, recipe: str = "paper") -> float:
    """The mean over a table's groups of our number in a column of a row."""
    here = [
        float(r["ours"])
        for r in rows(f"{paper}-cells.csv")
        if (r["table"], r["scale"], r["column"], r["row"], r["recipe"]) == (table, scale, column, row, recipe)
        and group in r["group"]
        and r["variant"] in ("", "mean")
    ]
    return float(np.mean(here))


def printed(paper: str, table: str, row: str) -> dict[str, float]:
    """What the paper's table prints for a row, by group and column."""
    cells = find_table(paper, table, "paper").cells
    return {f"{c.group}, {c.column}": c.published.mean for c in cells if c.algorithm == row and c.published}


# ---- whether they are what is kept gives


def test_they_are_made_of_todays_lines_and_texts_and_nobody_has_changed_them(pages: ModuleType) -> None:
    kept = {
        name: (SCREENS / name).read_text() for name in text("made.json").split('"') if name.endswith((".md", ".csv"))
    }
    assert pages.json.loads(text("made.json")) == pages.made_of(kept)


@pytest.mark.slow
def test_they_are_what_is_made_now(pages: ModuleType) -> None:
    with pages.data_as_kept(pages.RESULTS, update=False) as known:
        assert pages.stale(pages.pages(pages.RESULTS, known), SCREENS) == []


def test_every_function_that_the_equations_name_exists() -> None:
    lines = list(csv.DictReader((ROOT / "docs" / "equations.csv").read_text().splitlines()))
    for name in {name for line in lines for name in re.findall(r"hanse[\w.]+", line["code"])}:
        module, _, attribute = name.rpartition(".")
        assert hasattr(__import__(module, fromlist=[attribute]), attribute), name


def test_every_reading_that_the_code_cites_is_listed() -> None:
    lines = list(csv.DictReader((ROOT / "docs" / "readings.csv").read_text().splitlines()))
    known = {key for line in lines for key in re.findall(r"[GIFTP]\d+", line["key"])} | {"P16"}  # P15-P17 is a range
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "papers" / "src").rglob("*.py")]
    cited = {key for file in files for key in re.findall(r"papers\.md,? ([GIFTP]\d+)", file.read_text())}
    assert len(cited) > 30
    assert cited <= known


# ---- whether they say more than the runs: a check for each kind of mistake that was found in them


def test_theorems_are_false_as_printed_and_true_as_repaired() -> None:
    found = claims("ipfl")
    for theorem in ("1: individual rationality", "3: truthfulness", "4: absurd sizes"):
        assert found[f"Theorem {theorem}, as printed"]["word"] == "contradicted"
        repaired = found[f"Theorem {theorem}, repaired"]
        assert (repaired["word"], repaired["where"]) == ("confirmed", "ours")
    cells = {(r["row"], r["column"]): float(r["ours"]) for r in rows("ipfl-cells.csv") if r["table"] == "theorems"}
    screen = text("ipfl.md")
    for theorem in ("Theorem 1", "Theorem 3"):  # the text's count is the row's, Algorithm 2's stands in words
        assert f"Algorithm 2's {cells[theorem, 'by Algorithm 2 as printed']:g}" in screen
        assert f"| {cells[theorem, 'by the text as printed']:g} markets" in screen


def test_nothing_is_decided_of_a_market_without_asking_whether_it_lives() -> None:
    trained = [claim for claim in load_claims("ipfl") if claim.arms and claim.arms[0][0].variant is not None]
    assert all(claim.condition is not None for claim in trained)
    assert claims("ipfl")["a lie about costs"]["word"] == "not testable at this scale"


def test_what_a_reading_is_worth_and_how_often_tiers_separate_are_the_cells() -> None:
    theirs, ours, trained = (
        mean("pifl", "figure2", "small", "mean", row) for row in ("FedSoft", "PI-FL", "PI-FL, weights from train data")
    )
    screen = text("pifl.md")
    assert f"{ours - trained:.1f} of them by our reading P23" in screen
    assert f"{trained - theirs:.1f} points above FedSoft" in screen
    there = [
        (r["row"], float(r["ours"]) / 100 * int(r["seeds"]))
        for r in rows("pifl-cells.csv")
        if r["table"] in ("table3", "table3-fmnist") and r["column"] == "separated, % of seeds"
    ]
    counts = {row: round(sum(n for name, n in there if name == row)) for row in ("PI-FL", "FedSoft")}
    assert f"in {counts['PI-FL']} of 40 runs, FedSoft's in {counts['FedSoft']}" in screen


def test_the_claim_about_exploration_is_of_the_tables_weight() -> None:
    by_name = {claim.name: claim for claim in load_claims("greedyfed")}
    table1 = next(c for c in find_table("greedyfed", "table1", "paper").cells if c.algorithm == "UCB")
    usual = table1.variants[0].sections["mechanism"].get("beta", 0.01)
    for name, ours in (("a little exploration", False), ("exploration costs", True)):
        assert (by_name[name].arms[0][1].variant.sections["mechanism"]["beta"] == usual) is not ours
        assert (by_name[name].where == "ours") is ours


def test_the_sampler_is_named_where_it_decides() -> None:
    mixes = np.exp(label_mixes(30_000, 10, 1e-4, seed=1, sampler="float32-clamped"))
    uniform = 100 * float((mixes.std(axis=1) < 1e-6).mean())
    assert f"{uniform:.1f} % of 30,000 drawn" in text("greedyfed.md")
    assert "half of the clients exactly uniform" in text("index.md")
    column = "alpha=1e-4 (true)"
    ours, theirs = (mean("greedyfed", "table1", "paper", column, row, "MNIST") for row in ("GreedyFed", "FedAvg"))
    assert f"{mean('greedyfed', 'table1', 'paper', column, 'GreedyFed'):.1f} against {theirs:.1f}" in text(
        "greedyfed.md"
    )
    assert ours < theirs


def test_one_comparison_counts_once() -> None:
    found = claims("gtflat")
    one = {"accuracy, very uneven data", "accuracy at the end", "the game, baseline", "rounds, very uneven data"}
    assert {name for name in one if not found[name]["same_as"]} == {"accuracy, very uneven data"}
    assert claims("greedyfed")["value where half hold everything"]["same_as"] == "whose value, baseline"
    confirmed = [
        n for n in found.values() if n["word"] == "confirmed" and n["role"] == "claim" and n["where"] != "ours"
    ]
    line = next(line for line in text("index.md").splitlines() if line.startswith("| [GTFLAT]"))
    assert line.split("|")[2].strip().startswith(f"{len({n['same_as'] or n['name'] for n in confirmed})} confirmed")


@pytest.mark.parametrize("paper", PAPERS)
def test_each_row_says_what_it_shares_its_scale_and_when_it_was_registered(paper: str) -> None:
    asked = tomllib.loads((ROOT / "papers/src/hanse_papers" / paper / "page.toml").read_text())["questions"]
    for line, (_, _, _, seeds, scale, _) in zip(asked, questions(paper), strict=True):
        claim = claims(paper)[line["claim"]]
        if not claim["drawn_anew"]:
            assert seeds == "computed"
            continue
        assert ("one split" in seeds) == ("split" not in claim["drawn_anew"])
        assert ("registered after" in seeds) == (claim["seen"] != "0")
        assert ("rounds" in scale) == (claim["scale"] == "small")


def test_a_claim_names_the_data_sets_that_it_pools() -> None:
    names = {"Fashion-MNIST": "FMNIST", "CIFAR-10": "CIFAR-10"}
    for claim in (claim for claim in load_claims("greedyfed") if claim.arms):
        named = {group for name, group in names.items() if name in claim.says}
        named |= {"MNIST"} if re.search(r"(?<!-)\bMNIST", claim.says) else set()
        assert not named or {arm.cell.group for setting in claim.arms for arm in setting} == named, claim.name


def test_what_is_ours_is_not_said_of_the_paper(pages: ModuleType) -> None:
    for paper in PAPERS:
        paper_says = {row[0]: row[1] for row in questions(paper)}
        asked = tomllib.loads((ROOT / "papers/src/hanse_papers" / paper / "page.toml").read_text())["questions"]
        for line in asked:
            assert (paper_says[line["asks"]] == "says nothing") == (claims(paper)[line["claim"]]["where"] == "ours")


def test_numbers_that_are_written_as_printed_are_the_tables() -> None:
    for row, name in (("FedAvg", "trajectory: FedAvg"), ("UCB", "trajectory: UCB")):
        ours, theirs = (printed("greedyfed", "table2", one) for one in ("GreedyFed", row))
        gap = np.mean([ours[at] - theirs[at] for at in ours if "MNIST" in at])
        assert float(claims("greedyfed")[name]["printed"]) == pytest.approx(gap, abs=0.006)
    apart = {}
    for table, row in (("table2", "PI-FL"), ("table5", "FedSoft")):  # in how many settings each tier is best at its own
        found = np.reshape([*printed("pifl", table, row).values()], (-1, 4))
        apart[row] = 100 * (found[:, [0, 3]].min(axis=1) > found[:, 1:3].max(axis=1)).mean()
    assert float(claims("pifl")["tiers separate: FedSoft"]["printed"]) == apart["PI-FL"] - apart["FedSoft"] == 75


def test_local_epochs_are_the_kept_runs(pages: ModuleType) -> None:
    kept = pages.KeptFile(pages.RESULTS / "pifl", pages.IDS).lines().values()
    trained = [lines[0]["given"]["train"] for lines in kept]
    assert {train["epochs"] for train in trained if "epochs" in train} == {2}
    assert "Two local epochs" in text("pifl.md")


@pytest.mark.parametrize("paper", PAPERS)
def test_a_number_has_its_unit_its_place_and_its_interval(paper: str) -> None:
    asked = tomllib.loads((ROOT / "papers/src/hanse_papers" / paper / "page.toml").read_text())["questions"]
    for line, (_, _, ours, *_) in zip(asked, questions(paper), strict=True):
        row = claims(paper)[line["claim"]]
        unit = {"percent fewer rounds": "% of the rounds", "share": "% of the runs", "utility": "utility"}
        assert all(unit.get(row[key], "") in ours for key in ("reading", "kind", "name") if ours != "–")
        assert not row["printed"] or row["where"] != "Abstract"
    for row in (row for row in claims(paper).values() if row["mean"] and float(row["error"])):
        level = 1 - float(row["level"]) * float(row["share"]) / 2
        half = stats.t.ppf(level, int(row["looked"]) - 1) * float(row["error"])
        assert float(row["high"]) - float(row["mean"]) == pytest.approx(half, rel=1e-3)
