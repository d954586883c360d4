"""iPFL's tables as data: printed numbers against the paper, settings, the fit of Table 7."""

import pytest

from hanse_papers.catalogue import find_table
from hanse_papers.computed import fit


def test_the_printed_fit_is_not_the_least_squares_one() -> None:
    found = {cell.column: cell.computed for cell in find_table("ipfl", "table8", "paper").cells}
    assert found["p1"] == pytest.approx(-609.92, abs=0.01)  # printed: -698.87
    assert found["p2"] == pytest.approx(64.03, abs=0.01)
    assert found["R2"] == pytest.approx(0.9482, abs=1e-4)
    exact = {n: -500 / n**0.5 + 60 for n in (100, 400, 900)}
    assert fit(exact) == pytest.approx({"p1": -500, "p2": 60, "R2": 1, "RMSE": 0})


def test_figure6_counts_the_clients_data_without_training() -> None:
    table = find_table("ipfl", "figure6", "smoke")
    assert not any("utilit" in note for note in table.notes)  # those are table 5's, whose clients it counts
    assert len(table.cells) == 144
    assert all(c.computed is not None and not c.variants for c in table.cells)
    assert all(0 < c.computed <= 100 for c in table.cells if c.column == "largest class %")  # type: ignore[operator]
    samples = sum(c.computed for c in table.cells if c.column == "samples")  # type: ignore[misc]
    assert samples == 1297  # all of the digits that are trained on
    assert sum(c.computed for c in table.cells if c.column.startswith("class ")) == samples  # type: ignore[misc]
