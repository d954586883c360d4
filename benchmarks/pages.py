"""The papers' pages, made of the kept results and of nothing else.

    python benchmarks/pages.py            # writes docs/results
    python benchmarks/pages.py --check    # ends with 1 if docs/results is not what is kept gives

``hanse reproduce PAPER ... --out benchmarks/results/PAPER`` adds a line for each run to ``kept.jsonl.gz``, with the
commit that played it: its settings stood in that commit. Lines without a commit are older than that. The keys of their
runs, hashes of their settings, were committed in ``planned.json`` before the results were; a test compares the commits.

``docs/results/index.md`` has for each paper three sentences and a row a claim, ``docs/results/PAPER.md`` a forest plot,
what each claim says and, folded, the tables behind them. What a claim is and how its word is reached:
:mod:`hanse_papers.claims`. Nothing on a page is written by hand but a claim's ``why``.

``benchmarks/results/data.json`` keeps which data sets were here, and how their splits differ from the official ones, so
that the pages are the same on a machine without data; writing the pages brings it up to date. Tables that are computed
are read from what ``reproduce`` wrote (``TABLE-SCALE.json``).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from unittest.mock import patch

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.data import sources
from hanse.lab.kept import KeptFile
from hanse.lab.statistics import LOOKS, WORDS
from hanse.reports.chart import Chart, Curve, Lines, to_csv
from hanse.reports.vega import to_svg, to_vegalite
from hanse_papers import catalogue, computed
from hanse_papers.catalogue import MADE_OF, PAPERS
from hanse_papers.claims.claim import Claim, load_claims
from hanse_papers.claims.judge import Runs, Verdict, jobs_of, judge
from hanse_papers.compare import factor_of, rows
from hanse_papers.figures import charts
from hanse_papers.ids import IDS
from hanse_papers.runner import TableOutcome, kept_outcome
from hanse_papers.show import stem_of, table_markdown
from hanse_papers.tables import RECIPES, PaperTable, read_table, sources_of, with_seeds

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
PLANNED = "planned.json"
TITLES = {"greedyfed": "GreedyFed", "gtflat": "GTFLAT", "ipfl": "iPFL", "pifl": "PI-FL"}
SHOWN = ("paper", "small")  # scales; a smoke test is no result
HEAD = "<!-- made by benchmarks/pages.py from benchmarks/results: change those -->\n"
FOREST = 330  # pixels of a forest plot beside its names: its letters can be read on a phone

find_table = cache(catalogue.find_table)


# ---- what is kept


@dataclass(frozen=True)
class Kept:
    """A table at one recipe and scale with at least one finished run, and the same at full size."""

    outcome: TableOutcome
    full: PaperTable

    @property
    def table(self) -> PaperTable:
        """The table: of its cells those that have a number."""
        return self.outcome.table


def kept_tables(paper: str, name: str, results: Path) -> list[Kept]:
    """Return what is kept of a table, by recipe and scale."""
    found = []
    for recipe in RECIPES:
        full = find_table(paper, name, "paper", recipe)
        for scale in SHOWN:
            table = full if scale == "paper" else find_table(paper, name, scale, recipe)
            computed = "computed" in read_table(paper, name, scale, recipe)
            outcome = _computed(table, results / paper) if computed else kept_outcome(table, results / paper)
            there = {id(row.cell) for row in rows(outcome) if row.best.mean is not None}
            cells = tuple(cell for cell in outcome.table.cells if id(cell) in there)
            if cells:
                shown = replace(outcome.table, cells=cells)
                if outcome.jobs:  # as reproduce says it
                    shown = with_seeds(shown, outcome.seeds, full.seeds)
                found.append(Kept(replace(outcome, table=shown), full))
    return found


def distinct(here: Sequence[Kept]) -> list[Kept]:
    """Return what is kept of a table, each run once: a scale or recipe that changes nothing has the same runs."""
    found: list[Kept] = []
    for kept in here:
        runs = kept.outcome.results.keys()
        if not runs or not any(runs <= other.outcome.results.keys() for other in found):
            found.append(kept)
    return found


def _computed(table: PaperTable, folder: Path) -> TableOutcome:
    """Return a table whose numbers ``reproduce`` has computed and written; its cells without one are left out."""
    path = folder / f"{stem_of(replace(table, only=()))}.json"
    numbers = _written(table, path) if path.exists() else {}
    cells = tuple(
        replace(cell, computed=numbers[place], variants=(), at=0)
        for cell in table.cells
        if numbers.get(place := (cell.setting, cell.algorithm)) is not None
    )
    return TableOutcome(replace(table, cells=cells), 1, (), (), results={}, failures={}, played=0)


def _written(table: PaperTable, path: Path) -> dict[tuple[str, str], float]:
    """Return a computed table's numbers from its file. Raises UserError if it is another table's, damaged, or not what
    is computed here.
    """
    try:
        kept = json.loads(path.read_text())
        of = tuple(kept[word] for word in ("paper", "table", "recipe", "scale"))
        numbers = {(str(line["setting"]), str(line["algorithm"])): line["mean"] for line in kept["rows"]}
        finite = all(mean is None or math.isfinite(mean) for mean in numbers.values())
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as wrong:
        raise UserError(f"{path.parent.name}/{path.name}: cannot be read: {type(wrong).__name__}") from None
    places = sorted((cell.setting, cell.algorithm) for cell in table.cells)
    if sorted((str(line["setting"]), str(line["algorithm"])) for line in kept["rows"]) != places:
        raise UserError(f"{path.parent.name}/{path.name}: has not each cell of {table.name} once; reproduce it again")
    if of != (table.paper, table.name, table.recipe, table.scale) or not finite:
        raise UserError(f"{path.parent.name}/{path.name}: is not {table.name} by this recipe at this scale")
    for cell in table.cells:
        now, then = cell.computed, numbers.get((cell.setting, cell.algorithm))
        if now is not None and then is not None and not math.isclose(now, then, rel_tol=1e-6, abs_tol=1e-9):
            raise UserError(
                f"{path.parent.name}/{path.name}: {cell.setting}, {cell.algorithm}: {then:g} is kept, and {now:g} is "
                "computed now; reproduce it again"
            )
    return {place: mean for place, mean in numbers.items() if mean is not None}


@contextmanager
def data_as_kept(results: Path, *, update: bool) -> Iterator[Mapping[str, str]]:
    """Let the tables find the data sets that were here when the pages were written, wherever this runs; yields them by
    name, with what their splits differ in. ``update``: those that are here now are added first.
    """
    path = results / "data.json"
    known = _read_data(path) if path.exists() else {}
    if update:
        names = {name for paper in PAPERS for name in _sources(paper)}
        known |= {name: sources.split_note(name) for name in names if sources.is_here(name)}
        write_whole(path, json.dumps(known, indent=1, sort_keys=True) + "\n")
    find_table.cache_clear()  # a table depends on the data that are here
    with ExitStack() as patches:
        patches.enter_context(patch("hanse_papers.tables.is_here", known.__contains__))
        patches.enter_context(patch("hanse_papers.computed.is_here", lambda source: False))
        patches.enter_context(patch("hanse_papers.changes.split_note", lambda source: known.get(source, "")))
        own = partial(_own_table7, computed.kept_table7, results / "ipfl")  # wherever this is called from
        patches.enter_context(patch("hanse_papers.computed.kept_table7", own))
        yield known
    find_table.cache_clear()


def _read_data(path: Path) -> dict[str, str]:
    """Return what is known of the data sets. Raises UserError if the file is damaged."""
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as wrong:
        raise UserError(f"{path.name}: cannot be read: {type(wrong).__name__}") from None
    if not isinstance(known, dict) or not all(isinstance(note, str) for note in known.values()):
        raise UserError(f"{path.name}: must have a text by the name of each data set")
    return known


def _own_table7(
    read: Callable[..., dict[int, float] | None], folder: Path, _: Sequence[Path], scale: str, recipe: str
) -> dict[int, float] | None:
    return read([folder], scale, recipe)


def _sources(paper: str) -> set[str]:
    found = {s for name in PAPERS[paper].tables for r in RECIPES for s in sources_of(paper, name, "paper", r)}
    return found | {part for source in found for part in MADE_OF.get(source, ())}


# ---- what a claim comes to, in words


def unit_of(claim: Claim) -> str:
    """Return the unit of a claim's effect; "" where its table says it column by column."""
    arm = claim.arms[0][0] if claim.arms else None
    if arm is not None and arm.variant is None:
        return "" if arm.table.unit == "as named" else arm.table.unit
    if claim.kind == "share":
        return "% of the seeds"
    if claim.reading.kind in ("rounds", "faster"):
        return "rounds" if claim.reading.kind == "rounds" else "% of the rounds"
    if arm is None or factor_of(arm.cell, arm.table) != 100:
        return ""
    return "points"


