"""Values of models outside any run: closed forms, every form that updates may have, and what is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from mistaken import mistakes

import hanse
from hanse.games import shapley

ROWS = np.random.default_rng(3).normal(size=(7, 5))
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
    assert np.isnan(found.intervals).all()  # one of no width would claim certainty
    assert "estimation" in str(found)
    assert "95 %" not in str(found)
    assert found.to_pandas()[["low", "high"]].isna().all(axis=None)


@pytest.mark.parametrize("method", ["mixture", "gtg", "monte_carlo"])
def test_estimates(method: Any) -> None:
    found = hanse.value(ROWS, loss, WEIGHTS, method, start=np.zeros(5))
    away = np.abs(found.values - shapley.exact(worth, 7)) / found.standard_errors
    assert away.max() < 4  # standard errors
    assert (found.intervals[:, 0] < found.values).all()
    assert found.values.sum() == pytest.approx(found.all_together - found.nothing, rel=0.02)


def test_a_game_that_adds_up() -> None:
    """v(S) = the sum over members of a_i q_i / q(S) is no sum; a game linear in the average of one update is."""
    # two updates a and b, equal weights: v(a) = a, v(b) = b, v(ab) = (a + b) / 2; Shapley of a: (a + (a - b) / 2) / 2
    found = hanse.value([np.array([4.0]), np.array([1.0])], lambda model: float(model[0]))
    np.testing.assert_allclose(found.values, [(4 + 1.5) / 2, (1 - 1.5) / 2])
    worth_of_none = hanse.value([np.array([4.0]), np.array([1.0])], lambda model: float(model[0]), start=2)
    np.testing.assert_allclose(worth_of_none.values, found.values - 1)


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


@pytest.mark.parametrize("game", ["average", "increment"])
@pytest.mark.parametrize("method", ["exact", "mixture", "gtg", "monte_carlo", "leave_one_out", "banzhaf"])
def test_an_update_of_weight_0_is_worth_0_and_the_others_what_they_are_without_it(method: Any, game: Any) -> None:
    options: dict[str, Any] = {"method": method, "game": game, "start": np.ones(5)}
    found = hanse.value(dict(zip("abcde", ROWS, strict=False)), loss, [3, 0, 2, 0, 1], **options)
    alone = hanse.value({"a": ROWS[0], "c": ROWS[2], "e": ROWS[4]}, loss, [3, 2, 1], **options)
    assert found.values[[1, 3]].tolist() == found.standard_errors[[1, 3]].tolist() == [0, 0]
    np.testing.assert_array_equal(found.values[[0, 2, 4]], alone.values)
    np.testing.assert_array_equal(found.standard_errors[[0, 2, 4]], alone.standard_errors)
    assert found.names == tuple("abcde")
    assert found.notes()[1] == alone.notes()[1]  # as exact as without them


def nan_in(update: int) -> list[dict[str, torch.Tensor]]:
    states = as_states(ROWS)
    states[update]["bias"][0] = torch.nan
    return states


TWO, SLOPE = [np.ones(2), np.zeros(2)], {"start": np.zeros(2), "gradient": np.negative}
REFUSED: list[tuple[dict[str, Any], str]] = [  # what is given, and how the line begins
    ({"updates": []}, "updates: the list is empty"),
    ({"updates": ROWS[0]}, "updates: one array of shape (5,): must be [n, P]"),
    ({"updates": {"a": ROWS[0], "b": ROWS}}, "updates['b']: has shape (7, 5): must be (5,), as updates['a'] has"),
    ({"updates": {1: ROWS[0], "1": ROWS[1]}}, "updates: two are called '1'"),
    ({"updates": nan_in(2)}, "updates[2], 'bias': has numbers that are not finite"),
    ({"updates": [*as_states(ROWS)[:2], {"weight": torch.eye(2)}]}, "updates[2]: has other entries than updates[0]"),
    ({"updates": [torch.nn.Linear(1, 1)]}, "updates[0]: is a module: give its state_dict()"),
    ({"weights": [1.0]}, "weights: of shape (1,): must be 7 numbers"),
    ({"weights": ["1"] * 7}, "weights: ['1', '1', '1', '1', '1', '1', '1']: must be 7 numbers"),
    ({"weights": [1.0] * 6 + [-1.0]}, "weights: [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1.0]: must be finite numbers"),
    ({"updates": np.zeros((21, 2)), "evaluate": lambda model: 0.0, "method": "exact"}, "method = 'exact': n is 21"),
    ({"evaluate": lambda model: float("nan")}, "evaluate: returned nan for the average of updates "),
    ({"evaluate": lambda model: None}, "evaluate: returned None for the average of updates "),
    ({"start": 10**400}, "start: 1000"),
    ({"budget": 50, "method": "exact"}, "budget: 50: has no effect"),
    ({"permutations": 50}, "permutations: 50: has no effect"),
    ({"budget": 3}, "method = 'mixture': budget is 3; allowed: at least 16"),
    ({"start": np.zeros(4)}, "start: has shape (4,): must be (5,)"),
    ({"game": "increments"}, "game: 'increments': must be 'average' or 'increment'"),
    ({"game": np.array(["average", "increment"])}, "game: array("),
    ({"game": "increment"}, "start: game = 'increment' needs the model before"),
    ({"updates": TWO, **SLOPE, "game": "increment"}, "game: 'increment': must be"),
    ({"updates": TWO, **SLOPE, "start": None}, "start: method = 'path' needs the model before"),
    ({"updates": TWO, "start": np.zeros(2), "method": "path"}, "gradient: None: method = 'path'"),
    ({"updates": TWO, **SLOPE, "gradient": lambda w: w * np.inf}, "gradient: it, or what it makes of a step, is not"),
    ({"updates": TWO, **SLOPE, "gradient": lambda w: w * 0.0}, "gradient: is 0 all along the way"),
    ({"updates": TWO, **SLOPE, "gradient": lambda w: 1 / 0}, "gradient: fails: ZeroDivisionError"),
    ({"updates": TWO, **SLOPE, "gradient": lambda w: w[:1]}, "gradient: has shape (1,): must be (2,)"),
    ({"updates": TWO, **SLOPE, "gradient": lambda w: torch.eye(2)[0].to_sparse()}, "gradient: Tensor of torch.float32"),
    ({"updates": TWO, **SLOPE, "gradient": lambda w: 2 * (w - 1)}, "gradient: along the way it adds up to"),  # its sign
]


@pytest.mark.parametrize(("given", "line"), REFUSED)
def test_what_cannot_be_valued_is_refused_in_a_line_that_begins_with_its_name(given: dict[str, Any], line: str) -> None:
    far = np.ones(2)
    worth = (lambda model: -float(((model - far) ** 2).sum())) if given.get("updates") is TWO else loss
    [told] = mistakes(hanse.value, **{"updates": ROWS, "evaluate": worth, **given})
    assert told.startswith(line)


def test_what_evaluate_raises_is_seen_as_it_is() -> None:
    def broken(model: Any) -> float:
        raise ValueError("my own mistake")

    with pytest.raises(hanse.UserError, match="my own mistake") as wrong:
        hanse.value(ROWS, broken)
    assert type(wrong.value.__cause__) is ValueError


def test_a_function_that_says_something_else_each_time_is_told_of() -> None:
    draw, told = np.random.default_rng(0), "not say the same of the same model twice"
    assert told in str(hanse.value(ROWS[:3], lambda model: loss(model) + draw.normal(), method="exact"))
    assert told in str(hanse.shapley(lambda names: len(names) + draw.normal(0, 0.1, 50), [*"abc"]))
    calls: list[Any] = []
    same = hanse.value(ROWS[:3], lambda model: calls.append(model) or loss(model), method="exact")
    assert (len(calls), told in str(same)) == (8, False)  # seven, and all together once more


def test_what_is_given_stays() -> None:
    weighed = hanse.value(ROWS, loss, torch.tensor(WEIGHTS, requires_grad=True), "exact", start=np.float32(0.0))  # type: ignore[arg-type]
    np.testing.assert_allclose(weighed.values, hanse.value(ROWS, loss, WEIGHTS, "exact").values)

    states = [torch.nn.BatchNorm1d(2).state_dict() for _ in range(2)]

    def counts(state: Any) -> float:
        state["num_batches_tracked"].add_(1)
        return 1.0

    turned = dict(reversed(states[1].items()))  # the same entries in another order
    assert hanse.value([states[0], turned], counts, method="exact").values.tolist() == [0.5, 0.5]
    assert int(states[0]["num_batches_tracked"]) == 0


# ---- path values, by the user's gradient


def _toward(target: np.ndarray) -> tuple[Any, Any]:
    """Return a concave worth of a model and its gradient."""
    return lambda w: -float(((w - target) ** 2).sum()), lambda w: -2 * (w - target)


def test_with_a_gradient_the_default_is_the_path_value_which_a_quadratic_has_in_closed_form() -> None:
    worth, slope = _toward(np.array([1.0, 2.0]))
    updates = [np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.zeros(2)]
    found = hanse.value(updates, worth, [1.0, 1.0, 2.0], start=np.zeros(2), gradient=slope)
    assert found.method == "path"
    middle = np.array([0.25, 0.25]) / 2  # the mean of the path: a quadratic's gradient there is the integral
    want = [float(slope(middle) @ (q * u)) for q, u in zip([0.25, 0.25, 0.5], updates, strict=True)]
    np.testing.assert_allclose(found.values, want, atol=1e-12)
    assert found.values[2] == 0.0
    assert found.values.sum() == pytest.approx(found.all_together - found.nothing)
    assert hanse.value(updates, worth, start=np.zeros(2)).method == "mixture"  # as ever


@pytest.mark.parametrize("counter", [torch.tensor(0), torch.tensor(7.0), None, np.zeros((), dtype=[("float0", "V")])])
def test_what_a_gradient_says_of_a_counter_does_not_count(counter: Any) -> None:
    """A whole state dict has a BatchNorm's counter in it, of which PyTorch gives None or zeros, and JAX "float0"."""
    worth, slope = _toward(np.array([1.0, 2.0]))
    rows = [np.array([1.0, 0.5]), np.array([0.5, 1.0])]

    def state(row: np.ndarray, seen: int) -> dict[str, torch.Tensor]:
        return {"a": torch.tensor(row[:1]), "seen": torch.tensor(seen), "b": torch.tensor(row[1:])}

    def flat(model: Any) -> np.ndarray:
        return torch.cat([model["a"], model["b"]]).numpy()

    def of_state(model: Any) -> Any:
        found = slope(flat(model))
        return {"a": found[:1], "seen": counter, "b": torch.tensor(found[1:])}

    updates = [state(row, seen) for seen, row in enumerate(rows)]
    want = hanse.value(rows, worth, start=np.zeros(2), gradient=slope).values
    start = state(np.zeros(2), 9)
    found = hanse.value(updates, lambda m: worth(flat(m)), start=start, gradient=of_state)
    np.testing.assert_allclose(found.values, want, rtol=1e-12)
    as_lists = [list(one.values()) for one in updates]
    found = hanse.value(
        as_lists, lambda m: worth(np.array([m[0].item(), m[2].item()])), start=list(start.values()),
        gradient=lambda m: list(of_state({"a": m[0], "b": m[2]}).values()),
    )  # fmt: skip
    np.testing.assert_allclose(found.values, want, rtol=1e-12)


