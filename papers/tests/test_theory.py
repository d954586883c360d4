"""``hanse reproduce pifl theory``: PI-FL's Gaussian case, exact, as printed and simulated."""

from hanse.games import tiers_theory
from hanse_papers.catalogue import find_table


def test_simulation_lies_on_the_exact_curve_and_off_the_printed_one() -> None:
    table = find_table("pifl", "theory", "paper")
    found = {(cell.column, cell.algorithm): cell.computed for cell in table.cells}
    for column in dict.fromkeys(cell.column for cell in table.cells):
        tau2, local = float(column.removeprefix("tau^2 = ")), found[column, "local, exact"]
        error = {name: found[column, f"{name}, exact"] for name in ("tier", "federated")}
        for name, exact in error.items():  # the standard error of a mean of 20,000 squares is below 2 %
            assert abs(found[column, f"{name}, simulated"] - exact) < 0.06 * exact
            assert (found[column, f"{name}, printed"] < 0.9 * exact) is (tau2 > 0)
        assert (error["tier"] < local) is tiers_theory.joining_pays(10, 10, 1.0, tau2) is (tau2 < 0.1)
