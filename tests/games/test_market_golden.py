"""iPFL's equations against golden cases that were computed independently."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from games_cases import best_graph, close, golden

from hanse.games import market
from hanse.games.market import Market, local_optimality
from hanse.games.market_models import centre_weights, cosine_gram, distances

INPUTS = ("d", "n", "c", "K", "lam")


def cases(name: str, prefix: str = "", without: str = "\0") -> Any:
    found = [c for c in golden(name) if c["name"].startswith(prefix) and not c["name"].startswith(without)]
    return pytest.mark.parametrize("case", found, ids=lambda case: case["name"])


def numbers(values: Any) -> np.ndarray:
    return np.array(values, dtype=float)  # "inf" and "nan" are strings


def parts(given: dict[str, Any], **changed: Any) -> list[Any]:
    return [numbers(changed.get(k, given[k])) if k != "lam" else given["lam"] for k in INPUTS]


def same(x: Any, y: Any, tol: float) -> bool:
    a, b = numbers(x), numbers(y)
    finite = np.isfinite(b)
    return bool(np.array_equal(a[~finite], b[~finite])) and close(a[finite], b[finite], tol)


@cases("ipfl_gain")
def test_gain(case: Any) -> None:
    given = case["in"]
    assert close(market.gain(given["n"], numbers(given["x"]), given["K"]), case["out"]["g"], case["tol"])


@cases("ipfl_threshold")
def test_threshold(case: Any) -> None:
    given, out = {k: float(v) for k, v in case["in"].items()}, case["out"]
    found = float(market.threshold(given["n_i"], given["n_j"], given["K"], given["r"]))
    total = found + given["n_i"] if found != 0 else 0.0
    assert same([total], [out["n_i_plus_T"]], case["tol"])
    # T > n_j says in exact arithmetic what the graph's test of the marginal gain says
    graph = market.learn_graph(
        np.zeros((2, 2)), [given["n_i"], given["n_j"]], [0, max(given["r"], 0.0)], [given["K"], 0], 1.0
    )
    assert graph[0, 1] == (not out["never_added"])


@cases("ipfl_market")
def test_market(case: Any) -> None:
    given, out, tol = case["in"], case["out"], case["tol"]
    _d, n, c, K, _lam = args = parts(given)
    graph = market.learn_graph(*args)
    assert graph.tolist() == out["A"]
    assert same(market.payments(graph, *args), out["R"], tol)
    paid = market.payments(graph, *args)
    assert same(paid.sum(axis=1) - paid.sum(axis=0), out["p"], tol)
    assert same(market.utilities(graph, *args), out["U"], tol)
    assert same(market.gains(graph, n, K), out["gains"], tol)
    assert same(market.objective(graph, *args), out["phi"], tol)
    assert same([market.social_welfare(graph, n, c, K)], [out["social_welfare"]], tol)
    removal, addition = local_optimality(Market.of(*args), graph)
    assert same([removal, addition], [out["eq9_removal"], out["eq9_addition"]], tol)
    best, phi = best_graph(*args)
    assert best.tolist() == out["brute_force_A"]
    assert same(phi, out["brute_force_phi"], tol)


@cases("ipfl_market")
def test_thresholds_of_a_market(case: Any) -> None:
    d, n, c, K, lam = parts(case["in"])
    wanted = numbers(case["out"]["thresholds"])
    for i, j in zip(*np.nonzero(~np.eye(len(n), dtype=bool)), strict=True):
        price = c[j] + (0.0 if n[i] == 0 else lam * n[j] / n[i] * d[i, j])
        assert same([market.threshold(n[i], n[j], K[i], price)], [wanted[i, j]], case["tol"])


@cases("ipfl_theorems", "overstate_")
def test_overstating_the_cost(case: Any) -> None:
    given, out, tol, liar = case["in"], case["out"], case["tol"], case["in"]["client"]
    d, n, c, K, lam = args = parts(given)
    claimed = c.copy()
    claimed[liar] = given["reported_c"]
    honest, reported = market.learn_graph(*args), market.learn_graph(d, n, claimed, K, lam)
    assert honest.tolist() == out["A_honest"]
    assert reported.tolist() == out["A_reported"]
    assert same(market.utilities(honest, *args), out["U_all_honest"], tol)
    paid = market.payments(reported, d, n, claimed, K, lam)
    assert same([market.utilities_of(reported, paid, n, c, K)[liar]], [out["U_reported"]], tol)
    assert (reported[:, liar] <= honest[:, liar]).all()  # Lemma 2


@cases("ipfl_theorems", without="overstate_")
def test_counter_examples_to_the_printed_readings(case: Any) -> None:
    given, out, tol = case["in"], case["out"], case["tol"]
    d, n, c, K, lam = args = parts(given)
    graph = market.learn_graph(*args)
    assert graph.tolist() == out["A_corrected"]
    assert same(market.utilities(graph, *args), out["U_corrected"], tol)
    if "client" in given:
        claimed, liar = c.copy(), given["client"]
        claimed[liar] = given["reported_c"]
        graph = market.learn_graph(d, n, claimed, K, lam)
        paid = market.payments(graph, d, n, claimed, K, lam)
        assert graph.tolist() == out["A_corrected_reported"]
        assert same([market.utilities_of(graph, paid, n, c, K)[liar]], [out["U_corrected_reported"]], tol)


@cases("ipfl_proximal")
def test_proximal_centre(case: Any) -> None:
    given, out, tol = case["in"], case["out"], case["tol"]
    theta, A, n = numbers(given["theta"]), np.array(given["A"]), numbers(given["n"])
    kind = "squared_l2" if given["kind"] == "sql2" else "cosine"
    assert same(distances(torch.from_numpy(theta), kind), out["distance"], tol)
    cosines, lengths = cosine_gram(theta)
    W = centre_weights(A, n, given["eta"], kind, cosines, lengths)
    assert same(W, out["W"], tol)
    assert same(W @ theta, out["centre"], tol)