class Foreign:
    """An array of another library: it turns into NumPy's, which cannot be written to."""

    def __init__(self, numbers: Any) -> None:
        self.numbers = np.asarray(numbers, np.float32)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        found = self.numbers.copy() if copy else self.numbers.view()
        found.flags.writeable = bool(copy)
        return found


@pytest.mark.parametrize("form", [Foreign, lambda row: {"a": Foreign(row[:1]), "b": Foreign(row[1:])}])
def test_arrays_of_another_library_are_taken_as_numpys(form: Callable[..., Any]) -> None:
    rows, before = np.array([[1.0, 0.0], [0.25, 0.5]], np.float32), np.zeros(2, np.float32)

    def flat(model: Any) -> Any:
        return np.concatenate([model["a"], model["b"]]) if isinstance(model, dict) else model

    def worth(model: Any) -> float:
        return -float(np.square(flat(model) - 1).sum())

    want = hanse.value(list(rows), worth, start=before, gradient=lambda w: -2 * (w - 1))
    game: dict[str, Any] = {"start": form(before), "gradient": lambda m: form(-2 * (flat(m) - 1))}
    found = hanse.value([form(row) for row in rows], worth, **game)
    np.testing.assert_allclose(found.values, want.values, rtol=1e-6)
    if form is Foreign:
        np.testing.assert_allclose(hanse.value(Foreign(rows), worth, **game).values, want.values, rtol=1e-6)


