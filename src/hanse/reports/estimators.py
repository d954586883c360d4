"""Fitted estimators of scikit-learn as arrays that can be averaged, and averages as estimators again.

Averaged are the fitted coefficients of linear models (``coef_``, ``intercept_``) and of multi-layer perceptrons
(``coefs_``, ``intercepts_``). Trees, neighbours and pipelines have no average. To value them, models are trained anew
(``hanse.shapley``). scikit-learn itself is not imported here, so any object with these attributes works.
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np

from hanse.base.errors import UserError, first_line

Parameters = dict[str, np.ndarray]

_AVERAGED = (("coef_", "intercept_"), ("coefs_", "intercepts_"))
_SAME = ("classes_", "n_features_in_", "feature_names_in_")  # what estimators that are averaged must agree in


def is_estimator(model: Any) -> bool:
    """Return whether this looks like a scikit-learn estimator."""
    return hasattr(model, "fit") and hasattr(model, "get_params")


def parameters_of(model: Any, where: str) -> Parameters:
    """Return the fitted coefficients of an estimator, by name.

    Args:
        model: an estimator.
        where: the estimator's name in messages.

    Raises:
        UserError: the estimator is not fitted, or has no coefficients that can be averaged.

    Examples:
        >>> from sklearn.linear_model import LinearRegression
        >>> line = LinearRegression().fit([[0.0], [1.0]], [1.0, 3.0])
        >>> {name: part.round(6).tolist() for name, part in parameters_of(line, "line").items()}
        {'coef_': [2.0], 'intercept_': 1.0}
    """
    names = next((pair for pair in _AVERAGED if all(hasattr(model, name) for name in pair)), None)
    if names is None:
        kind = type(model).__name__
        fitted = any(name.endswith("_") and not name.startswith("_") for name in vars(model))
        could = fitted or not any(hasattr(model, name) for name in ("partial_fit", "warm_start"))
        reason = f"has no coef_ or coefs_ to average: {_ANEW}"
        raise UserError(f"{where}: a {kind}: {reason if could else 'is not fitted: call fit or partial_fit first'}")
    parameters: Parameters = {}
    for name in names:
        part = getattr(model, name)
        layers = {f"{name}[{i}]": one for i, one in enumerate(part)} if isinstance(part, list) else {name: part}
        parameters |= {called: np.asarray(one, dtype=np.float64) for called, one in layers.items()}
    return parameters


def check_alike(model: Any, first: Any, where: str, as_first: str) -> None:
    """Raise UserError unless two estimators have the same class and were fitted on the same classes and columns.

    Args:
        model: the estimator to check.
        first: the estimator to compare with.
        where: the model's name in messages.
        as_first: the name of ``first`` in messages.
    """
    if type(model) is not type(first):
        raise UserError(f"{where}: a {type(model).__name__}: must be a {type(first).__name__}, as {as_first} is")
    for name in _SAME:
        mine, other = (getattr(one, name, None) for one in (model, first))
        if not np.array_equal(mine, other):  # type: ignore[arg-type]
            hint = "; fit with partial_fit(x, y, classes=...) on the classes of all" if name == "classes_" else ""
            raise UserError(f"{where}: its {name} are {_short(mine)}: must be {_short(other)}, as {as_first} has{hint}")


def check_own(model: Any, first: Any, parameters: Parameters, where: str) -> None:
    """Raise UserError if the first model with the parameters of another predicts otherwise than that other itself.

    It would if ``predict`` read more than these parameters, as that of PLSRegression reads the columns' means. Both are
    asked about a few made-up rows. Models that cannot be asked so are believed.

    Args:
        model: the model that the parameters are from.
        first: the first model.
        parameters: the model's parameters.
        where: the model's name in messages.
    """
    ask = next((name for name in ("decision_function", "predict_proba", "predict") if hasattr(model, name)), None)
    if ask is None:
        return
    width = getattr(model, "n_features_in_", None)
    if not isinstance(width, int):  # an estimator of one's own may not count its columns
        weights = getattr(model, "coefs_", None) or [np.transpose(getattr(model, "coef_", ()))]
        width = len(np.atleast_1d(weights[0]))
    kind = type(model).__name__
    try:
        made = with_parameters(first, parameters)
    except AttributeError as wrong:
        raise UserError(f"{where}: a {kind}: its parameters cannot be set ({first_line(wrong)}): {_ANEW}") from None
    rows = np.random.default_rng(0).normal(size=(8, width))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that rows have no names
        try:
            own, other = (np.asarray(getattr(one, ask)(rows)) for one in (model, made))
        except Exception:  # it takes something else than rows of numbers
            return
    if own.dtype.kind in "fiu":
        same = np.allclose(own, other, rtol=1e-4, atol=1e-4 * float(np.abs(own).max(initial=0.0)), equal_nan=True)
    else:
        same = np.array_equal(own, other)
    if not same:
        what = "its coefficients and intercepts"
        raise UserError(f"{where}: a {kind}: predicts from more than {what}, so their average is no model: {_ANEW}")


_ANEW = (
    "give arrays of all that it predicts from as updates, which your function puts into a model, or ask what data are "
    "worth by training anew: hanse.shapley(worth, names)"
)


def _short(values: Any) -> str:
    text = str(values.tolist() if isinstance(values, np.ndarray) else values)
    return text if len(text) <= 60 else f"{text[:57]}..."


def with_parameters(model: Any, parameters: Parameters) -> Any:
    """Return a copy of an estimator with these coefficients, in its own shapes and types.

    Args:
        model: the estimator; it is not changed.
        parameters: as :func:`parameters_of` returns them.
    """
    made = copy.deepcopy(model)
    for names in _AVERAGED:
        for name in names:
            if name in parameters:
                own = getattr(model, name)
                value = np.asarray(parameters[name], dtype=np.asarray(own).dtype)
                setattr(made, name, value if isinstance(own, np.ndarray) else value.item())
            elif f"{name}[0]" in parameters:
                own = getattr(model, name)
                setattr(made, name, [parameters[f"{name}[{i}]"].astype(one.dtype) for i, one in enumerate(own)])
    return made
