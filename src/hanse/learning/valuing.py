"""What models that somebody averaged were worth: the values of :mod:`hanse.games` outside any run.

:func:`value` (also ``hanse.value``) takes the updates and a function that says how good a model is, plays the game in
which a coalition's model is the weighted average of its members' updates, and returns :class:`ValuedUpdates`. It needs
no data, no client and no run of hanse, so it serves whoever averages models by other means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn

from hanse.base.errors import UserError, nearest
from hanse.core.table import Floats
from hanse.games import shapley
from hanse.games.gram import inner_products

Method = Literal["mixture", "exact", "gtg", "monte_carlo", "leave_one_out", "banzhaf"]
_METHODS = get_args(Method)
_OPTION = {"budget": "mixture", "permutations": "monte_carlo"}  # options, and the method that each belongs to
_HALF_WIDTH = 1.96  # standard errors to each side of a 95 % interval


@dataclass(frozen=True, eq=False)
class ValuedUpdates:
    """What each update was worth; printed, it is a table of the values and a line that says how they were found.

    Attributes:
        values: ``[n]`` float64, in units of ``evaluate``.
        standard_errors: ``[n]``, from the coalitions that were not evaluated; 0 where all that matter were, NaN where
            it is not known. What ``evaluate`` cannot know (other test samples, other seeds) is not in it.
        method: the method by which they were found.
        evaluated: how many different averages were evaluated.
        all_together: the worth of the average of all updates.
        nothing: the worth of no update: that of ``start``, or 0.
    """

    values: Floats
    standard_errors: Floats
    method: str
    evaluated: int
    all_together: float
    nothing: float

    @property
    def intervals(self) -> Floats:
        """The 95 % intervals of the values, ``[n, 2]``: the value minus and plus 1.96 standard errors."""
        half = _HALF_WIDTH * self.standard_errors
        return np.stack([self.values - half, self.values + half], axis=1)

    def __str__(self) -> str:
        known = zip(self.values, self.standard_errors, strict=True)
        lines = [
            f"{i:>4}  {v:.4g}" + ("" if math.isnan(e) else f" ± {_HALF_WIDTH * e:.2g}")
            for i, (v, e) in enumerate(known)
        ]
        gain = f"all together {self.all_together:.4g}, nothing {self.nothing:.4g}; {self.evaluated} averages evaluated"
        return "\n".join([*lines, f"({self.method}; {gain})"])


def value(
    updates: Any,
    evaluate: Callable[[Any], float],
    weights: Sequence[float] | None = None,
    method: Method = "mixture",
    *,
    start: Any = None,
    budget: int | None = None,
    permutations: int | None = None,
    seed: int = 0,
) -> ValuedUpdates:
    """Return what each of n updates (models that clients trained) was worth to their average.

    Whole numbers in state dicts and lists (counters) are not averaged: a coalition's model has those of its first
    update.

    Args:
        updates: n state dicts of one architecture; or n arrays or tensors of one shape; or n lists of arrays, as Flower
            has them; or one array or tensor ``[n, P]``, a model a row.
        evaluate: gets the average of some updates, in the form of one update (state dicts have the first one's types
            and devices), and returns its worth, the more the better: an accuracy, or minus a loss.
        weights: ``[n]``, how much an update counts in the average, such as its number of samples; None: all count the
            same.
        method: "mixture" (the Shapley value from few evaluations, 10 an update), "exact" (from all 2^n averages), "gtg"
            or "monte_carlo" (from sampled orders), "leave_one_out", or "banzhaf" (from all 2^n); see
            ``docs/mechanisms/values.md``.
        start: the model before, in the form of one update, whose worth is that of no update at all; or that worth
            itself, a number. None: 0. Shapley values sum to the worth of all updates less that of none.
        budget: for "mixture", the most averages that are evaluated, the empty one included; None: 10 an update.
        permutations: for "monte_carlo", how many orders are drawn; None: 100.
        seed: all random draws follow from it.

    Returns:
        The values with their standard errors, and how they were found.

    Raises:
        UserError: updates that do not fit each other or have numbers that are not finite, wrong weights, an option of
            another method, too many updates for the method, or a worth that is not a finite number.

    Examples:
        Three clients trained a model of two numbers, which should both be 2. The third one's update harms:

        >>> import numpy as np
        >>> updates = [np.array([3.0, 1.0]), np.array([1.0, 3.0]), np.array([-2.0, -2.0])]
        >>> found = value(updates, lambda model: -np.abs(model - 2).sum(), start=np.zeros(2), method="exact")
        >>> found.values.round(2).tolist()
        [2.11, 2.11, -2.89]
        >>> round(found.all_together - found.nothing, 2)  # the values share out the whole gain
        1.33
    """
    if not isinstance(method, str) or method not in _METHODS:
        raise UserError(f"method: {method!r}: no such name{nearest(str(method), _METHODS)}")
    for name, given in (("budget", budget), ("permutations", permutations)):
        if given is not None and method != _OPTION[name]:
            raise UserError(f"{name}: {given}: has no effect: it is for method = '{_OPTION[name]}', not '{method}'")
        if given is not None and (isinstance(given, bool) or not isinstance(given, int | np.integer)):
            raise UserError(f"{name}: {given!r}: must be a whole number, at least 1")
    if not callable(evaluate):
        raise UserError(f"evaluate: {evaluate!r}: must be a function that takes a model and returns its worth")
    form, rows = _rows(updates)
    game = _Averages(form, rows, _weights(weights, len(rows)), evaluate, _start(start, form))
    memo = shapley.Memo(game)
    try:
        found = _solved(method, memo, game, budget, permutations, seed)
        nothing, together = memo.many([frozenset(), frozenset(range(len(rows)))])
    except ValueError as wrong:  # too many players for all coalitions, or too small a budget
        if isinstance(wrong, UserError) or wrong is game.raised:
            raise
        raise UserError(f"method = '{method}': {wrong}") from None
    return ValuedUpdates(*found, method, memo.distinct, together, nothing)


# ---- one update in its own form, and as a row


@dataclass(frozen=True)
class _Form:
    """The form in which updates are given.

    Attributes:
        first: the first update, whose names and shapes all others must have.
        names: the tensors that make a row: those that are averaged.
    """

    first: Any
    names: Sequence[Any]

    def row(self, update: Any, where: str) -> Tensor:
        """Return an update as a row ``[P]`` float64.

        Raises:
            UserError: it is not of this form, or has numbers that are not finite; the message begins with ``where``.
        """
        parts = _parts(update, where)
        mine = _parts(self.first, where)
        if parts.keys() != mine.keys():
            odd = sorted(map(str, parts.keys() ^ mine.keys()))[:3]
            raise UserError(
                f"{where}: has other entries than updates[0] ({', '.join(odd)}): must be of one architecture"
            )
        for name in self.names:
            if parts[name].shape != mine[name].shape:
                what, wanted = tuple(parts[name].shape), tuple(mine[name].shape)
                at = f", {name!r}" if len(parts) > 1 else ""
                raise UserError(f"{where}{at}: has shape {what}: must be {wanted}, as updates[0] has")
        # in float64, so that averaging loses nothing of updates in float32
        row = torch.cat([torch.zeros(0), *(parts[name].reshape(-1) for name in self.names)]).double()
        if not bool(row.isfinite().all()):
            bad = next(name for name in self.names if not bool(parts[name].isfinite().all()))
            at = f", {bad!r}" if len(parts) > 1 else ""
            raise UserError(f"{where}{at}: has numbers that are not finite: leave this update out, or mend it")
        return row

    def made(self, row: Tensor, like: Any) -> Any:
        """Return a row ``[P]`` in the form of an update; what is not averaged is copied from the update ``like``."""
        parts, found, at = _parts(like, ""), {}, 0
        for name, part in parts.items():
            if name not in self.names:
                found[name] = part.clone()  # the user's ``evaluate`` may change it in place
                continue
            # an average of whole numbers is seldom one
            kind = part.dtype if part.is_floating_point() else torch.float64
            found[name] = row[at : at + part.numel()].reshape(part.shape).to(part.device, kind)
            at += part.numel()
        if isinstance(like, Mapping):
            return {name: found[name] if isinstance(like[name], Tensor) else found[name].numpy() for name in like}
        if isinstance(like, list | tuple):
            return [found[i] if isinstance(part, Tensor) else found[i].numpy() for i, part in enumerate(like)]
        return found[None] if isinstance(like, Tensor) else found[None].numpy()


def _parts(update: Any, where: str) -> dict[Any, Tensor]:
    """Return an update's tensors by name (state dicts), by number (lists), or under None (one array).

    Raises:
        UserError: something that is no array of real numbers; the message begins with ``where``.
    """
    if isinstance(update, Mapping):
        named: Mapping[Any, Any] = update
    elif isinstance(update, list | tuple):
        named = dict(enumerate(update))
    else:
        named = {None: update}
    found = {}
    for name, part in named.items():
        at = where if name is None else f"{where}, {name!r}"
        if isinstance(part, np.ndarray) and part.dtype.kind in "fiub":
            found[name] = torch.from_numpy(np.ascontiguousarray(part))
        elif isinstance(part, Tensor) and not part.is_complex():
            found[name] = part.detach()
        elif isinstance(part, nn.Module):
            raise UserError(f"{at}: is a module: give its state_dict()")
        else:
            raise UserError(f"{at}: {type(part).__name__}: must be an array or a tensor of real numbers")
    if not found:
        raise UserError(f"{where}: has no entries")
    return found


def _rows(updates: Any) -> tuple[tuple[_Form, Sequence[Any]], Tensor]:
    """Return the form of the updates and the updates as a list, and their rows ``[n, P]`` float64 on the CPU.

    Raises:
        UserError: no updates, or updates that do not fit each other.
    """
    if isinstance(updates, Tensor | np.ndarray):
        if updates.ndim != 2:
            raise UserError(
                f"updates: one array of shape {tuple(updates.shape)}: must be [n, P], a model a row, or a list"
            )
        updates = list(updates)
    if isinstance(updates, Mapping) or not isinstance(updates, Sequence) or isinstance(updates, str):
        raise UserError(f"updates: {type(updates).__name__}: must be a list of state dicts or arrays, or rows [n, P]")
    if not updates:
        raise UserError("updates: the list is empty: must have at least one update")
    parts = _parts(updates[0], "updates[0]")
    lone = len(parts) == 1  # whole numbers in a state dict are counters; a lone array of them is a model all the same
    names = [name for name, part in parts.items() if part.is_floating_point() or (lone and name is None)]
    form = _Form(updates[0], names)
    if sum(parts[name].numel() for name in names) == 0:
        raise UserError("updates[0]: has no real numbers to average")
    rows = torch.stack([form.row(update, f"updates[{i}]").cpu() for i, update in enumerate(updates)])
    return (form, updates), rows


def _weights(weights: Sequence[float] | None, n: int) -> Floats:
    """Return the weights ``[n]`` as float64, ones if there are none given.

    Raises:
        UserError: not n finite numbers of 0 or more, or all of them 0.
    """
    if weights is None:
        return np.ones(n)
    try:
        given: Any = weights.detach().cpu() if isinstance(weights, Tensor) else weights
        found = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"weights: {weights!r}: must be {n} numbers, one for each update") from None
    if found.shape != (n,):
        raise UserError(f"weights: of shape {found.shape}: must be {n} numbers, one for each update")
    if not np.isfinite(found).all() or (found < 0).any() or not found.any():
        raise UserError(f"weights: {found.tolist()}: must be finite numbers of at least 0, not all 0")
    return found


def _start(start: Any, form: tuple[_Form, Sequence[Any]]) -> Tensor | float:
    """Return the row ``[P]`` of the model before, or the worth of no update.

    Raises:
        UserError: neither a finite number nor a model in the form of the updates.
    """
    if start is None:
        return 0.0
    if isinstance(start, int | float | np.number) and not isinstance(start, bool):
        if not math.isfinite(start):
            raise UserError(f"start: {start}: must be a finite number, or a model in the form of one update")
        return float(start)
    return form[0].row(start, "start").cpu()


# ---- the game


class _Averages:
    """The game: a coalition is worth ``evaluate`` of its updates' weighted average, the empty one that of ``start``."""

    def __init__(
        self,
        form: tuple[_Form, Sequence[Any]],
        rows: Tensor,
        weights: Floats,
        evaluate: Callable[[Any], float],
        start: Tensor | float,
    ) -> None:
        (self._form, self._updates), self._rows, self.weights = form, rows, weights
        self._evaluate, self._start = evaluate, start
        self.raised: Exception | None = None  # by evaluate: passed on as it is, not as a mistake of the caller's

    @property
    def players(self) -> int:
        """The number of updates."""
        return len(self._rows)

    def __call__(self, coalition: shapley.Coalition) -> float:
        members = sorted(coalition)
        if not members and not isinstance(self._start, Tensor):
            return self._start
        model = self._form.made(*self._average(members))
        try:
            worth = self._evaluate(model)
        except Exception as wrong:
            self.raised = wrong
            raise
        who = f"the average of updates {members}" if members else "start"
        try:
            number = float(worth)
        except (TypeError, ValueError):
            raise UserError(
                f"evaluate: returned {worth!r} for {who}: must be one number, the more the better"
            ) from None
        if not math.isfinite(number):
            raise UserError(f"evaluate: returned {number} for {who}: must be a finite number")
        return number

    def _average(self, members: Sequence[int]) -> tuple[Tensor, Any]:
        """Return the row ``[P]`` of a coalition, and the update whose counters its model has."""
        if not members:
            assert isinstance(self._start, Tensor)
            return self._start, self._updates[0]
        shares = torch.as_tensor(self.weights[list(members)])
        shares = shares / shares.sum() if bool(shares.any()) else torch.full_like(shares, 1 / len(members))
        return shares @ self._rows[list(members)], self._updates[members[0]]

    def grams(self) -> list[Floats]:
        """Return which updates are alike: inner products ``[n, n]`` of their moves from the start, or from the mean."""
        base = self._start if isinstance(self._start, Tensor) else self._rows.mean(dim=0)
        return [inner_products(self._rows - base)]


# from all coalitions that matter, so that no sampling error is left
_EXACT: Mapping[str, Callable[[shapley.Utility, int], Floats]] = {
    "exact": shapley.exact,
    "leave_one_out": shapley.leave_one_out,
    "banzhaf": shapley.banzhaf,
}


def _solved(
    method: Method, memo: shapley.Memo, game: _Averages, budget: int | None, permutations: int | None, seed: int
) -> tuple[Floats, Floats]:
    """Return the values ``[n]`` and their standard errors ``[n]`` by this method.

    Raises:
        ValueError: too many updates for the method, or too small a budget.
    """
    n = game.players
    if method in _EXACT:
        return _EXACT[method](memo, n), np.zeros(n)
    if method == "mixture":
        mixed = shapley.mixture(memo, n, game.weights, game.grams, budget, seed)
        return mixed.values, mixed.standard_errors
    if method == "gtg":
        truncated = shapley.gtg(memo, n, seed=seed)
        return truncated.values, truncated.standard_errors
    sampled = shapley.monte_carlo_result(memo, n, 100 if permutations is None else permutations, seed)
    return sampled.values, sampled.standard_errors