def ours_of(verdict: Verdict, *, unit: bool = False) -> str:
    """Return a claim's effect with its interval, "–" without one; of an equality how far off the claimed number we are.

    ``unit``: with its unit, and of an equality with how far off is still equal.
    """
    claim, judged = verdict.claim, verdict.judged
    if judged.effect is None:
        return "–"
    said = f"{judged.effect.mean:+.3g}"
    if judged.effect.error:
        said = f"{_number(judged.effect.mean)} [{_number(judged.low)}, {_number(judged.high)}]"
    said += f" {unit_of(claim)}".rstrip() if unit else ""
    if claim.kind == "equal":
        said += " off" if claim.printed != 0 or not unit else ""
        said += f" ({claim.margin:g} allowed)" if unit else ""
    return said


def _number(value: float) -> str:
    return f"{value:+.1f}" if abs(value) >= 10 else f"{value:+.2f}"


def printed_of(verdict: Verdict) -> str:
    """Return the effect that the paper prints; "–" where it prints none."""
    return "–" if verdict.claim.printed is None else _number(verdict.claim.printed)


def word_of(verdict: Verdict) -> str:
    """Return a claim's word; of an open one with the seeds that would decide it, by its spread or by the first look."""
    said, word = verdict.judged.said, verdict.judged.word
    return f"**{word}**{said.removeprefix(word)}" if word == "open" else f"**{said}**"


