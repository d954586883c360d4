"""Values of models outside any run: closed forms, every form that updates may have, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hanse
from hanse.base.errors import UserError
from hanse.games import shapley

RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(7, 5))
TARGET = ROWS[:3].mean(0)
WEIGHTS = np.array([1.0, 2.0, 3.0, 1.0, 0.5, 1.0, 2.0])


def loss(model: np.ndarray) -> float:
    return -float(((model - TARGET) ** 2).sum())


def worth(coalition: frozenset[int]) -> float:
    """The same game, written down anew."""
    members = sorted(coalition)
    return loss(np.average(ROWS[members], axis=0, weights=WEIGHTS[members]) if members else np.zeros(5))


@pytest.mark.parametrize(
    ("method", "oracle"),
    [("exact", shapley.exact), ("banzhaf", shapley.banzhaf), ("leave_one_out", shapley.leave_one_out)],
)
def test_exact_methods(method: Any, oracle: Callable[..., Any]) -> None:
    found = hanse.value(ROWS, loss, WEIGHTS, method, start=np.zeros(5))
    np.testing.assert_allclose(found.values, oracle(worth, 7), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(found.standard_errors, 0)
    np.testing.assert_array_equal(found.intervals, np.stack([found.values] * 2, 1))


@pytest.mark.parametrize("method", ["mixture", "gtg", "monte_carlo"])
def test_estimates(method: Any) -> None:
    found = hanse.value(ROWS, loss, WEIGHTS, method, start=np.zeros(5))
    truth = shapley.exact(worth, 7)
    away = np.abs(found.values - truth) / found.standard_errors
    assert away.max() < 4  # standard errors
    assert (found.intervals[:, 0] < found.values).all()
    assert found.values.sum() == pytest.approx(found.all_together - found.nothing, rel=0.02)


def test_a_game_that_adds_up() -> None:
    """v(S) = the sum over members of a_i q_i / q(S) is no sum; a game linear in the average of one update is."""
    found = hanse.value([np.array([3.0])], lambda model: float(model[0]))
    assert found.values.tolist() == [3.0]
    assert (found.all_together, found.nothing) == (3.0, 0.0)
    # two updates a and b, equal weights: v(a) = a, v(b) = b, v(ab) = (a + b) / 2; Shapley of a: (a + (a - b) / 2) / 2
    found = hanse.value([np.array([4.0]), np.array([1.0])], lambda model: float(model[0]))
    np.testing.assert_allclose(found.values, [(4 + 1.5) / 2, (1 - 1.5) / 2])
    worth_of_none = hanse.value([np.array([4.0]), np.array([1.0])], lambda model: float(model[0]), start=2)
    np.testing.assert_allclose(worth_of_none.values, found.values - 1)


def test_equal_updates_are_worth_the_same() -> None:
    found = hanse.value([ROWS[0], ROWS[1], ROWS[0]], loss, method="exact", start=ROWS[2])
    assert found.values[0] == pytest.approx(found.values[2], rel=1e-12)
    assert found.nothing == pytest.approx(loss(ROWS[2]))


def as_states(rows: np.ndarray) -> list[dict[str, torch.Tensor]]:
    return [
        {"weight": torch.tensor(row[:4]).reshape(2, 2), "seen": torch.tensor(i), "bias": torch.tensor(row[4:])}
        for i, row in enumerate(rows)
    ]


@pytest.mark.parametrize(
    ("form", "back"),
    [
        (lambda rows: rows, lambda model: model),
        (list, lambda model: model),
        (lambda rows: torch.tensor(rows), lambda model: model.numpy()),
        (lambda rows: [torch.tensor(row) for row in rows], lambda model: model.numpy()),
        (lambda rows: [row.reshape(5, 1) for row in rows], lambda model: model.reshape(-1)),
        (lambda rows: [[row[:2], row[2:]] for row in rows], lambda model: np.concatenate(model)),
        (as_states, lambda model: torch.cat([model["weight"].reshape(-1), model["bias"]]).numpy()),
    ],
)
def test_every_form(form: Callable[..., Any], back: Callable[..., Any]) -> None:
    found = hanse.value(form(ROWS), lambda model: loss(back(model)), WEIGHTS, "exact")
    np.testing.assert_allclose(found.values, hanse.value(ROWS, loss, WEIGHTS, "exact").values, rtol=1e-12)


def test_state_dicts_can_be_loaded() -> None:
    template = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    updates = []
    for seed in range(3):
        torch.manual_seed(seed)
        updates.append(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).state_dict())
    updates[1]["1.num_batches_tracked"] += 7
    seen = []

    def evaluate(state: Any) -> float:
        template.load_state_dict(state)
        seen.append(int(state["1.num_batches_tracked"]))
        return float(state["0.weight"].sum())

    found = hanse.value(updates, evaluate, method="exact")
    assert sorted(seen) == [0, 0, 0, 0, 0, 7, 7]  # a counter is that of the coalition's first update
    assert found.all_together == pytest.approx(float(sum(u["0.weight"].sum() for u in updates) / 3), rel=1e-6)
    assert found.evaluated == 8


def test_whole_numbers_are_averaged() -> None:
    found = hanse.value([np.array([3]), np.array([4])], lambda model: float(model[0]), method="leave_one_out")
    assert found.values.tolist() == [-0.5, 0.5]


def test_budget_and_seed() -> None:
    few = hanse.value(ROWS, loss, budget=16)
    assert few.evaluated == 16
    again = hanse.value(ROWS, loss, method="monte_carlo", permutations=5, seed=1)
    np.testing.assert_array_equal(
        again.values, hanse.value(ROWS, loss, method="monte_carlo", permutations=5, seed=1).values
    )


def nan_in(update: int) -> list[dict[str, torch.Tensor]]:
    states = as_states(ROWS)
    states[update]["bias"][0] = torch.nan
    return states


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (([],), "updates: the list is empty"),
        ((ROWS[0],), "updates: one array of shape (5,): must be [n, P]"),
        (({"a": ROWS},), "updates: dict: must be a list of state dicts or arrays, or rows [n, P]"),
        (([ROWS[0], ROWS[1][:4]],), "updates[1]: has shape (4,): must be (5,), as updates[0] has"),
        ((nan_in(2),), "updates[2], 'bias': has numbers that are not finite"),
        (
            ([*as_states(ROWS)[:2], {"weight": torch.zeros(2, 2)}],),
            "updates[2]: has other entries than updates[0] (bias, s",
        ),
        (([nn.Linear(1, 1)],), "updates[0]: is a module: give its state_dict()"),
        ((["a", "b"],), "updates[0]: str: must be an array or a tensor of real numbers"),
        (([{}],), "updates[0]: has no entries"),
        ((ROWS, loss, [1.0]), "weights: of shape (1,): must be 7 numbers, one for each update"),
        ((ROWS, loss, [1.0] * 6 + [-1.0]), "weights: [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0]: must be finite numbers"),
        ((ROWS, loss, None, "mixtrue"), "method: 'mixtrue': no such name; did you mean 'mixture'?"),
        ((np.zeros((21, 2)), lambda model: 0.0, None, "exact"), "method = 'exact': n is 21: exact values would take"),
        ((ROWS, lambda model: float("nan")), "evaluate: returned nan for the average of updates "),
        ((ROWS, lambda model: None), "evaluate: returned None for the average of updates "),
    ],
)
def test_refused(given: tuple[Any, ...], line: str) -> None:
    with pytest.raises(UserError) as wrong:
        hanse.value(*(given if len(given) > 1 else (*given, loss)))
    assert wrong.value.lines[0].startswith(line)


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"budget": 50, "method": "exact"}, "budget: 50: has no effect: it is for method = 'mixture', not 'exact'"),
        ({"permutations": 50}, "permutations: 50: has no effect: it is for method = 'monte_carlo', not 'mixture'"),
        ({"budget": 3}, "method = 'mixture': budget is 3; allowed: at least 16 coalitions for 7 players"),
        ({"start": np.zeros(4)}, "start: has shape (4,): must be (5,), as updates[0] has"),
        ({"start": float("inf")}, "start: inf: must be a finite number"),
    ],
)
def test_options_refused(options: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as wrong:
        hanse.value(ROWS, loss, **options)
    assert wrong.value.lines[0] == line or wrong.value.lines[0].startswith(line)


def test_what_evaluate_raises_is_seen_as_it_is() -> None:
    def broken(model: Any) -> float:
        raise ValueError("my own mistake")

    with pytest.raises(ValueError, match=r"^my own mistake$") as wrong:
        hanse.value(ROWS, broken)
    assert not isinstance(wrong.value, UserError)


def test_what_is_no_number_or_function_is_refused_and_what_is_given_stays() -> None:
    for wrong, words in (
        ({"evaluate": 0.5}, "evaluate: 0.5: must be a function"),
        ({"method": ["exact"]}, "no such name"),
        ({"method": "monte_carlo", "permutations": 1.5}, "permutations: 1.5: must be a whole number"),
    ):
        with pytest.raises(UserError, match=words):
            hanse.value(**{"updates": ROWS, "evaluate": loss, **wrong})  # type: ignore[arg-type]
    weighed = hanse.value(ROWS, loss, torch.tensor(WEIGHTS, requires_grad=True), "exact", start=np.float32(0.0))  # type: ignore[arg-type]
    np.testing.assert_allclose(weighed.values, hanse.value(ROWS, loss, WEIGHTS, "exact").values)

    states = [nn.BatchNorm1d(2).state_dict() for _ in range(2)]

    def counts(state: Any) -> float:
        state["num_batches_tracked"].add_(1)
        return 1.0

    turned = dict(reversed(states[1].items()))  # the same entries in another order
    assert hanse.value([states[0], turned], counts, method="exact").values.tolist() == [0.5, 0.5]
    assert int(states[0]["num_batches_tracked"]) == 0
