"""The interval of a gain over splits that all say the same."""

import numpy as np
import pytest
from gaining import gained

from hanse.lab.joining import Joining, _mean, _of_all, _unlike
from hanse.learning.metrics import ACCURACY


def test_equal_gains_make_nobody_certain_though_their_last_bits_differ() -> None:
    pairs = [(0.9, 0.8), (0.8, 0.7), (0.7, 0.6), (0.6, 0.5), (0.5, 0.4)]
    gains = [gained("a", ours - alone, -0.1, 0.3, ours, alone) for ours, alone in pairs]
    assert len({gain.gain for gain in gains}) > 1
    mean = _mean(gains, 0.2, ACCURACY)
    assert (mean.gain_low, mean.gain_high) == pytest.approx((-0.1, 0.3))


def test_the_mean_gain_has_the_interval_of_the_splits_and_says_whether_joining_pays() -> None:
    draw, inside = np.random.default_rng(0), []
    for truth in [0.03, -0.03] * 100:  # Nadeau and Bengio: of the variance all splits have 30 % in common
        gains = truth + draw.normal(0, 0.01 * 0.3**0.5, 4) + draw.normal(0, 0.01 * 0.7**0.5, (6, 4))
        splits = [[gained(str(i), g, -1, 1) for i, g in enumerate(row)] for row in gains.tolist()]
        of_all = [_of_all(one, [True] * 4) for one in splits]
        mean, few = (_mean(some, 0.3, ACCURACY) for some in (of_all, of_all[:2]))
        low, high = np.array([mean.gain_low, mean.gain_high], np.float64)
        inside.append(low <= truth <= high)
        found = [Joining({"a": tuple(splits[0])}, ACCURACY, means={"a": one}).pays("a") for one in (mean, few)]
        assert found == ["pays" if truth > 0 else "does not", "open"]
    assert 0.92 <= np.mean(inside) <= 0.99


def test_a_warning_of_each_split_with_other_counts_is_told_once() -> None:
    first = ["warning: data: 3 rows occur twice", "warning: client '1' has 5 rows"]
    later = ["warning: data: 12 rows occur twice", "warning: client '2' has 5 rows", "warning: client '1' has 4 rows"]
    assert _unlike(later, first) == ["warning: client '2' has 5 rows"]