def seeds_of(verdict: Verdict) -> str:
    """Return how many seeds a claim has, or that it needs none."""
    return "computed" if verdict.computed else str(verdict.seeds)


def is_ours(verdict: Verdict) -> bool:
    """Whether a claim is our own, and not a sentence of the paper."""
    return verdict.claim.where == "ours"


def name_of(verdict: Verdict) -> str:
    """Return a claim's name, marked if it is our own; rows beside a twin or a control say what they are beside."""
    claim, (stem, _, role) = verdict.claim, verdict.claim.name.rpartition(", ")
    name = claim.name
    if role in ("baseline", "twin", "control") and claim.arms:
        name = f"{stem}, against {claim.arms[0][1].cell.algorithm}"
    return f"{name}†" if is_ours(verdict) else name


def _counts(verdicts: Sequence[Verdict], named: bool) -> str:
    """Return how many claims have which word, with the names of the decided ones if ``named``."""
    by = {word: [v.claim.name for v in verdicts if v.judged.word == word] for word in WORDS}
    decided = [
        f"{len(by[word])} {word}" + (f" ({'; '.join(by[word])})" if named else "") for word in WORDS[:3] if by[word]
    ]
    others = [f"{len(by[word])} {word}" for word in WORDS[3:] if by[word]]
    return ", ".join([*decided, *others])


