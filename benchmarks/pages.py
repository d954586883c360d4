"""The papers' kept results: the pages that are made of them, and whether their settings were committed first.

    python benchmarks/pages.py            # writes docs/results from benchmarks/results
    python benchmarks/pages.py --check    # ends with 1 if docs/results is not what benchmarks/results gives

``hanse reproduce PAPER ... --out benchmarks/results/PAPER`` adds a line for each run to ``kept.jsonl.gz``, with the
commit that played it: its settings stood in that commit. Lines without a commit are older than that. The keys of their
runs, hashes of their settings, were committed in ``planned.json`` before the results were; a test compares the commits.

The pages say what is kept, and nothing is run for them: ``docs/results/index.md`` has a line for each table and figure,
``docs/results/PAPER.md`` the verdicts, every table with a finished run, and what was not run. Verdicts are written by
hand in ``benchmarks/results/PAPER/verdicts.toml``, as ``[[verdicts]]``:

* ``table``, ``claim`` (the paper's, in our words), ``recipe``, ``scale``, ``verdict`` (see ``VERDICTS``), ``because``;
* ``pairs``: rows [A, B] whose difference A - B stands beside it for every setting, with its 95 % interval over seeds;
  "printed" as B is the paper's number; ``between = "columns"``: columns instead, for every group and row;
* ``expects``: "above" or "below", the side of 0 that the claim puts all differences on, or "none" where it puts them on
  no side; every decided verdict with pairs needs it. A verdict "confirmed" with "none", or with an interval that is not
  on that side (one seed has none), is refused, and so are "not confirmed" with all intervals on that side and "partly"
  with all on the other;
* ``groups``, ``columns``, ``rows``: the only ones that are compared, or of a computed table held against what is
  printed, with the digits that are printed ("confirmed": all are so; "not confirmed": not all); ``hours``: what a run
  takes, where we know better.

A verdict other than "not run" and "not decided" needs pairs with numbers, unless its table is computed. "not run"
beside finished runs is refused, and so is "not decided" beside none. ``runs`` is how many runs of the table were
finished when the verdict was written; the page says so where there are more by now, and fewer are refused.
``benchmarks/results/data.json`` keeps which data sets were here, and how their splits differ from the official ones, so
that the pages are the same on a machine without data; writing the pages brings it up to date. Tables that are computed
are read from what ``reproduce`` wrote (``TABLE-SCALE.json``).
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from hanse.base.errors import UserError, nearest
from hanse.base.files import write_whole
from hanse.data import sources
from hanse.lab.kept import KeptFile
from hanse.lab.papers import catalogue, changes, computed
from hanse.lab.papers.catalogue import MADE_OF, PAPERS, SHIPPED
from hanse.lab.papers.compare import Row, cpu_hours, rows, seed_values
from hanse.lab.papers.figures import charts
from hanse.lab.papers.runner import TableOutcome, kept_outcome
from hanse.lab.papers.show import draw, stem_of, table_markdown
from hanse.lab.papers.tables import RECIPES, SCALES, PaperTable, read_table, sources_of, with_seeds
from hanse.reports.chart import Chart, to_csv
from hanse.reports.compare import paired

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
PLANNED = "planned.json"
TITLES = {"greedyfed": "GreedyFed", "gtflat": "GTFLAT", "ipfl": "iPFL", "pifl": "PI-FL"}
VERDICTS = ("confirmed", "not confirmed", "partly", "not decided", "not run")
OPEN = ("not decided", "not run")
WORDS = {
    "table", "claim", "recipe", "scale", "verdict", "because", "pairs", "between", "expects", "groups", "columns",
    "rows", "hours", "runs",
}  # fmt: skip
KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "because": ("a text", lambda value: isinstance(value, str)),
    "runs": ("a whole number of at least 0", lambda value: type(value) is int and value >= 0),
    "hours": ("a number above 0", lambda value: type(value) in (int, float) and 0 < value < math.inf),
    **{
        key: ("a list of names", lambda value: isinstance(value, list) and all(isinstance(n, str) for n in value))
        for key in ("groups", "columns", "rows")
    },
}  # what a verdict's optional words are
SHOWN = ("paper", "small")  # scales; a smoke test is no result
HEAD = "<!-- made by benchmarks/pages.py from benchmarks/results: change those -->\n"
Verdict = Mapping[str, Any]


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
        patches.enter_context(patch("hanse.lab.papers.tables.is_here", known.__contains__))
        patches.enter_context(patch("hanse.lab.papers.computed.is_here", lambda source: False))
        note = partial(changes._files, note=lambda source: known.get(source, ""))
        patches.enter_context(patch.object(changes, "_files", note))
        own = partial(_own_table7, computed.kept_table7, results / "ipfl")  # wherever this is called from
        patches.enter_context(patch("hanse.lab.papers.computed.kept_table7", own))
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


# ---- verdicts


def verdicts(paper: str, results: Path) -> list[Verdict]:
    """Return a paper's verdicts. Raises UserError for words that mean nothing."""
    path = results / paper / "verdicts.toml"
    entries = _entries(path) if path.exists() else []
    known = (
        ("table", PAPERS[paper].tables),
        ("recipe", RECIPES),
        ("scale", SCALES),
        ("verdict", VERDICTS),
        ("between", ("rows", "columns")),
        ("expects", ("above", "below", "none")),
    )
    wrong = [
        f"{path.parent.name}/{path.name}: {key} '{value}': there is no such {key}{nearest(str(value), allowed)}"
        for entry in entries
        for key, allowed in known
        if (value := str(entry.get(key, next(iter(allowed))))) not in allowed
    ]
    wrong += [
        f"{path.parent.name}/{path.name}: {key}: there is no such key{nearest(key, WORDS)}"
        for entry in entries
        for key in entry.keys() - WORDS
    ]
    wrong += [
        f"{path.parent.name}/{path.name}: entry {place}: {key} is {entry[key]!r}; must be {what}"
        for place, entry in enumerate(entries, 1)
        for key, (what, fits) in KINDS.items()
        if key in entry and not fits(entry[key])
    ]
    wrong += [
        f"{path.parent.name}/{path.name}: entry {place}: '{key}' is missing"
        for place, entry in enumerate(entries, 1)
        for key in ("table", "claim", "verdict")
        if not isinstance(entry.get(key), str)
    ]
    if wrong:
        raise UserError(*wrong)
    told = Counter((entry["table"], entry["claim"]) for entry in entries)
    wrong += [f"{path.parent.name}/{path.name}: {table}: '{claim}' is judged {number} times"
              for (table, claim), number in told.items() if number > 1]  # fmt: skip
    for entry in entries:
        wrong += [f"{path.parent.name}/{path.name}: {entry['table']}: {line}" for line in _strangers(paper, entry)]
    if wrong:
        raise UserError(*wrong)
    return entries


