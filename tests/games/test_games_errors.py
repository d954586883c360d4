"""Mistakes are named in one line: the value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from games_cases import Batched

from hanse.games import shapley
from hanse.games.cumulative import update_cumulative
from hanse.games.mixture import mixture


class Wrong(Batched):
    """Answers with what it was given, whatever it is asked."""

    def many(self, coalitions: Any) -> Any:
        return self.value


def line(act: Callable[[], object]) -> str:
    with pytest.raises(ValueError, match="allowed") as caught:
        act()
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_utilities_must_be_finite(bad: float) -> None:
    def value(c: frozenset[int]) -> float:
        return bad if c == {1} else float(len(c))

    for act in (
        lambda: shapley.exact(value, 2),
        lambda: shapley.banzhaf(value, 2),
        lambda: shapley.leave_one_out(value, 2),
        lambda: shapley.monte_carlo(value, 2, [[1, 0]]),
        lambda: shapley.gtg(value, 2),
        lambda: mixture(value, 2, np.ones(2)),
    ):
        assert f"value of coalition [1] is {bad}" in line(act)
    assert "entry 1 is" in line(lambda: shapley.shapley_from_table([0.0, bad]))


@pytest.mark.parametrize("answer", [[1.0], [1.0] * 5, np.ones(3), torch.ones(7)])
def test_many_must_answer_for_every_coalition(answer: Any) -> None:
    assert f"returned {len(answer)} for 4 coalitions" in line(lambda: shapley.exact(Wrong(answer), 2))


def test_first_order_of_float32_models_is_summed_in_float64() -> None:
    # A common offset of 1e4 cancels in eq. (2) to far better than float32's 1e-7 of it.
    draw = torch.Generator().manual_seed(0)
    W = (1e4 + torch.randn(4, 500, generator=draw)).requires_grad_()
    g, lam = torch.randn(500, generator=draw), torch.full((4,), 0.25)
    W64 = W.detach().numpy().astype(np.float64)
    expected = -0.25 * (W64 - W64.mean(axis=0)) @ g.numpy().astype(np.float64)
    assert np.abs(shapley.first_order(g, W, lam) - expected).max() < 1e-8


def test_cumulative() -> None:
    zeros, counts = np.zeros(3), np.zeros(3, dtype=np.int64)
    assert "contains 3" in line(lambda: update_cumulative(zeros, counts, [3], [1.0]))
    assert "contains -1" in line(lambda: update_cumulative(zeros, counts, [-1], [1.0]))
    assert "once a round" in line(lambda: update_cumulative(zeros, counts, [1, 1], [1.0, 2.0]))
    assert "value of client 2" in line(lambda: update_cumulative(zeros, counts, [0, 2], [1.0, np.nan]))
    assert "values (2,)" in line(lambda: update_cumulative(zeros, counts, [1], [1.0, 2.0]))
    assert "counts (2,)" in line(lambda: update_cumulative(zeros, counts[:2], [1], [1.0]))
    for alpha in (-0.1, 1.0, float("nan")):
        assert "alpha is" in line(lambda a=alpha: update_cumulative(zeros, counts, [1], [1.0], alpha=a))


def test_memo_counts_and_evaluates_once() -> None:
    seen: list[frozenset[int]] = []

    def value(c: frozenset[int]) -> float:
        seen.append(c)
        return float(len(c))

    memo = shapley.Memo(value)
    assert memo(frozenset({1})) == 1.0
    assert memo.many([frozenset({1}), frozenset(), frozenset({1}), frozenset()]) == [1.0, 0.0, 1.0, 0.0]
    assert seen == [frozenset({1}), frozenset()]
    assert (memo.requests, memo.distinct) == (5, 2)
    # A memo is a utility: several rules share what is known.
    shapley.exact(memo, 2)
    shapley.gtg(memo, 2)
    assert len(seen) == memo.distinct == 4
