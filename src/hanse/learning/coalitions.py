"""The worth of coalitions of clients. Many models, built from the members' updates, are evaluated at once.

:class:`UpdateGame` is a run's utility for :mod:`hanse.games`: it takes a coalition and returns the worth of its model
on held-out samples. Usually that model is the weighted mean of the members' updates.
:class:`hanse.learning.scoring.Scorer` can often evaluate such a mixture of rows without building it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError, nearest
from hanse.base.pytorch import Tensor, torch
from hanse.core.part import Aggregate
from hanse.core.table import mix
from hanse.data.samples import Samples
from hanse.games.gram import inner_products
from hanse.games.mixture import Game
from hanse.learning.intervals import sample_blocks
from hanse.learning.job import Problem
from hanse.learning.metrics import METRICS, Metric, build_metric
from hanse.learning.native.engine import outputs_of_images
from hanse.learning.scoring import Chunk, KeptOutputs, ModelRows, Scorer
from hanse.learning.threads import shared_crew

WEIGHED = ("loss", "accuracy", "balanced")
"""The utilities that are weighted sums over the samples."""
Rule = Callable[[NDArray[np.int64]], Aggregate]
_LARGE = 16.0  # up to this sum of a mixture's absolute weights float32 loses at most one part in a million
_MADE = 1 << 23  # numbers: so many, of rows that a rule makes for coalitions, are held at once
WORST = -1e9
"""The utility of a model whose loss is not finite: games need finite numbers."""
# numbers: so many outputs of single players' models are kept; if there are more, those of the first samples only
_OUTPUTS = 1 << 25


class UpdateGame:
    """The game whose players are updates, on some samples: a utility for :mod:`hanse.games`.

    Coalition C's model is ``sum_C q_i U_i / sum_C q_i``, the plain mean if its weights sum to 0, and the base if C is
    empty. In the increment game it is ``base + sum_C w_i (U_i - base)``: the weights are not renormalised, and the
    others' steps are missing. A model with numbers or a worth that are not finite is worth :data:`WORST`. Nothing is
    cached here.

    Args:
        problem: the models and their loss (:class:`hanse.learning.job.Problem`).
        updates: ``[S, P]``, one row per player.
        base: ``[P]``, the model of the empty coalition.
        weights: ``[S]``, how much each update counts in a mean; a negative weight counts as 0.
        samples: the samples to score on.
        utility: "loss" (minus the mean loss), "accuracy", "balanced" (minus the mean over the classes of each class's
            mean loss), or a metric by name or import path (:mod:`hanse.learning.metrics`). A metric for which less is
            better is negated.
        workers: how many threads share the work. None: as many as PyTorch's intra-op setting says. The last bits of a
            utility depend on their number.
        keep_outputs: whether the outputs of single players' models are kept when they are evaluated, for
            :meth:`output_gram`.
        affine: ``(total, old)``: a coalition's model is ``total`` times the mean plus ``old`` times the base. This is
            for a table row in which the updates' weights sum to ``total``.
        again: a rule that returns a coalition's model instead of the mean, given the members' positions.
        game: "average" or "increment". For "increment", ``weights`` are the updates' weights in the table row, and
            ``affine`` is not used.
        floor: a utility. ``below_floor`` counts the models that are worth less.

    Attributes:
        evaluated: how many models were evaluated.
        below_floor: how many models were worth less than ``floor``.

    Raises:
        UserError: the utility is unknown, or does not exist for regression or for these samples, or there are no
            samples.
        ValueError: there is not exactly one weight for each update.

    Examples:
        >>> from hanse.learning.models import build_problem
        >>> problem, base = build_problem("logistic", (1,), None, seed=0)  # a line: weight and bias
        >>> samples = Samples(torch.tensor([[0.0], [1.0]]), torch.tensor([[0.0], [2.0]]))  # y = 2 x
        >>> updates = torch.tensor([[2.0, 0.0], [0.0, 0.0]])  # the line itself, and one that is flat
        >>> game = UpdateGame(problem, updates, torch.zeros(2), [1.0, 1.0], samples)
        >>> game.many([frozenset(), frozenset({0}), frozenset({0, 1})])  # minus the mean squared error
        [-2.0, 0.0, -0.5]
    """

    def __init__(
        self,
        problem: Problem,
        updates: Tensor,
        base: Tensor,
        weights: Sequence[float] | NDArray[np.float64] | Tensor,
        samples: Samples,
        *,
        utility: str = "loss",
        workers: int | None = None,
        keep_outputs: bool = False,
        affine: tuple[float, float] = (1.0, 0.0),
        again: Rule | None = None,
        game: Game = "average",
        floor: float = -math.inf,
    ) -> None:
        self.problem, self.utility = problem, utility
        self.floor, self.below_floor = floor, 0
        self.affine, self.again = (affine if game == "average" else None), again
        self.device = updates.device
        rows = torch.cat([updates, base.to(updates).unsqueeze(0)])
        finite = torch.isfinite(rows).all(1)
        # a row that is not finite must spoil its own coalitions only; since 0 x NaN is NaN, it is mixed as zeros, and
        # coalitions with it are marked later
        self.models = ModelRows(torch.where(finite.unsqueeze(1), rows, torch.zeros_like(rows)))
        self.spoilt = torch.nonzero(~finite).view(-1).tolist()
        given = np.asarray(weights, dtype=np.float64)
        self.shares = np.maximum(given, 0.0) if game == "average" else given
        self.samples = Samples(samples.x.to(self.device), samples.y.to(self.device), units=samples.units)
        self.metric = metric_of(problem, self.samples, utility)
        sign = 1.0 if utility == "accuracy" else -1.0  # utilities: more is better; losses: less is
        self.sample_weights = sign * _sample_weights(self.samples.y, utility)
        self.block_weights = sign * _block_weights(self.samples, utility)
        self._without: list[NDArray[np.float64]] = []
        self.evaluated = 0
        self.keep_outputs = keep_outputs
        self._outputs: dict[int, dict[int, Tensor]] = {}  # by row, then by the position of a chunk's first sample
        crew = shared_crew((workers or torch.get_num_threads()) if self.device.type == "cpu" else 1)
        native = outputs_of_images(problem) if rows.device.type == "cpu" and rows.dtype == torch.float32 else None
        self.scorer = Scorer(
            problem, self.device, updates.dtype, crew=crew, rights=utility == "accuracy", native=native
        )
        if len(self.shares) != len(updates):
            raise ValueError(f"{len(updates)} updates, but {len(self.shares)} weights")

    @property
    def players(self) -> int:
        """The number of updates, S."""
        return len(self.shares)

    @property
    def for_errors(self) -> NDArray[np.float64]:
        """The utilities ``[evaluated, B]`` from which the errors of values follow: on the samples without each of B
        blocks, so that column b leaves out block b.

        There are 20 blocks, or one for each sample if there are fewer than 20 samples. The rows are in the order of
        evaluation.
        """
        none = np.zeros((0, self.block_weights.shape[1]))
        return np.concatenate([none, *self._without])

    def __call__(self, coalition: frozenset[int]) -> float:
        """Return the utility of one coalition, the more the better."""
        return self.many([coalition])[0]

    def many(self, coalitions: Sequence[frozenset[int]]) -> list[float]:
        """Return the utility of each coalition, in order.

        Args:
            coalitions: sets of players, numbered from 0 to S - 1.

        Raises:
            ValueError: a player that does not exist.
        """
        if not coalitions:
            return []
        most = max(1, _OUTPUTS // (16 * len(self.samples)))  # models whose outputs a metric may hold at once
        if self.metric is not None and len(coalitions) > most:
            return [u for first in range(0, len(coalitions), most) for u in self.many(coalitions[first : first + most])]
        if self.again is None:
            shares = torch.from_numpy(mixtures(coalitions, self.shares, self.affine)).to(self.models.rows)
            return self._utilities(replace(self.models, shares=shares), self._alone(coalitions))
        most = max(1, _MADE // self.models.rows.shape[1])
        parts = [coalitions[a : a + most] for a in range(0, len(coalitions), most)]
        return [worth for part in parts for worth in self._by_rule(self.again, part)]

    def _by_rule(self, again: Rule, coalitions: Sequence[frozenset[int]]) -> list[float]:
        """Return the utilities of coalitions whose models the rule ``again`` makes: mixtures, or rows of their own."""
        rows = self.models.rows
        table, made = np.zeros((len(coalitions), self.players + 1)), list[Tensor]()
        for c, coalition in enumerate(coalitions):
            members = members_of(coalition, self.players)
            if not members:
                table[c, -1] = 1.0
                continue
            said = again(np.array(members))
            if said.row is not None:
                made.append(said.row.to(rows))
                table[c] = np.nan  # marks that its model is the next of the rows that are made
                continue
            assert said.weights is not None  # an aggregate has weights or a row
            weights = np.append(said.weights, said.old)
            # Weights so large that they cancel beyond what float32 can sum: such a model is made in float64, as the
            # table's rows are. A coalition with an update that is not finite is left as it is.
            if float(np.abs(said.weights).sum()) > _LARGE and not set(members) & set(self.spoilt):
                made.append(mix(weights[None], rows[members], rows[-1:])[0])
                table[c] = np.nan
            else:
                table[c, [*members, -1]] = weights
        if not made:
            return self._utilities(replace(self.models, shares=torch.from_numpy(table).to(rows)))
        apart = np.isnan(table[:, 0])
        worth = np.zeros(len(coalitions))
        without = np.zeros((len(coalitions), self.block_weights.shape[1]))
        new = torch.stack(made)
        finite = torch.isfinite(new).all(1)
        models = ModelRows(torch.where(finite[:, None], new, torch.zeros_like(new)), torch.eye(len(new)).to(rows))
        worth[apart] = self._utilities(models)
        without[apart] = self._without.pop()
        bad = np.flatnonzero(apart)[~finite.cpu().numpy()]
        worth[bad], without[bad] = WORST, WORST
        self.below_floor += len(bad) if self.floor > WORST else 0  # scored as zeros above, which guess
        if not apart.all():
            worth[~apart] = self._utilities(replace(self.models, shares=torch.from_numpy(table[~apart]).to(rows)))
            without[~apart] = self._without.pop()
        self._without.append(without)
        values: list[float] = worth.tolist()
        return values

    def _utilities(self, models: ModelRows, alone: Mapping[int, int] | None = None) -> list[float]:
        """Return the utility of each model, in order.

        ``alone`` says for which models the outputs are kept, and under which row.
        """
        worth = torch.zeros(len(models), dtype=torch.float64, device=self.device)
        without = torch.zeros(len(models), self.block_weights.shape[1], dtype=torch.float64, device=self.device)
        kept = alone or {}
        judged = KeptOutputs(len(models)) if self.metric is not None else None

        def weighed(chunk: Chunk) -> tuple[Tensor, Tensor]:
            for c in kept.keys() & set(chunk.which):
                self._keep(kept[c], chunk, chunk.which.index(c))
            if judged is not None:
                judged.keep(chunk)
            return self._weighed(chunk)

        for which, value, blocks in self.scorer.outcomes(models, self.samples, reduce=weighed):
            part = slice(which[0], which[-1] + 1)
            worth[part] += value
            without[part] += blocks
        if judged is not None and self.metric is not None:
            worth, without = (
                torch.from_numpy(measured).to(self.device) for measured in self._measured(self.metric, judged)
            )
        self.evaluated += len(models)
        bad = ~torch.isfinite(worth)
        if models.shares is not None and models.rows is self.models.rows:
            bad |= (models.shares[:, self.spoilt] != 0).any(1)
        worth[bad], without[bad] = WORST, WORST
        self._without.append(without.cpu().numpy())
        values: list[float] = worth.tolist()
        self.below_floor += sum(value < self.floor for value in values)
        return values

    def update_gram(self) -> NDArray[np.float64]:
        """Return the inner products ``[S, S]`` of how each update moved the base, ``U_i - base``."""
        rows = self.models.rows
        return inner_products(rows[:-1] - rows[-1])

    def output_gram(self) -> NDArray[np.float64] | None:
        """Return the inner products ``[S, S]`` of the single players' changes of the base's outputs.

        Logits are centred per sample first, since their level is arbitrary. The result is None unless the empty
        coalition and all single players were evaluated with ``keep_outputs``, and samples have outputs.
        """
        if set(self._outputs) != set(range(self.players + 1)):
            return None
        each = [torch.cat([part for _, part in sorted(kept.items())], 1) for _, kept in sorted(self._outputs.items())]
        shortest = min(outputs.shape[1] for outputs in each)
        rows = torch.stack([outputs[:, :shortest] for outputs in each])
        if rows.shape[1] > 1 and not self.problem.regression:
            rows = rows - rows.mean(dim=1, keepdim=True)
        moves = (rows[:-1] - rows[-1]).flatten(1)
        return inner_products(moves) if bool(torch.isfinite(moves).all()) else None

    def _alone(self, coalitions: Sequence[frozenset[int]]) -> dict[int, int]:
        """Return the row whose outputs are to be kept, the base's or a single player's, by the position of its
        coalition.
        """
        if not self.keep_outputs:
            return {}
        return {c: min(one, default=self.players) for c, one in enumerate(coalitions) if len(one) <= 1}

    def _keep(self, row: int, chunk: Chunk, place: int) -> None:
        """Keep a row's outputs on a chunk of samples, as long as those of all rows fit into memory."""
        if chunk.outputs is None:
            return
        end = chunk.begin + chunk.outputs.shape[2]
        if chunk.begin == 0 or end * chunk.outputs.shape[1] * (self.players + 1) <= _OUTPUTS:
            self._outputs.setdefault(row, {})[chunk.begin] = chunk.outputs[place].clone()

    def _measured(self, metric: Metric, kept: KeptOutputs) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the models' utilities by a metric, ``[C]``, and those with a block left out, ``[C, B]``."""
        sign, some = -1.0 if metric.reading.less_is_better else 1.0, self.samples
        judged = [self.problem.predictions(some.y, *kept.of(c), some.units) for c in range(len(kept.parts))]
        return sign * metric.of_models(judged), sign * metric.of_models_without_blocks(judged)

    def _weighed(self, chunk: Chunk) -> tuple[Tensor, Tensor]:
        """Return what a chunk adds to the utilities, ``[C']``, and to those with a block left out, ``[C', B]``."""
        outcomes = (chunk.right if self.utility == "accuracy" else chunk.loss).double()
        part = slice(chunk.begin, chunk.begin + outcomes.shape[1])
        return outcomes @ self.sample_weights[part], outcomes @ self.block_weights[part]


