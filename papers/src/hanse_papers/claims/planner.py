"""Chooses the runs that decide the most claims for their cost, and plays them until all are decided.

:func:`plan` lists a paper's steps, best first. A step brings a claim to its next interim test. It also counts for every
other claim whose missing runs it contains. What a seed's new runs are compared with is played again if it was played
on another kind of machine.
:func:`decide` repeatedly plays the best step of all papers and judges again. Every finished run is saved at once, so
the process can be killed and continued at any time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from hanse.base.errors import UserError
from hanse.base.factories import named_choice
from hanse.base.lock import Hold
from hanse.lab import statistics
from hanse.lab.job import Job, Step, made
from hanse.lab.player import Work, play_all
from hanse_papers.catalogue import available
from hanse_papers.claims.claim import Claim
from hanse_papers.claims.judge import Runs, Verdict, jobs_of, judge, kind_of, looks_of
from hanse_papers.compare import costs_of
from hanse_papers.runner import play_audited
from hanse_papers.tables import RECIPES, sources_of

PAUSE = "pause"
"""While the folder contains a file of this name, no round is played."""
_UNKNOWN_S = 1.0  # a round's cost where no run at all is kept


@dataclass(frozen=True)
class Planned:
    """A step of the plan: runs that bring claims to a test.

    Attributes:
        claims: the names of the claims that the step brings to a test.
        jobs: the runs that the step needs.
        again: how many of ``jobs`` are kept from another kind of machine.
        seconds: the processor time that ``jobs`` cost.
        worth: the expected number of claims that ``jobs`` decide.
        paper: the paper that makes the claims.
    """

    claims: tuple[str, ...]
    jobs: tuple[Job, ...]
    again: int
    seconds: float
    worth: float
    paper: str

    @property
    def rank(self) -> float:
        """The planner's sort key, lowest first: the cost per decided claim."""
        return self.seconds / self.worth


@dataclass
class _Want:
    """What one claim needs next."""

    claim: Claim
    jobs: dict[str, Job]
    chance: float
    cost: float = field(default=0.0)


def costs(runs: Runs) -> Callable[[Job], float]:
    """Return a function that estimates a run's processor seconds from kept runs.

    The estimate comes from runs of the same mechanism, model and source. Without any, it comes from the costliest
    mechanism with that model and source, and without these from the costliest of all.

    Args:
        runs: the kept runs of a paper.
    """
    lines = [line for found in runs.kept.lines().values() for line in found if line["status"] == "done"]
    cost = costs_of((line["given"], line["cpu_seconds"] / max([1, *line["tested"]])) for line in lines)
    dearest = max((known for line in lines if (known := cost(line["given"])) is not None), default=_UNKNOWN_S)

    def seconds(asked: Job) -> float:
        known = cost(asked.sections)
        return asked.rounds * (dearest if known is None else known)

    return seconds


def plan(verdicts: Sequence[Verdict], runs: Runs, failed: Collection[str] = ()) -> list[Planned]:
    """Return the steps that take every claim to its next test, in order of claims decided per cost.

    Args:
        verdicts: the claims of a paper.
        runs: the paper's kept runs.
        failed: keys of runs that failed. They are not tried again.
    """
    seconds = costs(runs)
    wants = [w for v in verdicts if (w := _want(v, runs)) is not None and not w.jobs.keys() & set(failed)]
    steps: list[Planned] = []
    had: set[str] = set()
    while wants:
        for want in wants:
            want.cost = max(sum(seconds(found) for key, found in want.jobs.items() if key not in had), 1e-3)

        def worth(want: _Want) -> float:
            return sum(w.chance for w in wants if w.jobs.keys() <= want.jobs.keys())  # noqa: B023

        best = min(wants, key=lambda want: want.cost / worth(want))
        new = tuple(found for key, found in best.jobs.items() if key not in had)
        had |= best.jobs.keys()
        told = [w for w in wants if w.jobs.keys() <= had]
        names = tuple(w.claim.name for w in told)
        again = sum(bool(runs.of(found)) for found in new)
        steps.append(Planned(names, new, again, best.cost, sum(w.chance for w in told), best.claim.paper))
        wants = [want for want in wants if want not in told]
    return steps


def _want(verdict: Verdict, runs: Runs) -> _Want | None:
    """Return what a claim needs next; None if it is decided, has had its last look, or has no data here."""
    claim, judged = verdict.claim, verdict.judged
    at = next((n for n in looks_of(claim) if n > verdict.seeds), None)
    if judged.word not in ("open", "not run") or away(claim) or at is None or not claim.arms:
        return None
    missing = {found.key: found for seed in claim.seeds[:at] for found in _missing(claim, seed, runs)}
    chance = statistics.chance_to_decide(judged.effect, claim.margin, at, judged.level)
    return _Want(claim, missing, chance=max(chance, 1e-3)) if missing else None


def _missing(claim: Claim, seed: int, runs: Runs) -> list[Job]:
    """Return the runs that a claim lacks with a seed. If one must be played, so must those that another kind of machine
    played, since pairs are of one kind.
    """
    jobs = jobs_of(claim, seed)
    if all(runs.of(found) for found in jobs):
        return []
    here = kind_of({"made": made()})
    return [found for found in jobs if here not in map(kind_of, runs.of(found))]


def away(claim: Claim) -> list[str]:
    """Return the claim's missing data sources.

    If all of its arms need missing sources, these are the missing sources of its table.
    """
    named = {
        named_choice(arm.variant.sections["data"]["source"], "digits")
        for s in claim.arms
        for arm in s
        if arm.variant is not None
    }
    if not claim.arms:
        named = {source for recipe in RECIPES for source in sources_of(claim.paper, claim.table, "paper", recipe)}
    return sorted(source for source in named if not available(source))


