"""The papers' screens, made of the kept results and of nothing else.

    python benchmarks/pages.py            # writes docs/results
    python benchmarks/pages.py --check    # ends with 1 if docs/results is not what is kept gives

``hanse reproduce PAPER ... --out benchmarks/results/PAPER`` adds a line for each run to ``kept.jsonl.gz``, with the
commit that played it: its settings stood in that commit. Lines without a commit are older than that. The keys of their
runs, hashes of their settings, were committed in ``planned.json`` before the results were; a test compares the commits.

``docs/results/PAPER.md`` is one screen: a picture, the questions of ``papers/src/hanse_papers/PAPER/page.toml`` with
their answers, what differs, what was not tested, one command. Beside it lie ``PAPER-claims.csv``, every claim with the
numbers that its word is reached by (:mod:`hanse_papers.claims`), and ``PAPER-cells.csv``, every number of every table.
``made.json`` has a hash of all that the screens are made of, and of what was made: a test compares them without making
anything.

``benchmarks/results/data.json`` keeps which data sets were here, so that the screens are the same on a machine without
data; writing them brings it up to date.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import math
import re
import subprocess
import textwrap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.core.table import Floats
from hanse.data import sources
from hanse.lab.kept import KeptFile
from hanse.lab.statistics import WORDS
from hanse.reports.chart import Bars, Chart, Curve, Lines, Series, to_csv
from hanse.reports.vega import to_svg, to_vegalite
from hanse_papers import catalogue
from hanse_papers.catalogue import MADE_OF, PAPERS
from hanse_papers.claims.claim import Claim, load_claims
from hanse_papers.claims.judge import Runs, Verdict, as_rows, counted, judge, largest_repeat
from hanse_papers.compare import curve_of, factor_of, score
from hanse_papers.ids import IDS
from hanse_papers.tables import RECIPES, Cell, PaperTable, sources_of

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ROOT / "docs" / "results"
TEXTS = ROOT / "papers" / "src" / "hanse_papers"
PLANNED, MADE = "planned.json", "made.json"
TITLES = {"greedyfed": "GreedyFed", "gtflat": "GTFLAT", "ipfl": "iPFL", "pifl": "PI-FL"}
SHOWN = ("paper", "small")  # scales; a smoke test is no result
HEAD = "<!-- made by benchmarks/pages.py from benchmarks/results and page.toml: change those -->\n"
PANEL, LETTERS = 330, 44  # of each half of a picture: its pixels, and letters in a line of its title

find_table = cache(catalogue.find_table)


# ---- what is kept


@contextmanager
def data_as_kept(results: Path, *, update: bool) -> Iterator[Mapping[str, str]]:
    """Let the tables find the data sets that were here when the screens were written, wherever this runs; yields them
    by name, with what their splits differ in. ``update``: those that are here now are added first.
    """
    path = results / "data.json"
    known: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
    if update:
        names = {name for paper in PAPERS for name in _sources(paper)}
        known |= {name: sources.split_note(name) for name in names if sources.is_here(name)}
        write_whole(path, json.dumps(known, indent=1, sort_keys=True) + "\n")
    find_table.cache_clear()  # a table depends on the data that are here
    with ExitStack() as patches:
        patches.enter_context(patch("hanse_papers.tables.is_here", known.__contains__))
        patches.enter_context(patch("hanse_papers.computed.is_here", lambda source: False))
        yield known
    find_table.cache_clear()


def _sources(paper: str) -> set[str]:
    found = {s for name in PAPERS[paper].tables for r in RECIPES for s in sources_of(paper, name, "paper", r)}
    return found | {part for source in found for part in MADE_OF.get(source, ())}


CELLS = (
    "table", "recipe", "scale", "group", "column", "row", "variant", "rounds", "paper", "paper_sd", "ours", "sd",
    "seeds", "unit",
)  # fmt: skip


def cells(paper: str, runs: Runs) -> list[dict[str, Any]]:
    """Return every number that we have of a paper's tables. A scale or recipe that changes nothing is left out."""
    found, had = [], set()
    for name, recipe, scale in ((n, r, s) for n in PAPERS[paper].tables for r in RECIPES for s in SHOWN):
        table = find_table(paper, name, scale, recipe)
        for cell in table.cells:
            printed = cell.published
            for variant in cell.variants or (None,):
                if variant is None:
                    ours, sd, n, keys = cell.computed, None, 1, ()
                else:
                    by_seed = runs.by_seed(variant.sections)
                    bases = {} if variant.against is None else runs.by_seed(variant.against)
                    keys = tuple(run["key"] for run in by_seed.values())
                    value = score(cell, variant.name, {s: (r, bases.get(s)) for s, r in by_seed.items()}, table)
                    ours, sd, n = value.mean, value.sd, value.n
                tried = "" if variant is None else variant.name
                row = (
                    name, recipe, scale, cell.group, cell.column, cell.algorithm, tried, cell.at,
                    printed and printed.mean, printed and printed.sd, ours, sd, n,
                    _unit(cell, table),
                )  # fmt: skip
                once = (name, *row[3:8], keys, ours)
                if ours is not None and once not in had:
                    found.append(dict(zip(CELLS, row, strict=True)))
                had.add(once)
    return found


