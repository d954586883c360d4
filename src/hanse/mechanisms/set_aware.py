"""A selector of our own: it chooses the combination, not the individuals.

Where every client holds one class no client is valuable by itself, and purely greedy choice fails; where some clients
hold everything, choosing by value finds them. This one finds out what each client's data are like, and seats clients
whose data *together* are what the model lacks.

A client's update is nearly a combination of the directions in which the loss of each class falls, and the server knows
those directions: they are gradients on its validation set, class by class. The non-negative combination that is nearest
to the update tells what the client holds. Unlike a gradient, it stays true when the model moves on, so a few numbers a
client are all that is kept.
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

_PASSES = 10  # at most so many passes over the seats, each of which may change hands


def mixtures(moves: Tensor, gradients: Tensor) -> Floats:
    """Return what clients hold, ``[S, G]`` with rows summing to 1, from their updates' moves ``[S, P]`` and the loss
    gradients of the classes ``[G, P]``.

    ``p >= 0`` minimises ``|moves + p (gradients, scaled to length 1)|``; a move that descends for no class is taken for
    an even mixture.
    """
    from scipy.optimize import nnls

    lengths = gradients.norm(dim=1, keepdim=True)
    directions = -gradients / lengths.clamp(min=1e-12)
    gram = (directions @ directions.T).double().cpu().numpy()
    inner = (directions @ moves.T).double().cpu().numpy().T
    values, vectors = np.linalg.eigh(gram)  # least squares in the few dimensions that the directions span
    keep = values > 1e-6 * max(float(values[-1]), 1e-12)
    root = np.sqrt(values[keep])
    factor = root[:, None] * vectors[:, keep].T
    found = np.full(inner.shape, 1 / gram.shape[0])
    for k, b in enumerate(inner):
        target = (vectors[:, keep].T @ b) / root
        size = float(np.linalg.norm(target))
        if size > 0 and np.isfinite(size):
            p, _ = nnls(factor, target / size)
            found[k] = p / p.sum() if p.sum() > 0 else found[k]
    return found


def best_set(mixture: Floats, samples: Floats, target: Floats, bonus: Floats, m: int) -> Ints:
    """Return ``m`` rows of ``mixture [n, G]`` whose mean, weighted by ``samples [n]``, is nearest to ``target [G]``:
    they minimise ``|mean - target|^2`` less the mean of their ``bonus [n]``.

    Seats are filled one by one and then changed one by one while that helps; ties go to the lower position.
    """
    chosen: list[int] = []

    def best(others: list[int]) -> tuple[int, Floats]:
        total = samples[others].sum() + samples
        mean = ((samples[others] @ mixture[others]) + samples[:, None] * mixture) / total[:, None]
        cost = np.square(mean - target).sum(1) - (bonus[others].sum() + bonus) / (len(others) + 1)
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
    class_samples: Positive = 100

    def init(self, context: Context) -> State:
        """Nobody is known."""
        n = context.num_clients
        return {
            **no_values(context),
            "mixture": np.zeros((n, 0)),
            "samples": np.zeros(n),
            "last": np.full(n, -1),
        }

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the next round-robin block while somebody was never met, then the best set."""
        meeting = meet_all(view, state, self.clients_per_round)
        if meeting is not None:
            return meeting, state
        known = view.present[state["last"][view.present] >= 0]
        if len(known) == 0:
            return Choice(view.present[: self.clients_per_round]), state
        mixture, target = state["mixture"][known], self._target(view)
        seats = best_set(
            mixture, state["samples"][known], target, self._bonus(view, state, known), self.clients_per_round
        )
        reached = state["samples"][known[seats]] @ mixture[seats] / state["samples"][known[seats]].sum()
        distance = float(np.square(reached - target).sum())
        return Choice(known[seats], metrics={"select/exploring": 0, "select/distance": distance}), state

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
        known = state["last"][who] >= 0
        mixture = state["mixture"].copy() if state["mixture"].shape[1] else np.zeros((n, found.shape[1]))
        old = np.where(known, self.memory, 0.0)[:, None]
        mixture[who] = old * mixture[who] + (1 - old) * found
        samples, last = state["samples"].copy(), state["last"].copy()
        samples[who], last[who] = np.maximum(updates.num_samples, 1.0), outcome.round
        return {**after, "mixture": mixture, "samples": samples, "last": last}

    def figures(self, state: State) -> Mapping[str, Floats]:
        """Return each client's cumulative value."""
        return {"cumulative_value": state["cumulative"]}
