"""From kept runs to verdicts: evaluates a claim's seeds and the noise floor of its arms.

:func:`judge` returns a :class:`Verdict` for each claim. :class:`Runs` reads each run behind an arm once, and
:func:`reading_of` takes a number from a run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table as RichTable

from hanse.core.table import Floats
from hanse.lab import statistics
from hanse.lab.job import Job, key_of, seeded
from hanse.lab.kept import KeptFile
from hanse.lab.statistics import LOOKS, Decision, Effect
from hanse.reports.compare import effective_round, improvement
from hanse_papers.claims.claim import WIDTH, Arm, Claim, Reading
from hanse_papers.compare import curve_of, together
from hanse_papers.ids import IDS
from hanse_papers.runner import job_of

REPEATS = 3
"""The fewest repeats on other kinds of machines for measuring a noise floor."""
HOLDS = 0.8
"""In which share of the seeds of each setting a claim's condition must hold."""


@dataclass(frozen=True)
class Verdict:
    """A claim with its verdict.

    Attributes:
        claim: the claim.
        judged: verdict, effect, interval and, if the claim is open, how many seeds would decide it.
        seeds: how many seeds have all of the claim's runs, from its first on.
        floor: the noise floor of the claim's effect, 0 if no seed mixes kinds of machines. None: not measured.
        same_as: the first claim that compares the same runs, whatever it reads of them; "" if this is the first. Two
            claims of one comparison with one word count once.
        so_far: of a claim without an effect, what its kept seeds show, those before its first included. They decide
            nothing. None: no seed has all runs.
    """

    claim: Claim
    judged: Decision
    seeds: int
    floor: float | None
    same_as: str = ""
    so_far: SoFar | None = None

    @property
    def computed(self) -> bool:
        """Whether the claim's numbers are deterministic, so it needs no seeds."""
        return _is_computed(self.claim)

    @property
    def by_margin(self) -> bool:
        """Whether a computed claim has its word by its margin alone: half of it, or twice, would give another."""
        off, margin = self.judged.effect, self.claim.margin
        return off is not None and self.computed and margin / 2 < abs(off.mean) <= 2 * margin


@dataclass(frozen=True)
class SoFar:
    """The weakest of a claim's differences over the kept seeds: its mean, deviation (0 for one) and how many seeds."""

    mean: float
    sd: float
    seeds: int