def _unit(cell: Cell, table: PaperTable) -> str:
    return cell.column if table.unit == "as named" else table.unit


def as_csv(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> str:
    """Return rows as CSV: numbers with six digits, so that a rounding elsewhere is no difference."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(names := list(names))
    for row in rows:
        out.writerow([f"{v:.6g}" if isinstance(v, float) else _plain(v) for v in (row.get(name) for name in names)])
    return text.getvalue()


def _plain(value: Any) -> Any:
    return "; ".join(map(str, value)) if isinstance(value, list) else "" if value is None else value


# ---- what a claim comes to, in words


def unit_of(claim: Claim) -> str:
    """Return the unit of a claim's effect; "" for points of accuracy."""
    arm = claim.arms[0][0] if claim.arms else None
    if claim.kind == "share":
        return "% of the runs"
    if claim.reading.kind in ("rounds", "faster"):
        return "rounds" if claim.reading.kind == "rounds" else "% of the rounds"
    points = arm is None or (arm.variant is not None and factor_of(arm.cell, arm.table) == 100)
    return "" if arm is None or points else _unit(arm.cell, arm.table)


def ours_of(verdict: Verdict) -> str:
    """Return a claim's effect with its interval, and without one what the kept seeds show so far; "–" without any."""
    judged, so_far, unit = verdict.judged, verdict.so_far, f" {unit_of(verdict.claim)}".rstrip()
    if judged.effect is None:
        if so_far is None:
            return "–"
        spread = f" ± {_number(so_far.sd).lstrip('+')}" if so_far.sd else ""
        return f"{_number(so_far.mean)}{spread}{unit}, kept, not counted"
    if not judged.effect.error:
        return f"{judged.effect.mean:.3g}{unit}"
    return f"{_number(judged.effect.mean)} [{_number(judged.low)}, {_number(judged.high)}]{unit}"


def _number(value: float) -> str:
    return f"{value:+.1f}" if abs(value) >= 10 else f"{value:+.2f}"


def printed_of(verdict: Verdict) -> str:
    """Return the effect that the paper prints; "–" where it prints none, or where the claim is not the paper's."""
    claim = verdict.claim
    if claim.where == "ours":
        return "says nothing"
    number = "yes" if claim.printed is None or claim.kind == "equal" else _number(claim.printed)
    return f"{number} ({claim.where})"


def answer_of(verdict: Verdict) -> str:
    """Return a claim's word."""
    said = f"**{verdict.judged.said}**"
    return f"{said}, by its margin of {verdict.claim.margin:g} alone" if verdict.by_margin else said


def seeds_of(verdict: Verdict) -> str:
    """Return of how many seeds a claim's number is, what they share, and whether it was registered after some."""
    if verdict.computed:
        return "computed"
    claim, of = verdict.claim, verdict.judged.effect or verdict.so_far
    n = verdict.seeds if of is None else of.seeds
    shared = [] if "split" in claim.drawn_anew else ["one split"]
    late = [f"registered after {claim.seen}"] if claim.seen else []
    first = [f"counts from seed {claim.first}"] if claim.first else []
    return ", ".join([str(n), *shared, *late, *first])


def scale_of(claim: Claim) -> str:
    """Return the scale of a claim's runs, and of a smaller one how many of the paper's rounds are played."""
    if not claim.arms or claim.arms[0][0].variant is None:
        return "–"
    arm = claim.arms[0][0]
    if arm.table.scale == "paper":
        return "the paper's"
    full = find_table(claim.paper, arm.table.name, "paper", arm.table.recipe)
    at = next((c.at for c in full.cells if c.place == arm.cell.place), arm.cell.at)
    return f"{arm.cell.at} of {at} rounds" if at != arm.cell.at else f"{arm.table.scale}"


# ---- pictures


def picture(paper: str, page: Mapping[str, Any], runs: Runs) -> list[Chart]:
    """Return the two halves of a paper's picture: each row's tests over the rounds, or its last one by settings."""
    return [_half(paper, spec, place, runs) for place, spec in enumerate(page["picture"])]


def _half(paper: str, spec: Mapping[str, Any], place: int, runs: Runs) -> Chart:
    table = find_table(paper, spec["table"], spec.get("scale", "paper"), spec.get("recipe", "paper"))
    here = {(c.group, c.algorithm): c for c in table.cells if c.column == spec["column"] and c.group in spec["groups"]}
    curves, series = [], []
    for look, row in enumerate(spec["rows"]):
        found = [_tests(table, here[group, row], spec, runs) for group in spec["groups"]]
        if any(not len(y) for _, y in found):
            raise UserError(f"{paper}/page.toml: picture {place + 1}: {row}: no run is kept")
        seeds = {len(y) for _, y in found}
        name = f"{spec.get('names', {}).get(row, row)} ({'-'.join(map(str, sorted(seeds)))})"
        if len(found) == 1:
            x, y = found[0]
            mean, sd = y.mean(axis=0), y.std(axis=0, ddof=1) if len(y) > 1 else None
            low, high = (None, None) if sd is None else (mean - sd, mean + sd)
            curves.append(Curve(name, x, mean, low, high, look))
        else:
            last = [y[:, -1] for _, y in found]
            spread = np.array([v.std(ddof=1) if len(v) > 1 else math.nan for v in last])
            series.append(Series(name, np.array([v.mean() for v in last]), spread, look))
    key, caption = f"{paper}-{place + 1}", "In brackets: seeds; bands and whiskers: one standard deviation over them."
    if curves:
        return Chart(
            key, "", spec["title"], caption, Lines(tuple(curves), named=True), x="rounds", y=spec.get("y", table.unit)
        )
    bars = Bars(tuple(spec["groups"]), tuple(series), whiskers="standard deviation")
    return Chart(key, "", spec["title"], caption, bars, x=spec.get("y", table.unit))


def _tests(table: PaperTable, cell: Cell, spec: Mapping[str, Any], runs: Runs) -> tuple[Floats, Floats]:
    """Return the rounds of a row's tests, and its figures ``[seeds, tests]``, of the runs with the same tests."""
    wanted = spec.get("variants", {}).get(cell.algorithm, cell.variants[0].name)
    [variant] = [v for v in cell.variants if v.name == wanted]
    each = [curve_of(cell, table, run, max(run["tested"])) for run in runs.by_seed(variant.sections).values()]
    known = [curve for curve in each if curve is not None]
    there = [y for x, y in known if np.array_equal(x, known[0][0])]
    return (known[0][0].astype(np.float64), np.stack(there)) if there else (np.zeros(0), np.zeros((0, 0)))


def side_by_side(charts: Sequence[Chart]) -> str:
    """Return one drawing of charts beside each other."""
    panel = [{"width": PANEL, "title": {"text": textwrap.wrap(chart.title, LETTERS)}} for chart in charts]
    drawn = [to_svg({**to_vegalite(chart), **own}) for chart, own in zip(charts, panel, strict=True)]
    sizes = [
        tuple(float(svg.split(f'{word}="', 1)[1].split('"', 1)[0]) for word in ("width", "height")) for svg in drawn
    ]
    width, height = sum(w for w, _ in sizes), max(h for _, h in sizes)
    parts, x = [], 0.0
    for place, (svg, (w, _)) in enumerate(zip(drawn, sizes, strict=True)):
        for word in ('id="', "url(#"):  # each drawing numbers its own clips from 0
            svg = svg.replace(word, f"{word}p{place}-")
        parts.append(svg.replace("<svg ", f'<svg x="{x:g}" ', 1))
        x += w
    space = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return f"<svg {space} {size}>{''.join(parts)}</svg>\n"


# ---- screens


@dataclass(frozen=True)
class Made:
    """What is written: files by their names below ``docs/results``, and drawings, whose bytes are not compared."""

    texts: dict[str, str]
    drawings: dict[str, str]


INTRO = """# Do the papers' claims hold?

For researchers: what GreedyFed, GTFLAT, iPFL and PI-FL claim, and what runs say. Each claim gets a word, by a rule that
stood before the runs:

* **confirmed**: the interval of our effect lies above 0, the paper's side; *in direction, not in size*: and below the
  smallest effect that matters (half of the printed one, or as the claim says)
* **contradicted**: it lies below 0
* **no such effect**: it contains 0 and lies below that smallest effect
* where a number should be the printed one (a theorem's counterexamples: 0): **confirmed** within the margin of it,
  **contradicted** outside
* **open**: none of these yet; it *needs* so many seeds if mean and spread stay as they are
* **not run**: no counted seed is kept; **not testable at this scale**: in its runs there is hardly a market;
  **cannot be decided here**: the reason is in the claims' file

Effects are points of accuracy unless they say otherwise, ours less the other's, paired over seeds. Intervals (95 %) are
corrected over a table's claims and hold however often we look: in the claims' files, `mean` ± `error` × Student's t of
`looked` - 1 degrees at 1 - `level` × `share` / 2. Before the first look (5 seeds, of shares 10) the mean ± deviation of
the kept seeds stands in their place and decides nothing. Of several differences the least certain is shown.
"""


def pages(results: Path, known: Mapping[str, str]) -> Made:
    """Return all that is written. Raises UserError for damaged results."""
    made, index, repeats = Made({}, {}), [], []
    for paper in PAPERS:
        runs, page = Runs(results / paper), tomllib.loads((TEXTS / paper / "page.toml").read_text())
        claims = load_claims(paper)
        verdicts = judge(claims, runs)
        halves = picture(paper, page, runs)
        rows = [*as_rows(verdicts), *({"name": "", **line, "word": "no claim"} for line in page["unclaimed"])]
        made.texts[f"{paper}.md"] = _screen(paper, page, verdicts, halves)
        made.texts[f"{paper}-claims.csv"] = as_csv(rows, dict.fromkeys(name for row in rows for name in row))
        made.texts[f"{paper}-cells.csv"] = as_csv(cells(paper, runs), CELLS)
        made.texts[f"{paper}-picture.csv"] = "".join(f"{half.title}\n{to_csv(half)}" for half in halves)
        made.drawings[f"{paper}.svg"] = side_by_side(halves)
        index += _index(paper, page, verdicts)
        repeats.append(largest_repeat(claims, runs))
    made.texts["index.md"] = HEAD + INTRO + "\n" + "\n".join([
        "| paper | its claims | ours | does its own idea help? |", "|---|---|---|---|", *index, "",
        "## What limits every row", "",
        *(f"* {line}" for line in tomllib.loads((TEXTS / "limits.toml").read_text())["limits"]),
        f"* The same run on two kinds of processor differs by up to {max(repeats):.2f} points of accuracy; pairs are "
        "of one kind wherever both are kept, and else that noise counts in the interval.", "",
        "[Decide or recompute a claim](../check-us.md#results-of-the-four-papers).",
    ]) + "\n"  # fmt: skip
    return made


def _index(paper: str, page: Mapping[str, Any], verdicts: Sequence[Verdict]) -> list[str]:
    """Return a paper's row of the index."""
    by_name = {v.claim.name: v for v in verdicts}
    helps = by_name[page["idea"]]
    words = [_counts(counted(verdicts, ours=ours)) for ours in (False, True)]
    shown = ours_of(helps).replace("–", "none kept yet")
    twin = f"{answer_of(helps)}: {shown} beside *{helps.claim.rows[1]}*"
    return [f"| [{TITLES[paper]}]({paper}.md) | {' | '.join(words)} | {twin} |"]


def _counts(by: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{len(by[word])} {word}" for word in WORDS if by[word])


def _screen(paper: str, page: Mapping[str, Any], verdicts: Sequence[Verdict], halves: Sequence[Chart]) -> str:
    by_name = {v.claim.name: v for v in verdicts}
    missing = [line["claim"] for line in page["questions"] if line["claim"] not in by_name]
    if missing:
        raise UserError(f"{paper}/page.toml: {missing[0]}: there is no such claim")
    lines = [
        HEAD + f"# {TITLES[paper]}", "", f"{PAPERS[paper].citation}. [What the words mean](index.md).", "",
        f"![{'; '.join(half.title for half in halves)}]({paper}.svg)", "",
        f"{halves[0].caption} [Numbers]({paper}-picture.csv).", "",
        '<div class="claims" markdown="1">', "",
        "| question | the paper | ours (95 %) | seeds | scale | answer |", "|---|---|---|---|---|---|",
    ]  # fmt: skip
    for line in page["questions"]:
        v = by_name[line["claim"]]
        said = answer_of(v) + (f" ({line['note']})" if "note" in line else "")
        row = (line["asks"], printed_of(v), ours_of(v), seeds_of(v), scale_of(v.claim), said)
        lines.append(f"| {' | '.join(text.replace('|', '/') for text in row)} |")
    lines += ["", "</div>", "", f"[Every claim]({paper}-claims.csv), [every number]({paper}-cells.csv), or again:", ""]
    lines += ['```bash not-run="plays runs for hours"', page["command"], "```", ""]
    readings = f"* Beside [how we read the paper](../papers.md#{TITLES[paper].lower()})."
    lines += ["## What differs from the paper", "", *(f"* {text}" for text in page["texts"]["differs"])]
    lines += [readings, "", "## Not tested", ""]
    lines += [f"* {text}" for text in page["texts"]["untested"]]
    return "\n".join(lines) + "\n"


def words(text: str) -> int:
    """Return how many words a page has, without the addresses of links and the bars of tables."""
    text = re.sub(r"<!--.*?-->|\]\([^)]*\)", " ", text, flags=re.DOTALL)
    return len(re.findall(r"[^\s|]*\w[^\s|]*", text))


# ---- writing and checking


def made_of(texts: Mapping[str, str]) -> dict[str, str]:
    """Return a hash of what the screens are made of, kept lines and papers' files, and one of each text."""
    inputs = [
        p for paper in PAPERS for p in ((RESULTS / paper / "kept.jsonl.gz"), *sorted((TEXTS / paper).glob("*.toml")))
    ]
    inputs += [RESULTS / "data.json", TEXTS / "limits.toml"]
    whole = hashlib.blake2b(b"".join(path.read_bytes() for path in inputs if path.exists()), digest_size=10).hexdigest()
    return {"from": whole} | {
        name: hashlib.blake2b(text.encode(), digest_size=10).hexdigest() for name, text in sorted(texts.items())
    }


def write(made: Made, folder: Path) -> None:
    """Write the screens and what lies beside them, and take away what does not belong there."""
    for name, text in {**made.texts, **made.drawings, MADE: json.dumps(made_of(made.texts), indent=1) + "\n"}.items():
        write_whole(folder / name, text)
    for path in _strays(made, folder):
        path.unlink()


def _strays(made: Made, folder: Path) -> list[Path]:
    known = {*made.texts, *made.drawings, MADE}
    return sorted(path for path in folder.rglob("*") if path.is_file() and str(path.relative_to(folder)) not in known)


def stale(made: Made, folder: Path) -> list[str]:
    """Return the names of the files that are not what they should be."""
    there = {name: (folder / name).read_text() if (folder / name).exists() else None for name in made.texts}
    wrong = [name for name, text in made.texts.items() if there[name] != text]
    wrong += [name for name in made.drawings if not (folder / name).exists()]
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
        with data_as_kept(RESULTS, update=not check) as known:
            made = pages(RESULTS, known)
    except UserError as wrong:
        raise SystemExit("\n".join(f"pages: {line}" for line in wrong.lines)) from None
    if not check:
        write(made, PAGES)
        counts = {name: words(text) for name, text in made.texts.items() if name.endswith(".md")}
        return print(f"wrote docs/results; words: {counts}")
    if old := stale(made, PAGES):
        raise SystemExit(f"pages: not what the kept results give: {', '.join(old)}; run python benchmarks/pages.py")
    return None


if __name__ == "__main__":
    main()