def members_of(coalition: frozenset[int], players: int) -> list[int]:
    """Return a coalition's players in ascending order.

    Raises:
        ValueError: a player that is not one of ``players``.
    """
    members = sorted(coalition)
    if members and not 0 <= members[0] <= members[-1] < players:
        raise ValueError(f"coalition {members} names a player outside 0..{players - 1}")
    return members


def mixtures(
    coalitions: Sequence[frozenset[int]], shares: NDArray[np.float64], affine: tuple[float, float] | None
) -> NDArray[np.float64]:
    """Return the weight of each update, and of the base in the last column, in each coalition's model, ``[C, S + 1]``.

    Args:
        coalitions: sets of players.
        shares: ``[S]``, the weight of each update, 0 or more.
        affine: ``(total, old)``, see :class:`UpdateGame`; None for the increment game.

    Examples:
        >>> mixtures([frozenset(), frozenset({0, 1})], np.array([3.0, 1.0]), (1.0, 0.0)).tolist()
        [[0.0, 0.0, 1.0], [0.75, 0.25, 0.0]]
        >>> mixtures([frozenset(), frozenset({0})], np.array([0.75, 0.25]), None).tolist()
        [[0.0, 0.0, 1.0], [0.75, 0.0, 0.25]]
    """
    if affine is None:
        there = np.zeros((len(coalitions), len(shares)))
        for c, coalition in enumerate(coalitions):
            there[c, members_of(coalition, len(shares))] = 1.0
        steps = there * shares
        return np.column_stack([steps, 1.0 - steps.sum(axis=1)])
    total, old = affine
    table = np.zeros((len(coalitions), len(shares) + 1))
    for c, coalition in enumerate(coalitions):
        members = members_of(coalition, len(shares))
        mine = shares[members]
        whole = mine.sum()
        table[c, members or [-1]] = mine / whole if whole > 0 else 1.0 / max(1, len(members))
        if members and affine != (1.0, 0.0):
            table[c] *= total
            table[c, -1] = old
    return table


