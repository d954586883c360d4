"""The tests behind a claim's verdict: arrays in, plain numbers out.

A claim is about an *effect*, which is above 0 if the claim is right. :func:`effect`, :func:`share_effect` and
:func:`equality` turn the claim's differences, one per seed, into three p-values. :func:`words` corrects the p-values of
all claims of a table and returns the verdicts.

**Repeated testing.** Seeds are added until a claim is decided, which invalidates a plain 5 % test. There are three
looks (interim tests), after 5, 10 and 20 seeds. The 5 % are spent over them in proportion to the seeds: a look's
p-value is divided by its share. (The spending function is ``alpha * n / 20``: Lan and DeMets, Discrete sequential
boundaries for clinical trials, Biometrika 70, 1983.) The shares sum to 1. So whichever look one stops at, the
probability of a p-value below ``u`` is at most ``u``. Intervals are Jennison and Turnbull's repeated confidence
intervals (JRSS B 51, 1989). Between two looks, the result of the last look is valid. Some looks cannot reach their
share with an exact test, such as sign flips after five seeds. Such a look is skipped, and its share goes to the next.

**Many claims.** Holm's step-down method (Scandinavian Journal of Statistics 6, 1979) is applied over the claims of a
table: once for *confirmed* and *contradicted* together, and once for *no such effect*. Each kind of verdict is
therefore wrong anywhere in a table with probability at most 5 %. Two readings of one claim share its alpha: each has a
*weight* below 1, and Holm's method is the weighted one of the same paper.

**The noise floor** is the deviation of the difference between a run and the same run on another kind of machine. The
deviation over the seeds holds it already, so where a seed's runs are of different kinds the larger of the two is the
error, and where they are of one kind there is no floor.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, stdtr, stdtrit

from hanse.base.plain_text import quantity
from hanse.core.table import Floats

Word = Literal[
    "confirmed", "contradicted", "no such effect", "open", "not run", "not testable at this scale",
    "cannot be decided here",
]  # fmt: skip
WORDS: tuple[Word, ...] = get_args(Word)
ALPHA = 0.05
LOOKS = (5, 10, 20)
"""The numbers of seeds at which a claim is tested; the first is the fewest that can decide one."""
FLIP_LOOKS = LOOKS[1:]  # 2 / 2^5 is above any share of 5 %
MOST_NEEDED = 10_000  # seeds; of more is said that they would not decide it


@dataclass(frozen=True)
class Effect:
    """The seeds' evidence on one difference.

    Attributes:
        mean: the mean over the seeds at the last look.
        error: the mean's standard error, not below the noise floor's.
        share: this look's share of the 5 %.
        seeds: how many seeds the look has.
        up: the p-value against "the effect is 0 or less", two-sided and over all looks.
        down: the p-value against "the effect is 0 or more".
        small: the p-value against "the effect is at least the smallest that matters".
    """

    mean: float
    error: float
    share: float
    seeds: int
    up: float
    down: float
    small: float


@dataclass(frozen=True)
class Decision:
    """A claim's verdict.

    Attributes:
        word: the verdict, by the rule of :func:`words`.
        effect: the effect. For a claim about several differences, it is that of the weakest. None: no seed has all of
            the claim's runs.
        low: the lower end of the repeated interval of ``effect``, at Holm's level.
        high: the upper end of that interval.
        needed: how many seeds would decide an open claim if mean and deviation did not change. None: unknown, or more
            than 10,000.
        level: the interval's error level, which is Holm's for this claim.
        lesser: whether a confirmed effect is smaller than the smallest that matters.
    """

    word: Word
    effect: Effect | None = None
    low: float = math.nan
    high: float = math.nan
    needed: int | None = None
    level: float = ALPHA
    lesser: bool = False

    @property
    def said(self) -> str:
        """The verdict in words, for an open claim with the seeds that would decide it."""
        if self.word == "open":
            return f"open (needs {quantity(self.needed or 'over 10,000', 'seed')})"
        return "confirmed in direction, not in size" if self.lesser else self.word


def look(seeds: int, looks: Sequence[int] = LOOKS) -> tuple[int, float] | None:
    """Return the last look that this many seeds allow, and its share of the 5 %, or None before the first look.

    Example:
        >>> look(4), look(5), look(12), look(12, FLIP_LOOKS)
        (None, (5, 0.25), (10, 0.25), (10, 0.5))
    """
    past = [n for n in looks if n <= seeds]
    if not past:
        return None
    before = past[-2] if len(past) > 1 else 0
    return past[-1], (past[-1] - before) / looks[-1]


def t_sides(mean: float, error: float, n: int, null: float = 0.0) -> tuple[float, float]:
    """Return Student's p-values against "at most ``null``" and "at least ``null``", each doubled and at most 1.

    With zero error, a mean different from ``null`` is certain, and a mean equal to it says nothing.
    """
    if error == 0:
        return (0.0, 1.0) if mean > null else (1.0, 0.0) if mean < null else (1.0, 1.0)
    t = (mean - null) / error
    return min(1.0, 2 * float(stdtr(n - 1, -t))), min(1.0, 2 * float(stdtr(n - 1, t)))


def flip_sides(sums: NDArray[np.int64]) -> tuple[float, float]:
    """Return the exact p-values of both sides if each seed's sum has either sign with equal probability.

    This is the stratified exact test of shares, with the seed as the stratum: a seed's two arms are exchanged in all
    settings at once. Settings may therefore depend on each other, as they do if they share a seed's model.

    Args:
        sums: ``[n]``: for each seed, over the settings, how often something was true in the first arm minus how often
            it was in the second.

    Example:
        >>> flip_sides(np.array([1, 2, 1, 1, 1]))
        (0.0625, 1.0)
    """
    sizes, total = np.abs(sums[sums != 0]), int(sums.sum())
    chance = np.ones(1)
    for size in sizes:
        kernel = np.zeros(2 * size + 1)
        kernel[[0, -1]] += 0.5
        chance = np.convolve(chance, kernel)
    middle = int(sizes.sum())
    above, below = chance[middle + total :].sum(), chance[: middle + total + 1].sum()
    return min(1.0, 2 * float(above)), min(1.0, 2 * float(below))


def spread_of_shares(first: Floats, second: Floats) -> float:
    """Return the standard error of a difference of shares by Agresti and Min (Statistics in Medicine 24, 2005). Half a
    pair is added to each kind of pair, since a few equal pairs do not show that there is no spread.

    Args:
        first: ``[n, settings]``, the outcomes of one arm, 0 or 1.
        second: ``[n, settings]``, those of the other arm.
    """
    only_first, only_second = float((first > second).sum()), float((first < second).sum())
    pairs = first.size + 2.0
    return math.sqrt(only_first + only_second + 1.0 - (only_first - only_second) ** 2 / pairs) / pairs


def effect(differences: Floats, margin: float, floor: float | None) -> Effect | None:
    """Return the effect that the seeds' differences show, by Student's t, or None before the first look.

    Args:
        differences: ``[n]``, above 0 where the claim is right, in the order of the seeds.
        margin: the smallest effect that matters, above 0.
        floor: the noise floor, 0 if every seed's runs are of one kind of machine. None: they are not, and it was not
            measured; the deviation of the differences is then counted twice.
    """
    at = look(len(differences))
    if at is None:
        return None
    n, share = at
    mean, sd = float(differences[:n].mean()), float(differences[:n].std(ddof=1))
    return _tested(mean, (2 * sd if floor is None else max(sd, floor)) / math.sqrt(n), share, n, margin)


def _tested(mean: float, error: float, share: float, n: int, margin: float) -> Effect:
    (up, down), (_, small) = t_sides(mean, error, n), t_sides(mean, error, n, margin)
    return Effect(mean, error, share, n, *(min(1.0, p / share) for p in (up, down, small)))


def share_effect(first: Floats, second: Floats, margin: float) -> Effect | None:
    """Return the effect of a difference of shares, pooled over the settings, or None before the first look.

    :func:`flip_sides` tests the direction. The interval uses the larger of two errors: the seeds', and Agresti and
    Min's. There is no floor, because noise that changes an outcome is already in the shares.

    Args:
        first: ``[n, settings]``: 1 where the outcome was seen in the first arm, else 0.
        second: ``[n, settings]``, the same for the second arm.
        margin: the smallest difference that matters, in percentage points; the effect has the same unit.
    """
    at = look(len(first), FLIP_LOOKS)
    if at is None:
        return None
    n, share = at
    first, second = first[:n], second[:n]
    by_seed = 100 * (first - second).mean(axis=1)
    error = max(float(by_seed.std(ddof=1)) / math.sqrt(n), 100 * spread_of_shares(first, second))
    found = _tested(float(by_seed.mean()), error, share, n, margin)
    up, down = (min(1.0, p / share) for p in flip_sides((first - second).sum(axis=1).astype(np.int64)))
    return Effect(found.mean, error, share, n, up, down, found.small)


def equality(differences: Floats, margin: float, floor: float | None) -> Effect | None:
    """Return the evidence on whether our mean equals a printed number, within a margin; None before the first look.

    Of the result's p-values, ``up`` is small if the mean lies inside the margin (two one-sided tests), and ``down`` if
    it lies outside.

    Args:
        differences: ``[n]``, ours minus the printed number.
        margin: the largest difference that still counts as equal.
        floor: as for :func:`effect`.
    """
    found = effect(differences, margin, floor)
    if found is None:
        return None
    over, under = t_sides(found.mean, found.error, found.seeds, margin)
    over_low, under_low = t_sides(found.mean, found.error, found.seeds, -margin)
    inside, outside = max(under, over_low), min(over, under_low)
    up, down = min(1.0, inside / found.share), min(1.0, outside / found.share)
    return Effect(found.mean, found.error, found.share, found.seeds, up, down, 1.0)


def together(effects: Sequence[Effect]) -> Effect:
    """Combine several differences into one claim, which is right only if all of them are.

    ``up`` is the largest of the p-values (all differences must be shown: intersection and union, Berger 1982). ``down``
    and ``small`` are Bonferroni's (one difference is enough). The other numbers are those of the difference with the
    largest ``up``.
    """
    weakest = max(effects, key=lambda e: (e.up, -e.mean))
    down, small = (min(1.0, len(effects) * min(p)) for p in ([e.down for e in effects], [e.small for e in effects]))
    return replace(weakest, down=down, small=small)


def holm(p: Sequence[float], weights: Sequence[float] | None = None) -> list[tuple[float, float]]:
    """Return Holm's adjusted p-values and the level of each comparison, in the given order.

    All comparisons that Holm leaves undecided have the same level, 5 % divided by their number. With ``weights``, a
    comparison has its share of the 5 % by its weight among those that are left (1 each if left out).

    Example:
        >>> holm([0.01, 0.04, 0.03])
        [(0.03, 0.016666666666666666), (0.06, 0.025), (0.06, 0.025)]
    """
    heavy = [1.0] * len(p) if weights is None else weights
    order = sorted(range(len(p)), key=lambda place: p[place] / heavy[place])
    found, least, level = [(1.0, ALPHA)] * len(p), 0.0, ALPHA
    for rank, place in enumerate(order):
        left = sum(heavy[other] for other in order[rank:])
        if least <= ALPHA:
            level = ALPHA / left
        least = max(least, min(1.0, left * p[place] / heavy[place]))
        found[place] = least, level * heavy[place]
    return found


def words(
    effects: Sequence[Effect | None], margins: Sequence[float], weights: Sequence[float] | None = None
) -> list[Decision]:
    """Return the verdicts on a table's claims.

    *confirmed*: the whole interval lies on the claimed side of 0. *contradicted*: it lies on the other side. *no such
    effect*: it contains 0 and lies below the smallest effect that matters. *open*: none of these. A confirmed effect
    below the smallest that matters is ``lesser``: its direction is confirmed, not its size.

    Args:
        effects: the effect of each claim. None: it has fewer seeds than its first look needs. A claim counts in Holm's
            correction whether or not it was run.
        margins: for each claim, the smallest effect that matters.
        weights: for each claim, its share of the alpha of a claim, 1 if left out.
    """
    signs = holm([1.0 if e is None else min(e.up, e.down) for e in effects], weights)
    smalls = holm([1.0 if e is None else e.small for e in effects], weights)
    found = []
    for e, margin, (sign, level), (small, _) in zip(effects, margins, signs, smalls, strict=True):
        if e is None:
            found.append(Decision("open", level=level))
            continue
        clear = sign <= ALPHA
        word: Word = "no such effect" if small <= ALPHA else "open"
        if clear:
            word = "confirmed" if e.up < e.down else "contradicted"
        half = -float(stdtrit(e.seeds - 1, level * e.share / 2)) * e.error if e.error else 0.0
        needed = seeds_needed(e, margin, level) if word == "open" else None
        lesser = word == "confirmed" and small <= ALPHA
        found.append(Decision(word, e, e.mean - half, e.mean + half, needed, level, lesser))
    return found


def seeds_needed(found: Effect, margin: float, level: float) -> int | None:
    """Return how many seeds would decide a claim if its mean and deviation did not change.

    The number reaches at least to the next look. None: it is more than 10,000.

    Args:
        found: the claim's present effect.
        margin: the smallest effect that matters.
        level: Holm's level for the claim.
    """
    spread = found.error * math.sqrt(found.seeds)
    away = max(abs(found.mean), margin - found.mean)
    sizes = np.unique(np.geomspace(found.seeds + 1, MOST_NEEDED, 2000).astype(np.int64))
    share = look(LOOKS[-1])[1]  # type: ignore[index]  # the last look's; one after more seeds would have no more
    enough = sizes[-stdtrit(sizes - 1, level * share / 2) * spread / np.sqrt(sizes) < away]
    least = int(enough[0]) if len(enough) else None
    return least if least is None else next((n for n in LOOKS if n >= least), least)


def decides(found: Effect, margin: float, level: float) -> bool:
    """Return whether an effect is clear of 0, or lies below the smallest that matters, at its look and Holm's level."""
    half = -float(stdtrit(found.seeds - 1, level * found.share / 2)) * found.error
    return abs(found.mean) > half or found.mean + half < margin


def chance_to_decide(found: Effect | None, margin: float, at: int, level: float) -> float:
    """Return the approximate probability that the look after ``at`` seeds decides a claim, from its mean and deviation.

    Args:
        found: the claim's present effect. None: nothing is known, and half is returned.
        margin: the smallest effect that matters.
        at: seeds at that look.
        level: Holm's level for the claim.
    """
    now = look(at)
    if found is None or now is None:
        return 0.5
    error = max(found.error * math.sqrt(found.seeds / at), 1e-12)
    bar = -float(stdtrit(at - 1, level * now[1] / 2)) * error
    spread = math.hypot(error, found.error)  # the mean at that look lies around today's, and both are uncertain
    ways = (found.mean - bar, -found.mean - bar, margin - found.mean - bar)
    return min(1.0, sum(float(ndtr(way / spread)) for way in ways))
