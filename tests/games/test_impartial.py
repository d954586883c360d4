"""Places of players who judge one another in two halves."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hanse.games.first_order import impartial_places

NUMBER = st.floats(-1e9, 1e9)


@given(st.lists(st.tuples(NUMBER, st.booleans(), NUMBER), min_size=1, max_size=12), st.booleans())
def test_places_are_a_ranking_and_what_a_half_is_worth_moves_nobody_of_the_other(
    players: list[tuple[float, bool, float]], ahead: bool
) -> None:
    values, side, other = map(np.array, zip(*players, strict=True))
    m = len(values)
    places = impartial_places(values, side, ahead)
    np.testing.assert_allclose(np.sort(places), (np.arange(m) + 0.5) / m - 0.5, atol=1e-12)
    changed = impartial_places(np.where(side, other, values), side, ahead)  # all that the False half can say
    np.testing.assert_array_equal(changed[~side], places[~side])
    np.testing.assert_array_equal(np.sort(changed[side]), np.sort(places[side]))  # it only shares out their places
    for one in (True, False):  # and a half keeps its own order
        here = np.flatnonzero(side == one)
        np.testing.assert_array_equal(np.argsort(places[here]), np.argsort(values[here], kind="stable"))