def decide(
    asked: Mapping[Path, Sequence[Claim]],
    *,
    hours: float | None = None,
    workers: int = 1,
    console: Console | None = None,
    work: Work = play_audited,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[list[Verdict], Mapping[str, str]]:
    """Play runs until every claim is decided or fully tested, or the time is up.

    While a folder has a file ``pause``, no round of its runs is played.

    Args:
        asked: the claims of each paper, by the folder of its kept runs. The folder stays locked until the end.
        hours: the hours of wall clock after which no run is started. None: no limit.
        workers: how many processes play.
        console: where progress is drawn. None: it is not drawn.
        work: what plays one job.
        clock: a function that returns the time in seconds.

    Returns:
        The claims with their verdicts, paper by paper, and the reason of each failed run, by its label.

    Raises:
        UserError: another process works in a folder, lines that the folder keeps are damaged, or hours or workers are
            not above 0.
        MachineError: a result cannot be written. Earlier results are kept.
        KeyboardInterrupt: the user stopped it. What has ended by then is kept.
    """
    if hours is not None and not hours > 0:
        raise UserError(f"--hours {hours:g}: must be above 0")
    if workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1")
    end = math.inf if hours is None else clock() + 3600 * hours
    books: dict[Path, Runs] = {}
    verdicts: dict[Path, list[Verdict]] = {}
    steps: dict[Path, list[Planned]] = {}
    failures: dict[str, str] = {}

    def look(folder: Path) -> None:
        verdicts[folder] = judge(asked[folder], books[folder])
        steps[folder] = plan(verdicts[folder], books[folder], failures)

    with ExitStack() as held:
        for folder in asked:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(Hold(folder)).take()
            books[folder] = Runs(folder)
            if (mended := books[folder].kept.mend()) is not None and console is not None:
                console.print(mended, markup=False, highlight=False)
            look(folder)
        while (left := [folder for folder in asked if steps[folder]]) and clock() < end:
            folder = min(left, key=lambda folder: steps[folder][0].rank)
            step, runs = steps[folder][0], books[folder]
            for some in [step.jobs] if workers > 1 else [(one,) for one in step.jobs]:
                if clock() >= end or failures.keys() & {job.key for job in step.jobs}:
                    break  # a claim with a failed run stays open, whatever else is played
                failures |= _played(some, step, runs, workers, console, work)
            look(folder)
    every = (j for claims in asked.values() for c in claims for seed in c.seeds for j in jobs_of(c, seed))
    labels = {j.key: j.label for j in every if j.key in failures}
    return [v for found in verdicts.values() for v in found], {labels[key]: why for key, why in failures.items()}


def _played(
    jobs: Sequence[Job], step: Planned, runs: Runs, workers: int, console: Console | None, work: Work
) -> dict[str, str]:
    """Play some runs of a step and return why those that failed did so, by key."""
    label = f"{runs.kept.path.parent.name}: {', '.join(step.claims)}"
    pausing = partial(play_pausing, pause=runs.kept.path.parent / PAUSE, work=work)
    again = [found for found in jobs if runs.of(found)]
    for found in jobs:
        runs.forget(found)
    new = [found for found in jobs if found not in again]
    failures = dict(play_all(new, runs.kept, pausing, workers=workers, label=label, console=console).failures)
    for found in again:
        result = pausing(found, lambda rounds: None)
        runs.kept.write(found, result)
        if result["status"] != "done":
            failures[found.key] = result.get("error", result["status"])
    if console is not None:
        for why in failures.values():
            console.print(f"{label}: failed: {why}", markup=False, highlight=False)
    return failures


def play_pausing(asked: Job, step: Step, *, pause: Path, work: Work) -> dict[str, Any]:
    """Play a job with ``work``, waiting before it and after each round as long as the file ``pause`` exists."""

    def on(rounds: int) -> None:
        step(rounds)
        wait()

    def wait() -> None:
        while pause.exists():
            time.sleep(1.0)

    wait()
    return work(asked, on)


def plan_rows(steps: Sequence[Planned]) -> list[dict[str, Any]]:
    """Return the plan as plain values, its runs by their labels.

    Args:
        steps: the steps.
    """
    return [
        {"paper": step.paper, "claims": list(step.claims), "runs": [found.label for found in step.jobs]}
        | {"again": step.again, "seconds": step.seconds, "worth": step.worth, "worth_an_hour": 3600 / step.rank}
        for step in steps
    ]


def printed_plan(steps: Sequence[Planned]) -> RichTable:
    """Return the plan as a table for a terminal: each step's claims, runs, hours and cumulative hours.

    Args:
        steps: the steps.
    """
    hours = 0.0
    table = RichTable(title="The next runs, to the next look of each claim", title_justify="left")
    for name in ("paper", "claims", "runs", "hours", "hours until then", "claims decided, on average", "an hour"):
        table.add_column(name, overflow="fold")
    for step in steps:
        hours += step.seconds / 3600
        again = f", {step.again} of them again" if step.again else ""
        times = (f"{step.seconds / 3600:.2f}", f"{hours:.2f}")
        names = "; ".join(step.claims)
        table.add_row(
            step.paper, names, f"{len(step.jobs)}{again}", *times, f"{step.worth:.1f}", f"{3600 / step.rank:.2f}"
        )
    return table