def answer(verdicts: Sequence[Verdict], *, named: bool = True) -> list[str]:
    """Return three sentences on a paper: the words of its claims, whether its mechanism beats its twin, and what is
    known of why (without it: which claim is nearest to a decision). ``named``: with the names of the decided ones.
    """
    claims = [v for v in verdicts if v.claim.role == "claim"]
    of_paper = [v for v in claims if not is_ours(v)]
    lines = [f"Of {len(of_paper)} claims: {_counts(of_paper, named)}."]
    if own := [v for v in claims if is_ours(v)]:
        lines[0] += f" Of {len(own)} of ours: {_counts(own, named)}."
    for v in (v for v in verdicts if v.claim.role == "twin" and v.claim.arms):
        twin = v.claim.arms[0][1].cell.algorithm
        numbers = f", {ours_of(v, unit=True)}" if v.judged.effect is not None else ""
        seeds = f"{v.seeds} seeds beside '{twin}'"
        lines.append(f"Does the game itself help? {word_of(v)}: {seeds}{numbers}.")
    if whys := [f"{v.claim.why} ({v.claim.name})" for v in claims if v.claim.why]:
        return [*lines, *whys]
    near = [v for v in claims if v.judged.word == "open" and v.judged.needed]
    if near:
        v = max(near, key=lambda v: v.seeds / (v.judged.needed or math.inf))
        seeds = f"{v.seeds} of {v.judged.needed} seeds"
        known = seeds if v.judged.effect is None else f"{ours_of(v)}, {seeds}"
        lines.append(f"Nearest to a decision: {v.claim.name} ({known}).")
    return lines


def forest(paper: str, verdicts: Sequence[Verdict]) -> Chart | None:
    """Return a paper's effects with their intervals, in multiples of the smallest that matters; None without any."""
    shown = [v for v in verdicts if v.judged.effect is not None and v.claim.kind != "equal"]
    means = [v.judged.effect.mean for v in shown if v.judged.effect is not None]
    lines = []
    for look, word in enumerate(WORDS[:4]):
        at = [i for i, v in enumerate(shown) if v.judged.word == word]
        if at:
            found = [(means[i], shown[i].judged.low, shown[i].judged.high) for i in at]
            mean, low, high = (np.array(found) / [[shown[i].claim.margin] for i in at]).T
            lines.append(Curve(word, mean, np.array(at, dtype=np.float64), look=look, dots=True, left=low, right=high))
    at = [i for i, v in enumerate(shown) if v.claim.printed is not None]
    if not lines:
        return None
    printed = np.array([(shown[i].claim.printed or 0.0) / shown[i].claim.margin for i in at])
    lines.append(Curve("the paper's", printed, np.array(at, dtype=np.float64), look=6, dots=True, hollow=True))
    caption = (
        "Above 0 an effect is on the side that the paper claims; at 1 it is as large as the smallest that matters. "
        "Intervals (95 %) are corrected over the claims of a table and hold however often we look. The axis is "
        "logarithmic beyond 1."
    )
    names = tuple(v.claim.name for v in shown)
    marks = Lines(tuple(lines), zero=True, rows=names, named=True, whole=False)
    return Chart(
        f"{paper}-claims",
        "",
        f"{TITLES[paper]}: effects of its claims",
        caption,
        marks,
        x="effect / smallest that matters",
    )


# ---- pages


@dataclass(frozen=True)
class Page:
    """A page of ``docs/results`` and the pictures on it."""

    name: str
    text: str
    pictures: tuple[Chart, ...] = ()


INTRO = """# Do the papers' claims hold?

A claim is a sentence of a paper that runs can decide († ours). A rule gives its word:

* **confirmed**: our effect's interval lies above 0, the paper's side; *in direction, not in size*: but below the
  smallest effect that matters (half of the printed one, or as the claim says)
* **contradicted**: it lies below 0
* **no such effect**: it contains 0 and lies below that smallest effect
* **open**: none of these; *needs* so many seeds by mean and spread
* **not run**: no run is kept
* **not testable at this scale**: in its runs there is hardly a market
* **cannot be decided here**: `hanse reproduce PAPER --plan` says why

The first three words need five seeds, shares ten; plans end at 20. *Off*: distance from the claimed number;
*computed*: without chance. Rows *against* a twin without the game, or a control, do not count. Intervals are paired
over seeds, corrected over a table, and hold however often we look.

[Decide or recompute one](../check-us.md#results-of-the-four-papers); [all claims](../claims-map.md).
"""


def pages(results: Path, data: Mapping[str, str]) -> list[Page]:
    """Return the index and a page a paper. Raises UserError for damaged results."""
    found, index = [], [HEAD + INTRO]
    for paper in PAPERS:
        runs = Runs(results / paper)
        verdicts = judge(load_claims(paper), runs)
        found.append(_paper_page(paper, verdicts, runs, results, data))
        index += [
            f"## [{TITLES[paper]}]({paper}.md)",
            "",
            " ".join(answer(verdicts, named=False)),
            "",
            *_index_rows(verdicts),
            "",
        ]
    return [Page("index.md", "\n".join(index).rstrip() + "\n"), *found]


