"""Converts models in users' forms to rows that can be averaged, and averages back to these forms.

The forms are state dicts, arrays, Flower's lists of arrays, rows of one array, and fitted scikit-learn estimators, each
in a list or by name. Of estimators, the fitted coefficients of linear models (``coef_``, ``intercept_``) and of
multi-layer perceptrons (``coefs_``, ``intercepts_``) are averaged. Trees, neighbours and pipelines have no average. To
value them, models are trained anew (``hanse.shapley``). scikit-learn itself is not imported here, so any object with
these attributes works.
"""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hanse.base.errors import UserError, first_line
from hanse.base.plain_text import quantity
from hanse.core.table import Floats, Ints
from hanse.data.frames import client_name, is_frame

MOST = float(np.finfo(np.float64).max)  # of a float; for larger whole numbers math.isfinite raises


@dataclass(frozen=True)
class Form:
    """The form of the given updates.

    Attributes:
        first: the first update, whose names and shapes all others must have.
        names: the tensors that are averaged and so make up a row.
        called: the first update's name in messages.
    """

    first: Any
    names: Sequence[Any]
    called: str = "updates[0]"

    def row(self, update: Any, where: str) -> Tensor:
        """Return an update as a row ``[P]`` float64.

        Raises:
            UserError: the update does not have this form, or contains numbers that are not finite. The message begins
                with ``where``.
        """
        parts = parts_of(update, where)
        mine = parts_of(self.first, where)
        if parts.keys() != mine.keys():
            odd = sorted(map(str, parts.keys() ^ mine.keys()))[:3]
            raise UserError(
                f"{where}: has other entries than {self.called} ({', '.join(odd)}): must be of one architecture"
            )
        self._check_shapes({name: parts[name] for name in self.names}, mine, where)
        # in float64, so averaging loses nothing of updates in float32
        row = torch.cat([torch.zeros(0), *(parts[name].reshape(-1) for name in self.names)]).double()
        if not bool(row.isfinite().all()):
            bad = next(name for name in self.names if not bool(parts[name].isfinite().all()))
            at = f", {bad!r}" if len(parts) > 1 else ""
            remedy = "mend it" if where == "start" else "leave this update out, or mend it"
            raise UserError(f"{where}{at}: has numbers that are not finite: {remedy}")
        return row

    def _check_shapes(self, parts: Mapping[Any, Tensor], mine: Mapping[Any, Tensor], where: str) -> None:
        """Raise UserError if a part has another shape than that of the first update."""
        for name, part in parts.items():
            if part.shape != mine[name].shape:
                what, wanted = tuple(part.shape), tuple(mine[name].shape)
                at = f", {name!r}" if len(mine) > 1 else ""
                raise UserError(f"{where}{at}: has shape {what}: must be {wanted}, as {self.called} has")

    def gradient(self, given: Any) -> Tensor:
        """Return a gradient in this form as a row ``[P]`` float64.

        Missing entries of a state dict, and None, are 0. Entries of integers, which are not averaged, are ignored.

        Raises:
            UserError: the gradient does not have this form.
        """
        mine, plain = parts_of(self.first, self.called), _plain(given)
        if isinstance(plain, list | tuple):
            if len(plain) != len(mine):
                raise UserError(f"gradient: a list of {len(plain)} arrays: must have {len(mine)}, as {self.called} has")
            plain = dict(enumerate(plain))
        if isinstance(plain, Mapping):  # of whole numbers libraries give zeros, or what is no array; None is of none
            known = {name for name in mine if name not in self.names}
            plain = {name: part for name, part in plain.items() if part is not None and name not in known}
        parts = {} if isinstance(plain, Mapping) and not plain else parts_of(plain, "gradient")
        if odd := sorted(map(str, parts.keys() - mine.keys()))[:3]:
            raise UserError(f"gradient: has entries that no update has ({', '.join(odd)})")
        self._check_shapes(parts, mine, "gradient")
        whole = [parts.get(name, torch.zeros_like(mine[name])).reshape(-1).cpu().double() for name in self.names]
        return torch.cat(whole)

    def made(self, row: Tensor, like: Any) -> Any:
        """Return a row ``[P]`` in the form of an update, with everything else copied from the update ``like``."""
        parts, made, at = parts_of(like, ""), {}, 0
        for name, part in parts.items():
            if name not in self.names:
                made[name] = part.clone()  # the user's ``evaluate`` may change it in place
                continue
            # an average of whole numbers is seldom one
            kind = part.dtype if part.is_floating_point() else torch.float64
            made[name] = row[at : at + part.numel()].reshape(part.shape).to(part.device, kind)
            at += part.numel()
        if isinstance(like, Mapping):
            return {name: made[name] if isinstance(like[name], Tensor) else made[name].numpy() for name in like}
        if isinstance(like, list | tuple):
            return [made[i] if isinstance(part, Tensor) else made[i].numpy() for i, part in enumerate(like)]
        return made[None] if isinstance(like, Tensor) else made[None].numpy()


