"""A selector of our own: it chooses the combination, not the individuals.

Where every client holds one class no client is valuable by itself, and purely greedy choice fails; where some clients
hold everything, greedy choice wins. This one keeps a small random sketch of each client's last update and finds the
clients whose updates *together* point where the server's validation loss falls fastest. It also keeps cumulative
values, as GreedyFed does, and learns from the gains of past rounds which of the two strategies pays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hanse.games.hedge import choose_arm, update_arms
from hanse.mechanisms.part import Choice, Context, Floats, Ints, SelectPart, State, View
from hanse.mechanisms.select.basic import PerRound
from hanse.mechanisms.select.by_value import VALUES, average_in, greedy, meet_all, no_values
from hanse.streams import stream

__all__ = ["SetAware", "matching", "sketch"]

ARMS = ("greedy", "matching")


@lru_cache(maxsize=2)
def _hashes(seed: int, length: int, size: int) -> tuple[Tensor, Tensor]:
    draw = stream(seed, "sketch")
    bucket = torch.from_numpy(draw.integers(0, size, length))
    sign = torch.from_numpy(draw.integers(0, 2, length, dtype=np.int8)).float() * 2 - 1
    return bucket, sign


def sketch(vectors: Tensor, size: int, seed: int) -> Floats:
    """Return count sketches ``[S, size]`` of ``vectors [S, P]``: inner products are kept in expectation
    (Charikar, Chen, Farach-Colton 2002).
    """
    bucket, sign = _hashes(seed, vectors.shape[1], size)
    found = torch.zeros((vectors.shape[0], size))
    found.index_add_(1, bucket, vectors.cpu() * sign)
    return found.double().numpy()


def matching(sketches: Floats, target: Floats, m: int) -> Ints:
    """Return up to ``m`` rows of ``sketches [n, d]`` whose non-negative combination best matches ``target [d]``
    (orthogonal matching pursuit on normalised rows, non-negative least squares at each step).
    """
    from scipy.optimize import nnls

    norms = np.linalg.norm(sketches, axis=1)
    rows = sketches / np.where(norms > 0, norms, 1.0)[:, None]
    chosen: list[int] = []
    residual = target
    for _ in range(min(m, len(rows))):
        score = rows @ residual
        score[chosen] = -np.inf
        chosen.append(int(np.argmax(score)))
        weights, _ = nnls(rows[chosen].T, target)
        residual = target - rows[chosen].T @ weights
    return np.array(chosen, dtype=np.int64)


@dataclass(frozen=True)
class SetAware(SelectPart):
    """Everyone once, then by round whichever of two strategies has gained more validation utility lately: the M largest
    cumulative values, or the M clients whose sketched updates jointly match the validation gradient.

    ``sketch_size`` numbers are kept a client; ``discount`` forgets old gains; ``exploration`` is the share of rounds
    that try either strategy, and fades as ``1 / sqrt(rounds since everyone was met)`` from 1.
    """

    needs: ClassVar[frozenset[str]] = VALUES | {"validation"}
    clients_per_round: PerRound = 10
    sketch_size: Annotated[int, Field(ge=8)] = 256
    discount: Annotated[float, Field(gt=0, le=1)] = 0.9
    exploration: Annotated[float, Field(ge=0, le=1)] = 1.0

    def init(self, context: Context) -> State:
        """No values, no sketches, no gains."""
        n = context.num_clients
        arms = {"free": 0, "gains": np.zeros(len(ARMS)), "tries": np.zeros(len(ARMS))}
        return {**no_values(context), **arms, "sketches": np.zeros((n, self.sketch_size), np.float32)}

    def decide(self, view: View, state: State) -> Choice:
        """Return the next round-robin block while somebody was never met, then a strategy's choice."""
        meeting = meet_all(view, state, self.clients_per_round)
        if meeting is not None:
            return meeting
        arm = self._arm(view, state)
        known = view.present[state["counts"][view.present] > 0]
        if len(known) == 0:
            return Choice(view.present[: self.clients_per_round])
        if ARMS[arm] == "greedy":
            best = greedy(state["cumulative"][known], self.clients_per_round)
        else:
            best = matching(state["sketches"][known].astype(np.float64), self._target(view), self.clients_per_round)
        return Choice(known[best], metrics={"select/exploring": 0, "select/matching": arm})

    def _arm(self, view: View, state: State) -> int:
        chance = self.exploration / np.sqrt(state["free"] + 1)
        return choose_arm(state["gains"], state["tries"], chance, view.draw("arm"))

    def _target(self, view: View) -> Floats:
        """Return the sketch of the steepest descent of the validation loss at the shared model."""
        width = view.context.layout.num_parameters
        row = view.table.rows[int(view.home[view.present[0]])]
        descent = -view.server.gradient(row[None])[:, :width]
        found: Floats = sketch(descent, self.sketch_size, view.context.seed)[0]
        return found

    def learn(self, outcome: View, state: State) -> State:
        """Average the values in, renew the sketches of those who sat, credit the strategy with the round's gain."""
        after = {**state, **average_in(outcome, state, "mean", "first")}
        updates, width = outcome.trained, outcome.context.layout.num_parameters
        if len(updates):
            moved = (updates.rows - outcome.table.rows[updates.seats.start])[:, :width]
            after["sketches"] = state["sketches"].copy()
            after["sketches"][updates.seats.client] = sketch(moved, self.sketch_size, outcome.context.seed)
        played = None if outcome.choice is None else outcome.choice.metrics.get("select/matching")
        if played is not None and outcome.values is not None:
            gain = float(outcome.values.per_seat.sum())
            after["gains"], after["tries"] = update_arms(
                state["gains"], state["tries"], int(played), gain, self.discount
            )
            after["free"] = state["free"] + 1
        return after
