"""From a table to jobs, one experiment each, shared by all cells that read the same run.

Runs that move money are played in a run directory and audited: their ledger, and their markets by round.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hanse.base.errors import UserError
from hanse.lab.job import Job, Step, attempt, play, seeded
from hanse.lab.papers.tables import Cell, PaperTable, Variant
from hanse.lab.player import Store, Work, play_all

if TYPE_CHECKING:
    from hanse.runs.experiment import Run

MOST_SEEDS = 10
"""Seeds that kept results are looked for."""
LARGEST = 1000
"""Seeds that a table is run with; laying out a million takes longer than anybody waits for a mistyped number."""


@dataclass(frozen=True)
class Reading:
    """Where one number of one seed is found: in which job, after how many rounds; ``base`` is the job that it is
    compared with, if any.
    """

    cell: Cell
    variant: Variant
    seed: int
    job: Job
    base: Job | None = None


def job_of(cell: Cell, variant: Variant, seed: int) -> Job:
    """Return a variant's run with one seed: the seed of the split and of everything else, or of everything else alone
    where the table fixes the split (``data.seed``).
    """
    name = f"{cell.algorithm} {variant.name}".strip()
    of = ("run",) if "seed" in variant.sections["data"] else ("data", "run")
    return seeded(variant.sections, seed, f"{cell.setting}: {name}, seed {seed}", of)


def expand(table: PaperTable, seeds: int, *, checked: bool = True) -> tuple[list[Job], list[Reading]]:
    """Return the jobs of a table, each once, and the readings that its cells are made of.

    All of seed 0 comes before seed 1, so that a table that was stopped has complete seeds. Raises UserError if an
    experiment is not valid, or a number would be read in a round that is not tested; not ``checked``: they are taken
    as they are, which is faster.
    """
    jobs: dict[str, Job] = {}
    readings: list[Reading] = []
    for seed in range(seeds):
        for cell in table.cells:
            for variant in cell.variants:
                sides = [variant] if variant.against is None else [variant, Variant("", variant.against)]
                pair = [job_of(cell, side, seed) for side in sides]
                for found in pair:
                    if checked and found.key not in jobs:
                        _check(found, cell)
                    jobs.setdefault(found.key, found)
                readings.append(Reading(cell, variant, seed, *(jobs[found.key] for found in pair)))
    return list(jobs.values()), readings


def _check(job: Job, cell: Cell) -> None:
    experiment = job.checked()
    last = cell.at == experiment.run.rounds
    if cell.at > experiment.run.rounds or (cell.at % experiment.eval.every and not last):
        raise UserError(f"{job.label}: nothing is tested after round {cell.at}")


@dataclass(frozen=True)
class TableOutcome:
    """A table that was run: its jobs' results by key, the reason of each failure by label, and what was left to do.

    ``played``: how many jobs were run now; the others were finished before.
    """

    table: PaperTable
    seeds: int
    jobs: tuple[Job, ...]
    readings: tuple[Reading, ...]
    results: Mapping[str, Mapping[str, Any]]
    failures: Mapping[str, str]
    played: int


def run_table(
    table: PaperTable,
    *,
    seeds: int,
    workers: int,
    folder: Path,
    console: Console | None = None,
    work: Work = play,
) -> TableOutcome:
    """Run a table's jobs with seeds 0..seeds-1 and return what came out; results go to ``folder/jobs``.

    ``workers`` processes, or this one if it is 1. A job that fails is recorded and tried again next time. Raises
    UserError for seeds or workers below 1, or for data that are not here and cannot be downloaded; KeyboardInterrupt
    once it is stopped (what has ended is kept).
    """
    if seeds < 1:
        raise UserError(f"--seeds {seeds}: must be at least 1")
    if seeds > LARGEST:
        raise UserError(f"--seeds {seeds}: must be at most {LARGEST}")
    jobs, readings = expand(table, seeds)
    done = play_all(jobs, folder, work, workers=workers, label=f"{table.paper} {table.name}", console=console)
    failures = {job.label: done.failures[job.key] for job in jobs if job.key in done.failures}
    return TableOutcome(
        table, seeds, tuple(jobs), tuple(readings), results=done.results, failures=failures, played=done.played
    )


def kept_outcome(table: PaperTable, folder: Path, seeds: int | None = None) -> TableOutcome:
    """Return what the finished runs in ``folder/jobs`` say of a table, without running anything.

    With seeds 0..seeds-1; None: as many as the table has by default, or more if runs with more are kept.
    """
    store = Store(folder / "jobs")
    most = MOST_SEEDS if seeds is None else seeds
    jobs, readings = expand(table, most, checked=False)
    results = {job.key: found for job in jobs if (found := store.read(job)) is not None}
    if seeds is None:
        there = [r.seed for r in readings if r.job.key in results]
        seeds = max(table.seeds, *(seed + 1 for seed in there)) if there else table.seeds
    readings = [r for r in readings if r.seed < seeds]
    known = {job.key: job for r in readings for job in (r.job, r.base) if job is not None}
    return TableOutcome(table, seeds, tuple(known.values()), tuple(readings), results, failures={}, played=0)


LEDGER = "the ledger verifies"


def play_audited(job: Job, step: Step) -> dict[str, Any]:
    """Run a job and return what is kept of it (:func:`hanse.lab.job.attempt`).

    A run with books is played in a temporary run directory; its result has ``audit``: each check's name with
    ``{"holds", "said"}``, and ``rounds``, the markets that were replayed; of a market of few clients it has ``trades``,
    too: ``clients [m]``, and over the run ``money [m, m]`` (tokens that i paid j) and ``imports [m, m]`` (the share of
    the markets in which i imported j's model).
    """
    from hanse.runs.experiment import run

    if job.experiment.mechanism.built.settle is None:
        return play(job, step)
    books: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="hanse-") as scratch:
        folder = Path(scratch) / "run"

        def go(observers: Sequence[Any]) -> Run:
            result = run(job.experiment, out=folder, observers=observers)
            if not result.interrupted and (folder / "ledger.db").exists():
                books.update({"audit": _audit(folder)}, **_trades(folder))
            return result

        found = attempt(job, step, go)
    return found | books if found["status"] == "done" else found


MOST_TRADERS = 40  # whose trades are kept pair by pair


def _trades(folder: Path) -> dict[str, Any]:
    from hanse.reports.market import traded
    from hanse.runs.record import recorded_markets

    rounds = list(recorded_markets(folder))
    if not rounds or len(rounds[0].clients) > MOST_TRADERS:
        return {}
    clients, money, imports = traded(rounds)
    return {"trades": {"clients": clients, "money": money.round(6).tolist(), "imports": imports.round(6).tolist()}}


def _audit(folder: Path) -> dict[str, Any]:
    from hanse.ledger.place import open_ledger
    from hanse.reports.audit import audit_run
    from hanse.runs.record import recorded_markets

    with open_ledger(folder) as ledger:
        verdict = ledger.verify()
    found: dict[str, Any] = {LEDGER: {"holds": verdict.ok, "said": verdict.wrong or ""}}
    found["rounds"] = sum(1 for _ in recorded_markets(folder))
    if found["rounds"]:
        found |= {check.name: {"holds": check.holds, "said": check.said} for check in audit_run(folder).checks}
    return found


def audits(outcome: TableOutcome) -> list[str]:
    """Return what the audits of a table's runs say: a line for all checks that hold everywhere, one for each other."""
    kept: Mapping[str, Mapping[str, Any]] = {
        job.label: outcome.results[job.key]["audit"]
        for job in outcome.jobs
        if "audit" in outcome.results.get(job.key, {})
    }
    if not kept:
        return []
    names = [name for name in dict.fromkeys(name for audit in kept.values() for name in audit) if name != "rounds"]
    broken = {
        name: [
            f"{label}: {audit[name]['said']}"
            for label, audit in kept.items()
            if name in audit and not audit[name]["holds"]
        ]
        for name in names
    }
    sound = [name for name in names if not broken[name] and name != "isolation"]
    markets = sum(audit["rounds"] for audit in kept.values())
    replayed = f", {markets} markets replayed" if markets else ""
    return [
        f"{len(kept)} runs with books were audited{replayed}; in all of them: {', '.join(sound)}",
        *(f"{name}: not in {len(where)} of {len(kept)} runs ({where[0]})" for name, where in broken.items() if where),
    ]
