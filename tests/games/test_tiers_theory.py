"""PI-FL's Gaussian theory: golden values, and simulation against the exact form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from games_cases import golden

from hanse.games import tiers_theory as theory

CASES = golden("pifl_gaussian")


@pytest.mark.parametrize("case", [c for c in CASES if "tier" in c["in"]], ids=lambda c: c["name"])
def test_golden_errors(case: Any) -> None:
    given, out, tol = dict(case["in"]), case["out"], case["tol"]
    i = given.pop("i")
    setting = theory.Gaussian(**given)
    assert theory.local_error(setting, i) == pytest.approx(out["eq53"], abs=tol)
    for printed, name in ((False, "exact"), (True, "printed")):
        assert theory.federated_error(setting, i, printed) == pytest.approx(out[f"eq54_{name}"], rel=tol)
        assert theory.tier_error(setting, i, printed) == pytest.approx(out[f"eq55_{name}"], rel=tol)


@pytest.mark.parametrize("case", [c for c in CASES if "m1" in c["in"]], ids=lambda c: c["name"])
def test_golden_equal_sizes(case: Any) -> None:
    given = case["in"]
    alike = theory.Gaussian([given["n0"]] * given["m1"], [0] * given["m1"], given["sigma2"], given["tau2"])
    for printed, name in ((False, "exact"), (True, "printed")):
        found = theory.tier_error(alike, 0, printed)
        assert found == pytest.approx(case["out"][f"eq56_{name}"], rel=case["tol"])
        assert theory.joining_pays(**case["in"], printed=printed) is case["out"][f"eq57_{name}"]


def test_simulation_agrees_with_the_exact_form_and_refutes_the_printed_one() -> None:
    setting = theory.Gaussian([10] * 10 + [30] * 5, [0] * 10 + [1] * 5, 1.0, 0.3, 0.8)
    found = theory.simulate(setting, 2, 200_000, np.random.default_rng(1))
    exact = {
        "local": theory.local_error(setting, 2),
        "federated": theory.federated_error(setting, 2),
        "tier": theory.tier_error(setting, 2),
    }
    for name, (mean, error) in found.items():
        assert abs(mean - exact[name]) < 4 * error
    mean, error = found["tier"]
    assert mean - theory.tier_error(setting, 2, printed=True) > 50 * error
    assert exact["tier"] == pytest.approx(0.28)
