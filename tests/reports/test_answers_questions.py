"""Answers in a notebook and a terminal: names, estimators, caches, times, and the game of any function."""

import copy
import inspect
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from mistaken import mistakes
from sklearn.cross_decomposition import CCA, PLSCanonical, PLSRegression
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import hanse
from hanse.games import shapley
from hanse.games.jackknife import jackknife_errors
from hanse.learning.intervals import sample_blocks

RNG = np.random.default_rng(5)
ROWS = {name: RNG.normal(size=4) for name in ("Hope", "St Mary", "<b>General</b>", "Riverside", "Kiel", "Visby")}
TARGET = np.mean(list(ROWS.values())[:3], axis=0)


def loss(model: np.ndarray) -> float:
    return -float(((model - TARGET) ** 2).sum())


def test_names_go_with_values_and_weights_whatever_their_order() -> None:
    listed = hanse.value(list(ROWS.values()), loss, [1, 2, 3, 4, 5, 6], "exact")
    weights = dict(zip(ROWS, [1, 2, 3, 4, 5, 6], strict=True))
    for by_name in (weights, dict(reversed(weights.items())), pd.Series(weights).sort_index()):
        named = hanse.value(ROWS, loss, by_name, "exact")
        np.testing.assert_array_equal(named.values, listed.values)
    assert named.names == tuple(ROWS)
    assert listed.names == ("0", "1", "2", "3", "4", "5")
    with pytest.raises(hanse.UserError, match="Hope"):
        hanse.value(ROWS, loss, {"Hope": 1})


def test_it_is_a_table_a_frame_and_a_picture(tmp_path: Path) -> None:
    found = hanse.value(ROWS, loss, method="monte_carlo", permutations=6)
    table = found.to_pandas()
    np.testing.assert_array_equal(table["value"], found.values)
    np.testing.assert_array_equal(table[["low", "high"]], found.intervals)
    assert list(table.index) == list(ROWS)
    best = max(zip(found.values, found.names, strict=True))[1]
    assert str(found).startswith(f"{best} has the highest value")
    assert repr(found) == str(found)
    page = found._repr_html_()
    assert "&lt;b&gt;General&lt;/b&gt;" in page
    assert "<b>General" not in page
    for ending in ("svg", "png", "csv", "json"):
        assert found.plot().save(tmp_path / f"x.{ending}").stat().st_size > 100
    with pytest.raises(hanse.UserError, match=r"must end in one of \.svg"):
        found.plot().save("x.pdf")


SAMPLES, SHOULD = RNG.normal(size=(43, 4)), RNG.normal(size=43)


def each(model: np.ndarray, keep: Any = slice(None)) -> np.ndarray:
    """Minus the squared error of each test sample."""
    return np.asarray(-((SAMPLES[keep] @ model - SHOULD[keep]) ** 2))


@pytest.mark.parametrize("method", ["exact", "banzhaf", "leave_one_out", "monte_carlo", "gtg", "mixture"])
def test_one_number_for_each_test_sample_gives_intervals_for_their_draw(method: Any) -> None:
    """The game is solved again without each block of samples, along the same coalitions, by the same seed."""
    how: dict[str, Any] = {"method": method, "start": np.zeros(4), "budget": 64 if method == "mixture" else None}
    found = hanse.value(ROWS, each, **how)
    plain = hanse.value(ROWS, lambda model: float(each(model).mean()), **how)
    np.testing.assert_allclose(found.values, plain.values, rtol=1e-9)
    np.testing.assert_allclose(found.sampling, plain.standard_errors, rtol=1e-6, atol=1e-12)
    without = []
    for block in sample_blocks(43):
        keep = np.setdiff1d(np.arange(43), block.numpy())
        without.append(hanse.value(ROWS, lambda model, keep=keep: float(each(model, keep).mean()), **how).values)
    np.testing.assert_allclose(found.drawn, jackknife_errors(np.array(without).T), rtol=1e-6)
    np.testing.assert_allclose(found.standard_errors, np.hypot(found.sampling, found.drawn))
    half = np.hypot(plain.intervals[:, 1] - plain.values if method == "gtg" else 0, 2.0930240544 * found.drawn)
    np.testing.assert_allclose(found.intervals[:, 1] - found.values, half, rtol=1e-4)
    tried = "orders that were not drawn and " if method == "gtg" else ""
    if method == "monte_carlo":  # its orders have met all 64 coalitions
        assert (found.values == hanse.value(ROWS, each, **how | {"method": "exact"}).values).all()
    assert f"Intervals: 95 %, for {tried}the draw of the 43 test samples." in str(found)
    assert found.plot().chart.marks.series[0].errors is not None
    assert np.isfinite(found.to_pandas()[["low", "high"]]).all(axis=None)
    assert " to " in found._repr_html_()