def _index_rows(verdicts: Sequence[Verdict]) -> list[str]:
    """Return a row for each claim with a number, and below them the names of those without."""
    numbers = sorted((v for v in verdicts if v.judged.effect is not None), key=lambda v: WORDS.index(v.judged.word))
    lines = ["| claim | the paper's | ours | seeds | word |", "|---|---|---|---|---|"] if numbers else []
    for v in numbers:
        lines.append(f"| {name_of(v)} | {printed_of(v)} | {ours_of(v)} | {seeds_of(v)} | {word_of(v)} |")
    counted = [v for v in verdicts if v.claim.role == "claim" and v.judged.effect is None]
    few = [v for v in counted if v.judged.word == "open"]
    kinds = "*, *".join(dict.fromkeys(re.split("[:,†]", name_of(v))[0] for v in few))
    lines += (
        ["", f"**Open**, too few seeds for a number: *{kinds}* ([{len(few)}]({few[0].claim.paper}.md#claims))."]
        if few
        else []
    )
    for word in WORDS[4:]:
        names = [name_of(v) for v in counted if v.judged.word == word]
        lines += ["", f"**{word.capitalize()}**: *{'*; *'.join(names)}*."] if names else []
    return lines


def _paper_page(paper: str, verdicts: Sequence[Verdict], runs: Runs, results: Path, data: Mapping[str, str]) -> Page:
    plot = forest(paper, verdicts)
    text = [HEAD + f"# {TITLES[paper]}", "", f"{PAPERS[paper].citation}. [What the words mean](index.md).", ""]
    text += [*(f"* {line}" for line in answer(verdicts)), ""]
    if plot is not None:
        text += [f"![{plot.title}](figures/{plot.key}.svg)", "", f"{plot.caption} [CSV](figures/{plot.key}.csv).", ""]
    text += [
        "## Claims",
        "",
        '<div class="claims" markdown="1">',
        "",
        "| claim | the paper's | ours | seeds | word |",
        "|---|---|---|---|---|",
    ]
    text += [_claim_row(v, runs) for v in verdicts]
    text += ["", "</div>", "", *_behind(verdicts), "## The tables behind them", ""]
    pictures = [] if plot is None else [plot]
    notes: dict[str, None] = {}
    for name in PAPERS[paper].tables:
        for kept in distinct(kept_tables(paper, name, results)):
            drawn = charts(kept.outcome, f"{paper}-{stem_of(kept.table)}")
            pictures += drawn
            text += _folded(kept, drawn)
            notes |= dict.fromkeys(kept.table.notes)
    text += _listed("How the numbers are read", list(notes)) if notes else []
    named = sorted(source for source in _sources(paper) if data.get(source))
    text += _listed("Data whose split is not the official one", [f"{n}: {data[n]}" for n in named]) if named else []
    return Page(f"{paper}.md", "\n".join(text).rstrip() + "\n", tuple(pictures))


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    """Return a list to be unfolded."""
    head = f'<details markdown="1"><summary>{title}</summary>'
    return [head, "", *(f"* {line}" for line in lines), "", "</details>", ""]


def _claim_row(verdict: Verdict, runs: Runs) -> str:
    claim = verdict.claim
    said = f"{claim.says} ({claim.where})"
    if claim.role != "claim" and claim.arms:
        said = f"the same against {claim.arms[0][1].cell.algorithm}"
    if claim.role == "later":
        said = f"the same by another reading ({claim.kind}, {claim.reading.said}), from seed {claim.first} on"
    cells = (f"**{claim.name}**: {said}", printed_of(verdict), ours_of(verdict, unit=True))
    word = f"{word_of(verdict)}{_lacking(verdict, runs)}"
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} | {seeds_of(verdict)} | {word} |"


