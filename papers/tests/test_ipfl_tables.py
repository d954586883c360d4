"""iPFL's tables as data: printed numbers against the paper, settings, the fit of Table 7."""

import pytest

from hanse_papers.catalogue import find_table
from hanse_papers.computed import fit
from hanse_papers.tables import read_table


def published(name: str, group: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = read_table("ipfl", name, "paper")["published"][group]
    return found


SAMPLES = (50000, 25000, 10000, 5000, 2500, 1000, 500, 250)
TABLE7 = dict(zip(SAMPLES, published("table7", "CIFAR-10")["local"], strict=True))


def test_the_printed_fit_is_not_the_least_squares_one() -> None:
    found = fit(TABLE7)
    assert found["p1"] == pytest.approx(-609.92, abs=0.01)
    assert found["p2"] == pytest.approx(64.03, abs=0.01)
    assert found["R2"] == pytest.approx(0.9482, abs=1e-4)
    assert published("table8", "fit of Table 7")["the printed numbers"][0] == -698.87
    assert {cell.column: cell.computed for cell in find_table("ipfl", "table8", "paper").cells} == found
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
