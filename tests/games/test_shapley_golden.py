from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from games_cases import Batched, close, game, golden

from hanse.games import shapley
from hanse.games.cumulative import update_cumulative


def cases(name: str) -> Any:
    return pytest.mark.parametrize("case", golden(name), ids=lambda case: case["name"])


@cases("coop_values")
def test_exact_values(case: Any) -> None:
    v, out, tol = case["in"]["v"], case["out"], case["tol"]
    n = len(v).bit_length() - 1
    assert close(shapley.exact(game(v), n), out["shapley"], tol)
    assert close(shapley.leave_one_out(game(v), n), out["leave_one_out"], tol)
    assert close(shapley.banzhaf(game(v), n), out["banzhaf"], tol)
    assert close(shapley.shapley_from_table(v), out["shapley"], tol)
    assert close(shapley.banzhaf_from_table(v), out["banzhaf"], tol)


@cases("coop_permutations")
def test_monte_carlo_over_given_permutations(case: Any) -> None:
    v, perms, out = case["in"]["v"], case["in"]["perms"], case["out"]
    n = len(v).bit_length() - 1
    values = shapley.monte_carlo(game(v), n, perms, seed=0)
    assert close(values, out["values"], case["tol"])
    if "shapley" in out:
        assert close(values, out["shapley"], case["tol"])


@pytest.mark.parametrize("batched", [False, True])
@cases("gtg_shapley")
def test_gtg(case: Any, batched: bool) -> None:
    given, out = case["in"], case["out"]
    n = len(given["v"]).bit_length() - 1
    value = Batched(game(given["v"])) if batched else game(given["v"])
    result = shapley.gtg(value, n, eps=given["eps"], sweeps=given["sweeps"], running=given["running"])
    assert close(result.values, out["values"], case["tol"])
    assert result.evaluations == out["evaluations"]
    assert result.permutations == out["permutations"]
    assert result.truncated_between is out["truncated_between"]
    assert result.distinct <= min(2**n, result.evaluations)


@cases("fl_game")
def test_games_of_averaged_models(case: Any) -> None:
    given, out, tol = case["in"], case["out"], case["tol"]
    H, opt = np.array(given["H"]), np.array(given["opt"])
    models, sizes = np.array(given["models"]), np.array(given["n_k"], dtype=float)
    m = len(sizes)

    def model(coalition: frozenset[int]) -> np.ndarray:
        who = sorted(coalition)
        if not who:
            return np.array(given["w_t"])
        return np.average(models[who], axis=0, weights=sizes[who] if sizes[who].sum() else None)

    def utility(coalition: frozenset[int]) -> float:
        gap = model(coalition) - opt
        return float(-0.5 * gap @ H @ gap)

    assert close(model(frozenset(range(m))), out["w_next"], tol)
    assert close(shapley.table(utility, m), out["v"], tol)
    values = shapley.exact(utility, m)
    assert close(values, out["shapley"], tol)
    assert close(values.sum(), out["sum_rule"], tol)
    assert close(shapley.leave_one_out(utility, m), out["leave_one_out"], tol)


@cases("cumulative")
def test_cumulative_values(case: Any) -> None:
    given, out, tol = case["in"], case["out"], case["tol"]
    n, alpha = given["n_clients"], given["alpha"]
    zeros = np.zeros(n)
    counts = np.zeros(n, dtype=np.int64)
    mean, zero, first = zeros, zeros, zeros
    for t, one_round in enumerate(given["rounds"]):
        clients, values = [int(k) for k in one_round], list(one_round.values())
        before = counts.copy()
        mean, after = update_cumulative(mean, counts, clients, values)
        zero, counts_zero = update_cumulative(zero, counts, clients, values, alpha=alpha, first_as_is=False)
        first, counts_first = update_cumulative(first, counts, clients, values, alpha=alpha)
        assert counts.tolist() == before.tolist()  # inputs are left as they were
        assert after.tolist() == counts_zero.tolist() == counts_first.tolist()
        counts = after
        assert close(mean, out["mean"][t], tol)
        assert close(zero, out["exp_zero"][t], tol)
        assert close(first, out["exp_first"][t], tol)
    assert counts.tolist() == out["counts"]


@pytest.mark.parametrize("as_array", [list, np.array, lambda x: torch.tensor(x, dtype=torch.float64)])
@cases("pifl_shapley")
def test_first_order(case: Any, as_array: Any) -> None:
    given, out, tol = case["in"], case["out"], case["tol"]
    arrays = [as_array(given[key]) for key in ("grad", "W", "lam")]
    eq1 = shapley.first_order(*arrays, normalized=False)
    eq2 = shapley.first_order(*arrays)
    assert eq1.dtype == eq2.dtype == np.float64
    assert close(eq1, out["eq1"], tol)
    assert close(eq1.sum(), out["eq1_sum"], tol)
    assert close(eq2, out["eq2"], tol)
    assert close(eq2.sum(), 0.0, tol)
