"""The interval of a gain over splits that all say the same."""

import pytest

from hanse.lab.joining import Gain, _mean, _unlike


def test_equal_gains_make_nobody_certain_though_their_last_bits_differ() -> None:
    pairs = [(0.9, 0.8), (0.8, 0.7), (0.7, 0.6), (0.6, 0.5), (0.5, 0.4)]
    gains = [Gain("a", "fedavg", ours, alone, ours - alone, -0.1, 0.3, samples=10) for ours, alone in pairs]
    assert len({gain.gain for gain in gains}) > 1
    mean = _mean(gains, 0.2)
    assert (mean.low, mean.high) == pytest.approx((-0.1, 0.3))


def test_a_warning_of_each_split_with_other_counts_is_told_once() -> None:
    first = ["warning: data: 3 rows occur twice", "warning: client '1' has 5 rows"]
    later = ["warning: data: 12 rows occur twice", "warning: client '2' has 5 rows", "warning: client '1' has 4 rows"]
    assert _unlike(later, first) == ["warning: client '2' has 5 rows"]
