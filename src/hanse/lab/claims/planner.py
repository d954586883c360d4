"""Chooses the runs that decide the most claims for their cost, and plays them until all are decided.

:func:`plan` lists a paper's steps, best first. A step brings a claim to its next interim test (or measures its noise
floor). It also counts for every other claim whose missing runs it contains. Claims with a lower turn come first.
:func:`decide` repeatedly plays the best step of all papers and judges again. Every finished run is saved at once, so
the process can be killed and continued at any time.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table as RichTable

from hanse.base.errors import MachineError, UserError
from hanse.base.factories import named_choice
from hanse.base.lock import Hold
from hanse.lab.claims import statistics
from hanse.lab.claims.claim import Claim
from hanse.lab.claims.judge import REPEATS, Runs, Verdict, effect_of, job, jobs_of, judge, looks_of
from hanse.lab.job import Job, Step, made
from hanse.lab.papers.catalogue import available
from hanse.lab.papers.compare import cost_key
from hanse.lab.papers.runner import play_audited
from hanse.lab.papers.tables import RECIPES, sources_of
from hanse.lab.player import Work, environment, play_all

PAUSE = "pause"
"""While the folder contains a file of this name, no round is played."""
_UNKNOWN_S = 1.0  # a round's cost where no run at all is kept
# of each instruction set that PyTorch may use here, how it and its libraries are told to use an older one
_OTHER = {
    "AVX512": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}


@dataclass(frozen=True)
class Planned:
    """A step of the plan: runs that bring claims to a test.

    Attributes:
        claims: the names of the claims that the step brings to a test, or whose noise floor it measures.
        jobs: the runs that the step needs.
        again: whether ``jobs`` repeat earlier runs with another instruction set of the processor.
        seconds: the processor time that ``jobs`` cost.
        worth: the expected number of claims that ``jobs`` decide.
        paper: the paper that makes the claims.
        turn: the turn of the claim for which the step was chosen.
    """

    claims: tuple[str, ...]
    jobs: tuple[Job, ...]
    again: bool
    seconds: float
    worth: float
    paper: str
    turn: int

    @property
    def rank(self) -> tuple[int, float]:
        """The planner's sort key, lowest first: the turn, then the cost per decided claim."""
        return self.turn, self.seconds / self.worth


@dataclass
class _Want:
    """What one claim needs next."""

    claim: Claim
    jobs: dict[str, Job]
    again: bool
    chance: float
    cost: float = field(default=0.0)


def costs(runs: Runs) -> Callable[[Job], float]:
    """Return a function that estimates a run's processor seconds from kept runs.

    The estimate comes from runs of the same mechanism, model and source. Without any, it comes from the costliest
    mechanism with that model and source, and without these from the costliest of all.

    Args:
        runs: the kept runs of a paper.
    """
    seen: dict[tuple[str, str], list[float]] = {}
    for lines in runs.kept.lines().values():
        for line in (line for line in lines if line["status"] == "done"):
            seen.setdefault(cost_key(line["given"]), []).append(line["cpu_seconds"] / max([1, *line["tested"]]))
    means = {key: float(np.mean(found)) for key, found in seen.items()}

    def seconds(asked: Job) -> float:
        work, mechanism = cost_key(asked.sections)
        alike = [cost for (w, _), cost in means.items() if w == work] or list(means.values()) or [_UNKNOWN_S]
        return asked.rounds * means.get((work, mechanism), max(alike))

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
    had: set[tuple[str, bool]] = set()
    while wants:
        for want in wants:
            left = [found for key, found in want.jobs.items() if (key, want.again) not in had]
            want.cost = max(sum(map(seconds, left)), 1e-3)

        def worth(want: _Want) -> float:
            return sum(w.chance for w in wants if w.again == want.again and w.jobs.keys() <= want.jobs.keys())  # noqa: B023

        best = min(wants, key=lambda want: (want.claim.turn, want.cost / worth(want)))
        new = tuple(found for key, found in best.jobs.items() if (key, best.again) not in had)
        had |= {(key, best.again) for key in best.jobs}
        told = [w for w in wants if {(key, w.again) for key in w.jobs} <= had]
        names = tuple(w.claim.name for w in told)
        worth_it = sum(w.chance for w in told)
        steps.append(Planned(names, new, best.again, best.cost, worth_it, best.claim.paper, best.claim.turn))
        wants = [want for want in wants if want not in told]
    return steps


