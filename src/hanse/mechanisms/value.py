"""VALUE: what each update was worth to the row that it trained.

The seats with the same target row form a group, and each group plays its own cooperative game. The players are the
seats. A coalition's worth is the server's validation utility of its members' model. That model is the round's mix
restricted to the members, with their weights scaled up to the sum of all weights; the old row keeps its weight. The
empty coalition's model is the old row. A weigh rule that returns a row, or ``reapply``, is instead applied to the
members' updates, with its state from before the round.

:class:`GameValue` sets up these games. Its subclasses solve them. :class:`GTG`, :class:`MixtureValue` and
:class:`MonteCarlo` estimate Shapley values. :class:`Exact`, :class:`Banzhaf` and :class:`LeaveOneOut` compute exact
values. :class:`FirstOrder` and :class:`FirstOrderAtClients` play no game. They use a gradient, at the server or at the
clients. :class:`Path` follows the gradient along the whole step of the row. :class:`GroupPath` does the same if the
server sees only sums of updates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import AfterValidator, Field

from hanse.base.errors import UserError, nearest
from hanse.base.factories import Positive, Weight
from hanse.base.pytorch import Tensor, torch
from hanse.core.part import (
    Aggregated,
    CoalitionGame,
    Context,
    Most,
    Size,
    State,
    ValuePart,
    Values,
    View,
    in_slots,
    set_words,
)
from hanse.core.port import Derived, Gradient, Request
from hanse.core.table import Floats, Ints, Mix, mix
from hanse.core.telling import Measure, Telling
from hanse.games import group_sums, mixture, path, shapley
from hanse.games.first_order import impartial_places
from hanse.games.gtg import Stop
from hanse.learning.by_function import FunctionCoalitions
from hanse.learning.coalitions import WEIGHED, WORST
from hanse.learning.metrics import METRICS, WORSE
from hanse.mechanisms.weigh import noise_of, sample_shares


def _utility(name: str) -> str:
    """Return the name if it is a utility, or may be an import path. Raises ValueError."""
    if name not in (*WEIGHED, *METRICS) and ":" not in name:
        raise ValueError(f"no such utility{nearest(name, {*WEIGHED, *METRICS})}")
    return name


Utility = Annotated[str, AfterValidator(_utility)]
"""What coalitions are judged by: "loss", "accuracy", "balanced", or a metric by name or import path."""
VALIDATION = frozenset({"validation"})


@dataclass(frozen=True)
class Solved:
    """The solution of one group's game, with m players.

    Attributes:
        values: ``[m]``, one value per player.
        without_block: the values with each of B blocks of validation samples left out in turn, ``[m, B]``; those of
            random worths where a user's function judges, until :func:`steadied` has made errors of them.
        errors: standard errors ``[m]``; None for exact values.
        metrics: what to record; summed over the groups of a round.
    """

    values: Floats
    without_block: Floats
    errors: Floats | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def _by_block(solve: Callable[[Floats], Floats], game: CoalitionGame) -> Floats:
    """Return what ``solve`` makes of the worths that the game has for its values' errors, ``[m, B]``."""
    # A block may hold all samples of a class, without which a metric has no value. Then the players have none either.
    none = np.full(game.players, np.nan)
    found = [none if np.isnan(worth).any() else solve(worth) for worth in game.for_errors.T]
    return np.stack(found, axis=1) if found else np.zeros((game.players, 0))


def steadied(solved: Solved, game: CoalitionGame) -> Solved:
    """Return the solution with the errors of a user's function that does not say the same of a model twice.

    hanse's own judge says the same, and is not asked twice.
    """
    if not isinstance(game, FunctionCoalitions):
        return solved
    m = len(solved.values)
    errors = np.hypot(0.0 if solved.errors is None else solved.errors, game.errors(solved.without_block))
    known = None if solved.errors is None and not errors.any() else errors
    return replace(solved, errors=known, without_block=np.full((m, 1), np.nan))


