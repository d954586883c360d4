"""Evidence of sizes by losses: closed form, robustness, and how often the honest keep their size."""

from __future__ import annotations

import numpy as np
import pytest

from hanse.games.market_evidence import LEAST, evidence, size_caps


def losses_of(sizes: np.ndarray, hardness: np.ndarray, slope: float = 0.4) -> np.ndarray:
    """Losses that follow sizes exactly: a power law, times how hard each judge's samples are."""
    losses = hardness[:, None] * sizes[None, :] ** -slope
    np.fill_diagonal(losses, np.nan)
    return losses


SIZES = np.array([50.0, 100.0, 200.0, 300.0, 400.0, 700.0, 900.0])


@pytest.mark.parametrize("slope", [0.1, 0.5, 2.0])
def test_where_losses_follow_a_power_law_evidence_is_the_size(slope: float) -> None:
    """ln loss = a - slope ln n, so the line of ln n over ln loss goes through every point; error 0, whatever z is."""
    losses = SIZES[None, :] ** -slope * np.array([[1.0], [3.0], [0.2]])  # three judges from outside
    found, error = evidence(losses, SIZES)
    assert found == pytest.approx(SIZES, rel=1e-9)
    assert error == pytest.approx(0, abs=1e-9)
    assert size_caps(losses, SIZES, 3.0) == pytest.approx(SIZES, rel=1e-9)


@pytest.mark.parametrize("factor", [1.5, 3.0, 1000.0])
def test_a_claim_is_no_evidence_for_itself(factor: float) -> None:
    losses, claimed = SIZES[None, :] ** -0.5 * np.ones((3, 1)), SIZES.copy()
    claimed[3] *= factor
    caps = size_caps(losses, claimed, 3.0)
    assert caps[3] == pytest.approx(SIZES[3], rel=1e-9)
    assert np.minimum(claimed, caps)[3] == pytest.approx(SIZES[3], rel=1e-9)


def test_one_lying_judge_of_five_moves_no_estimate() -> None:
    losses = SIZES[None, :] ** -0.5 * np.ones((5, 1))
    told = losses.copy()
    told[0] = np.array([9.0, 1e-3, 5.0, 1e6, 1e-9, 2.0, 7.0])
    assert evidence(told, SIZES)[0] == pytest.approx(evidence(losses, SIZES)[0])


def test_a_model_that_cannot_be_scored_shows_no_samples_and_stays_out_of_the_fit() -> None:
    losses = SIZES[None, :] ** -0.5 * np.ones((3, 1))
    losses[:, 2] = np.inf
    found, _ = evidence(losses, SIZES)
    assert found[2] == 0
    assert np.delete(found, 2) == pytest.approx(np.delete(SIZES, 2), rel=1e-9)


def test_without_enough_others_or_losses_nothing_is_capped() -> None:
    few = np.ones((3, LEAST)) * np.arange(1, LEAST + 1)
    assert np.isinf(size_caps(few, SIZES[:LEAST], 3.0)).all()
    assert np.isinf(size_caps(np.full((7, 7), np.nan), SIZES, 3.0)).all()
    losses = SIZES[None, :] ** -0.5 * np.ones((3, 1))
    losses[:, 0] = np.nan  # nobody has scored it
    assert np.isinf(size_caps(losses, SIZES, 3.0)[0])
    assert np.isfinite(size_caps(losses, SIZES, 3.0)[1:]).all()


@pytest.mark.parametrize(("m", "kept"), [(8, 0.93), (20, 0.97)])
def test_the_honest_keep_their_sizes_and_a_liar_does_not(m: int, kept: float) -> None:
    """Sizes within a factor of 6, losses that follow them with an error of .2; the liar claims ten times its own."""
    draw, keep, counted = np.random.default_rng(1), [], []
    for _ in range(100):
        sizes = np.exp(draw.normal(0, 0.6, m)) * 200
        effective = sizes * np.exp(draw.normal(0, 0.2, m))
        losses = losses_of(effective, np.exp(draw.normal(0, 0.3, m)))
        keep.append((size_caps(losses, sizes, 3.0) >= sizes).mean())
        claimed = sizes.copy()
        claimed[0] *= 10
        counted.append(min(claimed[0], size_caps(losses, claimed, 3.0)[0]) / sizes[0])
    assert np.mean(keep) >= kept
    assert np.median(counted) < 3


def test_an_honest_giant_among_equals_is_not_capped() -> None:
    """All others have one size, so nobody knows what the loss of a larger sample would be."""
    sizes = np.array([100.0] * 6 + [400.0])
    losses = np.random.default_rng(0).normal(1, 0.05, (7, 7))
    assert np.isinf(size_caps(losses, sizes, 3.0)).all()


def test_losses_that_rise_with_sizes_say_that_all_are_alike() -> None:
    losses = SIZES[None, :] ** 0.5 * np.ones((3, 1))
    found, error = evidence(losses, SIZES)
    assert found[0] == pytest.approx(np.exp(np.median(np.log(SIZES[1:]))))
    assert (error > 0.3).all()