def _want(verdict: Verdict, runs: Runs) -> _Want | None:
    """Return what a claim needs next; None if it is decided, has had its last look, or has no data here."""
    claim, judged = verdict.claim, verdict.judged
    if judged.word not in ("open", "not run") or away(claim):
        return None
    if judged.effect is not None and verdict.floor is None and (again := _repeats(verdict, runs)):
        return _Want(claim, again, again=True, chance=1.0)
    at = next((n for n in looks_of(claim) if n > verdict.seeds), None)
    if at is None or not claim.arms:
        return None
    missing = {j.key: j for seed in range(at) for j in jobs_of(claim, seed) if not runs.of(j)}
    chance = statistics.chance_to_decide(judged.effect, claim.margin, at, judged.level)
    return _Want(claim, missing, again=False, chance=max(chance, 1e-3)) if missing else None


def _repeats(verdict: Verdict, runs: Runs) -> dict[str, Job]:
    """Return the runs to repeat if a measured noise floor would decide a claim: each arm's first seeds, setting by
    setting. The unmeasured floor is assumed to be half of the deviation over the seeds.
    """
    claim, judged = verdict.claim, verdict.judged
    if claim.kind == "share" or claim.reading.kind == "faster" or made()["instructions"] not in _OTHER:
        return {}
    lower, _ = effect_of(claim, runs, 0.0)
    assert judged.effect is not None
    halfway = replace(judged.effect, error=(judged.effect.error + (lower or judged.effect).error) / 2)
    if not statistics.decides(halfway, claim.margin, judged.level):
        return {}
    found: dict[str, Job] = {}
    for place in range(len(claim.arms[0])):
        arms = [setting[place] for setting in claim.arms]
        ours = [job(arm, seed) for seed in range(verdict.seeds) for arm in arms]
        lacking = max(0, REPEATS - sum(len(runs.of(j)) - 1 for j in ours))
        found |= {j.key: j for j in [j for j in ours if len(runs.of(j)) == 1][:lacking]}
    return found


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
    every = (j for claims in asked.values() for c in claims for seed in range(statistics.LOOKS[-1])
             for j in jobs_of(c, seed))  # fmt: skip
    labels = {j.key: j.label for j in every if j.key in failures}
    return [v for found in verdicts.values() for v in found], {labels[key]: why for key, why in failures.items()}


def _played(
    jobs: Sequence[Job], step: Planned, runs: Runs, workers: int, console: Console | None, work: Work
) -> dict[str, str]:
    """Play some runs of a step and return why those that failed did so, by key."""
    label = f"{runs.kept.path.parent.name}: {', '.join(step.claims)}"
    pausing = partial(play_pausing, pause=runs.kept.path.parent / PAUSE, work=work)
    for found in jobs:
        runs.forget(found)
    if not step.again:
        done = play_all(jobs, runs.kept, pausing, workers=workers, label=label, console=console)
        failures = dict(done.failures)
    else:
        failures = {}
        for found in jobs:
            result = _repeated(found, work)
            runs.kept.write(found, result)
            if result["status"] != "done":
                failures[found.key] = result["error"]
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


def _repeated(asked: Job, work: Work) -> dict[str, Any]:
    """Play a job in a process of its own, whose numerical libraries use another instruction set than ours."""
    ours = str(made()["instructions"])
    with environment(_OTHER[ours]), multiprocessing.get_context("spawn").Pool(1) as pool:
        found: dict[str, Any] = pool.apply(_again, (asked, work, ours))
        return found


def _again(asked: Job, work: Work, ours: str) -> dict[str, Any]:
    """Play a job in this process. Raises MachineError if it runs with the instruction set ``ours``: no repeat, then."""
    from hanse.learning.threads import intra_op

    if made()["instructions"] == ours:
        raise MachineError(f"{asked.label}: cannot be repeated: PyTorch uses {ours} here whatever it is told")
    with intra_op(1):
        return work(asked, lambda rounds: None)


def plan_rows(steps: Sequence[Planned]) -> list[dict[str, Any]]:
    """Return the plan as plain values, its runs by their labels.

    Args:
        steps: the steps.
    """
    return [
        {
            "paper": step.paper,
            "turn": step.turn,
            "claims": list(step.claims),
            "runs": [found.label for found in step.jobs],
            "again": step.again,
            "seconds": step.seconds,
            "worth": step.worth,
        }
        for step in steps
    ]


def printed_plan(steps: Sequence[Planned]) -> RichTable:
    """Return the plan as a table for a terminal: each step's claims, runs, hours and cumulative hours.

    Args:
        steps: the steps.
    """
    hours = 0.0
    table = RichTable(title="The next runs, to the next look of each claim", title_justify="left")
    for name in ("paper", "claims", "runs", "hours", "hours until then", "claims decided, on average"):
        table.add_column(name, overflow="fold", min_width=9 if name == "paper" else None)  # whole words
    for step in steps:
        hours += step.seconds / 3600
        again = " again, on other instructions" if step.again else ""
        times = (f"{step.seconds / 3600:.2f}", f"{hours:.2f}")
        names = "; ".join(step.claims)
        table.add_row(step.paper, names, f"{len(step.jobs)}{again}", *times, f"{step.worth:.1f}")
    return table
