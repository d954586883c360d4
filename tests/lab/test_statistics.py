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

FIVE = np.array([0.4, 0.9, 0.5, 1.1, 0.7])


def test_the_shares_of_all_looks_are_the_five_percent() -> None:
    for looks in (statistics.LOOKS, statistics.FLIP_LOOKS):
        assert sum(statistics.look(n, looks)[1] for n in looks) == 1.0  # type: ignore[index]
    assert [statistics.look(n) for n in (0, 4, 9, 19, 400)] == [None, None, (5, 0.25), (10, 0.25), (20, 0.5)]


def test_an_effect_is_students_t_at_its_looks_share() -> None:
    found = statistics.effect(FIVE, margin=0.2, floor=0.0)
    p = stats.ttest_1samp(FIVE, 0.0).pvalue
    assert found.mean == pytest.approx(0.72)
    assert found.up == pytest.approx(p / 0.25)
    assert found.down == 1.0
    assert found.small == 1.0
    low = stats.ttest_1samp(FIVE, 5.0, alternative="less").pvalue
    assert statistics.effect(FIVE, margin=5.0, floor=0.0).small == pytest.approx(2 * low / 0.25)
    assert statistics.effect(FIVE[:4], 0.2, 0.0) is None
    assert statistics.effect(np.append(FIVE, [9.0]), 0.2, 0.0) == found  # the sixth seed waits for the tenth


def test_the_error_is_not_below_the_noise_floor_and_nothing_below_it_is_confirmed() -> None:
    bare, noisy, unknown = (statistics.effect(FIVE, 0.2, floor) for floor in (0.0, 0.1, None))
    sd = FIVE.std(ddof=1)
    assert [e.error for e in (bare, noisy, unknown) if e] == pytest.approx(
        [sd / math.sqrt(5), max(sd, 0.1) / math.sqrt(5), 2 * sd / math.sqrt(5)]
    )
    steady = np.array([0.100, 0.101, 0.099, 0.100, 0.1005])
    assert statistics.words([statistics.effect(steady, 0.01, 0.08)], [0.01])[0].word == "open"
    assert statistics.words([statistics.effect(steady, 0.01, 0.004)], [0.01])[0].word == "confirmed"
    shifted = np.tile(steady, 4)
    assert statistics.words([statistics.effect(shifted, 0.01, 0.3)], [0.01])[0].word == "open"
    assert statistics.words([statistics.effect(shifted, 0.01, 0.1)], [0.01])[0].word == "confirmed"
    assert statistics.words([statistics.effect(-shifted, 0.01, 0.2)], [0.01])[0].word == "no such effect"


def test_sign_flips_are_all_patterns_of_signs() -> None:
    for sums in ([1, 2, 0, -1, 3], [2, 2, 2], [0, 0], [-4, 1, 1, 1, 1, 1]):
        every = [sum(s * abs(x) for s, x in zip(signs, sums, strict=True))
                 for signs in itertools.product((-1, 1), repeat=len(sums))]  # fmt: skip
        above = np.mean([total >= sum(sums) for total in every])
        below = np.mean([total <= sum(sums) for total in every])
        assert statistics.flip_sides(np.array(sums)) == pytest.approx((min(1, 2 * above), min(1, 2 * below)))


def test_five_seeds_of_shares_decide_nothing_and_ten_do() -> None:
    yes, no = np.ones((10, 3)), np.zeros((10, 3))
    assert statistics.share_effect(yes[:5], no[:5], 20.0) is None
    found = statistics.share_effect(yes, no, 20.0)
    assert (found.mean, found.seeds) == (100.0, 10)
    assert found.up == pytest.approx(2 / 2**10 / 0.5)
    assert statistics.words([found], [20.0])[0].word == "confirmed"
    same = statistics.share_effect(yes, yes, 20.0)
    # thirty equal pairs: Agresti and Min's error is 1 / 32
    assert same.error == pytest.approx(100 / 32)
    assert statistics.spread_of_shares(yes[:1, :1], no[:1, :1]) == pytest.approx(math.sqrt(2 - 1 / 3) / 3)
    assert statistics.words([same], [20.0])[0].word == "no such effect"
    assert statistics.words([statistics.share_effect(yes, yes, 5.0)], [5.0])[0].word == "open"


def test_equality_needs_both_sides_of_the_band() -> None:
    near = np.array([0.02, -0.01, 0.03, 0.0, -0.02])
    assert statistics.words([statistics.equality(near, 0.2, 0.0)], [0.2])[0].word == "confirmed"
    assert statistics.words([statistics.equality(near + 1, 0.2, 0.0)], [0.2])[0].word == "contradicted"
    assert statistics.words([statistics.equality(near - 1, 0.2, 0.0)], [0.2])[0].word == "contradicted"
    assert statistics.words([statistics.equality(near + 0.19, 0.2, 0.0)], [0.2])[0].word == "open"
    assert statistics.words([statistics.equality(np.zeros(5), 0.2, 0.0)], [0.2])[0].word == "confirmed"


def test_a_claim_about_several_differences_needs_them_all() -> None:
    good, bad = statistics.effect(FIVE, 0.2, 0.0), statistics.effect(-FIVE, 0.2, 0.0)
    assert statistics.together([good, good]).up == good.up
    both = statistics.together([good, bad])
    assert (both.mean, both.up) == (bad.mean, 1.0)
    assert both.down == pytest.approx(2 * bad.down)
    assert both.small == pytest.approx(2 * bad.small)


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.25, 0.375, 0.5, 1.0])), min_size=1, max_size=8))
def test_weighted_holm_by_its_definition(given: list[tuple[float, float]]) -> None:
    p, weights = zip(*given, strict=True)
    found = statistics.holm(p, weights)
    left, rejected = set(range(len(p))), set[int]()
    while left:
        first = min(left, key=lambda place: (p[place] / weights[place], place))
        if min(1.0, sum(weights[i] for i in sorted(left)) * p[first] / weights[first]) > statistics.ALPHA + 1e-12:
            break
        rejected.add(first)
        left.remove(first)
    assert all((found[place][0] <= statistics.ALPHA + 1e-9) for place in rejected)
    assert all(found[place][0] > statistics.ALPHA for place in left)
    assert statistics.holm(p) == statistics.holm(p, [1.0] * len(p))
    assert sum(level for place, (_, level) in enumerate(found) if place in left) <= statistics.ALPHA + 1e-9


@given(st.lists(st.floats(-3, 3), min_size=5, max_size=5), st.floats(0.1, 2.0), st.integers(1, 6))
def test_a_word_and_its_interval_agree(seeds: list[float], margin: float, others: int) -> None:
    found = statistics.effect(np.array(seeds), margin, 0.0)
    [judged, *_] = statistics.words([found, *[None] * others], [margin] * (others + 1))
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
    found = statistics.effect(np.array([0.1, -0.1, 0.3, 0.0, 0.2]), 1.0, 0.0)
    n = statistics.seeds_needed(found, 0.15, statistics.ALPHA)

    def at(seeds: int) -> float:
        return float(stats.t.isf(statistics.ALPHA * 0.5 / 2, seeds - 1)) * 0.1581139 / math.sqrt(seeds)

    assert n == 20  # 16 would be clear of 0, and the look is after 20
    assert at(16) < 0.1 < at(15)
    more = statistics.seeds_needed(replace(found, mean=0.08), 0.1, statistics.ALPHA)
    assert at(more) < 0.08 < at(more - 1)
    assert statistics.seeds_needed(statistics.Effect(0.0, 1.0, 0.25, 5, 1, 1, 1), 1e-6, statistics.ALPHA) is None