@pytest.mark.parametrize(("units", "student"), [(None, 2.0930), (np.repeat(range(5), 20), 2.7764)])
def test_these_intervals_hold_the_value_on_all_samples_as_often_as_they_say(units: Any, student: float) -> None:
    updates, draw, held = [np.array([1.0, 0.2]), np.array([0.1, 1.0]), np.array([-0.5, 0.3])], RNG, []
    # of x ~ N(0, 1) and y = x @ (1, 1) + N(0, 1) a model m errs by |m - (1, 1)|^2 + 1 on the mean
    truth = hanse.value(updates, lambda m: -float(((m - 1) ** 2).sum() + 1), start=np.zeros(2), method="exact").values
    for _ in range(60):
        x = draw.normal(size=(100, 2))
        y = x.sum(axis=1) + draw.normal(size=100)
        how = {"start": np.zeros(2), "method": "exact", "units": units}
        found = hanse.value(updates, lambda m, x=x, y=y: -((x @ m - y) ** 2), **how)
        np.testing.assert_allclose(found.half, student * found.standard_errors, rtol=1e-3)
        held.append(np.abs(found.values - truth) <= found.half)
    assert 0.9 <= np.mean(held) <= 0.99


def test_what_is_returned_for_each_sample_is_of_the_same_samples() -> None:
    lengths = iter(range(40, 60))
    with pytest.raises(hanse.UserError, match=r"41 numbers.*40 before"):
        hanse.value(ROWS, lambda model: np.zeros(next(lengths)))
    with pytest.raises(hanse.UserError, match="not finite"):
        hanse.value(ROWS, lambda model: np.array([1.0, np.nan]))
    with pytest.raises(hanse.UserError, match=r"must be one number"):
        hanse.value(ROWS, lambda model: (0.3, 0.9))  # a loss and an accuracy


@pytest.mark.parametrize("worth", ["0.5", True, np.True_, torch.tensor(True), np.array(["0.5", "1"]), np.array("1")])
def test_words_and_a_lone_truth_are_no_worth(worth: Any) -> None:
    with pytest.raises(hanse.UserError, match="must be one number") as wrong:
        hanse.value(ROWS, lambda model: worth)
    assert len(wrong.value.lines) == 1
    right = hanse.value(ROWS, lambda model: np.array([True, False] * 20))  # for each test sample, whether it was right
    assert (right.all_together, right.samples) == (0.5, 40)


def test_forms_that_do_not_say_which_model_is_whose_are_refused() -> None:
    frame = pd.DataFrame({"w": [1.0, 2.0], "b": [3.0, 5.0]}, index=["Hope", "St Mary"])
    with pytest.raises(hanse.UserError, match=r"updates: a DataFrame:.*frame\.T"):
        hanse.value(frame, np.sum)
    found = hanse.value(dict(zip(frame.index, frame.to_numpy(), strict=True)), np.sum)  # as the message says
    assert (found.names, found.all_together) == (("Hope", "St Mary"), 5.5)


# ---- scikit-learn

X = RNG.normal(size=(240, 3))
Y = (X.sum(axis=1) > 0).astype(int)