def _block_weights(samples: Samples, utility: str) -> Tensor:
    """Return :func:`_sample_weights` with each of B blocks left out in turn, float64 ``[n, B]``."""
    y, n, blocks = samples.y, len(samples), sample_blocks(len(samples), samples.units)
    kept = np.ones((n, len(blocks)))
    for b, block in enumerate(blocks):
        kept[block.numpy(), b] = 0.0
    if utility != "balanced":
        return torch.from_numpy(kept / kept.sum(axis=0)).to(y.device)
    labels = y.cpu().numpy()
    of_class = np.zeros((int(labels.max()) + 1, n))
    of_class[labels, np.arange(n)] = 1.0
    counts = of_class @ kept  # samples of each class that are left, [classes, B]
    weights = np.divide(kept, counts[labels], out=np.zeros_like(kept), where=kept > 0) / (counts > 0).sum(axis=0)
    return torch.from_numpy(weights).to(y.device)


def metric_of(problem: Problem, samples: Samples, utility: str) -> Metric | None:
    """Return the metric that a utility names, or None if the utility is a plain sum over samples (:data:`WEIGHED`).

    Args:
        problem: the models, their loss and the metrics of their tests.
        samples: the samples to score on.
        utility: the utility's name or import path.

    Raises:
        UserError: the name is unknown, such samples do not have the metric, or there are no samples at all.
    """
    known = {metric.key: metric for metric in problem.metrics}
    if utility not in WEIGHED and utility not in METRICS and utility not in known and ":" not in utility:
        raise UserError(f"utility is {utility!r}{nearest(utility, {*WEIGHED, *METRICS, *known})}")
    if problem.regression and utility in ("accuracy", "balanced"):
        raise UserError(f"utility is {utility!r}, but regression has no classes; use 'loss'")
    if len(samples) == 0:
        raise UserError("there are no validation samples to value coalitions on")
    if utility in WEIGHED:
        return None
    text = problem.judge is not None or (samples.y.ndim > 1 and not problem.regression)
    classes = None if problem.regression else 2  # only whether there are classes matters here, not how many
    metric = known.get(utility) or build_metric(utility, classes, text=text, where="utility")
    if gap := metric.gap(samples.y.cpu().numpy()):
        raise UserError(f"utility is {utility!r}, but {gap.replace('test samples', 'validation samples')}")
    return metric


def _sample_weights(y: Tensor, utility: str) -> Tensor:
    """Return how much the outcome of each sample with target ``y`` counts, float64 ``[n]``, with the sum 1."""
    n = len(y)
    if utility != "balanced":
        return torch.full((n,), 1 / n, dtype=torch.float64, device=y.device)
    if y.ndim > 1:
        raise UserError("utility is 'balanced', but texts have many classes each; use 'loss' or 'accuracy'")
    counts = torch.bincount(y)
    return 1.0 / (counts[y].double() * (counts > 0).sum())
