"""The tests behind the words: against scipy, brute force and hand counts, and the false positives of stopping."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hanse.lab import statistics
from hanse.lab.statistics import (
    ALPHA,
    LOOKS,
    Effect,
    effect,
    equality,
    flip_sides,
    holm,
    look,
    seeds_needed,
    share_effect,
    spread_of_shares,
    together,
    words,
)

FIVE = np.array([0.4, 0.9, 0.5, 1.1, 0.7])


def test_the_shares_of_all_looks_are_the_five_percent() -> None:
    for looks in (LOOKS, statistics.FLIP_LOOKS):
        assert sum(look(n, looks)[1] for n in looks) == 1.0  # type: ignore[index]
    assert [look(n) for n in (0, 4, 9, 19, 400)] == [None, None, (5, 0.25), (10, 0.25), (20, 0.5)]


def test_an_effect_is_students_t_at_its_looks_share() -> None:
    found = effect(FIVE, margin=0.2, floor=0.0)
    p = stats.ttest_1samp(FIVE, 0.0).pvalue
    assert found.mean == pytest.approx(0.72)
    assert found.up == pytest.approx(p / 0.25)
    assert found.down == 1.0
    assert found.small == 1.0
    low = stats.ttest_1samp(FIVE, 5.0, alternative="less").pvalue
    far = effect(FIVE, margin=5.0, floor=0.0)
    assert far.small == pytest.approx(2 * low / 0.25)
    assert effect(FIVE[:4], 0.2, 0.0) is None
    assert effect(np.append(FIVE, [9.0]), 0.2, 0.0) == found  # the sixth seed waits for the tenth


def test_the_error_is_not_below_the_noise_floor_and_nothing_below_it_is_confirmed() -> None:
    bare, noisy, unknown = (effect(FIVE, 0.2, floor) for floor in (0.0, 0.1, None))
    sd = FIVE.std(ddof=1)
    assert [e.error for e in (bare, noisy, unknown) if e] == pytest.approx(
        [sd / math.sqrt(5), max(sd, 0.1) / math.sqrt(5), 2 * sd / math.sqrt(5)]
    )
    steady = np.array([0.100, 0.101, 0.099, 0.100, 0.1005])
    assert words([effect(steady, 0.01, 0.08)], [0.01])[0].word == "open"
    assert words([effect(steady, 0.01, 0.004)], [0.01])[0].word == "confirmed"
    shifted = np.tile(steady, 4)
    assert words([effect(shifted, 0.01, 0.3)], [0.01])[0].word == "open"
    assert words([effect(shifted, 0.01, 0.1)], [0.01])[0].word == "confirmed"
    assert words([effect(-shifted, 0.01, 0.2)], [0.01])[0].word == "no such effect"


def test_sign_flips_are_all_patterns_of_signs() -> None:
    for sums in ([1, 2, 0, -1, 3], [2, 2, 2], [0, 0], [-4, 1, 1, 1, 1, 1]):
        every = [sum(s * abs(x) for s, x in zip(signs, sums, strict=True))
                 for signs in itertools.product((-1, 1), repeat=len(sums))]  # fmt: skip
        above = np.mean([total >= sum(sums) for total in every])
        below = np.mean([total <= sum(sums) for total in every])
        assert flip_sides(np.array(sums)) == pytest.approx((min(1, 2 * above), min(1, 2 * below)))


def test_five_seeds_of_shares_decide_nothing_and_ten_do() -> None:
    yes, no = np.ones((10, 3)), np.zeros((10, 3))
    assert share_effect(yes[:5], no[:5], 20.0) is None
    found = share_effect(yes, no, 20.0)
    assert (found.mean, found.seeds) == (100.0, 10)
    assert found.up == pytest.approx(2 / 2**10 / 0.5)
    assert words([found], [20.0])[0].word == "confirmed"
    same = share_effect(yes, yes, 20.0)
    # thirty equal pairs: Agresti and Min's error is 1 / 32
    assert same.error == pytest.approx(100 / 32)
    assert spread_of_shares(yes[:1, :1], no[:1, :1]) == pytest.approx(math.sqrt(2 - 1 / 3) / 3)
    assert words([same], [20.0])[0].word == "no such effect"
    assert words([share_effect(yes, yes, 5.0)], [5.0])[0].word == "open"


def test_equality_needs_both_sides_of_the_band() -> None:
    near = np.array([0.02, -0.01, 0.03, 0.0, -0.02])
    assert words([equality(near, 0.2, 0.0)], [0.2])[0].word == "confirmed"
    assert words([equality(near + 1, 0.2, 0.0)], [0.2])[0].word == "contradicted"
    assert words([equality(near - 1, 0.2, 0.0)], [0.2])[0].word == "contradicted"
    assert words([equality(near + 0.19, 0.2, 0.0)], [0.2])[0].word == "open"
    assert words([equality(np.zeros(5), 0.2, 0.0)], [0.2])[0].word == "confirmed"


def test_a_claim_about_several_differences_needs_them_all() -> None:
    good, bad = effect(FIVE, 0.2, 0.0), effect(-FIVE, 0.2, 0.0)
    assert together([good, good]).up == good.up
    both = together([good, bad])
    assert (both.mean, both.up) == (bad.mean, 1.0)
    assert both.down == pytest.approx(2 * bad.down)
    assert both.small == pytest.approx(2 * bad.small)


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.25, 0.375, 0.5, 1.0])), min_size=1, max_size=8))
def test_weighted_holm_by_its_definition(given: list[tuple[float, float]]) -> None:
    p, weights = zip(*given, strict=True)
    found = holm(p, weights)
    left, rejected = set(range(len(p))), set[int]()
    while left:
        first = min(left, key=lambda place: (p[place] / weights[place], place))
        if min(1.0, sum(weights[i] for i in sorted(left)) * p[first] / weights[first]) > ALPHA + 1e-12:
            break
        rejected.add(first)
        left.remove(first)
    assert all((found[place][0] <= ALPHA + 1e-9) for place in rejected)
    assert all(found[place][0] > ALPHA for place in left)
    assert holm(p) == holm(p, [1.0] * len(p))
    assert sum(level for place, (_, level) in enumerate(found) if place in left) <= ALPHA + 1e-9


@given(st.lists(st.floats(-3, 3), min_size=5, max_size=5), st.floats(0.1, 2.0), st.integers(1, 6))
def test_a_word_and_its_interval_agree(seeds: list[float], margin: float, others: int) -> None:
    found = effect(np.array(seeds), margin, 0.0)
    [judged, *_] = words([found, *[None] * others], [margin] * (others + 1))
    if judged.word == "confirmed":
        assert judged.low > -1e-9
    if judged.word == "contradicted":
        assert judged.high < 1e-9
    if judged.word == "no such effect":
        assert judged.high < margin + 1e-9
    if judged.word == "open":
        assert judged.low < 1e-9
        assert judged.high > margin - 1e-9 or judged.high > -1e-9


def test_the_seeds_that_an_open_claim_needs_would_decide_it() -> None:
    found = effect(np.array([0.1, -0.1, 0.3, 0.0, 0.2]), 1.0, 0.0)
    n = seeds_needed(found, 0.15, ALPHA)

    def at(seeds: int) -> float:
        return float(stats.t.isf(ALPHA * 0.5 / 2, seeds - 1)) * 0.1581139 / math.sqrt(seeds)

    assert n == 20  # 16 would be clear of 0, and the look is after 20
    assert at(16) < 0.1 < at(15)
    more = seeds_needed(replace(found, mean=0.08), 0.1, ALPHA)
    assert at(more) < 0.08 < at(more - 1)
    assert seeds_needed(Effect(0.0, 1.0, 0.25, 5, 1, 1, 1), 1e-6, ALPHA) is None