def _entries(path: Path) -> list[Verdict]:
    """Return the entries of a file of verdicts. Raises UserError if it has anything else, which would be left out."""
    where = f"{path.parent.name}/{path.name}"
    try:
        found = tomllib.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as wrong:
        raise UserError(f"{where}: cannot be read: {' '.join(str(wrong).split())}") from None
    if others := sorted(found.keys() - {"verdicts"}):
        raise UserError(*(f"{where}: {key}: there is no such key; allowed: verdicts" for key in others))
    entries = found.get("verdicts", [])
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{where}: verdicts: must be written as [[verdicts]]")
    return entries


def _strangers(paper: str, entry: Verdict) -> list[str]:
    """Return the names that a verdict compares and that its table does not have, which would be passed over."""
    cells = find_table(paper, entry["table"], entry.get("scale", "paper"), entry.get("recipe", "paper")).cells
    names = {
        "groups": {cell.group for cell in cells},
        "columns": {cell.column for cell in cells},
        "rows": {cell.algorithm for cell in cells},
    }
    pairs = entry.get("pairs", [])
    if not isinstance(pairs, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
        return ["pairs: must be a list of [A, B]"]
    if alike := [pair[0] for pair in pairs if pair[0] == pair[1]]:
        return [f"pairs: {alike[0]} is compared with itself"]
    if any(pair[0] == "printed" for pair in pairs):
        return ["pairs: 'printed' must be the second of two"]
    asked = [(kind, name) for kind in names for name in entry.get(kind, [])]
    asked += [(str(entry.get("between", "rows")), name) for pair in pairs for name in pair if name != "printed"]
    return [f"{name}: there is none of its {k} called so{nearest(str(name), names[k])}" for k, name in asked
            if name not in names[k]]  # fmt: skip


def differences(entry: Verdict, kept: Kept) -> list[tuple[str, Difference | Shares]]:
    """Return a verdict's pairs with their numbers: "setting: A - B" and the difference over seeds, one for each setting
    that has both.
    """
    found = rows(kept.outcome)
    chosen = [row for row in found if _is_judged(entry, _names(row))]
    axis = 1 if entry.get("between") == "columns" else 2
    lines = []
    for first, second in entry.get("pairs", ()):
        for row in (r for r in chosen if _names(r)[axis] == first):
            rest = [name for place, name in enumerate(_names(row)) if place != axis]
            other = next(
                (r for r in found if _names(r)[axis] == second
                 and [name for place, name in enumerate(_names(r)) if place != axis] == rest),
                None,
            )  # fmt: skip
            said = difference(kept.outcome, row, row if second == "printed" else other, printed=second == "printed")
            if said is not None:
                lines.append((f"{', '.join(rest)}: {first} - {second}", said))
    return lines


def _is_judged(entry: Verdict, place: tuple[str, str, str]) -> bool:
    """Return whether a verdict is about the cell of this group, column and row."""
    return all(name in entry.get(key, (name,)) for key, name in zip(("groups", "columns", "rows"), place, strict=True))


def _asked(paper: str, entry: Verdict) -> int:
    """Return how many differences a verdict names: of each pair one for every setting in which its table has both."""
    cells = find_table(paper, entry["table"], entry.get("scale", "paper"), entry.get("recipe", "paper")).cells
    printed = {(cell.group, cell.column, cell.algorithm): cell.published is not None for cell in cells}
    axis = 1 if entry.get("between") == "columns" else 2
    chosen = [place for place in printed if _is_judged(entry, place)]
    others = [
        (place, (*place[:axis], second, *place[axis + 1 :]), second)
        for first, second in entry.get("pairs", ())
        for place in chosen
        if place[axis] == first
    ]
    return sum(printed[place] if second == "printed" else other in printed for place, other, second in others)


def _names(row: Row) -> tuple[str, str, str]:
    return row.cell.group, row.cell.column, row.cell.algorithm


@dataclass(frozen=True)
class Difference:
    """A mean difference over seeds with its 95 % interval (Student's t); no interval with one seed."""

    mean: float
    interval: tuple[float, float] | None
    seeds: int

    def __str__(self) -> str:
        if self.interval is None:
            return f"{self.mean:+.2f}, 1 seed: no interval"
        low, high = map(_signed, self.interval)
        return f"{self.mean:+.2f} [{low}, {high}], {self.seeds} seeds"

    def is_on(self, side: str) -> bool:
        """Whether the whole interval is "above" or "below" zero; never with one seed."""
        return self.interval is not None and (self.interval[0] > 0 if side == "above" else self.interval[1] < 0)


def _signed(end: float) -> str:
    """Return an end of an interval with as many digits as its sign needs, at most four: -0.003 and not -0.00."""
    digits = next((n for n in (2, 3, 4) if end == 0 or abs(end) >= 0.5 * 10.0**-n), 4)
    return f"{end:+.{digits}f}"


@dataclass(frozen=True)
class Shares:
    """In how many seeds something was so in one row and in another, over the seeds that both have.

    A seed says yes or no, which is no number with a normal spread: the exact sign test counts the seeds in which it was
    so in the first row alone (``only_first``) and in the second alone.
    """

    first: int
    second: int
    only_first: int
    seeds: int

    @property
    def p(self) -> float:
        """The two-sided p-value: that so uneven a split of the seeds that differ is chance."""
        only_second = self.second - (self.first - self.only_first)
        differ = self.only_first + only_second
        tail = sum(math.comb(differ, k) for k in range(min(self.only_first, only_second) + 1))
        return min(1.0, 2.0 * tail / 2.0**differ)

    def __str__(self) -> str:
        return f"{self.first} of {self.seeds} seeds against {self.second} of {self.seeds}, sign test p = {self.p:.3g}"

    def is_on(self, side: str) -> bool:
        """Whether it was so in more ("above") or fewer seeds of the first row, with p at most 5 %."""
        ahead = self.first > self.second if side == "above" else self.first < self.second
        return ahead and self.p <= 0.05


def difference(
    outcome: TableOutcome, row: Row, other: Row | None, *, printed: bool = False
) -> Difference | Shares | None:
    """Return how much a row is above another (or above what is printed of it), over the seeds that both have; None if
    there is no such seed.
    """
    if other is None:
        return None
    published = row.cell.published
    ours = seed_values(outcome, row)
    theirs = seed_values(outcome, other)
    if printed:
        theirs = {} if published is None else dict.fromkeys(ours, published.mean)
    seeds = [seed for seed in ours if seed in theirs]
    if row.cell.measure == "share" and not printed and seeds:
        both = [(ours[seed] > 0, theirs[seed] > 0) for seed in seeds]
        return Shares(sum(a for a, _ in both), sum(b for _, b in both), both.count((True, False)), len(seeds))
    found = paired(ours, theirs)
    if found is None:
        return Difference(ours[seeds[0]] - theirs[seeds[0]], None, 1) if seeds else None
    return Difference(found.mean, (found.low, found.high), found.pairs)


# ---- pages


@dataclass(frozen=True)
class Page:
    """A page of ``docs/results`` and the pictures on it."""

    name: str
    text: str
    pictures: tuple[Chart, ...] = ()


def pages(results: Path, data: Mapping[str, str]) -> list[Page]:
    """Return the index and a page a paper. Raises UserError for a verdict without numbers."""
    found, lines = [], []
    every = {paper: verdicts(paper, results) for paper in PAPERS}
    held = {paper: {name: kept_tables(paper, name, results) for name in PAPERS[paper].tables} for paper in PAPERS}
    if wrong := [line for paper in PAPERS for line in _not_as_kept(paper, every[paper], held[paper])]:
        raise UserError(*wrong)
    for paper in PAPERS:
        judged, kept = every[paper], held[paper]
        found.append(_paper_page(results, paper, judged, kept, data))
        lines += ["", f"## [{TITLES[paper]}]({paper}.md)", "", PAPERS[paper].citation, ""]
        lines += [
            "| table or figure | what was run: recipe, scale | seeds finished | the paper's claim: verdict | command |"
        ]
        lines += ["|---|---|---|---|---|"]
        lines += [_index_line(paper, name, judged, kept, data) for name in PAPERS[paper].tables]
    text = (
        "# The papers' tables and figures\n\nWhat was run of each, and what it says. A recipe is *paper* (what the text"
        " says) or *authors* (what the authors' public code does; [where they differ](../papers.md)); a scale is "
        "*paper* (everything) or *small* (fewer rounds, clients or settings: each table says which). Every page is "
        "made of the kept results of single runs by `python benchmarks/pages.py`; the settings to be run were "
        "committed before the runs.\n\n"
        "A claim is the paper's, in our words. **Confirmed**: every difference that it is about has the sign that it "
        "says, with a 95 % interval over seeds that does not reach 0, or numbers that are computed without chance are"
        " the printed ones. **Partly**: a part of the claim holds, or all of it has the sign that it says, with too "
        "few seeds to be sure; the reason beside it says which. **Not confirmed**: the differences do not show it. "
        "**Not decided**: some runs are finished, too few to judge by; one or two seeds decide nothing. **Not run**: "
        "none is, or only [unkept](../check-us.md#results-of-the-four-papers) ones. Intervals are over seeds, on one "
        "kind of processor, and not corrected for their number. A share of seeds (*separated*) has no interval: the "
        "seeds are counted, and two rows are compared by an exact sign test, which five seeds cannot bring below p = "
        "0.06. *2 of 12 runs*: a table is made of many runs (rows, settings, seeds), and of so many so few are "
        "finished. Processor hours are for all of them at full size, one core each, on the machine of the finished "
        "runs. "
        "*Data not here*: [what must be fetched by hand](../data.md).\n\n"
        "A command runs a table, or goes on with one that was stopped: a finished run is kept under "
        "`runs/reproduce/PAPER` and not run again. In a clone of the repository `--out benchmarks/results/PAPER` goes "
        "on with the runs of these pages. "
        "`--only 'WORDS'` runs some rows or settings, `--seeds N` seeds 0 to N - 1.\n"
    )
    return [Page("index.md", HEAD + text + "\n".join(lines) + "\n"), *found]


def _command(paper: str, name: str, recipe: str, scale: str) -> str:
    chosen = f" --recipe {recipe}" if recipe != "paper" else ""
    return f"`hanse reproduce {paper} {name}{chosen} --scale {scale}`"


def _seeds(kept: Kept) -> str:
    """Say how many seeds are finished: of all cells that have a number, the fewest and the most."""
    counts = {row.best.n for row in rows(kept.outcome)}
    if not kept.outcome.jobs:
        return "none needed"
    few = f"{min(counts)} to {max(counts)}" if len(counts) > 1 else f"{max(counts)}"
    return few if counts == {kept.outcome.seeds} else f"{few} of {kept.outcome.seeds}"


def _index_line(
    paper: str, name: str, judged: Sequence[Verdict], kept: Mapping[str, Sequence[Kept]], data: Mapping[str, str]
) -> str:
    here, recipe = distinct(kept[name]), _usual_recipe(kept)
    made = [f"{k.table.recipe}, {k.table.scale}{_partly(k)}" for k in here] or [
        _why(paper, name, recipe, judged, kept, data)
    ]
    said = "<br>".join(f"{v['claim']}: **{v['verdict']}**" for v in judged if v["table"] == name)
    runs = [(k.table.recipe, k.table.scale) for k in here] or [(recipe, "paper")]
    commands = "<br>".join(_command(paper, name, *run) for run in runs)
    return f"| {name} | {'<br>'.join(made)} | {'<br>'.join(map(_seeds, here))} | {said or 'none yet'} | {commands} |"


def _usual_recipe(kept: Mapping[str, Sequence[Kept]]) -> str:
    """Return the recipe of most of a paper's finished runs, by which its other tables go on: their hours are reckoned
    from these runs, and their numbers stand beside theirs.
    """
    runs = Counter(recipe for _, recipe in {
        (key, k.table.recipe) for here in kept.values() for k in here for key in k.outcome.results
    })  # fmt: skip
    return max(RECIPES, key=lambda recipe: runs[recipe])  # "paper" if there are as many of both


def _partly(kept: Kept) -> str:
    """Say how many of a table's runs are finished, if not all are."""
    done, asked = len(kept.outcome.results), len(kept.outcome.jobs)
    return f" ({done} of {asked} runs)" if done < asked else ""


def _not_run(
    paper: str, judged: Sequence[Verdict], kept: Mapping[str, Sequence[Kept]], data: Mapping[str, str]
) -> list[str]:
    """Return every table and recipe that is not whole at full size, those with the same reason in one line."""
    told: dict[str, dict[str, list[str]]] = {}  # by reason the tables and their recipes
    for name, here in kept.items():
        for recipe in RECIPES:
            of = next((k for k in here if (k.table.recipe, k.table.scale) == (recipe, "paper")), None)
            why = _why(paper, name, recipe, judged, kept, data) if of is None else _partly(of).strip(" ()")
            if why:
                why += " finished" if of is not None else ""
                told.setdefault(why, {}).setdefault(name, []).append(recipe)
    lines = []
    for why, names in told.items():
        alike: dict[str, list[str]] = {}
        for name, by in names.items():
            alike.setdefault(" and ".join(by), []).append(name)
        lines += [f"- {', '.join(same)} (recipe {by}): {why}" for by, same in alike.items()]
    return lines


def _why(
    paper: str,
    name: str,
    recipe: str,
    judged: Sequence[Verdict],
    kept: Mapping[str, Sequence[Kept]],
    data: Mapping[str, str],
) -> str:
    """Say why nothing is kept of a table at full size: its data, or the hours that it takes."""
    full = find_table(paper, name, "paper", recipe)
    if "computed" in read_table(paper, name, "paper", full.recipe):
        return "not computed"
    needed = sources_of(paper, name, "paper", full.recipe)
    away = [s for s in needed if s not in SHIPPED and any(part not in data for part in MADE_OF.get(s, (s,)))]
    if away and len(away) == len(needed):
        return f"data not here ({', '.join(away)})"
    without = f"; data not here: {', '.join(away)}" if away else ""
    told = [v["hours"] for v in judged if (v["table"], v.get("recipe", "paper")) == (name, recipe) and "hours" in v]
    return f"not run, {f'{told[0]:g} processor hours' if told else _hours(full, kept)}{without}"


def _hours(full: PaperTable, kept: Mapping[str, Sequence[Kept]]) -> str:
    """Say how many processor hours a table takes at the cost a round of what is kept of its paper, by its own recipe if
    there is any.
    """
    all_kept = [k for tables in kept.values() for k in tables if k.outcome.results]
    every = [k for k in all_kept if k.table.recipe == full.recipe] or all_kept
    measured = [k.outcome for k in every if k.table.scale == "paper"] or [k.outcome for k in every]
    if not measured:
        return "hours not known: no run of this paper is kept"
    jobs = tuple(job for outcome in measured for job in outcome.jobs)
    results = {key: found for outcome in measured for key, found in outcome.results.items()}
    hours, missing = cpu_hours(replace(measured[0], jobs=jobs, results=results), full)
    more = "about " if all(outcome.table.scale == "paper" for outcome in measured) else "more than "
    by = sorted({outcome.table.recipe for outcome in measured})
    runs = f"{len(results)} run{'' if len(results) == 1 else 's'}"
    if not hours:
        return f"hours not known: no run of {' or '.join(missing)} is kept"
    unknown = f", not counting {', '.join(missing)}, of which no run is kept" if missing else ""
    return f"{more}{hours:.1f} processor hours (from a round's cost in {runs} by recipe {' and '.join(by)}){unknown}"


def _unread(kept_file: KeptFile, kept: Mapping[str, Sequence[Kept]]) -> list[str]:
    """Name the kept results that no table above reads: failed, or of a seed, device or setting that none has."""
    read = {key for tables in kept.values() for k in tables for key in k.outcome.results}
    lines = [
        f"- {key}: {found['label']}: {found['status']}" + (f", {found['error']}" if "error" in found else "")
        for key, there in sorted(kept_file.lines().items())
        for found in there
        if key not in read
    ]
    return ["## Kept results that no table here reads", "", *lines, ""] if lines else []


def _paper_page(
    results: Path, paper: str, judged: Sequence[Verdict], kept: Mapping[str, Sequence[Kept]], data: Mapping[str, str]
) -> Page:
    lines = [f"# {TITLES[paper]}: what was run, and what it says", ""]
    lines += [f"{PAPERS[paper].citation}. [All papers](index.md)."]
    lines += ["", "## Verdicts", ""]
    for entry in judged:
        lines += _judged(paper, entry, kept[entry["table"]])
    pictures: list[Chart] = []
    lines += ["", "## Tables and figures with finished runs", ""]
    for found in (one for tables in kept.values() for one in distinct(tables)):
        drawn = charts(found.outcome, f"{paper}-{stem_of(found.table)}")
        pictures += drawn
        lines += _shown(found, drawn)
    lines += [] if any(kept.values()) else ["None yet.", ""]
    lines += _unread(KeptFile(results / paper), kept)
    lines += ["## Not finished at full size", ""]
    lines += _not_run(paper, judged, kept, data) or ["Everything is finished."]
    return Page(f"{paper}.md", HEAD + "\n".join(lines) + "\n", tuple(pictures))


def _judged(paper: str, entry: Verdict, here: Sequence[Kept]) -> list[str]:
    """Return a verdict's lines. Raises UserError if it has none of the numbers that it needs."""
    recipe, scale = entry.get("recipe", "paper"), entry.get("scale", "paper")
    of = next((k for k in here if (k.table.recipe, k.table.scale) == (recipe, scale)), None)
    pairs = [] if of is None else differences(entry, of)
    exact = of is not None and not of.outcome.jobs
    if entry["verdict"] not in OPEN and not pairs and not exact:
        raise UserError(
            f"{paper}/verdicts.toml: {entry['table']} ({recipe}, {scale}), '{entry['claim']}': the verdict "
            f"'{entry['verdict']}' has no pair with finished runs"
        )
    if entry["verdict"] == "confirmed" and not exact and len(pairs) < (asked := _asked(paper, entry)):
        raise UserError(
            f"{paper}/verdicts.toml: {entry['table']} ({recipe}, {scale}): 'confirmed', and only {len(pairs)} of the "
            f"{asked} differences that it names have numbers"
        )
    where = f"{paper}/verdicts.toml: {entry['table']} ({recipe}, {scale})"
    if of is not None and exact:
        _hold_computed(where, entry, of)
    else:
        _hold(where, entry, pairs)
    made = f" (recipe {recipe}, scale {scale})" if of is not None else ""
    because = f" {entry['because'][0].upper()}{entry['because'][1:]}." if entry.get("because") else ""
    now = 0 if of is None else len(of.outcome.results)
    if entry.get("runs", now) > now:  # they would come later, and the verdict would then pass for one that knows them
        raise UserError(f"{where}: runs is {entry['runs']}, and {_runs(now)} finished: say how many the verdict knows")
    since = f" (Written when {_runs(entry['runs'])} finished; {now} are now.)" if entry.get("runs", now) != now else ""
    word = entry["verdict"].capitalize()
    lines = [f"**{entry['table']}**{made}: {entry['claim']}. **{word}**.{because}{since}", ""]
    if pairs:
        shares = [isinstance(said, Shares) for _, said in pairs]
        heads = ["mean over seeds, 95 % interval"] * (not all(shares))
        heads += [f"{'of shares: ' * bool(heads)}seeds of both, exact test"] * any(shares)
        lines += [f"| difference | {'; '.join(heads)} |"]
        lines += ["|---|---|"]
        lines += [f"| {what} | {said} |" for what, said in pairs] + [""]
    return lines


def _hold(where: str, entry: Verdict, pairs: Sequence[tuple[str, Difference | Shares]]) -> None:
    """Hold a verdict against its numbers. Raises UserError for those that do not say so: "confirmed" with an interval
    that is not on the side that the claim expects, "not confirmed" with all of them there, and "partly" with all of
    them on the other side; and for a decided one that does not say what it expects.
    """
    verdict, expects = entry["verdict"], entry.get("expects")
    if verdict == "confirmed" and expects in (None, "none"):
        raise UserError(f"{where}: 'confirmed' needs expects; allowed: above, below")
    if verdict in OPEN:
        return
    if expects is None:
        raise UserError(f"{where}: '{verdict}' with pairs needs expects; allowed: above, below, none")
    if expects == "none":
        return
    other = "below" if expects == "above" else "above"
    against = {
        "confirmed": [f"{what} {said}" for what, said in pairs if not said.is_on(expects)],
        "not confirmed": [f"{what} {said}" for what, said in pairs if said.is_on(expects)],
        "partly": [f"{what} {said}" for what, said in pairs if said.is_on(other)],
    }[verdict]
    if against and (verdict == "confirmed" or len(against) == len(pairs)):
        raise UserError(f"{where}: '{verdict}' with expects = '{expects}', against {'; '.join(against)}")


def _hold_computed(where: str, entry: Verdict, kept: Kept) -> None:
    """Hold a verdict on a table that is computed without chance against what is printed.

    Raises:
        UserError: "confirmed", and a number is missing or not the printed one, at the digits that are printed; "not
            confirmed", and all are; or pairs of rows, which no seeds tell apart.
    """
    if entry.get("pairs"):
        raise UserError(f"{where}: pairs are compared over seeds, and this table is computed: leave them out")
    ours = {row.cell.place: row.best.mean for row in rows(kept.outcome)}
    table = kept.table
    whole = find_table(table.paper, table.name, table.scale, table.recipe)  # with the cells that have no number
    judged = [cell for cell in whole.cells if _is_judged(entry, (cell.group, cell.column, cell.algorithm))]
    unlike, asked = [], [(cell, cell.published) for cell in judged if cell.published is not None]
    for cell, printed in asked:
        mean = ours.get(cell.place)
        if mean is None or abs(mean - printed.mean) > 0.5001 * 10.0**-printed.decimals:
            said = "no number" if mean is None else f"{mean:g}"
            there = f"{printed.mean:.{printed.decimals}f}"
            unlike.append(f"{cell.setting}, {cell.algorithm}: {said} against the printed {there}")
    if entry["verdict"] == "confirmed" and (unlike or not asked):
        raise UserError(f"{where}: 'confirmed', and {'; '.join(unlike) or 'none of its numbers is printed'}")
    if entry["verdict"] == "not confirmed" and asked and not unlike:
        raise UserError(f"{where}: 'not confirmed', and every number is the printed one")


def _runs(number: int) -> str:
    return "1 run was" if number == 1 else f"{number} runs were"


def _not_as_kept(paper: str, judged: Sequence[Verdict], kept: Mapping[str, Sequence[Kept]]) -> list[str]:
    """Return a line for each verdict that says "not run" of a table with finished runs, or "not decided" of one
    without.
    """
    lines = []
    for entry in judged:
        where, there = f"{paper}/verdicts.toml: {entry['table']}", bool(kept[entry["table"]])
        if entry["verdict"] == "not run" and there:
            lines.append(f"{where}: 'not run', and runs of it are finished: say 'not decided', or decide")
        if entry["verdict"] == "not decided" and not there:
            lines.append(f"{where}: 'not decided', and no run of it is finished: say 'not run'")
    return lines


def _shown(found: Kept, drawn: Sequence[Chart]) -> list[str]:
    table = found.table
    whole = find_table(table.paper, table.name, table.scale, table.recipe)
    if found.outcome.jobs:
        whole = with_seeds(whole, found.outcome.seeds, found.full.seeds)
    lines = [table_markdown(found.outcome, found.full, whole).rstrip(), ""]
    command = _command(table.paper, table.name, table.recipe, table.scale)
    seeds = f"Finished seeds: {_seeds(found)}{_partly(found)}." if found.outcome.jobs else "Computed, without a seed."
    lines += [f"{seeds} {command}", ""]
    lines += _against_first(found)
    for chart in drawn:
        links = ", ".join(f"[{kind.upper()}](figures/{chart.key}.{kind})" for kind in ("svg", "csv"))
        lines += [
            f"![{chart.title}](figures/{chart.key}.png)",
            "",
            f"{chart.title}: {links}. {chart.caption}".rstrip(),
            "",
        ]
    return lines


def _against_first(found: Kept) -> list[str]:
    """Return the paired differences of the other rows to the first one, setting by setting."""
    lines = []
    here = [row for row in rows(found.outcome) if row.cell.ranked]
    for setting in dict.fromkeys(row.cell.setting for row in here):
        first, *others = [row for row in here if row.cell.setting == setting]
        said = [(row.cell.algorithm, difference(found.outcome, first, row)) for row in others]
        told = [
            f"{first.cell.algorithm} − {name}: {text}" for name, text in said if text is not None and text.seeds > 1
        ]
        lines += [f"- {setting}: {'; '.join(told)}"] if told else []
    said = (
        "The first row minus each other one, paired by seed, mean and 95 % interval (Student's t); of a share of seeds "
        "the counts of both, and an exact sign test:"
        if any(row.best.held is not None for row in here)
        else "The first row minus each other one, paired by seed, mean and 95 % interval (Student's t):"
    )
    return [said, "", *lines, ""] if lines else []


# ---- writing and checking


def write(made: Sequence[Page], folder: Path) -> list[Path]:
    """Write the pages and their pictures, and take away pictures that are on none; return the pages' paths."""
    for page in made:
        write_whole(folder / page.name, page.text)
        for chart in page.pictures:
            write_whole(folder / "figures" / f"{chart.key}.csv", to_csv(chart))
            draw(chart, folder / "figures")
    for path in _strays(made, folder):
        path.unlink()
    return [folder / page.name for page in made]


def _files(made: Sequence[Page], folder: Path) -> dict[Path, str | None]:
    """Return what a folder of pages has: each file's text, None for a picture, whose bytes are not compared."""
    found: dict[Path, str | None] = {folder / page.name: page.text for page in made}
    for chart in (chart for page in made for chart in page.pictures):
        found |= {folder / "figures" / f"{chart.key}.{kind}": None for kind in ("png", "svg")}
        found[folder / "figures" / f"{chart.key}.csv"] = to_csv(chart)
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
def unplanned(root: Path = ROOT) -> list[str]:
    """Return the kept runs whose settings were not committed before them: "PAPER: KEY, why" each.

    A run either names the commit that played it, which must be in the history, or it was added, in a file of its own,
    by a commit after the one that added its key to the plan.
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
        for key, lines in KeptFile(folder).lines().items():
            for line in lines:
                commit = line.get("made", {}).get("commit")
                if "made" in line and commit not in commits:
                    found.append(f"{folder.name}: {key}, played by {commit}, which is not in the history")
                if "made" not in line and key not in before.get(folder.name, ()):
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


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return what was asked for on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    return parser.parse_args(words)


def main() -> None:
    """Do what the command line asks for."""
    asked = arguments()
    try:
        with data_as_kept(RESULTS, update=not asked.check) as data:
            made = pages(RESULTS, data)
    except UserError as wrong:
        raise SystemExit("\n".join(f"pages: {line}" for line in wrong.lines)) from None
    if not asked.check:
        return print(f"wrote {', '.join(str(path.relative_to(ROOT)) for path in write(made, PAGES))}")
    if wrong := stale(made, PAGES):
        raise SystemExit(f"pages: not what the kept results give: {', '.join(wrong)}; run python benchmarks/pages.py")
    return None


if __name__ == "__main__":
    main()