class Runs:
    """The kept runs of a paper, each read once."""

    def __init__(self, folder: Path) -> None:
        self.kept = KeptFile(folder, IDS)
        self._found: dict[str, list[dict[str, Any]]] = {}
        self._settings: dict[str, set[int]] | None = None

    def of(self, job: Job) -> list[dict[str, Any]]:
        """Return the finished results of a job: first the run that counts, then its repeats."""
        if not self._found.get(job.key):
            self._found[job.key] = self.kept.repeats(job)
        return self._found[job.key]

    def by_seed(self, sections: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        """Return the runs of an experiment without a seed, by their seeds in order.

        Args:
            sections: the experiment. If it names no ``data.seed``, the split has the seed of the run.
        """
        if self._settings is None:
            self._settings = {}
            for lines in self.kept.lines().values():
                given = lines[0]["given"]
                run, data = ({k: v for k, v in given[name].items() if k != "seed"} for name in ("run", "data"))
                forms = [{**given, "run": run}]
                forms += (
                    [{**given, "run": run, "data": data}] if given["data"].get("seed") == given["run"]["seed"] else []
                )
                for form in forms:
                    self._settings.setdefault(key_of(form, IDS), set()).add(given["run"]["seed"])
        of = ("run",) if "seed" in sections["data"] else ("data", "run")
        jobs = {seed: seeded(sections, seed, "", of, IDS) for seed in self._settings.get(key_of(sections, IDS), ())}
        return {seed: found[0] for seed, job in sorted(jobs.items()) if (found := self.of(job))}

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


def kind_of(result: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of machine that played a run: its processor and the instructions that PyTorch used on it."""
    made = result.get("made", {})
    return str(made.get("processor")), str(made.get("instructions"))


def paired(setting: Sequence[Arm], seed: int, runs: Runs) -> tuple[list[dict[str, Any]], bool]:
    """Return the runs that are compared in a setting and whether one kind of machine played them; none if one is not
    kept. Runs of one kind come first, and else the first run of each arm counts.
    """
    kept = [runs.of(job(arm, seed)) for arm in setting]
    if not all(kept):
        return [], False
    kinds = [{kind_of(result): result for result in reversed(results)} for results in kept]
    common = next((kind for kind in map(kind_of, kept[0]) if all(kind in found for found in kinds)), None)
    if common is None:
        return [results[0] for results in kept], False
    return [found[common] for found in kinds], True


def jobs_of(claim: Claim, seed: int) -> list[Job]:
    """Return the runs of a claim with one seed, each once."""
    arms = [arm for setting in claim.arms for arm in setting if arm.variant is not None]
    return list({found.key: found for found in (job(arm, seed) for arm in arms)}.values())


def reading_of(arm: Arm, result: Mapping[str, Any], reading: Reading) -> float | None:
    """Return a reading's number for a run; None if the run does not have it.

    The tests up to the round count of the row that is read, or the tests that a mean names. A target that is never
    reached counts as reached one test after the last.
    """
    at = max(result["tested"], default=0) if reading.kind == "mean" else arm.cell.at
    if reading.kind == "window":
        reading = Reading("mean", first=min(at, at - at // 5 + 1), last=at)
    curve = curve_of(arm.cell, arm.table, result, at)
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


def faster(arm: Arm, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float | None:
    """Return by how many percent fewer rounds ``ours`` reaches the best of ``theirs``, GTFLAT eq. 13.

    Both curves are the best figures so far. A curve that never gets there counts as if it did so one test after the
    last. None if a figure is missing.
    """
    found = together(arm.cell, arm.table, ours, theirs)
    if found is None:
        return None
    rounds, a, b = found
    reached, base = effective_round(rounds, a, float(b[-1])), effective_round(rounds, b, float(b[-1]))
    return improvement(_after(rounds) if reached is None else reached, base)


def values(claim: Claim, runs: Runs) -> Floats:
    """Return ``[seeds, settings, arms]``: the readings of the seeds, from the claim's first on, that have its runs.

    If the reading is the number of rounds to the other arm's best, the first arm's number is the improvement and the
    other arm's is 0.
    """
    found = []
    for seed in claim.seeds if not _is_computed(claim) else ():
        rows = [_setting(claim, setting, seed, runs) for setting in claim.arms]
        if not rows or any(value is None for row in rows for value in row):
            break
        found.append(rows)
    width = len(claim.arms[0]) if claim.arms else 0
    return np.array(found, dtype=np.float64).reshape(len(found), len(claim.arms), width)


def _setting(claim: Claim, setting: Sequence[Arm], seed: int, runs: Runs) -> list[float | None]:
    results, _ = paired(setting, seed, runs)
    if not results:
        return [None]
    if claim.reading.kind == "faster":
        against = [faster(setting[0], results[0], there) for there in results[1:]]
        # one improvement for each other arm: written as 0 and its negative, so differences are improvements
        return [0.0, *(None if value is None else -value for value in against)]
    return [reading_of(arm, there, claim.reading) for arm, there in zip(setting, results, strict=True)]


def noise(claim: Claim, claims: Sequence[Claim], runs: Runs, seeds: int) -> float | None:
    """Return the noise floor of a claim's differences: 0 if all runs of each of its seeds are of one kind of machine.

    Otherwise it is the root mean square of repeat minus run, over all repeats of runs behind ``claims``, read as this
    claim is; None if there are fewer than three. For an effect pooled over settings, it is divided by the root of their
    number.

    Args:
        claim: the claim.
        claims: those of its table, whose repeats measure the floor once for all of them.
        runs: the kept runs.
        seeds: how many seeds have all of the claim's runs.
    """
    if _is_computed(claim) or all(paired(s, seed, runs)[1] for seed in claim.seeds[:seeds] for s in claim.arms):
        return 0.0
    if claim.reading.kind == "faster":
        return None
    arms = {job(arm, 0).key + arm.cell.column: arm for other in claims for setting in other.arms for arm in setting}
    found = [d for arm in arms.values() for d in _repeated(arm, claim.reading, runs)]
    if len(found) < REPEATS:
        return None
    floor = math.sqrt(float(np.square(found).mean()))
    return floor / math.sqrt(len(claim.arms)) if claim.over == "pooled" else floor


def _repeated(arm: Arm, reading: Reading, runs: Runs) -> Iterator[float]:
    """Yield repeat less run for every repeat of an arm."""
    for seed in range(LOOKS[-1]):
        first, *again = [reading_of(arm, found, reading) for found in runs.of(job(arm, seed))] or [None]
        yield from (value - first for value in again if value is not None and first is not None)


def largest_repeat(claims: Sequence[Claim], runs: Runs) -> float:
    """Return how far the last accuracy (points) of a kept run and of its repeat on another kind of machine are apart.

    Args:
        claims: the claims whose runs are looked at.
        runs: the kept runs.
    """
    arms = {
        job(arm, 0).key: arm
        for c in claims
        for s in c.arms
        for arm in s
        if arm.variant and "accuracy" in arm.table.metric
    }
    apart = (abs(d) for arm in arms.values() for d in _repeated(arm, Reading("last"), runs))
    return max(apart, default=0.0)


def testable(claim: Claim, runs: Runs, seeds: int) -> bool:
    """Return whether a claim's condition holds in four fifths of its first ``seeds`` seeds in each setting."""
    return claim.condition is None or all(
        np.mean([_holds(claim.condition, paired(setting, seed, runs)[0]) for seed in claim.seeds[:seeds]]) >= HOLDS
        for setting in claim.arms
    )


def _holds(condition: str | int, results: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the market of the first run lives and, if a client is named, it trades in one of the runs."""
    ours, clients = results[0], results[0]["given"]["data"]["clients"]
    alone = [number for number in ours["curves"].get("market/isolated", ()) if number is not None]
    lives = bool(alone) and bool(np.mean([2 * (clients - number) >= clients for number in alone]) >= 0.5)
    if condition == "market":
        return lives
    return lives and any(any(run["curves"].get(f"utility/client/{condition}", ())) for run in results)


def effect_of(claim: Claim, found: Floats, floor: float | None) -> Effect | None:
    """Return the effect that a claim shows; None before its first look.

    Args:
        claim: the claim.
        found: its readings, as :func:`values` returns them.
        floor: the noise floor of the claim's differences, as :func:`noise` returns it.
    """
    if _is_computed(claim):
        return _exact(claim)
    at = statistics.look(len(found), looks_of(claim))
    if at is None:
        return None
    found = found[: at[0]]
    if claim.kind == "share":
        first, second = (found[:, :, 0] > 0).astype(np.float64), (found[:, :, 1] > 0).astype(np.float64)
        blocks = [slice(None)] if claim.over == "pooled" else [slice(i, i + 1) for i in range(found.shape[1])]
        parts = [statistics.share_effect(first[:, b], second[:, b], claim.margin) for b in blocks]
    elif claim.kind == "equal":
        # furthest first: of several that are not shown to be equal, the one that is furthest off is the weakest
        off = sorted(shown(claim, found), key=lambda d: -abs(float(d.mean())))
        parts = [statistics.equality(d, claim.margin, floor) for d in off]
    else:
        above = claim.margin if claim.kind == "harmless" else 0.0  # what must not be below -margin
        parts = [statistics.effect(d + above, claim.margin, floor) for d in shown(claim, found)]
        if claim.kind == "harmless":
            parts = [part and replace(part, mean=part.mean - above, small=1.0) for part in parts]
    whole = [part for part in parts if part is not None]
    if not whole:
        return None
    found_all, weakest = statistics.together(whole), max(whole, key=lambda part: part.up)  # of ties the first
    if claim.kind == "equal":
        return replace(found_all, mean=weakest.mean, error=weakest.error)
    return found_all


def shown(claim: Claim, found: Floats) -> list[Floats]:
    """Return the differences that a claim is about, ``[seeds]`` each, above 0 where it is right (of an equality, where
    ours is above the printed number).

    Args:
        claim: the claim.
        found: its readings, as :func:`values` returns them.
    """
    if claim.kind == "share":
        return _pooled(claim, 100.0 * _differences(claim, (found > 0).astype(np.float64)))
    if claim.kind == "equal":
        printed = np.array([_target(claim, setting[0]) for setting in claim.arms])
        return _pooled(claim, found[:, :, :1] - printed[None, :, None])
    return _pooled(claim, (-1.0 if claim.lower else 1.0) * _differences(claim, found))


def _so_far(claim: Claim, runs: Runs) -> SoFar | None:
    found = values(replace(claim, first=0), runs)
    if not len(found):
        return None
    weakest = min(
        shown(claim, found), key=lambda d: -abs(float(d.mean())) if claim.kind == "equal" else float(d.mean())
    )
    return SoFar(float(weakest.mean()), float(weakest.std(ddof=1)) if len(weakest) > 1 else 0.0, len(weakest))


def comparison(claim: Claim) -> tuple[tuple[str, ...], ...]:
    """Return what tells a comparison from others: its runs with its first seed and their figure, whatever number is
    read of it.
    """
    runs = [
        [
            f"{job(arm, claim.first).key} {arm.cell.metric or arm.table.metric}"
            for arm in setting
            if arm.variant is not None
        ]
        for setting in claim.arms
    ]
    return tuple(sorted({(keys[0], *sorted(keys[1:])) for keys in runs if keys}))


def _is_computed(claim: Claim) -> bool:
    return any(arm.variant is None for setting in claim.arms for arm in setting)


def _differences(claim: Claim, found: Floats) -> Floats:
    """Return ``[seeds, settings, differences]`` of arms, above 0 where higher figures of the first arm are."""
    if claim.kind in WIDTH:
        found = found[:, ::2] - found[:, 1::2]
        found = (found[:, ::2] - found[:, 1::2]) / 2 if claim.kind == "contrast" else found
        return found if found.shape[2] == 1 else found[:, :, :1] - found[:, :, 1:]
    if claim.kind == "spread":
        found = -np.abs(found - np.median(found, axis=0))
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
        known = [values(claim, runs) for claim in here]
        floors = [noise(claim, here, runs, len(seeds)) for claim, seeds in zip(here, known, strict=True)]
        effects = [effect_of(c, seeds, floor) for c, seeds, floor in zip(here, known, floors, strict=True)]
        fit = [e is None or _is_computed(c) or testable(c, runs, e.seeds) for c, e in zip(here, effects, strict=True)]
        judged = statistics.words(
            [effect if fits else None for effect, fits in zip(effects, fit, strict=True)],
            [claim.margin for claim in here],
            [claim.weight for claim in here],
        )
        for claim, seeds, floor, effect, fits, word in zip(here, known, floors, effects, fit, judged, strict=True):
            if not effect:  # before its first look, a claim only says whether any of its runs is finished
                begun = any(runs.of(job) for seed in claim.seeds for job in jobs_of(claim, seed))
                word = Decision("open" if begun else "not run", needed=looks_of(claim)[0], level=word.level)
            if not fits:
                word = Decision("not testable at this scale", level=word.level)
            elif claim.cannot and word.word in ("open", "not run"):
                word = replace(word, word="cannot be decided here")
            so_far = _so_far(claim, runs) if word.effect is None and fits else None
            found[claim.name] = Verdict(claim, word, len(seeds), floor, so_far=so_far)
    first: dict[tuple[tuple[str, ...], ...], str] = {}
    for claim in claims:
        if runs_of := comparison(claim):
            earlier = first.setdefault(runs_of, claim.name)
            found[claim.name] = replace(found[claim.name], same_as="" if earlier == claim.name else earlier)
    return [found[claim.name] for claim in claims]


def counted(verdicts: Sequence[Verdict], *, ours: bool = False) -> dict[str, list[str]]:
    """Return the names of the paper's claims, or of ours, by their words. One comparison with one word counts once.

    Args:
        verdicts: the claims of a paper.
        ours: whether our own claims are asked for; no word of theirs is said of the paper.
    """
    found: dict[str, list[str]] = {word: [] for word in statistics.WORDS}
    had: set[tuple[str, str]] = set()
    for v in (v for v in verdicts if v.claim.role == "claim" and (v.claim.where == "ours") == ours):
        once = (v.same_as or v.claim.name, v.judged.word)
        if once not in had:
            found[v.judged.word].append(v.claim.name)
        had.add(once)
    return found


def as_rows(verdicts: Sequence[Verdict]) -> list[dict[str, Any]]:
    """Return the claims as plain values. An effect has ``mean``, ``low``, ``high`` and the seeds that it ``looked`` at.

    Args:
        verdicts: the claims.
    """
    return [_as_row(verdict) for verdict in verdicts]


CLAIM = ("paper", "name", "where", "says", "table", "role", "kind", "printed", "seen", "first", "cannot")
EFFECT = ("mean", "error", "share", "up", "down", "small")


def _as_row(verdict: Verdict) -> dict[str, Any]:
    claim, judged, effect = verdict.claim, verdict.judged, verdict.judged.effect
    row = {name: getattr(claim, name) for name in CLAIM} | {"word": judged.word, "seeds": verdict.seeds}
    row |= {"margin": claim.margin if math.isfinite(claim.margin) else None, "reading": claim.reading.said}
    row |= {"condition": condition_of(claim), "rows": list(claim.rows), "drawn_anew": list(claim.drawn_anew)}
    row |= {name: getattr(judged, name) for name in ("lesser", "needed", "level")}
    row |= {"floor": verdict.floor, "same_as": verdict.same_as}
    row |= {"scale": claim.arms[0][0].table.scale if claim.arms else ""}
    if effect is not None:
        row |= {name: getattr(effect, name) for name in EFFECT}
        row |= {"low": judged.low, "high": judged.high, "looked": effect.seeds}
    so_far = verdict.so_far
    return row if so_far is None else row | {"kept": so_far.seeds, "kept_mean": so_far.mean, "kept_sd": so_far.sd}


def condition_of(claim: Claim) -> str:
    """Return a claim's condition in words; "" if it has none."""
    asked, computed = claim.condition, _is_computed(claim)
    return "" if asked is None or computed else "the market lives" + (f", {asked} trades" if asked != "market" else "")


def printed_claims(verdicts: Sequence[Verdict], title: str) -> RichTable:
    """Return the claims as a table for a terminal, and below it why some cannot be decided here.

    Args:
        verdicts: the claims.
        title: the heading above the table.
    """
    reasons: dict[str, list[str]] = {}
    for claim in (verdict.claim for verdict in verdicts if verdict.claim.cannot):
        reasons.setdefault(claim.cannot, []).append(claim.name)
    said = "\n".join(f"Cannot be decided here: {'; '.join(names)}: {why}" for why, names in reasons.items())
    table = RichTable(title=title, title_justify="left", caption=said, caption_justify="left")
    for name in ("claim", "where", "the paper's effect", "our effect, interval", "our seeds", "registered", "word"):
        table.add_column(name, overflow="fold")
    for verdict in verdicts:
        claim, judged = verdict.claim, verdict.judged
        printed = "–" if claim.printed is None else f"{claim.printed:+.2f}"
        ours = "–"
        if judged.effect is not None:
            ours = f"{judged.effect.mean:+.2f}"
            ours += f" [{judged.low:+.2f}, {judged.high:+.2f}]" if judged.effect.error else ""
        seeds = "computed" if verdict.computed else str(verdict.seeds)
        registered = (f"after {claim.seen}" if claim.seen else "before") + (
            f", from {claim.first}" if claim.first else ""
        )
        table.add_row(claim.name, claim.where, printed, ours, seeds, registered, judged.said)
    return table
