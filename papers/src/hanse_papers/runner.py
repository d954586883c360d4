"""Turns a paper's table into runs, and finished runs into the table's numbers.

:func:`run_table` plays a table, as far as its runs are not kept, and returns a :class:`TableOutcome`, which
:mod:`hanse_papers.compare` turns into numbers. :func:`expand` lists the jobs behind a table. Cells that read the same
run at different rounds share its job.

Runs that move money are played by :func:`play_audited` in a temporary run directory. There, their ledger is verified
and every market is replayed. :func:`audits` summarises the results.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hanse.base.errors import UserError
from hanse.lab.job import Job, Step, attempt, commit_of, play, seeded
from hanse.lab.kept import KeptFile
from hanse.lab.player import Work, play_all
from hanse_papers.ids import IDS
from hanse_papers.tables import Cell, PaperTable, Variant

if TYPE_CHECKING:
    from hanse.runs.played_run import PlayedRun

LARGEST = 1000
"""The most seeds that a table is run with. Laying out a million runs takes minutes, and is a mistyped number."""


@dataclass(frozen=True)
class NumberSource:
    """The source of one number of one seed.

    Attributes:
        cell: the cell, which names the figure and the round.
        variant: one of the cell's variants.
        seed: which seed.
        job: the run.
        base: the run with which ``job`` is compared. None: the cell compares nothing.
    """

    cell: Cell
    variant: Variant
    seed: int
    job: Job
    base: Job | None = None


def job_of(cell: Cell, variant: Variant, seed: int) -> Job:
    """Return a variant's run with one seed.

    Args:
        cell: the cell, for the label.
        variant: one of the cell's variants.
        seed: the seed of everything, including the split unless the table fixes it (``data.seed``).
    """
    name = f"{cell.algorithm} {variant.name}".strip()
    of = ("run",) if "seed" in variant.sections["data"] else ("data", "run")
    return seeded(variant.sections, seed, f"{cell.setting}: {name}, seed {seed}", of, IDS)


def expand(table: PaperTable, seeds: int, *, checked: bool = True) -> tuple[list[Job], list[NumberSource]]:
    """Return the jobs of a table, each once, and the readings that make up its cells.

    All of seed 0 comes before seed 1, so a stopped table has complete seeds.

    Args:
        table: the table.
        seeds: the number of seeds, which are 0, 1, ...
        checked: whether every experiment is checked, which takes longer.

    Raises:
        UserError: an experiment is not valid, or a number would be read in a round without a test.
    """
    jobs: dict[str, Job] = {}
    readings: list[NumberSource] = []
    for seed in range(seeds):
        for cell in table.cells:
            for variant in cell.variants:
                # where the row that it is compared with is in the table, the run has that row's name
                base = [] if variant.against is None else [Variant("(what it is compared with)", variant.against)]
                sides = [variant, *base]
                pair = [job_of(cell, side, seed) for side in sides]
                for found in pair:
                    if checked and found.key not in jobs:
                        _check(found, cell)
                    jobs.setdefault(found.key, found)
                readings.append(NumberSource(cell, variant, seed, *(jobs[found.key] for found in pair)))
    return list(jobs.values()), readings


def _check(job: Job, cell: Cell) -> None:
    """Raise UserError unless the experiment is valid and tests in the round that the cell reads."""
    experiment = job.checked()
    last = cell.at == experiment.run.rounds
    if cell.at > experiment.run.rounds or (cell.at % experiment.eval.every and not last):
        raise UserError(f"{job.label}: nothing is tested after round {cell.at}")


@dataclass(frozen=True)
class TableOutcome:
    """A table with the results of its runs.

    Attributes:
        table: the table.
        seeds: how many seeds were asked for.
        jobs: all runs, each once.
        readings: for each number of each seed, the run from which it is read.
        results: the finished runs' results by the jobs' keys (see :func:`hanse.lab.job.attempt`).
        failures: the reason of each failed run, by the jobs' labels.
        played: how many runs were unfinished before this call.

    Examples:
        >>> from hanse_papers.tables import Variant
        >>> digits = {"data": {"source": "digits", "clients": 4}, "mechanism": {"name": "fedavg"}, "run": {"rounds": 2}}
        >>> tried = (Variant("fedavg", digits),)
        >>> cell = Cell(group="digits", column="iid", algorithm="FedAvg", variants=tried, at=2)
        >>> table = PaperTable(paper="mine", name="table1", title="One cell", scale="smoke", cells=(cell,))
        >>> outcome = run_table(table, seeds=1, workers=1, folder=Path("kept"))
        >>> outcome.played, len(outcome.results), dict(outcome.failures)
        (1, 1, {})
    """

    table: PaperTable
    seeds: int
    jobs: tuple[Job, ...]
    readings: tuple[NumberSource, ...]
    results: Mapping[str, Mapping[str, Any]]
    failures: Mapping[str, str]
    played: int


def run_table(
    table: PaperTable,
    *,
    seeds: int,
    workers: int | None,
    folder: Path,
    console: Console | None = None,
    work: Work = play,
) -> TableOutcome:
    """Play the runs of a table that have no result yet, and return the table with its results.

    Args:
        table: the table.
        seeds: the number of seeds, 1 to 1,000. The seeds are 0, 1, ...
        workers: how many processes play. With 1, it is this process. None: one for each core.
        folder: the folder whose ``kept.jsonl.gz`` keeps the results. Other tables find there the results that they
            share.
        console: where the progress bar is drawn. None: it is not drawn.
        work: what plays one job.

    Raises:
        UserError: ``seeds`` or ``workers`` is out of range, an experiment is not valid, or data are missing and cannot
            be downloaded.
        KeyboardInterrupt: the user stopped it. What has ended by then is kept.
    """
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: must be at least 1")
    if seeds > LARGEST:
        raise UserError(f"--seeds {seeds}: must be at most {LARGEST}")
    jobs, readings = expand(table, seeds)
    store = KeptFile(folder, IDS)
    if (mended := store.mend()) is not None and console is not None:
        console.print(mended, markup=False, highlight=False)
    done = play_all(jobs, store, work, workers=workers, label=f"{table.paper} {table.name}", console=console)
    failures = {job.label: done.failures[job.key] for job in jobs if job.key in done.failures}
    return TableOutcome(
        table, seeds, tuple(jobs), tuple(readings), results=done.results, failures=failures, played=done.played
    )


LEDGER = "the ledger verifies"


def play_audited(job: Job, step: Step) -> dict[str, Any]:
    """Run a job, audit its books if it has any, and return its result.

    Args:
        job: the run.
        step: a function told of every finished round.

    Returns:
        The result that :func:`hanse.lab.job.attempt` describes. If money moved, it also has ``audit`` (for each check
            ``{"holds", "said"}``, by the check's name) and ``rounds``, the number of markets that were replayed.
    """
    from hanse.runs.experiment import run

    if job.experiment.mechanism.built.settle is None:
        return _marked(play(job, step))
    books: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hanse-") as scratch:
        folder = Path(scratch) / "run"

        def go(observers: Sequence[Any]) -> PlayedRun:
            result = run(job.experiment, out=folder, observers=observers)
            if not result.interrupted and (folder / "ledger.json").exists():
                books["audit"] = _audit(folder)
            return result

        found = attempt(job, step, go)
    return _marked(found | books if found["status"] == "done" else found)


def _marked(found: dict[str, Any]) -> dict[str, Any]:
    """Return a result whose commit has a "+" where the papers were changed, as it has where hanse was."""
    made = found["made"]
    changed = (commit_of(Path(__file__)) or "").endswith("+")
    if not changed or made["commit"] is None or made["commit"].endswith("+"):
        return found
    return found | {"made": made | {"commit": f"{made['commit']}+"}}


def _audit(folder: Path) -> dict[str, Any]:
    """Return ``audit`` of a run directory: whether the ledger verifies and, for a market, every check of the audit."""
    from hanse.ledger.run_ledger import open_ledger
    from hanse.reports.audit import audit_run
    from hanse.runs.replay import recorded_markets

    verdict = open_ledger(folder).verify()
    checks: dict[str, Any] = {LEDGER: {"holds": verdict.ok, "said": verdict.wrong or ""}}
    checks["rounds"] = sum(1 for _ in recorded_markets(folder))
    if checks["rounds"]:
        checks |= {check.name: {"holds": check.holds, "said": check.said} for check in audit_run(folder).checks}
    return checks


def audits(outcome: TableOutcome) -> list[str]:
    """Return the findings of the audits of a table's runs.

    Args:
        outcome: the table with its results.

    Returns:
        First a line with the checks that are true in all runs that have them, each with how many have it, then one line
        for each other check. Empty if no run has books.
    """
    books = [job for job in outcome.jobs if "audit" in outcome.results.get(job.key, {})]
    if not books:
        return []
    audits_of = {job.label: outcome.results[job.key]["audit"] for job in books}
    kept = {label: {k: v for k, v in audit.items() if k != "rounds"} for label, audit in audits_of.items()}
    names = list(dict.fromkeys(name for audit in kept.values() for name in audit))
    has = {name: [label for label, audit in kept.items() if name in audit] for name in names}
    broken = {
        name: [f"{label}: {kept[label][name]['said']}" for label in has[name] if not kept[label][name]["holds"]]
        for name in names
    }
    sound = [f"{name} ({len(has[name])})" for name in names if not broken[name]]
    markets = sum(outcome.results[job.key]["audit"]["rounds"] for job in books)
    replayed = f", {markets} markets replayed" if markets else ""
    audited = "1 run with books was" if len(kept) == 1 else f"{len(kept)} runs with books were"
    unsound = [f"{name}: not in {len(w)} of {len(has[name])} runs ({w[0]})" for name, w in broken.items() if w]
    return [f"{audited} audited{replayed}; it holds: {', '.join(sound)}", *unsound]