def _plain(given: Any) -> Any:
    """Return an update or a gradient with arrays of other libraries, such as JAX, as NumPy's."""
    if isinstance(given, Mapping):
        return {name: _plain(part) for name, part in given.items()}
    if isinstance(given, list | tuple):
        return [_plain(part) for part in given]
    # a copy, since theirs may not be written to
    return np.array(given) if hasattr(given, "__array__") and not isinstance(given, Tensor | np.ndarray) else given


def parts_of(update: Any, where: str) -> dict[Any, Tensor]:
    """Return an update's tensors by name (state dicts), by number (lists), or under None (one array).

    Raises:
        UserError: something is not an array of real numbers; the message begins with ``where``.
    """
    named: Mapping[Any, Any] = update if isinstance(update, Mapping) else {None: update}
    if isinstance(update, list | tuple):
        named = dict(enumerate(update))
    parts = {}
    for name, part in named.items():
        at = where if name is None else f"{where}, {name!r}"
        if np.ma.is_masked(part):
            raise UserError(f"{at}: has masked entries: fill them, or leave this update out")
        if isinstance(part, np.ndarray) and part.dtype.kind in "fiub":
            parts[name] = torch.from_numpy(np.ascontiguousarray(part).reshape(part.shape))  # which would make [1] of []
        elif isinstance(part, Tensor) and not part.is_complex() and part.layout is torch.strided:
            parts[name] = part.detach()
        elif isinstance(part, nn.Module):
            raise UserError(f"{at}: is a module: give its state_dict()")
        else:
            of = f" of {part.dtype}" if hasattr(part, "dtype") else ""
            raise UserError(f"{at}: {type(part).__name__}{of}: must be a dense array or tensor of real numbers")
    if not parts:
        raise UserError(f"{where}: has no entries")
    return parts


@dataclass(frozen=True, eq=False)
class Given:
    """The given updates.

    Attributes:
        names: ``[n]``, the updates' names: the keys of the dictionary, or 0, 1, ...
        keys: ``[n]``, the keys themselves. None: the updates were given as a list.
        updates: ``[n]``, each as a state dict, list, array or tensor.
        form: the form of the updates.
        rows: ``[n, P]`` float64 on the CPU, one model per row.
        get: converts a user's model to the form of ``updates``; its second argument is the name for messages.
        put: converts a model in the form of ``updates`` back to the user's form.
    """

    names: tuple[str, ...]
    keys: tuple[Any, ...] | None
    updates: Sequence[Any]
    form: Form
    rows: Tensor
    get: Callable[[Any, str], Any]
    put: Callable[[Any], Any]

    def some(self, at: Ints) -> Given:
        """Return the updates at positions ``at [m]`` alone."""
        keys = None if self.keys is None else tuple(self.keys[i] for i in at)
        names, updates = tuple(self.names[i] for i in at), [self.updates[i] for i in at]
        return replace(self, names=names, keys=keys, updates=updates, rows=self.rows[torch.from_numpy(at)])


def given_updates(updates: Any) -> Given:
    """Read the user's updates.

    Args:
        updates: as in :func:`hanse.reports.valuing.value`.

    Raises:
        UserError: no updates, or updates that do not fit each other.
    """
    keys: tuple[Any, ...] | None = None
    if is_frame(updates):
        raise UserError(
            "updates: a DataFrame: does not say whether its rows or columns are the models: give "
            "dict(zip(frame.index, frame.to_numpy())), or the same of frame.T if its columns are"
        )
    updates = updates if isinstance(updates, Mapping | Sequence) else _plain(updates)
    if isinstance(updates, Tensor | np.ndarray):
        if updates.ndim != 2:
            raise UserError(
                f"updates: one array of shape {tuple(updates.shape)}: must be [n, P], one model per row, or a list"
            )
        updates = list(updates)
    elif isinstance(updates, Mapping):
        keys, updates = tuple(updates), list(updates.values())
    if not isinstance(updates, Sequence) or isinstance(updates, str):
        raise UserError(f"updates: {type(updates).__name__}: must be models by name, a list of them, or rows [n, P]")
    if not updates:
        raise UserError(f"updates: the {'list' if keys is None else 'dictionary'} is empty: must have at least one")
    names = shown_names(range(len(updates)) if keys is None else keys, "updates", "one")
    where = [f"updates[{key!r}]" for key in (range(len(updates)) if keys is None else keys)]
    get, put = _pair(updates, where)
    plain = [_plain(get(update, at)) for update, at in zip(updates, where, strict=True)]
    parts = parts_of(plain[0], where[0])
    lone = len(parts) == 1  # whole numbers in a state dict are counters; a lone array of them is a model all the same
    averaged = [name for name, part in parts.items() if part.is_floating_point() or (lone and name is None)]
    form = Form(plain[0], averaged, where[0])
    if sum(parts[name].numel() for name in averaged) == 0:
        raise UserError(f"{where[0]}: has no real numbers to average")
    rows = torch.stack([form.row(update, at).cpu() for update, at in zip(plain, where, strict=True)])
    return Given(names, keys, plain, form, rows, get, put)


