"""The rules of personalised systems as arithmetic: golden fixtures, closed forms, brute force."""

import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hanse.core.part import Group
from hanse.core.table import Seats, Table, Updates
from hanse.games.gram import distances
from hanse.mechanisms.cfl import bipartition, moved_by
from hanse.mechanisms.fedamp import attention, heuristic_attention
from hanse.mechanisms.fedfomo import gains, received_weights
from hanse.mechanisms.fedsoft import soft_shares
from hanse.mechanisms.pfedgraph import collaboration, onto_simplex
from hanse.mechanisms.scaffold import step_sum

CASES = json.loads((Path(__file__).resolve().parents[1] / "golden" / "mixing.json").read_text())["cases"]


def cases(rule: str) -> Any:
    found = [c for c in CASES if c["in"]["rule"] == rule]
    assert found
    return pytest.mark.parametrize("case", found, ids=lambda c: c["name"])


def check(case: Any, W: np.ndarray, *stack: Any) -> None:
    tol, want = case["tol"], np.array(case["out"]["W"])
    assert W.shape == want.shape
    assert (np.abs(W - want) <= tol * (1 + np.abs(want))).all()
    new, expected = W @ np.concatenate([np.array(s) for s in stack]), np.array(case["out"]["new"])
    assert (np.abs(new - expected) <= tol * (1 + np.abs(expected))).all()


@cases("fedamp")
def test_fedamp(case: Any) -> None:
    given = case["in"]
    check(case, attention(distances(given["theta"]), given["alpha"], given["sigma"]), given["theta"])


@cases("fedamp_heuristic")
def test_heuristic_fedamp(case: Any) -> None:
    given = case["in"]
    check(case, heuristic_attention(np.array(given["cos"]), given["self_weight"], given["scale"]), given["theta"])


@cases("pfedgraph")
def test_pfedgraph(case: Any) -> None:
    given = case["in"]
    check(case, collaboration(np.array(given["p"]), np.array(given["diff"]), given["lam"]), given["theta"])


@cases("fedfomo")
def test_fedfomo(case: Any) -> None:
    given = case["in"]
    gain = gains(np.array(given["loss_old"]), np.array(given["loss_cross"]), np.array(given["dist"]))
    check(case, received_weights(gain), given["theta"], given["old"])


@cases("cfl")
def test_cfl(case: Any) -> None:
    given = case["in"]
    m = len(given["theta"])
    rows, numbers, W = torch.tensor(given["start"]), np.arange(m), np.zeros((m, 2 * m))
    updates = Updates(
        Seats.at(numbers, numbers), torch.tensor(given["theta"]), np.ones(m), np.zeros(m), np.ones(m, int)
    )
    view: Any = SimpleNamespace(trained=updates, table=Table.of(rows))  # as much of a view as the rule looks at
    for cluster in given["clusters"]:
        for i in cluster:
            W[i] = np.concatenate(moved_by(Group(i, np.array(cluster), view), np.array(cluster)))
    check(case, W, given["theta"], given["start"])


@given(arrays(np.float64, (3, 4), elements=st.floats(-50, 50)), st.integers(0, 1000))
def test_the_projection_is_the_nearest_point_of_the_simplex(points: np.ndarray, seed: int) -> None:
    found = onto_simplex(points)
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    other = np.random.default_rng(seed).dirichlet(np.ones(4), size=200)
    nearest = np.linalg.norm(points - found, axis=1)
    for row, gap in zip(points, nearest, strict=True):
        assert gap <= np.linalg.norm(row - other, axis=1).min() + 1e-9


@given(arrays(np.float64, (5, 3), elements=st.floats(-3, 3)), st.floats(0.01, 100), st.floats(0.01, 100))
def test_fedamps_weights_are_convex_whatever_the_scale(models: np.ndarray, alpha: float, sigma: float) -> None:
    weights = attention(distances(models), alpha, sigma)
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-9)


def test_one_model_alone_is_its_own_centre() -> None:
    assert attention(np.zeros((1, 1)), 1.0, 1.0).tolist() == [[1.0]]
    assert heuristic_attention(np.ones((1, 1)), 0.3, 10.0).tolist() == [[1.0]]
    assert collaboration(np.ones(1), -np.ones((1, 1)), 0.8).tolist() == [[1.0]]
    assert received_weights(np.array([[0.0]])).tolist() == [[0.0, 1.0]]


def test_gains_are_zero_where_nothing_moved_and_for_losses_that_are_no_numbers() -> None:
    loss = np.array([[0.5, np.inf, np.nan, 0.25]])
    assert gains(np.array([1.0]), loss, np.array([[0.0, 1.0, 1.0, 3.0]])).tolist() == [[0.0, 0.0, 0.0, 0.25]]


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.integers(0, 10_000))
def test_single_linkage_minimises_the_largest_similarity_across(m: int, seed: int) -> None:
    draw = np.random.default_rng(seed).normal(size=(m, 3))
    unit = draw / np.linalg.norm(draw, axis=1, keepdims=True)
    similarity = unit @ unit.T

    def across(second: np.ndarray) -> float:
        return float(similarity[np.ix_(~second, second)].max())

    masks = [np.array(bits, bool) for bits in itertools.product([False, True], repeat=m)]
    best = min(across(mask) for mask in masks if 0 < mask.sum() < m)
    found = bipartition(similarity)
    assert across(found) == pytest.approx(best, abs=1e-12)
    assert 0 < found.sum() <= m / 2


@pytest.mark.parametrize("linkage", ["single", "complete"])
def test_opposite_groups_are_told_apart_and_the_larger_one_comes_first(linkage: Any) -> None:
    signs = np.array([-1.0, 1.0, 1.0, -1.0, 1.0])
    assert bipartition(np.outer(signs, signs), linkage).tolist() == [True, False, False, True, False]


def test_halves_of_equal_size_keep_the_lowest_position_first() -> None:
    signs = np.array([-1.0, 1.0, 1.0, -1.0])
    assert bipartition(np.outer(signs, signs)).tolist() == [False, True, True, False]


def test_one_model_cannot_be_split() -> None:
    with pytest.raises(ValueError, match="at least two can be split"):
        bipartition(np.ones((1, 1)))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_the_step_sum_is_how_far_constant_gradients_carry_sgd(momentum: float) -> None:
    for steps in (1, 2, 7, 30):
        x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
        sgd = torch.optim.SGD([x], lr=1.0, momentum=momentum)
        for _ in range(steps):
            x.grad = torch.full_like(x, -1.0)
            sgd.step()
        assert step_sum(np.array([steps]), momentum)[0] == pytest.approx(float(x.detach()[0]), rel=1e-12)
    assert step_sum(np.array([0]), momentum)[0] == 0.0


def test_soft_shares_by_hand() -> None:
    importance = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]])
    np.testing.assert_allclose(soft_shares(importance, np.array([10.0, 40.0])), [[0.5, 0.5], [0.0, 1.0], [0.0, 0.0]])
    np.testing.assert_allclose(soft_shares(importance, np.zeros(2)), [[0.8, 0.2], [0.0, 1.0], [0.0, 0.0]])