@dataclass(frozen=True)
class GameValue(ValuePart):
    """Sets up each group's game in units of ``utility``. Subclasses solve it in ``solve``.

    Attributes:
        utility: how models are judged: "loss" (by how much it falls), "accuracy", "balanced" accuracy, or another
            metric, given by its name or import path.
        game: how a coalition's model is made. "average": the average of its members' updates. "increment": the old row
            plus the weighted steps of only its members.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("greedyfed").before("value")
        >>> values, state = part.value(view, state)
        >>> values.per_seat.shape
        (4,)
    """

    needs = VALIDATION | {"groups"}
    accepts = frozenset({"reapply", "along"})
    measured: ClassVar[Measure] = Measure(
        "Shapley value",
        "A Shapley value is what an update added, in the mean over all the groups of the others that it could have "
        "joined; the values of a round sum to what the round gained.",
        share_out=True,
    )
    keep_outputs: ClassVar[bool] = False
    utility: Utility = field(default="loss", kw_only=True)
    game: mixture.Game = field(default="average", kw_only=True)

    def __post_init__(self) -> None:
        """Take no rule that is applied again where coalitions are sums of steps: such a rule's step is not a sum.

        A step has its worth in a group of one, too; an average of one has nothing to share.
        """
        if self.game == "increment":
            set_words(self, needs=in_slots(self.needs, ["value"]) - {"groups"}, accepts=frozenset())

    def tells(self, standing: frozenset[str]) -> Telling:
        """Return the telling with this part's measure.

        In the game of averages a client with data unlike the others' makes small coalitions' models worse.
        """
        scatters = self.measured.scatters or self.game == "average"
        return Telling(measures=replace(self.measured, scatters=scatters))

    def solve(self, game: CoalitionGame, n: int, seed: int) -> Solved:
        """Return the values of a game with ``n`` players.

        Args:
            game: returns the utilities of many coalitions at once, as ``view.judge.coalitions(...)`` makes it.
            n: number of players.
            seed: the seed of all its draws.
        """
        raise NotImplementedError

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return the value of every seat, ``[S]``. Metrics are summed over the groups.

        If the utility is the cross-entropy, ``value/worse_than_guessing`` counts the evaluated models whose loss is
        above ln C, with C classes. ``value/not_averages`` counts the groups whose new row is not just a weighted
        average. For these the game is only an approximation, because it averages the updates.

        Args:
            view: the round. The method reads ``table``, ``judge``, ``trained``, ``mixed``, ``get`` and ``draw``.
            state: the part's state, always ``{}``, since this part keeps none.
        """
        updates = view.trained
        per_seat = np.zeros(len(updates))
        errors = np.full(len(updates), np.nan)
        metrics = {"value/models_evaluated": 0.0}
        without, estimated = dict[int, Floats](), False
        noise = noise_of(updates)
        for row, seats in updates.seats.groups().items():
            group = _counted(view, seats, self.game)
            if not len(group):
                continue
            game = self._game(view, row, group)
            solved = steadied(self.solve(game, len(group), _seed(view)), game)
            per_seat[group] = solved.values
            without |= dict(zip(group.tolist(), solved.without_block, strict=True))
            if solved.errors is not None:
                errors[group], estimated = solved.errors, True
            if noise[group].any():  # which moves these values by nobody knows how much
                errors[group], estimated = np.nan, True
            metrics["value/models_evaluated"] += game.evaluated
            if game.floor > -math.inf:
                metrics[WORSE] = metrics.get(WORSE, 0.0) + game.below_floor
            for name, amount in solved.metrics.items():
                metrics[name] = metrics.get(name, 0.0) + amount
            if game.again is None and not _only_these(view.mixed, row, seats, len(updates), self.game):
                metrics["value/not_averages"] = metrics.get("value/not_averages", 0.0) + 1.0
        metrics["value/sum"] = float(per_seat.sum())
        none = np.zeros(max(map(len, without.values()), default=0))
        without_block = np.stack([without.get(seat, none) for seat in range(len(updates))])
        return Values(per_seat, errors if estimated else None, metrics, without_block), state

    def _game(self, view: View, row: int, group: Ints) -> CoalitionGame:
        """Return the game of the seats at positions ``group [m]``, which train the table's row ``row``."""
        told = view.get(Aggregated)
        again = None if told is None else told.again.get(row)
        updates, old, weights = view.trained.rows[group], view.table.rows[row], view.mixed.W[row, group]
        options: dict[str, Any] = {"again": again, "keep_outputs": self.keep_outputs}
        if again is None and self.game == "increment":
            options["game"] = self.game
            if (view.trained.seats.start[group] != row).any():
                updates = old + _steps(view, group)
        elif again is None:
            options["affine"] = _affine(view.mixed, row, group, len(view.trained)) or (1.0, 0.0)
        return view.judge.coalitions(updates, old, weights, self.utility, **options)


def _counted(view: View, seats: Ints, kind: mixture.Game) -> Ints:
    """Return those of the ``seats [m]`` that are players of a row's game.

    An update of weight 0 is none, and in a game of averages one of a weight below 0 neither: no coalition's model has
    anything of it, so it is worth 0.
    """
    weights = view.weights[seats]
    return seats[~((weights <= 0) if kind == "average" else (weights == 0))]


def _steps(view: View, group: Ints) -> Tensor:
    """Return how far the updates at positions ``group [m]`` are from the rows that they started from, ``[m, P]``.

    That is mostly the row that they train. pFedGraph's clients start from another, and what takes the trained row there
    is in no update.
    """
    start = view.trained.seats.start[group]
    one = len(group) > 0 and bool((start == start[0]).all())
    return view.trained.rows[group] - view.table.rows[int(start[0]) if one else torch.from_numpy(start)]


def _affine(mixed: Mix, row: int, group: Ints, seats: int) -> tuple[float, float] | None:
    """Return the sum of the group's weights in a new row, and the old row's weight; exactly (1, 0) for an average.

    Return None if anything else went into the row, or a weight is below 0: then the group's coalitions say nothing
    about it.
    """
    if not _only_these(mixed, row, group, seats, "average"):
        return None
    total, old = float(mixed.W[row, group].sum()), float(mixed.W[row, seats + row :][:1].sum())
    return (1.0, 0.0) if abs(total - 1) < 1e-6 and abs(old) < 1e-6 else (total, old)


def _new_row(view: View, row: int) -> Tensor:
    """Return a row of the table as the round makes it, ``[P]``."""
    made = view.mixed.made.get(row)
    return made.row if made is not None else mix(view.mixed.W[row][None], view.trained.rows, view.table.rows)[0]


