"""Distances that survive cancellation and overflow, and the other payoffs, against what they are defined as."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.games import gram, replicator


def exact(models: torch.Tensor) -> np.ndarray:
    """Pair by pair, differences first."""
    rows = models.double()
    return np.array([[float((a - b).norm()) for b in rows] for a in rows])


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


NEAR = {
    "far from zero": 100 + draw(1, 800) + 1e-4 * draw(6, 800, seed=1),
    "two clusters and one alone": torch.cat(
        [draw(1, 800) + 1e-5 * draw(4, 800, seed=1), 50 + 1e-5 * draw(3, 800, seed=2), torch.zeros(1, 800)]
    ),
    "an attacker's": torch.cat([torch.full((1, 800), 1e20), draw(4, 800)]),
    "a chain": torch.arange(80.0)[:, None] * torch.ones(1, 30),
    "a thin chain": (1e-3 * torch.arange(40.0)[:, None] * torch.ones(1, 30)).double() + 5,
    "longer than a block": torch.cat([100 * draw(2, 300_000), 100 * draw(2, 300_000) + 1e-4]).double(),
    "copies, and one that differs": torch.cat([draw(1, 500).repeat(5, 1), draw(1, 500) + 3]),
    "one pair": torch.cat([draw(3, 800), draw(3, 800)[:1] + 1e-6 * draw(1, 800, seed=9)]),
}


@pytest.mark.parametrize("models", NEAR.values(), ids=NEAR.keys())
def test_nearly_equal_models_keep_their_distances(models: torch.Tensor) -> None:
    found, wanted = gram.distances(models), exact(models)
    assert np.allclose(found, wanted, rtol=1e-11, atol=0)
    assert np.array_equal(found, found.T)


def test_large_numbers_do_not_overflow() -> None:
    models = draw(4, 50) * 1e37
    wanted = exact(models / 2.0**100) * 2.0**100
    assert np.allclose(gram.distances(models), wanted, rtol=1e-12)
    assert np.allclose(gram.cosines(models), gram.cosines(models / models.abs().max()), rtol=1e-12)
    assert np.isfinite(gram.distances_to_mean(models)).all()


def test_what_is_refused() -> None:
    bad = draw(3, 4)
    for value in (float("nan"), float("inf")):
        bad[1, 2] = value
        for call in (gram.distances, replicator.payoff_matrix, gram.distances_to_mean):
            with pytest.raises(ValueError, match=r"params\[1\] has numbers that are not finite"):
                call(bad)
        with pytest.raises(ValueError, match=r"vectors\[1\]"):
            gram.cosines(bad)
        with pytest.raises(ValueError, match=r"params\[0\]"):
            gram.distances(bad[1:2])
    with pytest.raises(ValueError, match=r"shape \(4,\); allowed: \(k, P\)"):
        gram.distances(np.zeros(4))
    for large in (1e160, 1.7e308):  # of float64: no float32 is too large to be squared
        for call in (gram.distances, gram.distances_to_mean, gram.cosines):
            with pytest.raises(ValueError, match=r"\[1\] .* whose squares are not"):
                call(torch.tensor([[0.0], [-large]], dtype=torch.float64))


def test_distance_to_the_mean_by_hand() -> None:
    models = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 6.0]])  # mean (1, 2)
    assert np.allclose(gram.distances_to_mean(models), [5**0.5, 8**0.5, 17**0.5])
    assert gram.distances_to_mean(torch.full((3, 7), 0.1)).tolist() == [0, 0, 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 9), st.integers(1, 300), st.integers(0, 10**6), st.sampled_from([1e-6, 1.0, 1e4]))
def test_distances_are_a_metric(k: int, size: int, seed: int, spread: float) -> None:
    models = 10 + spread * draw(k, size, seed=seed)
    found = gram.distances(models)
    assert np.allclose(found, exact(models), rtol=1e-10)
    assert (found[:, None, :] <= (found[:, :, None] + found[None, :, :]) * (1 + 1e-9)).all()


def test_mean_size() -> None:
    phi = -np.array([[0, 1.0, 2], [1, 0, 6], [2, 6, 0]])
    assert replicator.mean_distance(phi) == 3
    assert np.allclose(replicator.scale_free(phi), phi / 3)
    assert replicator.mean_distance([[0.0]]) == 0
    assert replicator.mean_distance(phi * 1e307) == pytest.approx(3e307)
    assert not replicator.scale_free(np.zeros((2, 2))).any()
