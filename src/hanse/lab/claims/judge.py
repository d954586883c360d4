"""From kept runs to verdicts: evaluates a claim's seeds and the noise floor of its arms.

:func:`judge` returns a :class:`Verdict` for each claim. :class:`Runs` reads each run behind an arm once, and
:func:`reading_of` takes a number from a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table as RichTable

from hanse.lab.claims import statistics
from hanse.lab.claims.claim import Arm, Claim, Reading
from hanse.lab.claims.statistics import LOOKS, Effect, Floats, Judged
from hanse.lab.job import Job
from hanse.lab.kept import KeptFile
from hanse.lab.papers.compare import factor_of
from hanse.lab.papers.runner import job_of
from hanse.reports.compare import best_so_far, effective_round, improvement

REPEATS = 3
"""The fewest repeats of an arm's runs for measuring a noise floor."""


@dataclass(frozen=True)
class Verdict:
    """A claim with its verdict.

    Attributes:
        claim: the claim.
        judged: verdict, effect, interval and, if the claim is open, how many seeds would decide it.
        seeds: how many seeds have all of the claim's runs, from seed 0 on.
        floor: the noise floor of the claim's effect. None: not measured.
    """

    claim: Claim
    judged: Judged
    seeds: int
    floor: float | None

    @property
    def computed(self) -> bool:
        """Whether the claim's numbers are deterministic, so it needs no seeds."""
        return _is_computed(self.claim)


class Runs:
    """The kept runs of a paper, each read once."""

    def __init__(self, folder: Path) -> None:
        self.kept = KeptFile(folder)
        self._found: dict[str, list[dict[str, Any]]] = {}

    def of(self, job: Job) -> list[dict[str, Any]]:
        """Return the finished results of a job: first the run that counts, then its repeats."""
        if not self._found.get(job.key):
            self._found[job.key] = self.kept.repeats(job)
        return self._found[job.key]

    def forget(self, job: Job) -> None:
        """Forget a job's cached runs, since a run of it was added."""
        self._found.pop(job.key, None)


def job(arm: Arm, seed: int) -> Job:
    """Return an arm's run with one seed."""
    assert arm.variant is not None
    return job_of(arm.cell, arm.variant, seed)


def looks_of(claim: Claim) -> tuple[int, ...]:
    """Return the numbers of seeds after which a claim is tested."""
    return statistics.FLIP_LOOKS if claim.kind == "share" else LOOKS


def jobs_of(claim: Claim, seed: int) -> list[Job]:
    """Return the runs of a claim with one seed, each once."""
    arms = [arm for setting in claim.arms for arm in setting if arm.variant is not None]
    return list({found.key: found for found in (job(arm, seed) for arm in arms)}.values())


def curve_of(arm: Arm, result: Mapping[str, Any], at: int) -> tuple[NDArray[np.int64], Floats] | None:
    """Return a run's tests up to a round: their rounds, and the figure (or mean of several) in the table's unit.

    None if that round was not tested or has no figure.
    """
    cell, table = arm.cell, arm.table
    names = [cell.metric or table.metric] if isinstance(cell.metric, str) else list(cell.metric)
    if at not in result["tested"] or any(name not in result["curves"] for name in names):
        return None
    points = result["tested"].index(at) + 1
    values = np.array([result["curves"][name][:points] for name in names], dtype=np.float64).mean(axis=0)
    if not math.isfinite(values[-1]):
        return None
    return np.array(result["tested"][:points]), values * factor_of(cell, table)


def reading_of(arm: Arm, result: Mapping[str, Any], reading: Reading) -> float | None:
    """Return a reading's number for a run; None if the run does not have it.

    The tests up to the round count of the row that is read, or the tests that a mean names. A target that is never
    reached counts as reached one test after the last.
    """
    at = max(result["tested"], default=0) if reading.kind == "mean" else arm.cell.at
    curve = curve_of(arm, result, at)
    if curve is None:
        return None
    rounds, values = curve
    if reading.kind == "best":
        return float(np.nanmax(values))
    if reading.kind == "mean":
        inside = values[(rounds >= reading.first) & (rounds <= reading.last)]
        return float(inside.mean()) if len(inside) and np.isfinite(inside).all() else None
    if reading.kind == "rounds":
        reached = effective_round(rounds, np.nan_to_num(values, nan=-np.inf), reading.target, 0.0)
        return float(reached if reached is not None else _after(rounds))
    return float(values[-1])


def _after(rounds: NDArray[np.int64]) -> int:
    return int(rounds[-1] + (rounds[-1] - rounds[-2] if len(rounds) > 1 else 1))