def _only_these(mixed: Mix, row: int, group: Ints, seats: int, game: mixture.Game) -> bool:
    """Whether a new row is made of the group's updates and the old row alone, so the group's game is about it.

    A game of averages takes no weight below 0 either.
    """
    others = mixed.W[row].copy()
    others[group] = 0.0
    others[seats + row : seats + row + 1] = 0.0  # a slice: a row that is new in this round has no old row
    below = game == "average" and bool((mixed.W[row, group] < 0).any())
    return not below and not bool((np.abs(others) >= 1e-6).any())


def _known(numbers: Floats) -> Floats | None:
    """Return the numbers, or None if all are NaN."""
    return None if np.isnan(numbers).all() else numbers


def _seed(view: View) -> int:
    """Return the seed of this round's draws."""
    return int(view.draw("value").integers(2**62))


@dataclass(frozen=True)
class GTG(GameValue):
    """GTG-Shapley (GreedyFed Alg. 2): guided permutations, truncated between and within rounds.

    Attributes:
        eps: the truncation threshold in units of the utility. If a round changes the utility by less, all values are 0
            and nothing is sampled. A permutation ends once its coalition's utility is within ``eps`` of the utility of
            all seats.
        max_permutations: the most permutations to draw. None: 50 for each seat (papers.md G4).
        stop: sampling ends when "every" seat's estimate has converged, or only their "mean", as in the authors' code
            (after about 20 permutations).
    """

    eps: Weight = 1e-4
    max_permutations: Positive | None = None
    stop: Stop = "every"

    def solve(self, game: CoalitionGame, n: int, seed: int) -> Solved:
        """Return estimated Shapley values ``[n]`` with their standard errors.

        Recorded: requests for a utility, permutations, how many of these were cut with several seats left, which no
        error contains (:attr:`hanse.games.gtg.GTGEstimate.cut`), and whether the round was truncated as a whole.

        Args:
            game: returns the utilities of many coalitions at once, as ``view.judge.coalitions(...)`` makes it.
            n: number of players.
            seed: the seed of the draws.
        """
        found = shapley.gtg(game, n, self.eps, self.max_permutations, seed=seed, stop=self.stop)
        counts = {
            "value/requests": float(found.evaluations),
            "value/permutations": float(found.permutations),
            "value/cut_short": float(found.cut),
            "value/truncated_between": float(found.truncated_between),
        }
        return Solved(found.values, found.along(game.for_errors), _known(found.standard_errors), counts)


@dataclass(frozen=True)
class _Among:
    """The game among some ``players [m]`` of a larger one, who are numbered 0 to m - 1 in it."""

    game: shapley.Memo
    players: Ints

    def named(self, coalitions: Sequence[shapley.Coalition]) -> list[shapley.Coalition]:
        """Return coalitions with the numbers that their players have in the larger game."""
        return [frozenset(self.players[list(one)].tolist()) for one in coalitions]

    def __call__(self, coalition: shapley.Coalition) -> float:
        return self.many([coalition])[0]

    def many(self, coalitions: Sequence[shapley.Coalition]) -> list[float]:
        return self.game.many(self.named(coalitions))


_SURE = 40  # models for each seat at most, where the ranking is to be sure and no budget is given


@dataclass(frozen=True)
class MixtureValue(GameValue):
    """Shapley values from a function fitted to the utilities of mixtures of updates (:mod:`hanse.games.mixture`).

    A smooth function is fitted to the utilities of ``budget`` models, and its values are computed. A seat whose own
    model has no finite loss leaves the game before it starts. It gets the value that such a model has for the whole
    group.

    Attributes:
        budget: the most models of a group that are evaluated. None: 10 for each seat, or 40 with ``sure``. If all
            coalitions fit, the values are exact. If a budget is too small for the number of seats, it is raised to the
            least that works.
        sure: evaluation stops as soon as the ranking of the seats is right with this probability, such as 0.95. None:
            all models are used. Seats that differ by less than a hundredth of the sum of the positive values need not
            be ranked.
    """

    accepts = frozenset()  # the surrogate is one of mixtures
    keep_outputs = True  # of single players' models: their likeness guides the surrogate
    budget: Positive | None = None
    sure: Annotated[float, Field(gt=0.5, lt=1)] | None = None

    def solve(self, game: CoalitionGame, n: int, seed: int) -> Solved:
        """Return estimated values ``[n]`` with their standard errors.

        Args:
            game: returns the utilities of many coalitions at once, as ``view.judge.coalitions(...)`` makes it.
            n: number of players.
            seed: the seed of the draws.
        """
        memo = shapley.Memo(game)
        alone = np.array(memo.many([frozenset(), *(frozenset({i}) for i in range(n))]))[1:]
        sound = np.flatnonzero(alone > WORST)
        values, errors = np.full(n, WORST), np.zeros(n)
        without = np.full((n, game.for_errors.shape[1]), WORST)
        metrics: dict[str, float] = {"value/not_finite": float(n - len(sound))}
        if len(sound):
            found = self._among(memo, game, sound, seed)
            worth = game.for_errors[memo.places(_Among(memo, sound).named(found.fit.design.coalitions()))]
            values[sound], errors[sound] = found.values, found.standard_errors
            without[sound] = found.fit.values(worth)
            metrics |= {"value/exact_games": float(found.exact)}
        return Solved(values, without, errors, metrics)

    def _among(self, memo: shapley.Memo, game: CoalitionGame, sound: Ints, seed: int) -> mixture.MixtureEstimate:
        """Return the Shapley values of the game among the players ``sound [m]``, who are numbered 0 to m - 1 in it."""

        def grams() -> list[Floats]:
            both = (game.update_gram(), game.output_gram())
            return [gram[np.ix_(sound, sound)] for gram in both if gram is not None]

        m = len(sound)
        most = self.budget if self.budget is not None or self.sure is None else _SURE * m
        budget = None if most is None else max(most, min(2**m, 2 * m + 2))
        among = _Among(memo, sound)
        enough = None if self.sure is None else mixture.ranking_settled(self.sure)
        return mixture.mixture(among, m, game.shares[sound], grams, budget, seed, enough=enough, game=self.game)


