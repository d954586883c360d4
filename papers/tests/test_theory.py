"""``hanse reproduce pifl theory``: PI-FL's Gaussian case, exact, as printed and simulated; golden values."""

from typing import Any

import numpy as np
import pytest

from hanse_papers import gaussian as theory
from tests.games.games_cases import golden

CASES = golden("pifl_gaussian")


@pytest.mark.parametrize("case", [c for c in CASES if "tier" in c["in"]], ids=lambda c: c["name"])
def test_golden_errors(case: Any) -> None:
    given, out, tol = dict(case["in"]), case["out"], case["tol"]
    i = given.pop("i")
    for printed, name in ((False, "exact"), (True, "printed")):
        found = theory.errors(theory.Gaussian(**given), i, printed)
        assert found["local"] == pytest.approx(out["eq53"], abs=tol)
        assert found["federated"] == pytest.approx(out[f"eq54_{name}"], rel=tol)
        assert found["tier"] == pytest.approx(out[f"eq55_{name}"], rel=tol)


@pytest.mark.parametrize("case", [c for c in CASES if "m1" in c["in"]], ids=lambda c: c["name"])
def test_golden_equal_sizes(case: Any) -> None:
    given = case["in"]
    alike = theory.Gaussian([given["n0"]] * given["m1"], [0] * given["m1"], given["sigma2"], given["tau2"])
    for printed, name in ((False, "exact"), (True, "printed")):
        found = theory.errors(alike, 0, printed)["tier"]
        assert found == pytest.approx(case["out"][f"eq56_{name}"], rel=case["tol"])
        assert theory.joining_pays(**case["in"], printed=printed) is case["out"][f"eq57_{name}"]


def test_simulation_agrees_with_the_exact_form_and_refutes_the_printed_one() -> None:
    setting = theory.Gaussian([10] * 10 + [30] * 5, [0] * 10 + [1] * 5, 1.0, 0.3, 0.8)
    found, exact = theory.simulate(setting, 2, 200_000, np.random.default_rng(1)), theory.errors(setting, 2)
    for name, (mean, error) in found.items():
        assert abs(mean - exact[name]) < 4 * error
    mean, error = found["tier"]
    assert mean - theory.errors(setting, 2, printed=True)["tier"] > 50 * error
    assert exact["tier"] == pytest.approx(0.28)