# ---- the increment game


@pytest.mark.parametrize("method", ["exact", "mixture", "gtg", "monte_carlo", "leave_one_out", "banzhaf"])
def test_in_the_increment_game_the_others_steps_are_missing_and_no_step_is_worth_nothing(method: Any) -> None:
    updates, start = [np.array([3.0, 1.0]), np.array([0.5, -1.0]), np.array([1.0, 2.0])], np.array([0.5, -1.0])
    q = np.array([0.25, 0.5, 0.25])

    def worth(model: Any) -> float:
        return -float(np.square(model - 1).sum())

    def game(coalition: frozenset[int]) -> float:
        return worth(start + sum((q[i] * (updates[i] - start) for i in coalition), np.zeros(2)))

    found = hanse.value(updates, worth, 8 * q, method, start=start, game="increment")
    assert found.values[1] == pytest.approx(0.0, abs=1e-12)
    want = {"leave_one_out": shapley.leave_one_out, "banzhaf": shapley.banzhaf}.get(method, shapley.exact)(game, 3)
    np.testing.assert_allclose(found.values, want, rtol={"gtg": 0.1, "monte_carlo": 0.1}.get(method, 1e-9), atol=1e-12)
    assert found.all_together == pytest.approx(game(frozenset({0, 1, 2})))
    if method == "exact":  # of a quadratic: the path values; the average game has another answer for who sends nothing
        by_path = hanse.value(updates, worth, 8 * q, start=start, gradient=lambda w: -2 * (w - 1))
        np.testing.assert_allclose(found.values, by_path.values, rtol=1e-9, atol=1e-12)
        assert abs(hanse.value(updates, worth, 8 * q, method, start=start).values[1]) > 0.05