@dataclass(frozen=True)
class MonteCarlo(GameValue):
    """Shapley values, as mean marginal utilities over random permutations.

    Attributes:
        permutations: how many permutations to draw. Each evaluates at most as many models as there are seats.
    """

    permutations: Positive = 100

    def solve(self, game: CoalitionGame, n: int, seed: int) -> Solved:
        """Return estimated Shapley values ``[n]`` with their standard errors.

        Args:
            game: returns the utilities of many coalitions at once, as ``view.judge.coalitions(...)`` makes it.
            n: number of players.
            seed: the seed of the draws.
        """
        found = shapley.monte_carlo_result(game, n, self.permutations, seed)
        return Solved(found.values, found.along(game.for_errors), _known(found.standard_errors))


class _AllCoalitions(GameValue):
    """Evaluates all 2^m coalitions of a group, which must be small.

    Attributes:
        of_game: returns the values of ``n`` players from the function that evaluates coalitions.
        of_table: returns them from the utilities of all coalitions.
    """

    of_game, of_table = staticmethod(shapley.exact), staticmethod(shapley.shapley_from_table)

    def unfit(self, size: Size) -> Sequence[str]:
        """Return a line if a round's updates of one model are too many."""
        return self._too_many(size.seats) if size.one_model else ()

    def _too_many(self, n: int) -> Sequence[str]:
        """Return a line if a group of ``n`` updates is too large."""
        if n <= shapley.MAX_EXACT_PLAYERS:
            return ()
        return [
            f"mechanism.value: all coalitions of {n} updates are 2**{n} models; allowed: at most "
            f"{shapley.MAX_EXACT_PLAYERS} updates, or 'mixture', 'monte_carlo' or 'gtg'"
        ]

    def solve(self, game: CoalitionGame, n: int, seed: int) -> Solved:
        """Return exact values ``[n]``.

        Args:
            game: returns the utilities of many coalitions at once, as ``view.judge.coalitions(...)`` makes it.
            n: number of players.
            seed: not read here.

        Raises:
            UserError: the group is too large.
        """
        if lines := self._too_many(n):
            raise UserError(*lines)
        return Solved(self.of_game(game, n), _by_block(self.of_table, game))


@dataclass(frozen=True)
class Exact(_AllCoalitions):
    """The exact Shapley value, over all 2^m coalitions of a group."""


@dataclass(frozen=True)
class LeaveOneOut(GameValue):
    """The leave-one-out value of a seat: what its group loses without it. Takes m + 1 evaluated models."""

    measured = Measure(
        "leave-one-out value",
        "A leave-one-out value is what would be lost if this client alone left. Clients with similar data can stand in "
        "for each other, so each gets about 0, and which of them are below 0 is mostly chance.",
        marginal=True,
        scatters=True,
    )

    def solve(self, game: CoalitionGame, n: int, seed: int) -> Solved:
        """Return ``v(N) - v(N without i)``, ``[n]``.

        Args:
            game: returns the utilities of many coalitions at once, as ``view.judge.coalitions(...)`` makes it.
            n: number of players.
            seed: not read here.
        """
        values = shapley.leave_one_out(game, n)
        return Solved(values, _by_block(lambda worth: worth[0] - worth[1:], game))


@dataclass(frozen=True)
class Banzhaf(_AllCoalitions):
    """The exact Banzhaf value: the mean marginal utility over all coalitions of the others, from 2^m models."""

    of_game, of_table = staticmethod(shapley.banzhaf), staticmethod(shapley.banzhaf_from_table)
    measured = Measure(
        "Banzhaf value",
        "A Banzhaf value is what an update added, in the mean over all groups of the others, most of which have about "
        "half of them. The values do not sum to what the round gained.",
    )


