"""Path values against closed forms, the exact Shapley value of the increment game, and their axioms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.games import path, shapley


def _quadratic(seed: int, size: int = 5):
    """Return a concave quadratic utility, its gradient, four steps and a start."""
    rng = np.random.default_rng(seed)
    root, middle = rng.normal(size=(size, size)), rng.normal(size=size)
    hessian = root @ root.T

    def utility(w):
        return -0.5 * float((w - middle) @ hessian @ (w - middle))

    return utility, lambda w: -hessian @ (w - middle), 0.3 * rng.normal(size=(4, size)), rng.normal(size=size)


@pytest.mark.parametrize("points", [1, 2, 3, 5, 24])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_of_a_quadratic_utility_they_are_the_shapley_value_of_the_increment_game(seed, points):
    utility, gradient, steps, start = _quadratic(seed)
    found = path.values(gradient, steps, points, start=start, gain=utility(start + steps.sum(0)) - utility(start))
    exact = shapley.exact(path.increment_game(utility, steps, start), 4)
    np.testing.assert_allclose(found.values, exact, atol=1e-10)
    assert found.points == points
    assert abs(found.residual) < 1e-9


def test_a_rule_of_k_points_is_exact_to_degree_2k():
    for k in (1, 2, 3, 4):
        exact = path.values(lambda w, k=k: 2 * k * w ** (2 * k - 1), [[1.0]], k)
        off = path.values(lambda w, k=k: (2 * k + 2) * w ** (2 * k + 1), [[1.0]], k)
        assert exact.values[0] == pytest.approx(1.0, abs=1e-12)
        assert abs(off.values[0] - 1.0) > 1e-6


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.lists(st.floats(0.05, 1.0), min_size=2, max_size=5))
def test_a_step_of_zero_earns_nothing_and_one_sent_in_parts_what_it_earned_whole(seed, parts):
    rng = np.random.default_rng(seed)
    steps, start = rng.normal(size=(3, 4)), rng.normal(size=4)

    def gradient(w):
        return np.cos(w) + w**3

    whole = path.values(gradient, np.vstack([steps, np.zeros(4)]), start=start)
    assert whole.values[3] == 0.0
    shares = np.array(parts) / sum(parts)
    split = path.values(gradient, np.vstack([steps[:2], shares[:, None] * steps[2]]), start=start)
    np.testing.assert_allclose(split.values[:2], whole.values[:2], atol=1e-9)
    assert split.values[2:].sum() == pytest.approx(whole.values[2], abs=1e-9)


def test_points_are_doubled_until_the_sum_agrees_with_the_gain_and_the_rest_is_told():
    def utility(w):
        return float(np.exp(-30 * (w[0] - 0.5) ** 2))

    def gradient(w):
        return -60 * (w - 0.5) * np.exp(-30 * (w - 0.5) ** 2)

    steps, gain = [[0.3], [0.5]], utility([0.8]) - utility([0.0])
    once = path.values(gradient, steps, 1)
    assert math.isnan(once.residual)
    assert (once.points, once.evaluated) == (1, 1)
    found = path.values(gradient, steps, 1, gain=gain)
    assert (found.points, found.evaluated) == (8, 15)
    assert abs(found.residual) <= 0.01 * abs(gain)
    assert found.values.sum() + found.residual == pytest.approx(gain, abs=1e-12)
    # a gain that no gradient explains stays in the residual, and the doubling ends where the integral has settled
    other = path.values(gradient, steps, 1, gain=gain + 1.0)
    assert (other.points, other.residual) == (16, pytest.approx(1.0, abs=1e-6))


def test_values_without_a_block_of_samples_are_those_of_the_other_gradients():
    rng = np.random.default_rng(3)
    targets, steps = rng.normal(size=(40, 3)), rng.normal(size=(5, 3))  # U: minus half the mean squared distance
    blocks = np.split(np.arange(40), 20)
    kept = [np.arange(40), *(np.setdiff1d(np.arange(40), block) for block in blocks)]

    found = path.values(lambda w: np.stack([(targets[rows] - w).mean(0) for rows in kept]), steps)
    assert found.without_block.shape == (5, 20)
    for b, rows in enumerate(kept[1:]):
        alone = path.values(lambda w, rows=rows: (targets[rows] - w).mean(0), steps)
        np.testing.assert_allclose(found.without_block[:, b], alone.values, atol=1e-12)


def test_tensors_are_given_tensors_and_arrays_arrays():
    seen = []

    def gradient(w):
        seen.append(type(w))
        return -w

    steps = np.eye(2)
    as_array = path.values(gradient, steps, 1)
    as_tensor = path.values(gradient, torch.from_numpy(steps), 1)
    assert seen == [np.ndarray, torch.Tensor]
    assert as_array.values.tolist() == as_tensor.values.tolist() == [-0.5, -0.5]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"points": 0}, "points is 0"), ({"points": 25}, "points is 25"), ({"tolerance": -1.0}, "tolerance is -1.0"),
        ({"steps": [1.0, 2.0]}, "steps has shape"), ({"steps": np.zeros((0, 2))}, "at least one step"),
        ({"steps": [[math.inf, 0.0]]}, "not finite"), ({"start": [1.0]}, "start has shape"),
        ({"gain": math.inf}, "gain is inf"), ({"gradient": lambda w: w[:1]}, "gradient has shape"),
        ({"gradient": lambda w: w * math.nan}, "not finite on the path"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(change, said):
    call = {"gradient": lambda w: -w, "steps": [[1.0, 0.0]], **change}
    with pytest.raises(ValueError, match=said):
        path.values(call.pop("gradient"), call.pop("steps"), **call)


def test_a_start_between_whole_numbers_is_not_cut_off_where_the_steps_are_whole():
    steps = torch.tensor([[1, 0], [0, 1]])
    found = path.values(lambda w: -2 * (w - 1), steps, start=torch.tensor([0.5, 0.5]))
    np.testing.assert_allclose(found.values, 0.0, atol=1e-12)
