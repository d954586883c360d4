"""hanse's own selector: it chooses the best combination of clients, not the best individuals.

If every client holds a single class, no client is valuable alone, and greedy choice by value fails. (If some clients
hold all classes, choice by value finds them.) This selector therefore estimates what data each client has. It chooses
clients whose data *together* are what the model lacks.

The estimate works as follows (:func:`mixtures`). A client's update is nearly a combination of the directions in which
the loss of each class falls. The server knows these directions: they are gradients on its validation set, class by
class. The non-negative combination nearest to the update estimates what the client holds. Unlike a gradient, this
mixture stays valid when the model changes. So only a few numbers per client are kept.

Some part of an update is explained by no class. It is either noise or the detail of the client's own samples; the
detail is short. Noise may be longer than anything learnt in a round, and then the best combination of mixtures is
useless. So noise counts as a distance (:func:`noise_of`). And an update that does not move, such as a free rider's,
does not count as a mixture. :func:`best_set` makes the choice, and :class:`SetAware` is the part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hanse.base.factories import PartShare, Positive, Weight
from hanse.base.pytorch import Tensor
from hanse.core.part import Choice, Context, SelectPart, Size, State, View
from hanse.core.table import Floats, Ints
from hanse.mechanisms.select import VALUES, average_in, meet_all, no_values, too_short

_STILL = 0.01  # a client that went less than this share of the median client's way has done nothing
_PASSES = 10  # at most this many passes over the seats, in each of which every seat may be given to another client


def mixtures(moves: Tensor, gradients: Tensor) -> tuple[Floats, Floats, Floats]:
    """Return what clients hold, estimated from their updates.

    ``p >= 0`` minimises ``|moves + p (gradients, scaled to length 1)|``. A client's mixture is ``p`` divided by its
    sum, and that sum is how far the client went. If no class's loss falls along a move, the move counts as an even
    mixture that went nowhere.

    Args:
        moves: the change of the model by each update, ``[S, P]``.
        gradients: the loss gradient of each class, ``[G, P]``.

    Returns:
        Three arrays: the mixtures ``[S, G]``, with rows that sum to 1; how far each client went, ``[S]``; and the
        squared length of the part of its move that no class explains, ``[S]``.

    Examples:
        Two classes with orthogonal gradients. The first client descends for both, the second does nothing:

        >>> import torch
        >>> gradients = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
        >>> moves = torch.tensor([[-3.0, -1.0, 2.0], [0.0, 0.0, 0.0]])
        >>> mixture, went, unexplained = mixtures(moves, gradients)
        >>> mixture.round(3).tolist(), went.round(3).tolist(), unexplained.round(3).tolist()
        ([[0.75, 0.25], [0.5, 0.5]], [4.0, 0.0], [4.0, 0.0])
    """
    from scipy.optimize import nnls

    lengths = gradients.norm(dim=1, keepdim=True)
    directions = -gradients / lengths.clamp(min=1e-12)
    gram = (directions @ directions.T).double().cpu().numpy()
    inner = (directions @ moves.T).double().cpu().numpy().T
    unexplained = moves.double().square().sum(1).cpu().numpy()
    # Least squares in the few dimensions that the directions span, not in P: from the Gram matrix of the directions.
    values, vectors = np.linalg.eigh(gram)
    keep = values > 1e-6 * max(float(values[-1]), 1e-12)
    root = np.sqrt(values[keep])
    factor = root[:, None] * vectors[:, keep].T
    found, went = np.full(inner.shape, 1 / gram.shape[0]), np.zeros(len(inner))
    for k, b in enumerate(inner):
        target = (vectors[:, keep].T @ b) / root
        size = float(np.linalg.norm(target))
        if size > 0 and np.isfinite(size):
            p, _ = nnls(factor, target / size)  # scaled to length 1 for the solver
            if p.sum() > 0:
                found[k], went[k] = p / p.sum(), p.sum() * size
                unexplained[k] = max(0.0, unexplained[k] - np.square(factor @ p * size).sum())
    return found, went, np.nan_to_num(unexplained, nan=1e30, posinf=1e30)


def noise_of(unexplained: Floats, went: Floats) -> Floats:
    """Return the squared length of noise in updates, ``[n]``, in units of the median client's squared distance.

    An honest client's own detail stays below one such unit, so only the excess counts as noise.

    Args:
        unexplained: squared length of what no class explains, ``[n]``.
        went: how far each client went, ``[n]``.
    """
    step = max(float(np.median(went)), 1e-12)
    return np.asarray(np.maximum(unexplained / step**2 - 1.0, 0.0))


def best_set(mixture: Floats, samples: Floats, target: Floats, bonus: Floats, m: int, noise: Floats) -> Ints:
    """Return ``m`` rows of ``mixture [n, G]`` whose weighted mean is nearest to a target.

    The rows minimise ``|mean - target|^2 + sum w^2 noise`` minus the mean of their bonus, where w are their weights in
    the mean. Clients are added one by one, and then replaced one by one while that helps. Ties go to the lower
    position.

    Args:
        mixture: what each client holds, ``[n, G]``.
        samples: the clients' weights in a mean, ``[n]``, above 0.
        target: the wanted mixture, ``[G]``.
        bonus: favours single clients, ``[n]``.
        m: how many to choose; all, if there are fewer.
        noise: squared length of the noise in each client's update, ``[n]``.

    Examples:
        Two specialists together match an even target better than two clients that are half right:

        >>> mixture = np.array([[1.0, 0.0], [0.7, 0.3], [0.8, 0.2], [0.0, 1.0]])
        >>> best_set(mixture, np.ones(4), np.array([0.5, 0.5]), np.zeros(4), 2, np.zeros(4)).tolist()
        [0, 3]
    """
    chosen: list[int] = []
    spread = np.square(samples) * noise

    def best(others: list[int]) -> tuple[int, Floats]:
        """Return the best row to add to these ``others``, and what each row would cost, ``[n]``."""
        total = samples[others].sum() + samples
        mean = ((samples[others] @ mixture[others]) + samples[:, None] * mixture) / total[:, None]
        cost = np.square(mean - target).sum(1) + (spread[others].sum() + spread) / np.square(total)
        cost -= (bonus[others].sum() + bonus) / (len(others) + 1)
        cost[others] = np.inf
        return int(np.argmin(cost)), cost

    for _ in range(min(m, len(mixture))):
        chosen.append(best(chosen)[0])
    for _ in range(_PASSES):
        before = list(chosen)
        for seat, holder in enumerate(before):
            other, cost = best(chosen[:seat] + chosen[seat + 1 :])
            if cost[other] < cost[holder] - 1e-12:
                chosen[seat] = other
        if chosen == before:
            break
    return np.array(chosen, dtype=np.int64)


@dataclass(frozen=True)
class SetAware(SelectPart):
    """Every client once, then the clients whose data together are nearest to what the model needs.

    The model needs classes in proportion to its validation losses on them, to the power ``emphasis``. The part of a
    client's update that classes do not explain counts as noise if it is longer than the median client's move. The
    client alone would then add ``caution`` times the noise's square, in squares of that median, to the squared distance
    from the target. A client that moves less than a hundredth of the median is not chosen again.

    Two bonuses decide between sets that are about equally near. Their unit is the squared distance: 0 is a perfect
    match, 2 the worst. In regression, deciles of the target replace classes.

    Attributes:
        clients_per_round: how many clients train in a round.
        emphasis: with 0, all classes count equally. The larger it is, the more the classes with large losses count.
        rest: the bonus of a client that has not trained for N / M rounds. A client that trained more recently gets
            less.
        worth: the bonus for a large cumulative Shapley value, and the penalty for a small one. The penalty keeps out
            clients that send noise.
        memory: the weight of the old estimate when a client trains again, below 1.
        caution: the weight of the noise. With 0, noise does not count.
        class_samples: the most validation samples of a class that are used to compute its direction.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("set_aware", 2).before("select")
        >>> choice, state = part.select(view, state)
        >>> len(choice.clients)
        4
    """

    needs = VALUES | {"validation", "server_classes"}
    clients_per_round: Positive = 10
    emphasis: Weight = 1.0
    rest: Weight = 0.02
    worth: Weight = 0.02
    memory: PartShare = 0.5
    caution: Weight = 1.0
    class_samples: Positive = 100

    def unfit(self, size: Size) -> Sequence[str]:
        """Return a warning if the run ends before everyone has sat once."""
        return too_short(size)

    def init(self, context: Context) -> State:
        """Return the state in which nothing is known of any client yet.

        ``went``, ``unexplained`` and ``samples`` are ``[N]``. ``mixture [N, G]`` gets its width with the first update.
        ``last [N]`` is the last round in which each client trained (-1: never).
        """
        n = context.num_clients
        return {
            **no_values(context),
            "mixture": np.zeros((n, 0)),
            "went": np.zeros(n),
            "unexplained": np.zeros(n),
            "samples": np.zeros(n),
            "last": np.full(n, -1),
        }

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the next block of the first phase, in which everyone trains once, and after that phase the best set.

        ``select/distance`` records the squared distance between the set's mixture and the target.

        Args:
            view: the round. The method reads ``round``, ``present``, ``table``, ``home`` and ``judge``.
            state: as :meth:`init` makes it.
        """
        meeting = meet_all(view, state, self.clients_per_round)
        if meeting is not None:
            return meeting, state
        known = self._known(view, state)
        if len(known) == 0:
            return Choice(view.present[: self.clients_per_round]), state
        mixture, target, samples = state["mixture"][known], self._target(view), state["samples"][known]
        noise = self.caution * noise_of(state["unexplained"][known], state["went"][known])
        seats = best_set(mixture, samples, target, self._bonus(view, state, known), self.clients_per_round, noise)
        reached = samples[seats] @ mixture[seats] / samples[seats].sum()
        distance = float(np.square(reached - target).sum())
        return Choice(known[seats], metrics={"select/exploring": 0, "select/distance": distance}), state

    def _known(self, view: View, state: State) -> Ints:
        """Return the present clients that have sat and moved the model; if nobody moved it, all that have sat."""
        sat: Ints = view.present[state["last"][view.present] >= 0]
        if len(sat) == 0:
            return sat
        moved: Ints = sat[state["went"][sat] > _STILL * np.median(state["went"][sat])]
        return moved if len(moved) else sat

    def _target(self, view: View) -> Floats:
        """Return how much of each class the model needs, ``[G]``, summing to 1."""
        losses = view.judge.class_losses(view.table.rows[int(view.home[view.present[0]])])
        # bounds: a class is never left out entirely, and one whose loss is not finite is what the model needs most
        finite = np.where(np.isfinite(losses), np.maximum(losses, 1e-6), 1e6)
        wanted = finite**self.emphasis
        return np.asarray(wanted / wanted.sum())

    def _bonus(self, view: View, state: State, known: Ints) -> Floats:
        """Return the bonuses ``[n]`` of known clients, for having rested and for their cumulative value."""
        away = (view.round - state["last"][known]) * self.clients_per_round / len(known)
        # percentiles, so a single extreme value does not set the scale
        low, middle, high = np.percentile(state["cumulative"][known], [5, 50, 95])
        value = np.clip((state["cumulative"][known] - middle) / max(high - low, 1e-12), -1, 1)
        return np.asarray(self.rest * np.minimum(away, 1.0) + self.worth * value)

    def learn(self, outcome: View, state: State) -> State:
        """Include this round's values in the averages, and estimate what data the clients hold that trained.

        Args:
            outcome: the finished round. The method reads ``round``, ``table``, ``judge``, ``choice``, ``trained`` and
                ``values``.
            state: as :meth:`init` makes it.
        """
        after = {**state, **average_in(outcome, state, "mean", "first")}
        updates, width = outcome.trained, outcome.context.layout.num_parameters
        if not len(updates):
            return after
        start = outcome.table.rows[updates.seats.start]
        gradients = outcome.judge.class_gradients(start[0], self.class_samples)[:, :width]
        found = mixtures((updates.rows - start)[:, :width], gradients)
        who, n = updates.seats.client, len(state["last"])
        old = np.where(state["last"][who] >= 0, self.memory, 0.0)
        for name, new in zip(("mixture", "went", "unexplained"), found, strict=True):
            fits = state[name].shape[1:] == new.shape[1:]  # before the first update the number of classes is unknown
            after[name] = state[name].copy() if fits else np.zeros((n, *new.shape[1:]))
            after[name][who] = (old * after[name][who].T + (1 - old) * new.T).T
        after["samples"], after["last"] = state["samples"].copy(), state["last"].copy()
        after["samples"][who], after["last"][who] = np.maximum(updates.num_samples, 1.0), outcome.round
        return after

    def figures(self, state: State) -> Mapping[str, Floats]:
        """Return each client's cumulative value, ``[N]``."""
        return {"cumulative_value": state["cumulative"]}