@pytest.mark.parametrize(
    "kind",
    [
        LogisticRegression(),
        MLPClassifier((4,), max_iter=300, random_state=0, solver="lbfgs"),
        LinearRegression(fit_intercept=False),
    ],
    ids=lambda kind: type(kind).__name__,
)
def test_fitted_estimators_are_valued_as_their_coefficients_are(kind: Any) -> None:
    models = {str(i): copy.deepcopy(kind).fit(X[i::3], Y[i::3]) for i in range(3)}
    before = pickle.dumps(models)
    seen = []

    def evaluate(model: Any) -> float:
        seen.append(model)
        return float(model.score(X, Y))

    found = hanse.value(models, evaluate, method="exact")
    names = ("coefs_", "intercepts_") if hasattr(models["0"], "coefs_") else ("coef_", "intercept_")

    def arrays(model: Any) -> list[np.ndarray]:
        return [np.asarray(a) for n in names for a in (getattr(model, n) if n.endswith("s_") else [getattr(model, n)])]

    together = copy.deepcopy(models["0"])
    assert all(type(model) is type(together) for model in seen)
    assert pickle.dumps(models) == before  # what was given stays as it is
    want = hanse.value([*map(arrays, models.values())], lambda parts: scored(together, names, parts), method="exact")
    np.testing.assert_allclose(found.values, want.values, atol=1e-12)


def scored(model: Any, names: tuple[str, str], parts: list[np.ndarray]) -> float:
    half = len(parts) // 2
    for name, own in zip(names, (parts[:half], parts[half:]), strict=True):
        setattr(model, name, own if name.endswith("s_") else own[0])
    return float(model.score(X, Y))


FITTED = LogisticRegression().fit(X, Y)


@pytest.mark.parametrize(
    ("models", "line"),
    [
        ({"a": DecisionTreeClassifier().fit(X, Y)}, "updates['a']: a DecisionTreeClassifier: has no coef_ or coefs_"),
        ({"a": LogisticRegression()}, "updates['a']: a LogisticRegression: is not fitted"),
        ({"a": FITTED, "b": LinearRegression().fit(X, Y)}, "updates['b']: a LinearRegression: must be a LogisticReg"),
        ({"a": FITTED, "b": LogisticRegression().fit(X, Y + 1)}, "updates['b']: its classes_ are [1, 2]: must be [0"),
        ([FITTED, LogisticRegression().fit(X[:, :2], Y)], "updates[1]: its n_features_in_ are 2: must be 3, as"),
    ],
)
def test_estimators_that_have_no_average_are_refused(models: Any, line: str) -> None:
    assert mistakes(hanse.value, models, lambda model: 0.0)[0].startswith(line)


HIDDEN = [PLSRegression(2), SVC(kernel="linear"), CCA(1), PLSCanonical(1)]


@pytest.mark.parametrize("kind", HIDDEN, ids=lambda kind: type(kind).__name__)
def test_estimators_that_predict_from_more_than_what_is_averaged_are_refused(kind: Any) -> None:
    """The scores of {b} would be those of b's coefficients with a's means, offsets or support vectors."""
    far = X + 10 * np.arange(1, 1 + X.shape[1])
    models = {"a": copy.deepcopy(kind).fit(X[::2], Y[::2]), "b": copy.deepcopy(kind).fit(far[1::2], Y[1::2])}
    lines = mistakes(hanse.value, models, lambda model: float(model.predict(X).mean()))
    assert lines[0].startswith(f"updates['{'a' if kind == HIDDEN[1] else 'b'}']: a {type(kind).__name__}: ")
    assert "hanse.shapley" in lines[0]


def test_masked_updates_are_refused() -> None:
    rows = np.arange(12.0).reshape(3, 4)
    rows = np.ma.masked_array(rows, mask=rows == 5)
    for updates in (rows, list(rows), [{"w": row} for row in rows], [[row] for row in rows]):
        with pytest.raises(hanse.UserError, match=r"^updates\[1\].*masked"):
            hanse.value(updates, lambda model: 0.0)
    hanse.value(np.ma.masked_array(rows.data), lambda model: 0.0)  # nothing of it is masked


# ---- what every argument refuses


