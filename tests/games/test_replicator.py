"""GTFLAT's game: golden fixtures, Example 1, dynamics against independent solvers, properties."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from games_cases import close, golden
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.integrate import solve_ivp
from scipy.optimize import linprog

from hanse.games import replicator

EXAMPLE = [[0, -0.53, -0.55], [-0.53, 0, -0.37], [-0.55, -0.37, 0]]


def nearest(payoff: Any) -> np.ndarray:
    """The rest point: everybody chooses the model with the highest payoff, and ties are split."""
    phi = np.asarray(payoff, dtype=float)
    mine = np.where(np.eye(len(phi), dtype=bool), -np.inf, phi.T)
    best = mine == mine.max(axis=1, keepdims=True)
    return best / best.sum(axis=1, keepdims=True)


def ids(case: Any) -> str:
    return str(case["name"])


def numbers(rows: Any) -> np.ndarray:
    return np.array([[float(v) for v in row] for row in rows])


@pytest.mark.parametrize("case", golden("gtflat_dynamics"), ids=ids)
def test_golden_dynamics(case: Any) -> None:
    phi, out, tol = case["in"]["phi"], case["out"], case["tol"]
    state = replicator.equilibrium(phi)
    assert close(replicator.weights(state), out["omega_recommended"], tol)
    if len(phi) == 1:
        return
    assert close(state, out["real50_state"], tol)
    limit = nearest(phi)
    assert close(limit, out["limit_state"], tol)
    assert close(replicator.weights(limit), out["limit_omega"], tol)
    assert close(replicator.nash_gap(phi, state), out["nash_gap_real50"], tol)
    assert close(replicator.nash_gap(phi, limit), out["nash_gap_limit"], tol)
    uniform = replicator.expected_payoffs(phi, replicator.equilibrium(phi, generations=0))
    there = ~np.eye(len(phi), dtype=bool)
    assert np.isnan(np.diag(uniform)).all()
    assert close(uniform[there], numbers(out["expected_payoffs_uniform"])[there], tol)
    if out["integer_stable"]:
        for generations in (49, 50):
            found = replicator.equilibrium(phi, generations, population=100)
            assert np.array_equal(found, out[f"integer{generations}_state"])
        found = replicator.equilibrium(phi, 49, population=100)
        assert close(replicator.weights(found), out["integer49_omega"], tol)


@pytest.mark.parametrize("case", golden("gtflat_eq6_readings"), ids=ids)
def test_golden_readings_of_eq_6(case: Any) -> None:
    options = dict(case["in"])
    found = replicator.printed(options.pop("phi"), options.pop("steps"), **options)
    assert close(found, case["out"]["state"], case["tol"])


@pytest.mark.parametrize("case", golden("gtflat_payoff"), ids=ids)
def test_golden_payoffs(case: Any) -> None:
    phi, state, out, tol = case["in"]["phi"], case["in"]["state"], case["out"], case["tol"]
    k = len(phi)
    there = ~np.eye(k, dtype=bool)
    assert close(replicator.expected_payoffs(phi, state)[there], numbers(out["expected_payoffs"])[there], tol)
    assert close(replicator.weights(state), out["omega_mixed"], tol)
    assert close(replicator.nash_gap(phi, state), out["nash_gap"], tol)
    for profile in out["profiles"]:
        pure = np.zeros((k, k))
        pure[np.arange(k), profile["profile"]] = 1
        assert close(replicator.weights(pure), profile["omega"], tol)
        assert close(replicator.expected_payoffs(phi, pure)[np.arange(k), profile["profile"]], profile["payoff"], tol)


@pytest.mark.parametrize("case", golden("gtflat_phi"), ids=ids)
def test_golden_distances(case: Any) -> None:
    rows = np.array([np.concatenate([np.ravel(layer) for layer in theta]) for theta in case["in"]["thetas"]])
    assert close(replicator.payoff_matrix(rows), case["out"]["phi"], case["tol"])
    assert close(replicator.payoff_matrix(torch.tensor(rows)), case["out"]["phi"], case["tol"])
    assert close(replicator.payoff_matrix(rows, eps=1e-6), case["out"]["phi_torch_eps"], case["tol"])


@pytest.mark.parametrize("case", [c for c in golden("mixing") if c["in"]["rule"] == "gtflat"], ids=ids)
def test_golden_mixing(case: Any) -> None:
    theta = np.array(case["in"]["theta"])
    assert close(replicator.payoff_matrix(theta), case["in"]["phi"], case["tol"])
    weights = replicator.weights(replicator.equilibrium(case["in"]["phi"]))
    for row, new in zip(case["out"]["W"], case["out"]["new"], strict=True):
        assert close(weights, row, case["tol"])
        assert close(weights @ theta, new, case["tol"])


def test_example_1_exactly() -> None:
    state = replicator.equilibrium(EXAMPLE, population=100)
    assert np.array_equal(state, [[0, 0.5, 0.5], [0.13, 0, 0.87], [0.12, 0.88, 0]])  # the printed X
    assert replicator.weights(state).round(4).tolist() == [0.0833, 0.46, 0.4567]
    assert replicator.weights(state).round(2).tolist() == [0.08, 0.46, 0.46]  # the printed omega
    assert replicator.nash_gap(EXAMPLE, state) == pytest.approx(0.0072, abs=5e-5)  # T10: no equilibrium yet


def test_the_printed_eq_6_goes_to_the_farther_model() -> None:
    literal = replicator.weights(replicator.printed(EXAMPLE, 50))
    assert literal.round(2).tolist() == [0.67, 0.05, 0.28]  # T1
    draw = np.random.default_rng(1)
    for _ in range(20):
        phi = replicator.payoff_matrix(draw.normal(size=(4, 6)))
        state = replicator.printed(phi, 2000)
        farther = np.where(np.eye(4, dtype=bool), np.inf, phi).argmin(axis=1)
        assert state.argmax(axis=1).tolist() == farther.tolist()
        assert replicator.equilibrium(phi, 2000).argmax(axis=1).tolist() == nearest(phi).argmax(1).tolist()


def test_closed_form_is_fifty_steps_of_the_dynamics() -> None:
    phi = replicator.payoff_matrix(np.random.default_rng(2).normal(size=(6, 3)))
    step = replicator.printed(phi, 50, mean="actions", divide=False, strength=0.8)
    assert np.allclose(replicator.equilibrium(phi), step, rtol=1e-10, atol=1e-14)


def test_continuous_time_solves_eq_7() -> None:
    phi = replicator.payoff_matrix(np.random.default_rng(3).normal(size=(4, 3)))
    own = np.eye(4, dtype=bool)

    def flow(_: float, flat: np.ndarray) -> np.ndarray:
        state = flat.reshape(4, 4)
        u = np.where(own, 0.0, replicator.expected_payoffs(phi, state))
        return (0.8 * state * (u - (state * u).sum(axis=1, keepdims=True))).ravel()

    start = np.where(own, 0.0, 1 / 3)
    solved = solve_ivp(flow, (0, 5), start.ravel(), rtol=1e-10, atol=1e-12).y[:, -1].reshape(4, 4)
    assert np.allclose(replicator.equilibrium(phi, 5, time="continuous"), solved, atol=1e-8)
    # small steps of discrete time come near it
    fine = replicator.equilibrium(phi, 50_000, 0.8 / 10_000)
    assert np.allclose(fine, solved, atol=1e-4)


def gains_by_lp(phi: np.ndarray, state: np.ndarray, player: int) -> float:
    """The most that a player gains by any mixed choice: eq. (12) over all profiles, and a linear programme."""
    k = len(phi)
    payoff = np.zeros(k)
    others = [j for j in range(k) if j != player]
    for chosen in itertools.product(range(k), repeat=k - 1):
        chance = np.prod([state[j, c] for j, c in zip(others, chosen, strict=True)])
        counts = np.bincount(chosen, minlength=k)
        for a in range(k):
            payoff[a] += chance * (counts + np.eye(k)[a]) @ phi[:, player] / k
    bounds = [(0, 0 if a == player else 1) for a in range(k)]
    best = linprog(-payoff, A_eq=np.ones((1, k)), b_eq=[1], bounds=bounds)
    assert best.success
    return float(-best.fun - payoff @ state[player])


@pytest.mark.parametrize("seed", range(6))
def test_nash_gap_against_a_linear_programme(seed: int) -> None:
    draw = np.random.default_rng(seed)
    k = 2 + seed % 3
    phi = replicator.payoff_matrix(draw.normal(size=(k, 3)))
    for state in (replicator.equilibrium(phi), nearest(phi), replicator.equilibrium(phi, 3, population=7)):
        gap = max(gains_by_lp(phi, state, i) for i in range(k))
        assert replicator.nash_gap(phi, state) == pytest.approx(max(gap, 0.0), abs=1e-9)
    assert replicator.nash_gap(phi, nearest(phi)) == pytest.approx(0, abs=1e-12)


def test_long_play_reaches_the_nash_equilibrium() -> None:
    phi = replicator.payoff_matrix(np.random.default_rng(5).normal(size=(7, 4)))
    late = replicator.equilibrium(phi, 20_000)
    np.testing.assert_allclose(late, nearest(phi), atol=1e-9)
    gaps = [replicator.nash_gap(phi, replicator.equilibrium(phi, g)) for g in (0, 10, 50, 200, 1000, 20_000)]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-9


def matrices() -> st.SearchStrategy[np.ndarray]:
    numbers = st.floats(-5, 5, allow_nan=False, width=32)
    return st.integers(2, 7).flatmap(lambda k: hnp.arrays(np.float64, (k, 4), elements=numbers))


@settings(max_examples=60, deadline=None)
@given(matrices(), st.sampled_from([None, 1, 100]), st.sampled_from([1e-3, 1.0, 1e6]), st.integers(0, 60))
def test_rows_stay_on_the_simplex(models: np.ndarray, population: int | None, scale: float, generations: int) -> None:
    state = replicator.equilibrium(replicator.payoff_matrix(models * scale), generations, population=population)
    assert (state >= 0).all()
    assert (np.diag(state) == 0).all()
    assert np.allclose(state.sum(axis=1), 1, atol=1e-12)
    assert replicator.weights(state).sum() == pytest.approx(1, abs=1e-12)
    if population is not None:
        assert np.allclose(state * population, np.round(state * population), rtol=0, atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(matrices(), st.integers(0, 10**6), st.sampled_from(["discrete", "continuous"]))
def test_the_order_of_players_does_not_matter(models: np.ndarray, seed: int, time: Any) -> None:
    order = np.random.default_rng(seed).permutation(len(models))
    phi = replicator.payoff_matrix(models)
    here = replicator.equilibrium(phi, time=time)
    there = replicator.equilibrium(phi[np.ix_(order, order)], time=time)
    assert np.allclose(there, here[np.ix_(order, order)], atol=1e-12)
    assert np.allclose(replicator.payoff_matrix(models[order]), phi[np.ix_(order, order)], rtol=1e-10, atol=1e-12)


@settings(max_examples=60, deadline=None)
@given(matrices(), st.sampled_from([1e-6, 0.1, 7.0, 1e6]))
def test_the_scale_free_form_does_not_depend_on_the_scale(models: np.ndarray, scale: float) -> None:
    phi = replicator.payoff_matrix(models)
    one = replicator.equilibrium(replicator.scale_free(phi))
    other = replicator.equilibrium(replicator.scale_free(phi * scale))
    assert np.allclose(one, other, atol=1e-9)
    assert replicator.mean_distance(phi * scale) == pytest.approx(replicator.mean_distance(phi) * scale)


def test_the_papers_form_depends_on_the_scale() -> None:
    phi = np.array(EXAMPLE)
    at = {c: replicator.weights(replicator.equilibrium(phi * c)).round(3).tolist() for c in (0.01, 1, 10)}
    assert at == {0.01: [0.330, 0.336, 0.335], 1: [0.063, 0.494, 0.443], 10: [0, 0.645, 0.355]}  # T10
    flat = replicator.weights(replicator.equilibrium(phi * 1e-9))
    assert np.allclose(flat, 1 / 3, atol=1e-8)
    steep = replicator.weights(replicator.equilibrium(phi * 1e9))
    assert np.allclose(steep, [0, 2 / 3, 1 / 3])


@settings(max_examples=40, deadline=None)
@given(matrices())
def test_a_game_of_distances_is_symmetric_and_its_rest_is_nash(models: np.ndarray) -> None:
    phi = replicator.payoff_matrix(models)
    assert np.array_equal(phi, phi.T)
    assert (np.diag(phi) == 0).all()
    assert (phi <= 0).all()
    assert replicator.nash_gap(phi, nearest(phi)) <= 1e-9


def test_few_and_equal_players() -> None:
    assert replicator.weights(replicator.equilibrium([[0.0]])).tolist() == [1.0]
    assert replicator.equilibrium([[0.0]], population=100).tolist() == [[1.0]]
    assert replicator.nash_gap([[0.0]], [[1.0]]) == 0
    assert replicator.printed([[0.0]], 3).tolist() == [[1.0]]
    assert replicator.weights(replicator.equilibrium([[0, -3], [-3, 0]])).tolist() == [0.5, 0.5]
    equal = replicator.payoff_matrix(torch.full((5, 9), 0.1))
    assert not equal.any()
    assert replicator.weights(replicator.equilibrium(equal)).tolist() == pytest.approx([0.2] * 5, abs=1e-15)
    assert replicator.weights(replicator.equilibrium(replicator.scale_free(equal))).tolist() == pytest.approx([0.2] * 5)


@pytest.mark.parametrize(
    ("phi", "options", "message"),
    [([[0, np.nan], [1, 0]], {}, "not finite"), (EXAMPLE, {"strength": np.nan}, "strength is nan")],
)
def test_what_is_refused(phi: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replicator.equilibrium(phi, **options)
