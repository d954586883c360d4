"""Values of contributions in one call, outside any run, by :mod:`hanse.games`.

:func:`value` (``hanse.value``) takes several clients' models and a function that evaluates a model. It solves the game
in which a coalition's model is the weighted average of its members' models. :func:`shapley` (``hanse.shapley``) is for
models that cannot be averaged. It takes any function of a set of names, for example one that trains a model on the
members' data. Both return a :class:`Valuation`, and need no client or run of hanse.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from hanse.base.errors import UserError, gated, nearest
from hanse.base.factories import whole_number
from hanse.core.table import Floats, Ints
from hanse.data.units import units_of
from hanse.games import mixture, path
from hanse.games import shapley as games
from hanse.games.gram import inner_products
from hanse.games.jackknife import SURE, interval_errors, jackknife_errors, t_factor
from hanse.games.mixture import BUDGET
from hanse.learning.threads import intra_op
from hanse.reports.evaluations import Answer, Asked, Evaluations, check_n_jobs, progress
from hanse.reports.forms import Given, given_updates, is_finite, is_number, shown_names, start_of, weights_of
from hanse.reports.words import said
from hanse.reports.worths import TIE, Worths

Method = Literal["mixture", "exact", "gtg", "monte_carlo", "leave_one_out", "banzhaf", "path"]
_METHODS = get_args(Method)
_OF_SETS = ("exact", "monte_carlo", "gtg", "leave_one_out", "banzhaf")  # methods for any function of a set
_OPTION = {"budget": ("mixture",), "permutations": ("monte_carlo", "gtg")}  # options, and the methods they belong to
_NEGLIGIBLE = 1e-4  # of the whole gain: GTG-Shapley samples no further below
_ORDERS = 100  # permutations of Monte Carlo
_FEW = 7  # names of which all 2^n sets are asked for
_BATCH = 1 << 26  # bytes of averages that are made at once
_SHARED = 1 << 22  # numbers of all updates from which several threads average them: with fewer they would only wait


@dataclass(frozen=True, eq=False, repr=False)
class Valuation(Worths):
    """The values of contributions. The answer prints as a table, and a notebook also shows its picture.

    Attributes:
        values: ``[n]`` float64, in units of ``evaluate``.
        standard_errors: ``[n]``, from ``sampling`` and ``drawn`` together. 0: the values are exact. NaN: not known.
            They do not say what another training, with other seeds, would give. ``intervals`` are wider than 1.96 of
            them if few units or orders were drawn.
        names: ``[n]``, how the contributors are called: the keys of the dictionary, or 0, 1, ...
        method: the method used.
        evaluated: how many different coalitions were used. One call more looks whether ``evaluate`` says the same
            twice.
        all_together: the worth of all updates together.
        nothing: the worth of no update: that of ``start``, or 0.
        residual: for path values, the change of the worth minus the sum of the values. It has the error of the
            integral, and any other change (buffers without a gradient, or a ``gradient`` that is not that of
            ``evaluate``). Else 0.
        seconds: how long it took.
        hints: sentences on what the values mean, if that is easily missed.
        sampling: ``[n]``, the standard errors due to coalitions that were not evaluated. 0: all relevant ones were
            evaluated. NaN: not known: those that were do not vary, there are fewer than three orders for each player,
            or "gtg" ended orders early. Those of "mixture" are bounds, two to five times the true ones: of values that
            are less exact, and with Student's factor for few coalitions.
        drawn: ``[n]``, the standard errors due to the draw of the test samples. NaN unless ``evaluate`` returns one
            number for each sample.
        samples: how many test samples there are. 0: not known.
        weightless: how many have the weight 0. These are worth 0, and are in no coalition.
        units: how many units, such as patients, the test samples are of; these are what is drawn. 0: not said.
    """

    method: str
    evaluated: int
    all_together: float
    nothing: float
    residual: float = 0.0
    seconds: float = 0.0
    hints: tuple[str, ...] = ()
    sampling: Floats = field(default_factory=lambda: np.zeros(0))
    drawn: Floats = field(default_factory=lambda: np.zeros(0))
    samples: int = 0
    weightless: int = 0
    units: int = 0

    def notes(self) -> Sequence[str]:
        """Return how the values were computed, and what they sum to."""
        missing = abs(self.residual) > path.TOLERANCE * abs(self.all_together - self.nothing)
        return [said("found_by", self, missing), said("errors_of_values", self, self._errors()), *self.hints]

    def _errors(self) -> str:
        """Return the code of which errors the intervals are for, or of why there are none."""
        known = bool((self.sampling > 0).any())
        codes = {
            "path": self.method == "path",
            "unknown": bool(np.isnan(self.sampling).any()) and not known,
            "drawn": self.samples > 0,
            "tried": known,
        }
        return next((code for code, holds in codes.items() if holds), "exact")


def value(
    updates: Any,
    evaluate: Callable[[Any], Any],
    weights: Sequence[float] | Mapping[Any, float] | None = None,
    method: Method | None = None,
    *,
    start: Any = None,
    gradient: Callable[[Any], Any] | None = None,
    game: mixture.Game | None = None,
    budget: int | None = None,
    permutations: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    units: Sequence[Any] | None = None,
    n_jobs: int = 1,
) -> Valuation:
    """Return the value of each of n updates (clients' trained models) to their average.

    Integers in state dicts and lists (counters) are not averaged. A coalition's model takes those of its first update.

    Args:
        updates: n models by name, ``{"Hope": ..., "St Mary": ...}``, or a list of them. They are state dicts of one
            architecture, arrays or tensors of one shape, Flower's lists of arrays, or fitted scikit-learn estimators
            with ``coef_`` or ``coefs_``. They may also be one array or tensor ``[n, P]``, with one model per row.
        evaluate: a function that takes the average of some updates and returns its worth (higher is better), such as an
            accuracy or a negative loss. The average has the form of one update (state dicts have the first one's types
            and devices, estimators are copies of the first one). The worth is one number, or an array ``[m]`` with one
            number for each test sample, of which the mean is taken. With the array, intervals also cover the draw of
            the test samples.
        weights: ``[n]``, or by name: each update's weight in the average, such as its number of samples. None: equal
            weights. An update of weight 0 is worth 0.
        method: "mixture" (the Shapley value from few evaluations, 10 per update), "exact" (from all 2^n averages),
            "gtg" or "monte_carlo" (from sampled orders; "gtg" ends them early, and then its intervals are not known),
            "leave_one_out", or "banzhaf" (from all 2^n averages). See ``docs/mechanisms/values.md``. "path" follows
            ``gradient`` along the step from ``start`` to the average. None: "path" if there is a ``gradient``, else
            "mixture".
        start: the model before the updates, in the form of one update. Its worth is that of the empty coalition. You
            can also give this worth as a number. None: 0. Shapley values sum to the worth of all updates minus that of
            none.
        gradient: for "path": a function that takes a model in the form of one update, and returns the gradient of
            ``evaluate`` in the same form. Examples are ``jax.grad(worth)``, or ``torch.func.grad(worth)`` of a
            ``worth(state)`` that uses ``torch.func.functional_call``. Missing entries, such as buffers, have gradient
            0.
        game: what a coalition's model is. "average" (default): the average of its updates. "increment": ``start`` plus
            the weighted steps of its updates, so that an update equal to ``start`` is worth nothing. Not for "path",
            which is a value of the increment game.
        budget: for "mixture": the most averages to evaluate, including the empty one. None: 10 per update.
        permutations: for "monte_carlo" and "gtg": the most orders to draw. None: 100 for "monte_carlo", and 50 per
            update for "gtg".
        seed: all random draws follow from it.
        progress: whether to show a bar on standard error. None: if it takes longer than 2 seconds, in a terminal or a
            notebook.
        units: ``[m]``, what each test sample is of, such as its patient, if ``evaluate`` returns an array. Intervals
            are then for the draw of these. None: each sample is one of its own.
        n_jobs: how many processes call ``evaluate`` at the same time, as in scikit-learn: -1 is one for each processor.
            The values are the same. A process sees its own copy of what ``evaluate`` changes, and starting it takes
            about a second. For "path", which asks step by step, it has no effect.

    Returns:
        The values with their standard errors, and how they were found (:class:`hanse.reports.valuing.Valuation`).

    Raises:
        UserError: updates are inconsistent, numbers are not finite, weights are wrong, an option belongs to another
            method, there are too many updates for the method, or a worth is not a finite number.

    Examples:
        Three clients trained a model of two numbers, which should both be 2. The third one's update is harmful:

        >>> import numpy as np
        >>> updates = {"Bremen": np.array([3.0, 1.0]), "Visby": np.array([1.0, 3.0]), "Kiel": np.array([-2.0, -2.0])}
        >>> found = value(updates, lambda model: -np.abs(model - 2).sum(), start=np.zeros(2), method="exact")
        >>> dict(zip(found.names, found.values.round(2).tolist()))
        {'Bremen': 2.11, 'Visby': 2.11, 'Kiel': -2.89}
        >>> round(found.all_together - found.nothing, 2)  # the values share out the whole gain
        1.33
    """
    method = ("mixture" if gradient is None else "path") if method is None else method
    _check(method, _METHODS, evaluate, "evaluate", "a model", seed, n_jobs, budget=budget, permutations=permutations)
    if (gradient is None) == (method == "path") or not (gradient is None or callable(gradient)):
        needs = "'path' needs a function that returns the worth's gradient, and the other methods take none"
        raise UserError(f"gradient: {gradient!r}: method = '{method}': {needs}")
    if game is not None and (not isinstance(game, str) or game not in get_args(mixture.Game) or method == "path"):
        raise UserError(f"game: {game!r}: must be 'average' or 'increment', and None for method = 'path'")
    given = given_updates(updates)
    before = start_of(start, given)
    if game == "increment" and not isinstance(before, Tensor):
        raise UserError("start: game = 'increment' needs the model before, from which the updates' steps are taken")
    shares = weights_of(weights, given)
    counted = np.flatnonzero(shares)
    players = given if len(counted) == len(shares) else given.some(counted)
    played = _Coalitions(players, shares[counted], evaluate, before, game or "average")
    if gradient is not None:
        return _among(_along(gradient, players, played, progress), given.names, counted)
    named = game or "average"
    plan = _Plan(method, len(counted), budget, permutations, seed, played.weights, played.grams, named, units)
    found = _among(_valued(plan, players.names, played.asked, progress, n_jobs), given.names, counted)
    if start is not None:
        return found
    return replace(found, hints=(said("without_start", found.all_together), *found.hints))


def _among(found: Valuation, names: tuple[str, ...], counted: Ints) -> Valuation:
    """Return values of all ``names``, of which those at ``counted [m]`` played; the others are worth 0."""
    if len(counted) == len(names):
        return found
    fields = ("values", "standard_errors", "half", "sampling", "drawn")
    whole: dict[str, Any] = {name: np.zeros(len(names)) for name in fields}
    for name, array in whole.items():
        array[counted] = getattr(found, name)
    return replace(found, names=names, weightless=len(names) - len(counted), **whole)


def _checked_names(names: Any) -> tuple[str, ...]:
    """Return names as they are shown. Raises UserError unless they are names, at least one, and no two look alike."""
    if isinstance(names, str) or not isinstance(names, Sequence) or not names:
        raise UserError(f"names: {names!r:.80}: must be a list of at least one name")
    if odd := [name for name in names if not isinstance(name, Hashable)]:
        raise UserError(f"names: {odd[0]!r:.80}: must be a text or a number, as a name is")
    return shown_names(names, "names", "one")


def shapley(
    worth: Callable[[frozenset[Any]], Any],
    names: Sequence[Hashable],
    method: Literal["exact", "monte_carlo", "gtg", "leave_one_out", "banzhaf"] | None = None,
    *,
    nothing: float | None = None,
    permutations: int | None = None,
    seed: int = 0,
    progress: bool | None = None,
    units: Sequence[Any] | None = None,
    n_jobs: int = 1,
) -> Valuation:
    """Return the value of each name in any game, for models that cannot be averaged, such as trees and pipelines.

    Args:
        worth: takes a set of names and returns their joint worth (higher is better), as ``evaluate`` of :func:`value`
            does. To value data, train a model on these names' data and test it. Iterating over the set
            follows the order of ``names``.
        names: ``[n]``, all different.
        method: "exact" (from all 2^n sets), "monte_carlo" or "gtg" (from sampled orders), "leave_one_out" or "banzhaf".
            None: "exact" up to seven names, else "monte_carlo".
        nothing: the worth of the empty set, such as that of guessing, if ``worth`` cannot compute it. None: ``worth``
            is called.
        permutations: for "monte_carlo" and "gtg": the most orders to draw. None: 100 for "monte_carlo", and 50 per
            player for "gtg".
        seed: all random draws follow from it.
        progress: as in :func:`value`.
        units: as in :func:`value`.
        n_jobs: as in :func:`value`.

    Returns:
        The values with their standard errors, and how they were found (:class:`hanse.reports.valuing.Valuation`).

    Raises:
        UserError: names are repeated, an option belongs to another method, there are too many names for the method, or
            a worth is not a finite number.

    Examples:
        A pair of gloves needs a left and a right one. There is only one right glove, so it is worth most:

        >>> found = shapley(lambda have: float("right" in have and len(have) > 1), ["left", "right", "other left"])
        >>> {name: round(v, 3) for name, v in zip(found.names, found.values.tolist())}
        {'left': 0.167, 'right': 0.667, 'other left': 0.167}
    """
    shown = _checked_names(names)
    method = ("exact" if len(names) <= _FEW else "monte_carlo") if method is None else method
    _check(method, _OF_SETS, worth, "worth", "a set of names", seed, n_jobs, permutations=permutations)
    if nothing is not None and not (is_number(nothing) and is_finite(nothing)):
        raise UserError(f"nothing: {nothing!r:.80}: must be a finite number")
    game = partial(_asked_of_sets, worth, tuple(names), nothing)
    plan = _Plan(method, len(names), None, permutations, seed, units=units)
    return _valued(plan, shown, game, progress, n_jobs)


def _check(
    method: Any, allowed: Sequence[str], function: Any, called: str, takes: str, seed: Any, n_jobs: Any, **options: Any
) -> None:
    """Raise UserError for a method that there is not, an option of another method, or an argument that is none."""
    whole_number("seed", seed, 0)
    check_n_jobs(n_jobs)
    if not isinstance(method, str) or method not in allowed:
        raise UserError(f"method: {method!r}: no such name{nearest(str(method), allowed)}")
    for name, given in ((name, given) for name, given in options.items() if given is not None):
        if method not in _OPTION[name]:
            raise UserError(f"{name}: {given}: has no effect: it is for method = '{_OPTION[name][0]}', not '{method}'")
        whole_number(name, given, 1)
    if not callable(function):
        raise UserError(f"{called}: {function!r}: must be a function that takes {takes} and returns its worth")


# ---- the plan: which method, from how many evaluations


@dataclass(frozen=True)
class _Plan:
    """How the values of n players are found.

    Attributes:
        method: by which method; all but "path".
        n: of how many players.
        budget: the option of "mixture".
        permutations: the option of "monte_carlo" and "gtg".
        seed: the seed of the random draws.
        weights: ``[n]``, of games of averages; None: another game.
        grams: returns which updates are alike.
        game: of averages, or of steps.
        units: ``[m]``, what each test sample is of, as it was given. None: each is a unit of its own.
    """

    method: str
    n: int
    budget: int | None
    permutations: int | None
    seed: int
    weights: Floats | None = None
    grams: Callable[[], Sequence[Floats]] = tuple
    game: mixture.Game = "average"
    units: Sequence[Any] | None = None

    @property
    def expected(self) -> float | None:
        """How many evaluations it makes at most. None: not known."""
        n, orders = self.n, self.permutations or (_ORDERS if self.method == "monte_carlo" else None)
        if self.method == "gtg" and orders is None:
            return None
        most = {"leave_one_out": n + 2.0, "mixture": float(self.budget or BUDGET * n)}
        return min(2.0**n, most.get(self.method, math.inf if orders is None else orders * n + 2.0))

    def solved(self, memo: games.Memo) -> _Solved:
        """Return the values ``[n]``, their standard errors ``[n]``, Student's factor for an interval by these, and how
        other games of the same players are valued from their worths ``[evaluated, B]`` of the same coalitions: ``[n,
        B]``.

        Raises:
            ValueError: the method cannot.
        """
        n, unknown = self.n, np.full(self.n, np.nan)
        if self.method == "mixture":
            assert self.weights is not None
            mixed = games.mixture(memo, n, self.weights, self.grams(), self.budget, self.seed, game=self.game)
            design = mixed.fit.design.coalitions()
            return mixed.values, mixed.standard_errors, 1.0, lambda worth: mixed.fit.values(worth[memo.places(design)])
        if self.method == "gtg":
            # the rule takes a change below 1e-4 for none; nobody was asked for the unit, so take that share of the gain
            eps = _NEGLIGIBLE * abs(memo(frozenset(range(n))) - memo(frozenset()))
            truncated = games.gtg(memo, n, eps, self.permutations, seed=self.seed)
            factor = t_factor(truncated.permutations // n - 1)
            errors = unknown if truncated.cut else truncated.standard_errors / factor
            return truncated.values, errors, factor, truncated.along
        if self.method == "monte_carlo":
            orders = _ORDERS if self.permutations is None else self.permutations
            sampled = games.monte_carlo_result(memo, n, orders, self.seed)
            if memo.distinct < 2**n:
                # Whoever comes first mostly adds far more. In 3 n orders each player does once, with 95 % probability;
                # the errors from fewer know nothing of that: of 8 orders of ten, intervals hold 61 to 73 % of values.
                errors = sampled.standard_errors if orders >= 3 * n else unknown
                return sampled.values, errors, t_factor(orders - 1), sampled.along
        rule = _EXACT.get(self.method, games.exact)  # sampled orders that met all coalitions leave nothing to estimate
        return rule(memo, n), np.zeros(n), 1.0, partial(_by_rule, rule, memo, n)


_Solved = tuple[Floats, Floats, float, Callable[[Floats], Floats]]


def _by_rule(rule: Callable[[games.Utility, int], Floats], memo: games.Memo, n: int, worth: Floats) -> Floats:
    """Return the values ``[n, B]`` of other games by a rule that asks for the same coalitions of each."""

    def others(column: Floats) -> Floats:
        return rule(lambda coalition: float(column[memo.places([coalition])[0]]), n)

    return np.stack([others(column) for column in worth.T], axis=1)


# from all coalitions that matter, so no sampling error is left
_EXACT: Mapping[str, Callable[[games.Utility, int], Floats]] = {
    "exact": games.exact,
    "leave_one_out": games.leave_one_out,
    "banzhaf": games.banzhaf,
}


def _valued(
    plan: _Plan,
    names: tuple[str, ...],
    ask: Callable[[Sequence[games.Coalition]], Iterator[Asked]],
    shown: bool | None,
    n_jobs: int,
) -> Valuation:
    """Return the values of a game, given whether progress is shown, and how many processes ask."""
    began = time.perf_counter()
    units = None if plan.units is None else units_of(plan.units, "units")
    with progress(shown, "evaluated") as told:
        function = "worth" if plan.weights is None else "evaluate"
        asked = Evaluations(ask, told, function, units, n_jobs, plan.expected)
        memo = games.Memo(asked)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # told below
                nothing, together = memo.many([frozenset(), frozenset(range(plan.n))])
                values, sampling, factor, others = plan.solved(memo)
                if plan.method not in _EXACT and memo.distinct < 2**plan.n:  # what was tried may not vary by chance
                    sampling = np.where(sampling <= TIE * np.abs(values).max(), np.nan, sampling)
        except ValueError as wrong:  # too many players for all coalitions, or too small a budget
            if isinstance(wrong, UserError) or wrong is asked.raised:
                raise
            raise UserError(f"method = '{plan.method}': {wrong}") from None
        if not np.isfinite(values).all():
            raise UserError(
                f"{function}: returned up to {max(abs(nothing), abs(together)):.3g}: sums and differences of such "
                "numbers are not finite: divide all of them by one constant"
            )
        without = others(asked.without_block) if asked.samples else np.full((plan.n, 0), np.nan)
        again = asked.again(frozenset(range(plan.n)))
    # averages of several coalitions at once are rounded otherwise than one alone, which is no second opinion
    wavers = again is not None and abs(float(np.mean(again)) - together) > _ROUNDED * abs(together)
    hints = (said("says_otherwise"),) if wavers else ()
    drawn, drawn_half = jackknife_errors(without), SURE * interval_errors(without)
    return Valuation(
        values,
        np.hypot(sampling, np.nan_to_num(drawn)),
        names,
        plan.method,
        memo.distinct,
        together,
        nothing,
        seconds=time.perf_counter() - began,
        hints=(*hints, said("if_this_one_left")) if plan.method == "leave_one_out" else hints,
        half=np.hypot(SURE * factor * sampling, np.nan_to_num(drawn_half)),
        sampling=sampling,
        drawn=drawn,
        samples=asked.samples or 0,
        units=0 if units is None else len(np.unique(units)),
    )


_ROUNDED = 1e-12  # the part of a worth that float64's rounding may change


def _along(gradient: Callable[[Any], Any], given: Given, game: _Coalitions, shown: bool | None) -> Valuation:
    """Return the path values of updates along the step from the model before to their average.

    Raises:
        UserError: there is no model before, or no gradient to follow.
    """
    began, start = time.perf_counter(), game.start
    if not isinstance(start, Tensor):
        raise UserError("start: method = 'path' needs the model before, from which the updates' steps are taken")
    with progress(shown, "evaluated") as told:
        asked = Evaluations(game.asked, told)
        nothing, together = asked.many([frozenset(), frozenset(range(len(game.rows)))])
        steps = torch.from_numpy(game.weights / game.weights.sum())[:, None] * (game.rows - start)
        slopes = itertools.count(1)

        def slope(row: Tensor) -> Tensor:
            with gated("gradient: fails"):
                said = gradient(given.put(given.form.made(row, given.form.first)))
            told(2 + next(slopes), 5, "gradients")
            return given.form.gradient(said).cpu()

        integral = path.integrate(slope, start, steps.sum(0), gain=together - nothing)
    values = integral.along(steps)[:, 0]
    if not (integral.finite and np.isfinite(values).all()):
        raise UserError("gradient: it, or what it makes of a step, is not finite on the way from start to the average")
    if together != nothing and not integral.gradients.any():
        raise UserError(
            "gradient: is 0 all along the way, though the worth changes: an accuracy has no gradient; give a loss and "
            "its gradient, or take method = 'mixture'"
        )
    gain, total = together - nothing, float(values.sum())
    # more than all of the change is missing, beyond what the integral's error can be: as with the other sign
    if abs(total - gain) > abs(gain) + 0.05 * float(np.abs(values).sum()):
        raise UserError(
            f"gradient: along the way it adds up to {total:.4g}, and the worth changes by {gain:.4g}: it must be the "
            "gradient of the worth itself (of minus the loss where the worth is that)"
        )
    nan, took = np.full(len(values), np.nan), time.perf_counter() - began
    return Valuation(
        values, nan, given.names, "path", 2, together, nothing, gain - total, took, half=nan, sampling=nan, drawn=nan
    )


# ---- the games


def _asked_of_sets(
    worth: Callable[[frozenset[Any]], Any],
    names: tuple[Hashable, ...],
    nothing: float | None,
    coalitions: Sequence[games.Coalition],
) -> Iterator[Asked]:
    """Yield a question for each coalition: what the set of its names is worth."""

    for coalition in coalitions:
        members = [names[i] for i in sorted(coalition)]
        of, helps = (f"{members}", "") if members else ("no name", "say what nothing is worth, such as nothing=0.5")
        answer = partial(_answered, worth, "worth", _Ordered(members), of, helps)
        yield answer if nothing is None or members else float(nothing)


class _Ordered(frozenset[Any]):
    """A set that lists its members in the order given, so what is trained on them is the same every time."""

    _listed: tuple[Any, ...]

    def __new__(cls, members: Sequence[Any]) -> _Ordered:
        made = super().__new__(cls, members)
        made._listed = tuple(members)
        return made

    def __iter__(self) -> Iterator[Any]:
        return iter(self._listed)


def _answered(function: Callable[[Any], Any], called: str, asked: Any, of: str, helps: str = "") -> Answer:
    """Return what the user's function says of a model or a set of names, which messages call ``of``."""
    with gated(f"{called}: fails for {of}", helps):
        said = function(asked)
    return _number(said, called, of)


def _number(worth: Any, function: str, of: str) -> Answer:
    """Return what the user's function said: a number, or an array of one for each sample.

    Raises:
        UserError: it is neither, or not finite.
    """
    plain = worth.detach().cpu() if isinstance(worth, Tensor) else worth
    several = hasattr(plain, "__array__") and np.ndim(plain) == 1 and len(plain) > 1
    try:  # NumPy reads words, dates, the real part of complex numbers, what is masked, and a lone True, too
        if np.asarray(plain).dtype.kind not in ("biufO" if several else "iufO") or np.ma.is_masked(plain):
            raise TypeError
        found = np.asarray(plain, np.float64) if several else float(plain)
    except (TypeError, ValueError, OverflowError):
        raise UserError(
            f"{function}: returned {worth!r:.80} for {of}: must be one number, finite, the more the better, or an "
            "array of one for each test sample"
        ) from None
    if not np.isfinite(found).all():
        shown = "a number that is not finite" if several else found
        raise UserError(f"{function}: returned {shown} for {of}: must be finite")
    return found


class _Coalitions:
    """The game: a coalition is worth ``evaluate`` of its updates' weighted average, the empty one that of ``start``.

    In the "increment" game it is worth that of ``start`` plus its updates' weighted steps.
    """

    def __init__(
        self,
        given: Given,
        weights: Floats,
        evaluate: Callable[[Any], Any],
        start: Tensor | float,
        kind: mixture.Game = "average",
    ) -> None:
        self._given, self.rows, self.weights, self.start = given, given.rows, weights, start
        self._evaluate, self._kind = evaluate, kind

    def asked(self, coalitions: Sequence[games.Coalition]) -> Iterator[Asked]:
        """Yield a question for each coalition; averages are made in batches, which is far faster than one by one."""
        some = max(1, _BATCH // (8 * max(1, self.rows.shape[1])))
        for first in range(0, len(coalitions), some):
            part = [sorted(coalition) for coalition in coalitions[first : first + some]]
            averages = self._models(part)
            for members, average in zip(part, averages, strict=True):
                if members:
                    yield self._worth(average, members)
                else:
                    yield self._worth(self.start.clone(), ()) if isinstance(self.start, Tensor) else self.start

    def _models(self, coalitions: Sequence[Sequence[int]]) -> Tensor:
        """Return the coalitions' models ``[m, P]``; zeros for the empty one of averages."""
        shares = self._shares(coalitions)
        with intra_op(1 if self.rows.numel() < _SHARED else None):
            if self._kind == "average":
                return shares @ self.rows
            assert isinstance(self.start, Tensor)
            return self.start + shares @ (self.rows - self.start)

    def _shares(self, coalitions: Sequence[Sequence[int]]) -> Tensor:
        """Return the weights ``[m, n]`` of the updates in each coalition's model; zeros for the empty one."""
        inside = np.zeros((len(coalitions), len(self.rows)))
        for line, members in zip(inside, coalitions, strict=True):
            own = self.weights[list(members)]
            if self._kind == "increment":
                line[list(members)] = own / self.weights.sum()
            else:
                line[list(members)] = own / own.sum() if own.any() else 1 / max(1, len(members))
        return torch.from_numpy(inside)

    def _worth(self, row: Tensor, members: Sequence[int]) -> Callable[[], Answer]:
        """Return the call of the user's function for a row, with no more than the model that it needs."""
        given = self._given
        model = given.put(given.form.made(row, given.updates[members[0] if members else 0]))
        who = f"updates {list(members)}" if given.keys is None else ", ".join(given.names[i] for i in members)
        of = f"the average of {who}" if members else "start"
        return partial(_answered, self._evaluate, "evaluate", model, of)

    def grams(self) -> list[Floats]:
        """Return which updates are alike: inner products ``[n, n]`` of their moves from the start, or from the mean."""
        base = self.start if isinstance(self.start, Tensor) else self.rows.mean(dim=0)
        return [inner_products(self.rows - base)]