@pytest.mark.parametrize("junk", [[], "a", True, 1.5, b"a", np.nan, {"a": 1}, object()])
@pytest.mark.parametrize("function", [hanse.value, hanse.shapley])
def test_what_is_no_such_argument_is_refused_in_one_line_that_begins_with_its_name(function: Any, junk: Any) -> None:
    """No argument leads to an exception of Python's own, whether the method needs it or not."""
    sound: dict[str, Any] = {"updates": ROWS, "evaluate": loss, "method": "exact"}
    if function is hanse.shapley:
        sound = {"worth": lambda have: float(len(have)), "names": ["Hope", "Kiel"], "method": "monte_carlo"}
    for name in inspect.signature(function).parameters:
        lines: Sequence[str] = [name]
        try:
            function(**{**sound, "progress": False, name: junk})
        except hanse.UserError as wrong:
            lines = wrong.lines
        assert len(lines) == 1
        assert lines[0].startswith(name)


def test_a_name_is_shown_in_one_line_of_what_can_be_printed() -> None:
    names = ["\u202eabc", "a\nb", "<b>\x1b[31m", 4]
    models = list(ROWS.values())[:4]
    named = dict(zip(names, models, strict=True))
    for found in (hanse.value(named, loss, method="exact"), hanse.shapley(lambda have: float(len(have)), names)):
        assert found.names == ("abc", "a b", "<b>[31m", "4")
        assert not {"\x1b", "\u202e"} & set(str(found))
    seen: set[Any] = set()
    hanse.shapley(lambda have: float(seen.update(have) or 0), names)
    assert seen == set(names)  # the function gets the names as they were given
    with pytest.raises(hanse.UserError, match=r"^names: two are called 'a b'"):
        hanse.shapley(lambda have: 0.0, ["a b", "a\nb"])


# ---- any game


def test_shapley_of_any_function_of_sets() -> None:
    names = ["a", "b", "c", 4]
    worths: dict[frozenset[Any], float] = {}

    def worth(have: frozenset[Any]) -> float:
        return worths.setdefault(have, float(RNG.normal()))

    found = hanse.shapley(worth, names)
    table = [worths[frozenset(names[i] for i in range(4) if mask >> i & 1)] for mask in range(16)]
    np.testing.assert_allclose(found.values, shapley.shapley_from_table(table), rtol=1e-9)
    assert found.values.sum() == pytest.approx(worths[frozenset(names)] - worths[frozenset()])
    assert found.names == ("a", "b", "c", "4")
    listed = []
    hanse.shapley(lambda have: listed.append(tuple(have)) or 0.0, names)  # type: ignore[func-returns-value]
    assert all(list(one) == [name for name in names if name in one] for one in listed)  # in their order, always
    guess = hanse.shapley(lambda have: len(have) / len(have), names, nothing=0.5)  # nobody asks what nothing is worth
    assert guess.nothing == 0.5


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"names": "abc"}, "names: 'abc': must be a list"),
        ({"names": ["a", "b", "a"]}, "names: two are called 'a'"),
        ({"worth": lambda have: 1.7e308 * (-1) ** len(have)}, "worth: returned up to 1.7e+308"),
        ({"names": [1, True]}, "names: two are called 1"),  # one in a set
        ({"units": [1]}, "units: 1, but worth returned one number"),
        ({"units": []}, "units: 0, but worth returned one number"),
        ({"units": [1, 1], "worth": lambda have: np.zeros(2)}, "units: all 2 are the same: must be two at least"),
        ({"worth": lambda have: np.array([1j, 1])}, "worth: returned array([0.+1.j, 1.+0.j]) for no name: must be one"),
        ({"worth": lambda have: np.zeros(2, "datetime64[D]")}, "worth: returned array(['1970-01-01',"),
        ({"worth": lambda have: np.ma.array([1.0, 2.0], mask=[0, 1])}, "worth: returned masked_array("),
        ({"nothing": np.nan}, "nothing: nan: must be a finite number"),
        ({"worth": lambda have: None}, "worth: returned None for no name: must be one number"),
        ({"permutations": 5}, "permutations: 5: has no effect: it is for method = 'monte_carlo', not 'exact'"),
    ],
)
def test_what_is_no_game_is_refused(given: dict[str, Any], line: str) -> None:
    assert mistakes(hanse.shapley, **{"worth": lambda have: 0.0, "names": ["a", "b"], **given})[0].startswith(line)