def shown_names(names: Sequence[Any], where: str, who: str) -> tuple[str, ...]:
    """Return names as they are shown, ``[n]``: one line each, numbers as they are.

    Raises:
        UserError: nothing of a name can be shown, or two would be shown alike; the message begins with ``where``.
    """
    shown = tuple(client_name(name, where, "", who) for name in names)
    for called in (shown, tuple(names)):  # 1, 1.0 and True look different, and are one in a set
        if len(set(called)) < len(called):
            raise UserError(f"{where}: two are called {max(called, key=called.count)!r}: give them other names")
    return shown


def _pair(updates: Sequence[Any], where: Sequence[str]) -> tuple[Callable[[Any, str], Any], Callable[[Any], Any]]:
    """Return what reads a model that the user gave, and what makes one such model of the arrays."""
    first = updates[0]
    if not is_estimator(first):
        return lambda model, _: model, lambda arrays: arrays

    def get(model: Any, at: str) -> Any:
        check_alike(model, first, at, where[0])
        arrays = parameters_of(model, at)
        check_own(model, first, arrays, at)
        return arrays

    return get, lambda arrays: with_parameters(first, arrays)


def weights_of(weights: Sequence[float] | Mapping[Any, float] | None, given: Given) -> Floats:
    """Return the weights ``[n]`` as float64, ones if there are none given.

    Args:
        weights: numbers, in the order of the updates or by name.
        given: the updates.

    Raises:
        UserError: the weights are not n finite numbers of at least 0, are all 0, or have other names than the updates.
    """
    n, due = len(given.rows), quantity(len(given.rows), "number")
    if weights is None:
        return np.ones(n)
    if given.keys is not None and hasattr(weights, "to_dict"):  # a pandas Series has names, and an order of its own
        weights = weights.to_dict()
    if isinstance(weights, Mapping):
        if given.keys is None or set(weights) != set(given.keys):
            named = "0, 1, ..., as a list" if given.keys is None else ", ".join(given.names)[:200]
            raise UserError(f"weights: by {', '.join(map(str, weights))[:200]}: must be by the updates' names: {named}")
        weights = [weights[key] for key in given.keys]
    try:
        numbers: Any = weights.detach().cpu() if isinstance(weights, Tensor) else weights
        if np.asarray(numbers).dtype.kind not in "iuf":  # words and truths, of which NumPy makes numbers
            raise TypeError
        weights_given = np.asarray(numbers, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"weights: {weights!r:.80}: must be {due}, one for each update") from None
    if weights_given.shape != (n,):
        raise UserError(f"weights: of shape {weights_given.shape}: must be {due}, one for each update")
    with np.errstate(over="ignore"):
        whole = float(weights_given.sum())  # NaN and infinity if one is
    if (weights_given < 0).any() or not (whole > 0 and math.isfinite(whole)):
        raise UserError(
            f"weights: {weights_given.tolist()}: must be finite numbers of at least 0, not all 0, of finite sum"
        )
    return weights_given


def is_number(given: Any) -> bool:
    """Say whether this is a real number; truth values are none."""
    return isinstance(given, Real) and not isinstance(given, bool)


def is_finite(number: Any) -> bool:
    """Say whether a real number is finite as a float."""
    return abs(number) <= MOST if isinstance(number, int) else math.isfinite(number)


def start_of(start: Any, given: Given) -> Tensor | float:
    """Return the row ``[P]`` of the model before the updates, or the worth of no update.

    Raises:
        UserError: neither a finite number nor a model in the form of the updates.
    """
    if start is None:
        return 0.0
    if is_number(start):
        if not is_finite(start):
            raise UserError(f"start: {start!r:.80}: must be a finite number, or a model in the form of one update")
        return float(start)
    return given.form.row(_plain(given.get(start, "start")), "start").cpu()


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
