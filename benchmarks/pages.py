"""The papers' kept results: what was planned before it was run.

    python benchmarks/pages.py --plan PAPER TABLE [--recipe R] [--scale S] [--seeds N] [--only WORDS] [--device D]

``hanse reproduce PAPER TABLE ... --out benchmarks/results/PAPER`` keeps a file for each run under ``jobs/``. ``--plan``
with the same words writes the keys of these runs to ``benchmarks/results/PAPER/planned.json`` first. A key is a hash of
the run's settings, so that a result whose key was committed before it was run was not chosen afterwards; a test
compares the commits.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.lab.papers.catalogue import find_table
from hanse.lab.papers.runner import expand
from hanse.lab.papers.tables import RECIPES, SCALES, filtered, on_device

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PLANNED = "planned.json"


def plan(asked: argparse.Namespace, results: Path = RESULTS) -> Path:
    """Add the keys of a table's runs to its paper's plan, under "table recipe scale"; return the plan's path.

    Keys that are planned stay planned. Raises UserError for a table, filter or number of seeds that cannot be.
    """
    paper, name = asked.plan
    table = on_device(filtered(find_table(paper, name, asked.scale, asked.recipe), asked.only), asked.device)
    seeds = table.seeds if asked.seeds is None else asked.seeds
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: must be at least 1")
    path = results / paper / PLANNED
    planned: dict[str, list[str]] = json.loads(path.read_text()) if path.exists() else {}
    under = f"{name} {asked.recipe} {asked.scale}"
    keys = [*planned.get(under, ()), *(job.key for job in expand(table, seeds)[0])]
    write_whole(path, json.dumps(planned | {under: list(dict.fromkeys(keys))}, indent=1, sort_keys=True) + "\n")
    return path


def unplanned(root: Path = ROOT) -> list[str]:
    """Return the result files that were committed before their plan: "path, added in COMMIT" each.

    The plan must stand in a commit before the one that adds the result, so that both at once do not count.
    """
    found = []
    for commit, paths in _added(root):
        planned: dict[str, set[str]] = {}
        for path in paths:
            paper = Path(path).parts[2]
            if paper not in planned:
                planned[paper] = _planned_before(root, commit, paper)
            if Path(path).stem not in planned[paper] and (root / path).exists():
                found.append(f"{path}, added in {commit[:10]}")
    return found


def _added(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each commit that adds result files, and the files."""
    places = ":(glob)benchmarks/results/*/jobs/*.json"
    log = _git(root, "log", "--no-renames", "--diff-filter=A", "--name-only", "--format=%x00%H", "--", places)
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
    parser.add_argument("--plan", nargs=2, metavar=("PAPER", "TABLE"), required=True)
    parser.add_argument("--recipe", choices=RECIPES, default="paper")
    parser.add_argument("--scale", choices=SCALES, default="smoke")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--only", action="append", default=[], metavar="WORDS")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args(words)


def main() -> None:
    """Do what the command line asks for."""
    try:
        path = plan(arguments())
    except UserError as wrong:
        raise SystemExit("\n".join(f"pages: {line}" for line in wrong.lines)) from None
    print(f"wrote {path.relative_to(ROOT)}; commit it before the runs")


if __name__ == "__main__":
    main()
