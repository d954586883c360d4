"""Values of members from values of groups: least squares by hand, sums that hold, intervals that cover."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hanse.games.group_sums import Sums, members, shares


def drawn(rng: np.random.Generator, size: int, group: int) -> list[np.ndarray]:
    """Return the members in random groups."""
    return np.array_split(rng.permutation(size), size // group)


def played(rng: np.random.Generator, theta: np.ndarray, rounds: int, group: int, noise: float) -> tuple[Sums, list]:
    """Return the equations after some rounds of values around ``theta``, with each round's groups and values."""
    known, kept = Sums.none(len(theta)), []
    for _ in range(rounds):
        values = theta + noise * rng.standard_normal(len(theta))
        groups = drawn(rng, len(theta), group)
        known = known.and_these(groups, np.array([values[one].sum() for one in groups]))
        kept.append((groups, values))
    return known, kept


def test_the_means_are_those_of_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    known, kept = played(rng, rng.standard_normal(7), 5, 3, 0.3)
    design = np.stack([np.isin(np.arange(7), one).astype(float) for groups, _ in kept for one in groups])
    sums = np.array([values[one].sum() for groups, values in kept for one in groups])
    mean = sums.sum() / design.sum()
    rows = np.vstack([design, np.sqrt(0.5) * np.eye(7)])
    want, *_ = np.linalg.lstsq(rows, np.concatenate([sums, np.full(7, np.sqrt(0.5) * mean)]), rcond=None)
    np.testing.assert_allclose(members(known, 0.5).means, want, atol=1e-12)


def test_too_few_sums_have_no_error() -> None:
    known = Sums.none(6).and_these([np.arange(3), np.arange(3, 6)], np.array([3.0, 6.0]))
    found = members(known, 1e-6)
    assert np.isnan(found.errors).all()
    np.testing.assert_allclose(found.means, [1, 1, 1, 2, 2, 2], atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(3, 5))
def test_members_sum_to_their_group(seed: int, group: int) -> None:
    rng = np.random.default_rng(seed)
    known, kept = played(rng, rng.standard_normal(11), 3, group, 1.0)
    found = members(known)
    for one in kept[-1][0]:
        amount = float(kept[-1][1][one].sum())
        worth, errors = shares(found, one, amount)
        assert worth.sum() == pytest.approx(amount, abs=1e-9)
        assert len(errors) == len(one)


def test_the_intervals_of_a_sum_over_rounds_cover() -> None:
    """A member's values summed over 20 rounds lie within 1.96 errors, those of the rounds added in squares."""
    rng, hits = np.random.default_rng(2), []
    for _ in range(40):
        theta, known, off, squares = rng.standard_normal(14), Sums.none(14), np.zeros(14), np.zeros(14)
        for round in range(30):
            values = theta + 0.5 * rng.standard_normal(14)
            groups = drawn(rng, 14, 3)
            sums = np.array([values[one].sum() for one in groups])
            known = known.and_these(groups, sums)
            found = members(known)
            for one, amount in zip(groups, sums.tolist(), strict=True):
                worth, errors = shares(found, one, amount)
                if round >= 10:
                    off[one] += worth - values[one]
                    squares[one] += errors**2
        hits.append(np.mean(np.abs(off) < 1.96 * np.sqrt(squares)))
    assert 0.93 < np.mean(hits) < 0.99