def _lacking(verdict: Verdict, runs: Runs) -> str:
    """Return how many of the runs that an undecided claim needs are kept; "" where no plan comes to so many seeds."""
    needed = verdict.judged.needed
    if needed is None or needed > LOOKS[-1]:
        return ""
    jobs = {job.key: job for seed in verdict.claim.seeds[:needed] for job in jobs_of(verdict.claim, seed)}
    return f", {sum(bool(runs.of(job)) for job in jobs.values())} of {len(jobs)} runs"


def _behind(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the numbers that each word is reached by, to be unfolded; nothing where no seed has given one."""
    rows = []
    for v in verdicts:
        if (e := v.judged.effect) is not None and e.seeds:
            numbers = (v.claim.margin, e.mean, e.error, e.seeds, e.share, v.judged.level, e.up, e.down, e.small)
            rows.append(f"| {v.claim.name} | {v.claim.table} | {' | '.join(f'{n:.4g}' for n in numbers)} |")
    lines = [
        '<details markdown="1"><summary>The numbers that each word is reached by</summary>',
        "",
        "The interval is mean ± t × error, where t is Student's upper quantile at level × share / 2, "
        "with seeds - 1 degrees of freedom. The error is no less than the floor's; share is the part of the 5 % that "
        "this look has, and level is Holm's for this claim in its table. *Above*, *below* and *small* are p-values, "
        "two-sided, divided by the share, and before Holm's correction, against an effect of at most 0, of at least 0, "
        "and of at least the smallest that matters. The formulas: `hanse/lab/statistics.py`.",
        "",
        "| claim | table | smallest that matters | mean | error | seeds | share | level | above | below | small |",
        "|" + "---|" * 11,
    ]
    return [*lines, *rows, "", "</details>", ""] if rows else []


def _folded(kept: Kept, drawn: Sequence[Chart]) -> list[str]:
    """Return a table with its pictures, to be unfolded."""
    table = kept.table
    whole = len(find_table(table.paper, table.name, table.scale, table.recipe).cells)
    made = f"recipe {table.recipe}, scale {table.scale}, {len(table.cells)} of {whole} cells"
    lines = [
        f'<details markdown="1"><summary>{table.name}: {table.title} ({made})</summary>',
        "",
        *table_markdown(replace(kept.outcome, table=replace(table, notes=())), kept.full).rstrip().splitlines()[2:],
        "",
        f"`{_command(table)}`",
        "",
    ]
    for chart in drawn:
        lines += [
            f"![{chart.title}](figures/{chart.key}.svg)",
            "",
            f"{chart.caption} [CSV](figures/{chart.key}.csv).",
            "",
        ]
    return [*lines, "</details>", ""]


def _command(table: PaperTable) -> str:
    recipe = " --recipe authors" if table.recipe == "authors" else ""
    return f"hanse reproduce {table.paper} {table.name}{recipe} --scale {table.scale}"


def words(text: str, *, folded: bool = False) -> int:
    """Return how many words of a page a reader sees: no addresses of links, no bars of tables, and what is folded only
    if ``folded``.
    """
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    if not folded:
        text = re.sub(r"<details.*?</details>", " ", text, flags=re.DOTALL)
    return len(re.findall(r"[^\s|]*\w[^\s|]*", text))


# ---- writing and checking


def write(made: Sequence[Page], folder: Path) -> list[Path]:
    """Write the pages and their pictures, and take away pictures that are on none; return the pages' paths."""
    for page in made:
        write_whole(folder / page.name, page.text)
        for chart in page.pictures:
            write_whole(folder / "figures" / f"{chart.key}.csv", to_csv(chart))
            write_whole(folder / "figures" / f"{chart.key}.svg", to_svg(_drawn(chart)))
    for path in _strays(made, folder):
        path.unlink()
    return [folder / page.name for page in made]


def _drawn(chart: Chart) -> dict[str, object]:
    """Return a chart's drawing; a forest plot is narrow and has its title on the page."""
    spec = to_vegalite(chart)
    narrow = (
        {"width": FOREST, "title": None, "padding": {"left": 36, "right": 12, "top": 8, "bottom": 8}}
        if isinstance(chart.marks, Lines) and chart.marks.rows
        else {}
    )
    return spec | narrow


def _files(made: Sequence[Page], folder: Path) -> dict[Path, str | None]:
    """Return what a folder of pages has: each file's text, None for a picture, whose bytes are not compared."""
    found: dict[Path, str | None] = {folder / page.name: page.text for page in made}
    for chart in (chart for page in made for chart in page.pictures):
        found |= {folder / "figures" / f"{chart.key}.svg": None, folder / "figures" / f"{chart.key}.csv": to_csv(chart)}
    return found


def _strays(made: Sequence[Page], folder: Path) -> list[Path]:
    there = [*folder.glob("*.md"), *(folder / "figures").glob("*.*")]
    return sorted(set(there) - _files(made, folder).keys())


def stale(made: Sequence[Page], folder: Path) -> list[str]:
    """Return the names of the files that are not what they should be."""
    wrong = [
        path.name
        for path, text in _files(made, folder).items()
        if not path.exists() or (text is not None and path.read_text() != text)
    ]
    return [*wrong, *(path.name for path in _strays(made, folder))]


# ---- plans
LOST = (
    "f3425b0ebbb94ea516ab18af9b1c01681b402468",
    "a0b491802b65ba4b4c9ded1ad8d1b87e3da7309d",
    "c355cbfecd7ac8fa52d607305725686355f4e703",
)
"""Commits that played runs of GTFLAT on 24 and 25 November 2026 and whose history was lost with the machine that had
it: what they planned cannot be shown to be older than their 95 runs (docs/check-us.md says so)."""


def unplanned(root: Path = ROOT) -> list[str]:
    """Return the kept runs whose settings were not committed before them: "PAPER: KEY, why" each.

    A run either names the commit that played it, which must be in the history or one of :data:`LOST`, or it was added,
    in a file of its own, by a commit after the one that added its key to the plan. A line whose settings were written
    anew since then has the key of that time as ``planned``.
    """
    before: dict[str, set[str]] = {}
    for commit, paths in _added(root):
        planned = {paper: _planned_before(root, commit, paper) for paper in {Path(path).parts[2] for path in paths}}
        for path in map(Path, paths):
            if path.stem in planned[path.parts[2]]:
                before.setdefault(path.parts[2], set()).add(path.stem)
    commits = set(_git(root, "rev-list", "HEAD").split())
    found = []
    for folder in sorted((root / "benchmarks" / "results").glob("*/")):
        for key, lines in KeptFile(folder, IDS).lines().items():
            for line in lines:
                commit = line.get("made", {}).get("commit")
                if "made" in line and commit not in commits and commit not in LOST:
                    found.append(f"{folder.name}: {key}, played by {commit}, which is not in the history")
                if "made" not in line and line.get("planned", key) not in before.get(folder.name, ()):
                    found.append(f"{folder.name}: {key}, not planned in an earlier commit")
    return found


def _added(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each commit that adds result files, and the files."""
    places = ":(glob)benchmarks/results/*/jobs/*.json"
    log = _git(root, "log", "-c", "--no-renames", "--diff-filter=A", "--name-only", "--format=%x00%H", "--", places)
    for entry in log.split("\0")[1:]:
        commit, *paths = entry.split()
        yield commit, paths


def _planned_before(root: Path, commit: str, paper: str) -> set[str]:
    place = f"{commit}^:benchmarks/results/{paper}/{PLANNED}"
    try:
        return {key for keys in json.loads(_git(root, "show", place)).values() for key in keys}
    except subprocess.CalledProcessError:  # no plan yet, or no commit before this one
        return set()


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    try:
        with data_as_kept(RESULTS, update=not check) as data:
            made = pages(RESULTS, data)
    except UserError as wrong:
        raise SystemExit("\n".join(f"pages: {line}" for line in wrong.lines)) from None
    if not check:
        return print(f"wrote {', '.join(str(path.relative_to(ROOT)) for path in write(made, PAGES))}")
    if wrong := stale(made, PAGES):
        raise SystemExit(f"pages: not what the kept results give: {', '.join(wrong)}; run python benchmarks/pages.py")
    return None


if __name__ == "__main__":
    main()
