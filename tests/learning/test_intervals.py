"""Intervals of figures of small tests: closed forms, published examples, and how often they cover the truth."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

import hanse
from hanse.learning.intervals import Z, auc_interval, difference, wilson
from hanse.learning.metrics import Metric, Predictions, build_metric, reading_of

HERE = f"{__name__}:"


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (10, 10), (81, 263), (15, 148), (1, 29), (7, 10)])
def test_wilsons_interval_is_scipys(right: int, n: int) -> None:
    wanted = stats.binomtest(right, n).proportion_ci(method="wilson")
    assert wilson(right / n, n) == pytest.approx((wanted.low, wanted.high), abs=1e-12)


@pytest.mark.parametrize(("auc", "m", "n"), [(1.0, 5, 5), (0.93, 5, 12), (0.5, 50, 50), (0.02, 7, 4), (1.0, 1, 9)])
def test_the_ends_of_an_aucs_interval_are_196_errors_away_by_hanley_and_mcneil(auc: float, m: int, n: int) -> None:
    low, high = auc_interval(auc, m, n)
    assert 0 <= low < auc or low == auc == 0
    assert auc < high <= 1 or high == auc == 1
    both = (m + n) / 2 - 1
    for end in (low, high):
        if 0 < end < 1:
            q1, q2 = end / (2 - end), 2 * end**2 / (1 + end)
            variance = (end * (1 - end) + both * (q1 - end**2) + both * (q2 - end**2)) / (m * n)
            assert abs(auc - end) == pytest.approx(Z * math.sqrt(variance), abs=1e-6)
    assert auc_interval(1 - auc, m, n) == pytest.approx((1 - high, 1 - low), abs=1e-6)


def test_newcombes_examples_of_a_difference() -> None:
    """Table II of Newcombe 1998 (Stat. Med. 17, 873): method 10 at 56/70 - 48/80, 9/10 - 3/10, 10/10 - 0/10."""
    for (a, m), (b, n), wanted in (
        ((56, 70), (48, 80), (0.0524, 0.3339)),
        ((9, 10), (3, 10), (0.1705, 0.8090)),
        ((10, 10), (0, 10), (0.6075, 1.0)),
    ):
        assert difference(a / m, wilson(a / m, m), b / n, wilson(b / n, n)) == pytest.approx(wanted, abs=5e-5)


@pytest.mark.parametrize(("m", "n", "truth"), [(5, 5, 0.95), (5, 20, 0.9), (20, 20, 0.8)])
def test_the_interval_of_an_auc_covers_it_on_small_tests(m: int, n: int, truth: float) -> None:
    draw = np.random.default_rng(0)
    ill = draw.standard_normal((2000, m, 1)) + math.sqrt(2) * stats.norm.ppf(truth)
    aucs = (ill > draw.standard_normal((2000, 1, n))).mean(axis=(1, 2))
    ends = {auc: auc_interval(auc, m, n) for auc in set(aucs.tolist())}
    covered = np.mean([ends[auc][0] <= truth <= ends[auc][1] for auc in aucs.tolist()])
    assert 0.93 <= covered <= 1


# the intervals of metrics


def judged(y: list[int], p: list[float]) -> Predictions:
    one = np.array(p)
    return Predictions(np.array(y), np.stack([1 - one, one], 1), -np.log(np.where(np.array(y) == 1, one, 1 - one)))


def share_right(y: Any, p: Any) -> float:
    """Return the share of samples that are right."""
    return float((p.argmax(axis=1) == y).mean())


def found(metric: Metric, samples: Predictions) -> tuple[float, float]:
    return metric.interval(samples, metric.without_blocks(samples))


PERFECT = judged([0, 0, 0, 0, 0, 0, 1, 1, 1, 1], [0.1] * 6 + [0.9] * 4)
ONE_WRONG = judged([0, 0, 0, 0, 0, 0, 1, 1, 1, 1], [0.1] * 5 + [0.9] * 5)


def test_ten_samples_make_nothing_certain() -> None:
    assert found(build_metric("accuracy", 2), PERFECT) == wilson(1.0, 10)
    assert found(build_metric("auc", 2), PERFECT) == auc_interval(1.0, 4, 6)
    for name in ("f1", "balanced_accuracy", "average_precision"):  # of four samples of the rarer class
        assert found(build_metric(name, 2), PERFECT) == wilson(1.0, 4)
        low, high = found(build_metric(name, 2), ONE_WRONG)
        assert 0 <= low < high <= 1


def test_a_metric_of_the_users_is_within_its_range() -> None:
    bounded = build_metric({"name": HERE + "share_right", "within": [0, 1]}, 2)
    assert bounded.reading.within == (0.0, 1.0)
    assert found(bounded, PERFECT) == wilson(1.0, 10)
    low, high = found(bounded, judged([0, 1, 1], [0.1, 0.9, 0.1]))
    assert (low, high) == (0.0, 1.0)  # Student's t with three samples leaves everything open
    assert np.isnan(found(build_metric(HERE + "share_right", 2), ONE_WRONG)).all()  # the jackknife serves


@pytest.mark.parametrize("within", [[1, 0], [0, 1, 2], "0..1", [0, float("inf")], [True, 2]])
def test_a_range_that_is_none_is_refused(within: object) -> None:
    with pytest.raises(hanse.UserError, match=r"within is.*greatest"):
        build_metric({"name": HERE + "share_right", "within": within}, 2)
    assert reading_of({"name": HERE + "share_right", "within": within}).within == (-math.inf, math.inf)
