"""The interval of a gain over splits that all say the same."""

import numpy as np
import pytest

from hanse.lab.joining import Gain, Joining, _mean, _of_all, _unlike
from hanse.learning.metrics import ACCURACY


def test_equal_gains_make_nobody_certain_though_their_last_bits_differ() -> None:
    pairs = [(0.9, 0.8), (0.8, 0.7), (0.7, 0.6), (0.6, 0.5), (0.5, 0.4)]
    gains = [Gain("a", "fedavg", ours, alone, ours - alone, -0.1, 0.3, samples=10) for ours, alone in pairs]
    assert len({gain.gain for gain in gains}) > 1
    mean = _mean(gains, 0.2)
    assert (mean.low, mean.high) == pytest.approx((-0.1, 0.3))


def test_the_mean_gain_has_the_interval_of_the_splits_and_says_whether_joining_pays() -> None:
    draw, inside = np.random.default_rng(0), []
    for truth in [0.03, -0.03] * 100:  # Nadeau and Bengio: of the variance all splits have 30 % in common
        gains = truth + draw.normal(0, 0.01 * 0.3**0.5, 4) + draw.normal(0, 0.01 * 0.7**0.5, (6, 4))
        splits = [[Gain(str(i), "a", 0.5, 0.5, g, -1, 1, 9) for i, g in enumerate(row)] for row in gains.tolist()]
        mean, few = (_mean([_of_all(one, np.full(4, True), "a") for one in some], 0.3) for some in (splits, splits[:2]))
        inside.append(mean.low <= truth <= mean.high)
        found = [Joining(tuple(splits[0]), ACCURACY, means={"a": one}).pays("a") for one in (mean, few)]
        assert found == ["pays" if truth > 0 else "does not", "open"]
    assert 0.92 <= np.mean(inside) <= 0.99


def test_a_warning_of_each_split_with_other_counts_is_told_once() -> None:
    first = ["warning: data: 3 rows occur twice", "warning: client '1' has 5 rows"]
    later = ["warning: data: 12 rows occur twice", "warning: client '2' has 5 rows", "warning: client '1' has 4 rows"]
    assert _unlike(later, first) == ["warning: client '2' has 5 rows"]
