"""A selector of our own: it chooses the combination, not the individuals.

Where every client holds one class no client is valuable by itself, and purely greedy choice fails; where some clients
hold everything, choosing by value finds them. This one finds out what each client's data are like, and seats clients
whose data *together* are what the model lacks.

A client's update is nearly a combination of the directions in which the loss of each class falls, and the server knows
those directions: they are gradients on its validation set, class by class. The non-negative combination that is nearest
to the update tells what the client holds. Unlike a gradient, it stays true when the model moves on, so a few numbers a
client are all that is kept.

What no class explains of an update is either the detail that its own samples teach, which is short, or noise, which may
be longer than all that anybody learns in a round: then the best combination of mixtures is worth nothing. So noise
counts as a distance, too, and an update that goes nowhere (a free rider's) is no mixture of anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from hanse.base.factories import Positive, Weight
from hanse.core.part import Choice, Context, SelectPart, State, View
from hanse.core.table import Floats, Ints
from hanse.mechanisms.select import VALUES, average_in, meet_all, no_values

_STILL = 0.01  # who went less than this share of the median client's way has done nothing
_PASSES = 10  # at most so many passes over the seats, each of which may change hands


def mixtures(moves: Tensor, gradients: Tensor) -> tuple[Floats, Floats, Floats]:
    """Return what clients hold, from their updates' moves ``[S, P]`` and the loss gradients of the classes ``[G, P]``:
    the mixtures ``[S, G]`` with rows summing to 1, how far each went in that ``[S]``, and the squared length of what no
    class explains of its move ``[S]``.

    ``p >= 0`` minimises ``|moves + p (gradients, scaled to length 1)|``; a mixture is ``p`` over its sum, and that sum
    is how far it went. A move that descends for no class is taken for an even mixture that went nowhere.
    """
    from scipy.optimize import nnls

    lengths = gradients.norm(dim=1, keepdim=True)
    directions = -gradients / lengths.clamp(min=1e-12)
    gram = (directions @ directions.T).double().cpu().numpy()
    inner = (directions @ moves.T).double().cpu().numpy().T
    unexplained = moves.double().square().sum(1).cpu().numpy()
    values, vectors = np.linalg.eigh(gram)  # least squares in the few dimensions that the directions span
    keep = values > 1e-6 * max(float(values[-1]), 1e-12)
    root = np.sqrt(values[keep])
    factor = root[:, None] * vectors[:, keep].T
    found, went = np.full(inner.shape, 1 / gram.shape[0]), np.zeros(len(inner))
    for k, b in enumerate(inner):
        target = (vectors[:, keep].T @ b) / root
        size = float(np.linalg.norm(target))
        if size > 0 and np.isfinite(size):
            p, _ = nnls(factor, target / size)
            if p.sum() > 0:
                found[k], went[k] = p / p.sum(), p.sum() * size
                unexplained[k] = max(0.0, unexplained[k] - np.square(factor @ p * size).sum())
    return found, went, np.nan_to_num(unexplained, nan=1e30, posinf=1e30)


def noise_of(unexplained: Floats, went: Floats) -> Floats:
    """Return the squared length ``[n]`` of the noise in clients' updates, in squares of the median client's way: what
    is ``unexplained [n]`` beyond one such square, for an honest client's own detail stays below it.
    """
    step = max(float(np.median(went)), 1e-12)
    return np.asarray(np.maximum(unexplained / step**2 - 1.0, 0.0))


def best_set(mixture: Floats, samples: Floats, target: Floats, bonus: Floats, m: int, noise: Floats) -> Ints:
    """Return ``m`` rows of ``mixture [n, G]`` whose mean, weighted by ``samples [n]``, is nearest to ``target [G]``:
    they minimise ``|mean - target|^2 + sum w^2 noise`` (``w``: their weights in that mean; ``noise [n]``: the squared
    length of what is in their updates besides) less the mean of their ``bonus [n]``.

    Seats are filled one by one and then changed one by one while that helps; ties go to the lower position.
    """
    chosen: list[int] = []
    spread = np.square(samples) * noise

    def best(others: list[int]) -> tuple[int, Floats]:
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
    """Everyone once, then the M clients whose data together are nearest to what the model needs: classes in proportion
    to the model's validation losses on them, to the power ``emphasis``.

    What classes do not explain of a client's updates counts as noise as far as it is longer than the way that the
    median client goes: its square, in squares of that way, is what the client alone would add to the squared distance,
    times ``caution`` (0: noise does not count). Who goes less than a hundredth of that way is not seated again.

    Two bonuses decide among sets that are about as near (squared distances, in which 0 is a perfect match and 2 the
    worst): up to ``rest`` for clients that have not sat for N / M rounds, and up to ``worth`` for those of large
    cumulative Shapley value (as much less for small ones), so that who sends noise is left out. ``memory`` is the share
    of the old estimate that a client keeps when it sits again; ``class_samples`` bounds the validation samples of a
    class that its direction is taken from. Regression has tenths by target for classes.
    """

    needs = VALUES | {"validation"}
    meets_everyone = True
    clients_per_round: Positive = 10
    emphasis: Weight = 1.0
    rest: Weight = 0.02
    worth: Weight = 0.02
    memory: Annotated[float, Field(ge=0, lt=1)] = 0.5
    caution: Weight = 1.0
    class_samples: Positive = 100

    def init(self, context: Context) -> State:
        """Nobody is known."""
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
        """Return the next round-robin block while somebody was never met, then the best set."""
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
        """Return who of those present has sat and moved the model at all; all who have sat if nobody moved it."""
        sat: Ints = view.present[state["last"][view.present] >= 0]
        if len(sat) == 0:
            return sat
        moved: Ints = sat[state["went"][sat] > _STILL * np.median(state["went"][sat])]
        return moved if len(moved) else sat

    def _target(self, view: View) -> Floats:
        """Return how much of each class the model needs, ``[G]``, summing to 1."""
        losses = view.judge.class_losses(view.table.rows[int(view.home[view.present[0]])])
        finite = np.where(np.isfinite(losses), np.maximum(losses, 1e-6), 1e6)
        wanted = finite**self.emphasis
        return np.asarray(wanted / wanted.sum())

    def _bonus(self, view: View, state: State, known: Ints) -> Floats:
        away = (view.round - state["last"][known]) * self.clients_per_round / len(known)
        low, middle, high = np.percentile(state["cumulative"][known], [5, 50, 95])
        value = np.clip((state["cumulative"][known] - middle) / max(high - low, 1e-12), -1, 1)
        return np.asarray(self.rest * np.minimum(away, 1.0) + self.worth * value)

    def learn(self, outcome: View, state: State) -> State:
        """Average the values in and find out what those who sat hold."""
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
            fits = state[name].shape[1:] == new.shape[1:]  # not before the first update: how many classes there are
            after[name] = state[name].copy() if fits else np.zeros((n, *new.shape[1:]))
            after[name][who] = (old * after[name][who].T + (1 - old) * new.T).T
        after["samples"], after["last"] = state["samples"].copy(), state["last"].copy()
        after["samples"][who], after["last"][who] = np.maximum(updates.num_samples, 1.0), outcome.round
        return after

    def figures(self, state: State) -> Mapping[str, Floats]:
        """Return each client's cumulative value."""
        return {"cumulative_value": state["cumulative"]}
