"""Places of players who judge one another in two halves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hanse.games.first_order import impartial_places


@given(st.integers(1, 12), st.booleans(), st.integers(0, 2**32 - 1))
def test_places_are_a_ranking_and_what_a_half_is_worth_moves_nobody_of_the_other(
    m: int, ahead: bool, seed: int
) -> None:
    draw = np.random.default_rng(seed)
    side = draw.random(m) < 0.5
    values, other = draw.integers(-4, 5, (2, m)) * 10.0 ** draw.integers(-9, 10, (2, m))  # with ties
    places = impartial_places(values, side, ahead)
    np.testing.assert_allclose(np.sort(places), (np.arange(m) + 0.5) / m - 0.5, atol=1e-12)
    changed = impartial_places(np.where(side, other, values), side, ahead)  # all that the False half can say
    np.testing.assert_array_equal(changed[~side], places[~side])
    np.testing.assert_array_equal(np.sort(changed[side]), np.sort(places[side]))  # it only shares out their places
    for one in (True, False):  # and a half keeps its own order
        here = np.flatnonzero(side == one)
        np.testing.assert_array_equal(np.argsort(places[here]), np.argsort(values[here], kind="stable"))