def faster(arm: Arm, ours: Mapping[str, Any], other: Arm, theirs: Mapping[str, Any]) -> float | None:
    """Return by how many percent fewer rounds ``ours`` reaches the best of ``theirs``, GTFLAT eq. 13.

    Both curves are the best figures so far. A curve that never gets there counts as if it did so one test after the
    last. None if a figure is missing.
    """
    curves = [c for c in (curve_of(arm, ours, arm.cell.at), curve_of(other, theirs, other.cell.at)) if c is not None]
    if len(curves) < 2 or any(np.isnan(curve).any() for _, curve in curves):
        return None
    (rounds, a), (base_rounds, b) = ((r, best_so_far(v) / 100) for r, v in curves)
    reached, base = effective_round(rounds, a, float(b[-1])), effective_round(base_rounds, b, float(b[-1]))
    return improvement(_after(rounds) if reached is None else reached, base)


def values(claim: Claim, runs: Runs) -> Floats:
    """Return ``[seeds, settings, arms]``: the readings of those seeds, from 0 on, that have every run of the claim.

    If the reading is the number of rounds to the other arm's best, the first arm's number is the improvement and the
    other arm's is 0.
    """
    found = []
    for seed in range(LOOKS[-1]):
        rows = [_setting(claim, setting, seed, runs) for setting in claim.arms]
        if not rows or any(value is None for row in rows for value in row):
            break
        found.append(rows)
    width = len(claim.arms[0]) if claim.arms else 0
    return np.array(found, dtype=np.float64).reshape(len(found), len(claim.arms), width)


def _setting(claim: Claim, setting: Sequence[Arm], seed: int, runs: Runs) -> list[float | None]:
    results = [runs.of(job(arm, seed)) for arm in setting]
    if not all(results):
        return [None]
    if claim.reading.kind == "faster":
        against = [faster(setting[0], results[0][0], arm, there[0])
                   for arm, there in zip(setting[1:], results[1:], strict=True)]  # fmt: skip
        # one improvement for each other arm: written as 0 and its negative, so differences are improvements
        return [0.0, *(None if value is None else -value for value in against)]
    return [reading_of(arm, there[0], claim.reading) for arm, there in zip(setting, results, strict=True)]


def noise(claim: Claim, runs: Runs) -> float | None:
    """Return the noise floor of a claim's differences.

    It is that of the noisiest arm: the root mean square of repeat minus run, over repeats on other instruction sets or
    commits. None if an arm has fewer than three repeats.

    For an effect pooled over settings, the floor is divided by the root of their number.
    """
    if claim.reading.kind == "faster" or not claim.arms or _is_computed(claim):
        return None
    worst = 0.0
    for place in range(len(claim.arms[0])):
        found = [d for setting in claim.arms for d in _repeated(setting[place], claim.reading, runs)]
        if len(found) < REPEATS:
            return None
        worst = max(worst, math.sqrt(float(np.square(found).mean())))
    return worst / math.sqrt(len(claim.arms)) if claim.over == "pooled" else worst


def _repeated(arm: Arm, reading: Reading, runs: Runs) -> Iterator[float]:
    """Yield repeat less run for every repeat of an arm."""
    for seed in range(LOOKS[-1]):
        first, *again = [reading_of(arm, found, reading) for found in runs.of(job(arm, seed))] or [None]
        yield from (value - first for value in again if value is not None and first is not None)


def effect_of(claim: Claim, runs: Runs, floor: float | None) -> tuple[Effect | None, int]:
    """Return the effect that a claim shows, and the number of its seeds.

    Args:
        claim: the claim.
        runs: the kept runs of the claim's paper.
        floor: the noise floor of the claim's differences. None: not measured.
    """
    if _is_computed(claim):
        return _exact(claim), 0
    found = values(claim, runs)
    n, sign = len(found), -1.0 if claim.lower else 1.0
    if n == 0:
        return None, 0
    if claim.kind == "share":
        first, second = (found[:, :, 0] > 0).astype(np.float64), (found[:, :, 1] > 0).astype(np.float64)
        blocks = [slice(None)] if claim.over == "pooled" else [slice(i, i + 1) for i in range(found.shape[1])]
        parts = [statistics.share_effect(first[:, b], second[:, b], claim.margin) for b in blocks]
    elif claim.kind == "equal":
        printed = np.array([_target(claim, setting[0]) for setting in claim.arms])
        off = _pooled(claim, found[:, :, :1] - printed[None, :, None])
        parts = [statistics.equality(d, claim.margin, floor) for d in off]
    else:
        parts = [statistics.effect(d, claim.margin, floor) for d in _pooled(claim, sign * _differences(claim, found))]
    whole = [part for part in parts if part is not None]
    return (statistics.together(whole) if whole else None), n


def _is_computed(claim: Claim) -> bool:
    return any(arm.variant is None for setting in claim.arms for arm in setting)