def test_a_worth_that_fails_for_nobody_points_to_nothing() -> None:
    def worth(names: frozenset[str]) -> float:
        return float(np.concatenate([np.ones(len(name)) for name in names]).sum())

    [line] = mistakes(hanse.shapley, worth, ["a", "bb"])
    assert line.startswith("worth: fails for no name")
    assert "need at least one array" in line
    assert "nothing=0.5" in line
    assert hanse.shapley(worth, ["a", "bb"], nothing=0.0).values.tolist() == [1.0, 2.0]


def spread_of(model: Any) -> Any:
    """Return a worth for each of six samples."""
    return np.cos(np.outer(np.arange(1.0, 7.0), model)).sum(axis=1)


@pytest.mark.parametrize("method", ["mixture", "exact", "monte_carlo", "gtg"])
def test_several_processes_give_the_same_values(method: Any) -> None:
    updates = {f"client {i}": np.sin(np.arange(4.0) * (i + 1)) for i in range(5)}
    one = hanse.value(updates, spread_of, start=np.zeros(4), method=method)
    two = hanse.value(updates, spread_of, start=np.zeros(4), method=method, n_jobs=2)
    assert (one.values == two.values).all()
    assert (one.standard_errors == two.standard_errors).all()
    assert one.evaluated == two.evaluated


def test_what_fails_in_another_process_is_told_in_a_line() -> None:
    lines = mistakes(hanse.shapley, lambda have: 1 / (len(have) - 2), list("abc"), n_jobs=2)
    assert len(lines) == 1
    assert "ZeroDivisionError" in lines[0]


# ---- what intervals say


@pytest.mark.parametrize(
    ("method", "orders", "steps"), [("monte_carlo", 18, 0), ("gtg", 18, 0), ("gtg", 60, 0), ("gtg", None, 3)]
)
def test_intervals_of_sampled_orders_hold_or_there_are_none(method: Any, orders: int | None, steps: int) -> None:
    """After few orders they are wide. Where worths are of a few steps, as accuracies are, many orders end early: what
    is left then is not known.
    """
    draw, half, away = np.random.default_rng(1), [], []
    for seed in range(100):
        table = np.sqrt(np.arange(64)) + draw.exponential(1.0, 64)
        table = np.round(table / table.max() * steps) if steps else table
        worths = {frozenset(i for i in range(6) if code >> i & 1): float(table[code]) for code in range(64)}
        found = hanse.shapley(worths.__getitem__, range(6), method, permutations=orders, seed=seed)
        half += found.half.tolist()
        away += np.abs(found.values - shapley.exact(worths.__getitem__, 6)).tolist()
        assert ("No intervals: the error due to orders that" in str(found)) == bool(np.isnan(found.intervals).all())
    known = np.isfinite(half)
    assert (known.mean() < 0.9) == bool(steps)
    assert (np.array(away) <= half)[known].mean() >= 0.94


@pytest.mark.parametrize("worth", [lambda have: float({0, 1} <= have), lambda have: np.full(4, {0, 1} <= have)])
def test_fewer_than_three_orders_each_and_orders_that_all_add_the_same_tell_no_error(worth: Any) -> None:
    """As none of the ten may have come first in them, or what they add now and then did not come up."""
    few, enough = (hanse.shapley(worth, range(10), "monte_carlo", permutations=orders) for orders in (29, 30))
    assert np.isnan([few.half, few.standard_errors]).all()
    assert np.isfinite(enough.half).tolist() == [True, True] + [False] * 8
    assert "no interval where what was tried does not vary" in str(enough)
