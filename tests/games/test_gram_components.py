"""Connected components against scipy's, which the package does not import for them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from hanse.games.gram import _components


@pytest.mark.parametrize("density", [0.0, 0.02, 0.1, 0.5])
def test_components(density: float) -> None:
    draw = np.random.default_rng(0)
    for size in (1, 2, 7, 40):
        close = draw.random((size, size)) < density
        close |= close.T
        np.fill_diagonal(close, False)
        count, label = connected_components(close, directed=False)
        found, ours = _components(close)
        assert found == count
        np.testing.assert_array_equal(ours, label)