def _differences(claim: Claim, found: Floats) -> Floats:
    """Return ``[seeds, settings, differences]`` of arms, above 0 where higher figures of the first arm are."""
    if claim.kind == "change":
        found = found[:, ::2] - found[:, 1::2]
        return found if found.shape[2] == 1 else found[:, :, :1] - found[:, :, 1:]
    return found[:, :, :-1] - found[:, :, 1:] if claim.kind == "order" else found[:, :, :1] - found[:, :, 1:]


def _pooled(claim: Claim, differences: Floats) -> list[Floats]:
    """Return the differences that a claim is about, ``[seeds]`` each: means over the settings, or one by one."""
    if claim.over == "pooled":
        differences = differences.mean(axis=1, keepdims=True)
    return list(differences.reshape(len(differences), -1).T)


def _target(claim: Claim, arm: Arm) -> float:
    """Return the number that an arm is claimed to equal: the claim's, or what the table prints."""
    if claim.printed is not None:
        return claim.printed
    return math.nan if arm.cell.published is None else arm.cell.published.mean


def _exact(claim: Claim) -> Effect | None:
    """Return the verdict on deterministic numbers: whether they are within the margin of the printed ones. None if one
    cannot be computed here.
    """
    off = [math.nan if a.cell.computed is None else a.cell.computed - _target(claim, a) for (a, *_) in claim.arms]
    if any(map(math.isnan, off)):
        return None
    furthest = max(off, key=abs)
    right = abs(furthest) <= claim.margin + 1e-9
    return Effect(furthest, 0.0, 1.0, 0, up=0.0 if right else 1.0, down=1.0 if right else 0.0, small=1.0)


def judge(claims: Sequence[Claim], runs: Runs) -> list[Verdict]:
    """Return the claims of a paper with their verdicts, in order, with Holm's correction over each table.

    Args:
        claims: the claims of one paper.
        runs: the paper's kept runs.
    """
    found: dict[str, Verdict] = {}
    for table in dict.fromkeys(claim.table for claim in claims):
        here = [claim for claim in claims if claim.table == table]
        floors = [noise(claim, runs) for claim in here]
        effects = [effect_of(claim, runs, floor) for claim, floor in zip(here, floors, strict=True)]
        judged = statistics.words([effect for effect, _ in effects], [claim.margin for claim in here])
        for claim, floor, (effect, seeds), word in zip(here, floors, effects, judged, strict=True):
            found[claim.name] = Verdict(claim, word if effect else _undecided(claim, runs, word), seeds, floor)
    return [found[claim.name] for claim in claims]


def _undecided(claim: Claim, runs: Runs, judged: Judged) -> Judged:
    """Return the verdict of a claim before its first look, which says whether any of its runs is finished."""
    begun = any(runs.of(found) for seed in range(LOOKS[-1]) for found in jobs_of(claim, seed))
    return Judged("open" if begun else "not run", needed=looks_of(claim)[0], level=judged.level)


def as_rows(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the claims as plain values. An effect, if there is one, has ``mean``, ``low`` and ``high``.

    Args:
        verdicts: the claims.
    """
    rows = []
    for verdict in verdicts:
        claim, judged = verdict.claim, verdict.judged
        row = {name: getattr(claim, name) for name in ("paper", "name", "where", "says", "table", "role", "printed")}
        row |= {"margin": claim.margin if math.isfinite(claim.margin) else None, "word": judged.word}
        row |= {"lesser": judged.lesser, "needed": judged.needed, "seeds": verdict.seeds, "floor": verdict.floor}
        if judged.effect is not None:
            row |= {"mean": judged.effect.mean, "low": judged.low, "high": judged.high}
        rows.append(row)
    return rows


def printed_claims(verdicts: Sequence[Verdict], title: str) -> RichTable:
    """Return the claims as a table for a terminal: the paper's effect, ours with its interval, seeds and verdict.

    Args:
        verdicts: the claims.
        title: the heading above the table.
    """
    table = RichTable(title=title, title_justify="left")
    for name in ("claim", "where", "the paper's effect", "our effect, interval", "our seeds", "word"):
        table.add_column(name, overflow="fold", min_width=12 if name == "claim" else None)  # whole words
    for verdict in verdicts:
        claim, judged = verdict.claim, verdict.judged
        printed = "–" if claim.printed is None else f"{claim.printed:+.2f}"
        ours = "–"
        if judged.effect is not None:
            ours = f"{judged.effect.mean:+.2f}"
            ours += f" [{judged.low:+.2f}, {judged.high:+.2f}]" if judged.effect.error else ""
        seeds = "computed" if verdict.computed else str(verdict.seeds)
        table.add_row(claim.name, claim.where, printed, ours, seeds, judged.said)
    return table