@dataclass(frozen=True)
class FirstOrder(ValuePart):
    """PI-FL's first-order Shapley value: the validation gradient at the mixed model times each update's change.

    This needs one gradient instead of 2^m models.

    Attributes:
        normalised: True for eq. (2), whose values sum to zero and rank well. False for eq. (1), whose values depend on
            the origin of the parameters.
    """

    needs = VALIDATION | {"slope", "server_gradient"}
    measured = Measure(
        "first-order value",
        "A first-order value is how far an update moved the model down the slope of the loss, against the mean update. "
        "The values of a round sum to zero: they rank, and share out nothing.",
        ranks=True,
    )
    normalised: bool = True

    def judged_by(self) -> str:
        """Return that the server judges."""
        return "the server's validation samples judge contributions: mechanism.value = 'first_order'"

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return first-order values ``[S]``. They cover only the parameters, since buffers have no gradient.

        Values are 0 in a group whose mixed model has no finite gradient.

        Args:
            view: the round. The method reads ``judge``, ``trained`` and ``mixed``.
            state: the part's state, always ``{}``, since this part keeps none.
        """
        updates, width = view.trained, view.context.layout.num_parameters
        per_seat, without_block = np.zeros(len(updates)), np.zeros((len(updates), 0))
        for row, group in updates.seats.groups().items():
            weights = sample_shares(view.mixed.W[row, group])
            mixed = mix(weights[None], updates.rows[group], updates.rows[:0])
            gradient = view.judge.gradient(mixed)[0, :width]
            lacking = view.judge.gradients_without_block(mixed)[:, :width]
            if not without_block.size:
                without_block = np.zeros((len(updates), len(lacking)))
            if not bool(gradient.isfinite().all() & lacking.isfinite().all()):
                continue
            params = updates.rows[group, :width]
            per_seat[group] = shapley.first_order(gradient, params, weights, self.normalised)
            for b, one in enumerate(lacking):
                without_block[group, b] = shapley.first_order(one, params, weights, self.normalised)
        return Values(per_seat, metrics={"value/sum": float(per_seat.sum())}, without_block=without_block), state


@dataclass(frozen=True)
class FirstOrderAtClients(ValuePart):
    """PI-FL's first-order Shapley values (Alg. 2) on the data of the clients that trained.

    Each client sends the loss gradient of its group's mean update on its own data. The gradient of a group is the mean
    over its clients, weighted by samples. The gradient is taken at the sample-weighted mean of the updates. This is the
    new model itself, unless the mechanism averages in another way.

    Attributes:
        normalised: True for eq. (2), False for eq. (1).
        share: on which share of their data clients compute the gradient.
        samples: the most samples on which the gradient is computed. None: all of that share.
        judges: the clients whose gradients determine a client's value. "all", as in the paper: all clients in its
            group, including itself. Clients are believed, so one that sends a false gradient can get the highest value.
            "others": in each round the clients of a group are divided at random into two halves, and each half judges
            the other. A value is then a rank (:func:`hanse.games.first_order.impartial_places`), and nothing that a
            client sends about others changes its own. No gradient counts as longer than the median of its half. "auto"
            means "others", with one exception. If this part is the mechanism's own and the server has a validation set,
            "first_order" replaces it before the run, and ``config.toml`` records that.
    """

    needs = frozenset({"groups", "gradients"})
    measured = Measure(
        "standing among the others",
        "A standing says where an update is among those of its model, from -1/2 (last) to 1/2 (first), by the "
        "first-order values that half of the other clients give it. The standings of a round sum to zero.",
        ranks=True,
    )
    normalised: bool = True
    share: Literal["train", "validation"] = "train"
    samples: Positive | None = 64
    judges: Literal["auto", "others", "all"] = "auto"

    def resolved(self, given: Mapping[str, Any], validation: bool) -> Mapping[str, Any] | None:
        """Return the table of who judges, if that is open: the server, unless the table has more options of this part.

        Args:
            given: the table ``[mechanism.value]`` of the experiment.
            validation: whether the server has validation samples.
        """
        if self.judges != "auto":
            return None
        if validation and given.keys() <= {"judges", "normalised"}:
            return {"name": "first_order", "normalised": self.normalised}
        return {**given, "judges": "others"}

    def judged_by(self) -> str:
        """Return which clients judge, with a warning if each judges itself, too."""
        if self.judges != "all":
            return "clients judge each other's contributions, in two halves: mechanism.value.judges = 'others'"
        told = f"{SELF_JUDGED[0].lower()}{SELF_JUDGED[1:]} With 'others', or value = 'first_order', none can."
        return f"warning: mechanism.value.judges: 'all': {told}"

    def tells(self, standing: frozenset[str]) -> Telling:
        """Return the part's description: what a value is, and what is wrong with values that clients compute."""
        if self.judges != "all":
            return super().tells(standing)
        return Telling(warning=SELF_JUDGED, measures=FirstOrder.measured)

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most."""
        return {"Gradient": Most(1, 1, self.share, self.samples)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask the clients of each group for the gradient of the group's mean update.

        Args:
            view: the round. The method reads ``stage`` and ``trained``.
            state: the part's state, always ``{}``, since this part keeps none.
        """
        if view.stage != "close":
            return ()
        updates = view.trained
        found = []
        for row, group in updates.seats.groups().items():
            weights = sample_shares(updates.num_samples[group])
            mean = mix(weights[None], updates.rows[group], updates.rows[:0])
            task = Gradient(_question(row), mean, self.share, self.samples)
            found += [Request(c, (task,)) for c in np.unique(updates.seats.client[group]).tolist()]
        return found

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return first-order values, or ranks, ``[S]``.

        If no judge sends a gradient, values are 0 and ranks are drawn at random. ``value/unjudged`` counts such seats.

        Args:
            view: the round. The method reads ``answers``, ``trained``, ``mixed`` and ``draw``.
            state: the part's state, always ``{}``, since this part keeps none.
        """
        updates, width = view.trained, view.context.layout.num_parameters
        per_seat, heard, unjudged = np.zeros(len(updates)), 0, 0
        for row, seats in updates.seats.groups().items():
            group = _counted(view, seats, "average")
            if not len(group):
                continue
            clients = updates.seats.client[group]
            gradients = self._gradients(view, row, np.unique(clients).tolist(), width)
            heard += len(gradients)
            weights = sample_shares(np.maximum(view.mixed.W[row, group], 0.0))
            models = updates.rows[group, :width]

            def worth(judges: Gradients, models: Tensor = models, weights: Floats = weights) -> Floats:
                """Return what the group's updates are worth to some judges."""
                return shapley.first_order(_mean(judges), models, weights, self.normalised)

            if self.judges == "all":
                per_seat[group] = worth(gradients) if gradients else 0.0
                unjudged += 0 if gradients else len(group)
            else:
                per_seat[group], without = _by_halves(view.draw("judges", start=row), clients, gradients, worth)
                unjudged += without
        metrics = {
            "value/sum": float(per_seat.sum()),
            "value/gradients": float(heard),
            "value/unjudged": float(unjudged),
        }
        return Values(per_seat, metrics=metrics), state

    def _gradients(self, view: View, row: int, clients: Sequence[int], width: int) -> Gradients:
        """Return the gradients that came and are finite, by client, each with its number of samples: at most as many
        as were asked for, whatever it reports.
        """
        found = {}
        for c in clients:
            answer = view.answers.get((c, _question(row)))
            if isinstance(answer, Derived) and answer.num_samples > 0:
                gradient = answer.gradients[0, :width].double().cpu()
                if bool(torch.isfinite(gradient).all()):
                    found[c] = (gradient, min(answer.num_samples, self.samples or answer.num_samples))
        return found


Gradients = Mapping[int, tuple[Tensor, int]]
"""Gradients ``[P]`` by client, each with the number of samples that it is the mean of."""
SELF_JUDGED = (
    "What an update is worth is computed here from gradients that the clients send, its own client's included, as in "
    "PI-FL's paper. Nothing proves them: a client that sends a false one can make its own update worth the most."
)


def _by_halves(
    draw: np.random.Generator, clients: Ints, gradients: Gradients, worth: Callable[[Gradients], Floats]
) -> tuple[Floats, int]:
    """Return the places of a group's seats, ``[m]``, judged in two halves, and how many seats had no judge.

    Args:
        draw: deals the halves, and breaks ties.
        clients: ``[m]``, the client of each seat.
        gradients: what the clients sent.
        worth: what all the seats are worth to some judges, ``[m]``.
    """
    dealt, lot = draw.permutation(np.unique(clients)), draw.permutation(len(clients))
    half = np.isin(clients, dealt[: len(dealt) // 2])
    values, unjudged = np.zeros(len(clients)), 0
    for side in (True, False):
        here = half == side
        judges = {c: gradients[c] for c in np.unique(clients[~here]).tolist() if c in gradients}
        if judges:
            values[here] = worth(_bounded(judges))[here]
        else:
            unjudged += int(here.sum())
    places = np.zeros(len(clients))
    places[lot] = impartial_places(values[lot], half[lot], bool(draw.integers(2)))
    return places, unjudged


def _bounded(gradients: Gradients) -> Gradients:
    """Return the gradients, none of them longer than their (lower) median, so no client judges alone."""
    lengths = {c: float(gradient.norm()) for c, (gradient, _) in gradients.items()}
    most = float(np.quantile(list(lengths.values()), 0.5, method="lower"))
    return {c: (g * (most / lengths[c]) if lengths[c] > most else g, n) for c, (g, n) in gradients.items()}


def _question(row: int) -> str:
    """Return the name of the question for the gradient of a row's group."""
    return f"gradient {row}"


def _mean(gradients: Gradients) -> Tensor:
    """Return the mean of the gradients, weighted by samples."""
    total = sum(samples for _, samples in gradients.values())
    first, *rest = ((samples / total) * gradient for gradient, samples in gradients.values())
    return sum(rest, start=first)


def _differentiable(name: str) -> str:
    """Return the utility's name if it has a gradient. Raises ValueError, with the alternative, otherwise."""
    if name != "loss":
        raise ValueError("must be 'loss', whose gradient path values follow; 'exact', 'mixture' and 'gtg' take others")
    return name


def _scaled(gradients: Tensor, view: View, row: int, group: Ints) -> tuple[Tensor, Floats]:
    """Return the mean gradients ``[B, P]`` as a step to a row scaled them, and the weights ``[m]`` of its updates."""
    if row not in view.mixed.made:
        return gradients, view.mixed.W[row, group]
    told = view.get(Aggregated)
    along = None if told is None else told.said[row].along
    assert along is not None  # what this part does not accept is refused where rows are made
    # a server's step scales the parameters; buffers are averaged
    scaled, width = gradients.clone(), view.context.layout.num_parameters
    scaled[:, :width] *= along.scale
    return scaled, along.weights


@dataclass(frozen=True)
class Path(ValuePart):
    """Path values: the fall of the validation loss along each row's step, divided among the updates.

    They are the Aumann-Shapley value of the increment game (:mod:`hanse.games.path`). Update i is worth the integral of
    the loss's slope in the direction of its weighted step ``W_i (U_i - w_i)``, taken from the old row w to the new one.
    Here w_i is the row from which the update started (w, except in pFedGraph). Their computation takes ``points``
    gradients, however many updates there are. The weights W_i are those of the round, also where a rule chose them by
    looking at all updates (a clip, Krum). With a server optimiser, an update's part is its weighted step as scaled by
    the optimiser in this round.

    Whatever else changes the loss belongs to nobody and is recorded as ``value/residual``. This is the round's gain,
    ``value/gain``, minus the sum of the values, ``value/sum``, over ``value/rows`` rows. Of this residual,
    ``value/carried`` comes from the part of the step that is in no update (momentum, other rows mixed in). The
    remainder is the error of the integral, and the effect of buffers without a gradient (all but the statistics of
    PyTorch's batch norms).

    A value is linear in the update. So declared noise (``[federation] private``) moves the value by a known standard
    deviation: the product of the update's weight, the noise, and the length of the mean gradient. What noise costs by
    making the path itself worse is estimated, and the standard error contains both (``_noise_errors``).

    Attributes:
        points: the number of Gauss-Legendre points on the path, 1 to 24. It is doubled while the integral differs from
            the gain by more than 1 %.
        utility: "loss".
    """

    needs = VALIDATION | {"slope"}
    accepts = frozenset({"along", "reweighted"})
    measured = Measure(
        "path value",
        "A path value is how much of the round's improvement came through the update. All path values add up to the "
        "whole improvement, but for what came through nobody's update.",
        share_out=True,
    )
    points: Annotated[int, Field(ge=1, le=path.MOST_POINTS)] = 3
    utility: Annotated[str, AfterValidator(_differentiable)] = field(default="loss", kw_only=True)

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return path values ``[S]``.

        A group is worth 0 if its path has no finite gradient or ends at a loss that is not finite. ``value/not_finite``
        counts such groups.

        Args:
            view: the round. The method reads ``table``, ``judge``, ``trained``, ``mixed`` and ``context``.
            state: the part's state, always ``{}``, since this part keeps none.
        """
        updates, shares = view.trained, view.judge.block_shares
        per_seat, by_block = np.zeros(len(updates)), np.zeros((len(updates), len(shares)))
        noise, errors = noise_of(updates), np.zeros(len(updates))
        metrics, by_row = {"value/gradients": 0.0, "value/not_finite": 0.0}, dict[int, dict[str, float]]()
        for row, group in updates.seats.groups().items():
            ends = torch.stack([view.table.rows[row], _new_row(view, row)])
            before, after = view.judge.score(ends).loss.tolist()
            gain, carried = before - after, 0.0
            found = path.integrate(
                view.judge.block_gradients, ends[0], ends[1] - ends[0], self.points, gain=-gain, shares=shares
            )
            metrics["value/gradients"] += found.evaluated
            gradients, weights = _scaled(found.gradients, view, row, group)
            along = replace(found, gradients=gradients).along(_steps(view, group))
            mine = -weights[:, None] * along
            if math.isfinite(gain) and np.isfinite(mine).all():
                by_block[group], per_seat[group] = mine, mine @ shares
                if noise[group].any():
                    errors[group] = self._noise_errors(view, row, group, gradients, weights * noise[group], -gain)
                carried = -found.total - float(per_seat[group].sum())
            else:
                metrics["value/not_finite"] += 1
            residual = gain - float(per_seat[group].sum())
            by_row[row] = {"value/gain": gain, "value/carried": carried, "value/residual": residual}
        for name in ("value/gain", "value/carried", "value/residual"):
            metrics[name] = float(sum(parts[name] for parts in by_row.values()))
        metrics["value/sum"], metrics["value/rows"] = float(per_seat.sum()), float(len(by_row))
        without = by_block[:, :0]
        if len(shares) > 1:
            without = (per_seat[:, None] - by_block * shares) / (1 - shares)
        known = errors if noise.any() else None
        return Values(per_seat, known, metrics=metrics, without_block=without, by_row=by_row), state

    def _noise_errors(self, view: View, row: int, group: Ints, gradients: Tensor, noise: Floats, rise: float) -> Floats:
        """Return the standard errors ``[m]`` of a group's values due to noise (``[federation] private``).

        Noise moves a value by chance: to first order by the slope of the loss times the noise. And it makes models
        worse. Noise of the variance V at each number of a model raises the loss by about ``c V``, with ``c = tr(H) /
        2`` and H the Hessian of the loss. It does so in every round, and always upwards. An error includes both effects
        (:func:`_together`). So nobody is said to have clearly done harm, or good, because of noise alone.

        Args:
            view: the round.
            row: the row that the group trains.
            group: ``[m]``, the seats.
            gradients: ``[B, P]``, the mean gradients of the path, as :func:`_scaled` returns them.
            noise: ``[m]``, the noise in each number of each weighted update.
            rise: of the loss along the path.
        """
        shares, old = torch.from_numpy(view.judge.block_shares), view.table.rows[row]
        first = view.judge.block_gradients(old)
        # a server's step scales what it is given, so the noise in its row has the squared length |scale|^2
        scale, _ = _scaled(torch.ones_like(gradients[:1]), view, row, group)
        squares = float(scale.square().sum()) * np.square(noise)
        worse = _worsened(rise, shares.to(first) @ first, _new_row(view, row) - old, squares)
        slope = torch.linalg.vector_norm(shares.to(gradients) @ gradients, dtype=torch.float64)
        return _together(np.abs(noise) * float(slope), worse, view.round)


def _worsened(rise: float, slope: Tensor, step: Tensor, squares: Floats) -> Floats:
    """Return by how much noise raised the loss of a row that a round moved, ``[m]``: a part for each of its noises.

    What counts is how much more the loss rose along the step than the slope at its start predicts. Where the step is
    nothing but noise, the squares share that (for normal noise this is exact in expectation, by Stein's lemma). Where
    it is longer, only its part.

    Args:
        rise: of the loss along the step.
        slope: ``[P]``, at the step's start.
        step: ``[P]``.
        squares: ``[m]``, the expected squared lengths of the noises in the step.
    """
    moved = step.to(slope)
    beyond = max(0.0, rise - float(slope @ moved))
    whole = max(float(moved @ moved), float(squares.sum()))
    return beyond * squares / whole if whole > 0 else np.zeros_like(squares)


def _together(chance: Floats, worse: Floats, round: int) -> Floats:
    """Return standard errors ``[m]`` that include the noise, for values that are summed over rounds.

    Over t rounds chance adds up as sqrt(t) and harm as t. With ``e_r^2 = chance^2 + (2 r + 1) worse^2`` the errors of
    the rounds 0 to t - 1 add up to ``e^2 = t chance^2 + t^2 worse^2``. Then ``1.96 e`` is at least ``t worse + 1.645
    sqrt(t) chance`` (Cauchy-Schwarz). So of all sums of noise alone, at most 5 % are clearly below 0.

    Args:
        chance: the standard deviation of each value by noise, to first order.
        worse: by how much the noise moves each value in expectation.
        round: r, from 0.
    """
    return np.asarray(np.hypot(chance, math.sqrt(2 * round + 1) * worse))


@dataclass(frozen=True)
class GroupPath(Path):
    """Path values for members whose updates the server sees only in sums (``[federation] secure``).

    A path value is linear in the update, so the value of a group's sum is the sum of its members' values. The members'
    values are estimated by least squares over the rounds so far, in which groups change
    (:mod:`hanse.games.group_sums`). In every round the values of a group's members sum to the group's value. The
    squares of the standard errors can be added over rounds (:func:`hanse.games.group_sums.shares`).

    Two figures are recorded besides those of :class:`Path`: ``value/sums``, how many sums were seen so far, and
    ``value/noise``, how much a member's value changes from round to round (a standard deviation).

    Attributes:
        points: as for :class:`Path`.
        prior: the weight, in rounds, of the mean of all clients in each client's mean value.
        utility: "loss".

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> federation = {"secure": {"group": 3}}
        >>> small = rehearse({"name": "fedavg", "value": "group_path"}, federation=federation)
        >>> part, view, state = small.before("value")
        >>> values, state = part.value(view, state)
        >>> values.per_seat.shape, state["count"]
        ((4,), 1)
    """

    needs = VALIDATION | {"secure", "slope"}
    accepts = frozenset({"sums"})
    measured = Measure(
        "path value from sums",
        "A path value is how much of the round's improvement came through the update. Here only sums of groups "
        "of updates are seen, and a member's part of its group's value is estimated over the rounds, in which groups "
        "change.",
        share_out=True,
    )
    prior: Annotated[float, Field(ge=1e-6, le=1e6)] = group_sums.PRIOR

    def init(self, context: Context) -> State:
        """Return the state before any round: the normal equations of no sums."""
        return {**vars(group_sums.Sums.none(context.num_clients))}

    def unfit(self, size: Size) -> Sequence[str]:
        """Return a line if there are too many clients to keep an equation for each pair."""
        if size.clients <= group_sums.MOST_MEMBERS:
            return ()
        allowed = f"allowed: at most {group_sums.MOST_MEMBERS}"
        return [f"mechanism.value: 'group_path' with {size.clients} clients; {allowed}"]

    def value(self, view: View, state: State) -> tuple[Values, State]:
        """Return the values of the members whose groups were summed, ``[S]``.

        Args:
            view: the round. The method reads ``context.sums``, ``seats`` and what :meth:`Path.value` reads.
            state: as :meth:`init` makes it.
        """
        seen, _ = super().value(view, {})
        assert view.context.sums is not None  # guaranteed by the need "secure"
        assert view.seats is not None
        clients = view.trained.seats.client
        groups = [np.flatnonzero(np.isin(clients, one)) for one in view.context.sums(view.seats.client, view.round)]
        groups = [at for at in groups if len(at)]
        if not groups:
            return seen, state
        sums = np.array([seen.per_seat[at].sum() for at in groups])
        known = group_sums.Sums(**state).and_these([clients[at] for at in groups], sums)
        members = group_sums.members(known, self.prior)
        per_seat, errors = seen.per_seat.copy(), np.full(len(clients), np.nan)
        without = None if seen.without_block is None else seen.without_block.copy()
        for at, amount in zip(groups, sums.tolist(), strict=True):
            per_seat[at], errors[at] = group_sums.shares(members, clients[at], amount)
            if without is not None:  # another draw of the samples moves the group's sum, and each member by its share
                without[at] = per_seat[at, None] + (without[at].sum(0) - amount) / len(at)
        metrics = {**seen.metrics, "value/sums": float(known.count)}
        if math.isfinite(members.noise):
            metrics["value/noise"] = members.noise
        found = replace(seen, per_seat=per_seat, standard_errors=errors, without_block=without, metrics=metrics)
        return found, {**vars(known)}
