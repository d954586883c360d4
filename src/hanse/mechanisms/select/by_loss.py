"""Selectors by what clients lose: Power-of-Choice asks them, Oort remembers what they reported."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from hanse.core.part import Choice, Context, Floats, Ints, Named, SelectPart, State, View
from hanse.core.port import Request, Score, Scored
from hanse.mechanisms.select.basic import CLIENTS, PerRound
from hanse.mechanisms.select.by_value import greedy, without_replacement

__all__ = ["Oort", "PowerOfChoice", "next_query_size"]

QUESTION = "power-of-choice"


def next_query_size(size: int, m: int, decay: float) -> int:
    """Return how many clients Power-of-Choice asks next: the last number decayed, never fewer than m (papers.md G9)."""
    return max(m, math.ceil(decay * size)) if size > m else size


@dataclass(frozen=True)
class PowerOfChoice(SelectPart):
    """Power-of-Choice (Cho et al. 2022): ask some clients for the loss of the model on their data, seat the largest.

    Round t asks ``d_t = max(M, ceil(decay d_{t-1}))`` clients, ``d_{-1} = N``, drawn in proportion to their reported
    samples; each scores at most ``score_samples`` of its training samples (None: all). Ties go to the lower id.
    """

    needs: ClassVar[Named] = CLIENTS
    clients_per_round: PerRound = 10
    decay: Annotated[float, Field(gt=0, le=1)] = 0.9
    score_samples: Annotated[int, Field(ge=1)] | None = None

    def init(self, context: Context) -> State:
        """Nobody has been asked."""
        return {"size": context.num_clients}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask this round's candidates for the loss of their home model."""
        if view.stage != "open":
            return ()
        return [
            Request(int(c), (Score(QUESTION, view.table.rows[int(view.home[c])][None], limit=self.score_samples),))
            for c in self._candidates(view, state)
        ]

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the candidates with the largest losses; who did not answer, or has just left, is not seated."""
        found = {c: r for (c, question), r in view.answers.items() if question == QUESTION and isinstance(r, Scored)}
        clients = view.present[np.isin(view.present, list(found))]
        best = greedy(np.array([float(found[c].loss[0]) for c in clients.tolist()]), self.clients_per_round)
        return Choice(clients[best], metrics={"select/asked": len(found)}), state

    def learn(self, outcome: View, state: State) -> State:
        """Ask fewer next time."""
        return {"size": next_query_size(state["size"], self.clients_per_round, self.decay)}

    def _candidates(self, view: View, state: State) -> Ints:
        size = min(next_query_size(state["size"], self.clients_per_round, self.decay), len(view.present))
        weights = np.maximum(view.roster.num_samples, 1).astype(np.float64)
        drawn = without_replacement(weights / weights.sum(), size, view.draw("candidates"))
        return np.sort(view.present[drawn])


@dataclass(frozen=True)
class Oort(SelectPart):
    """Oort's statistical utility (Lai et al. 2021, sec. 4): samples times training loss, with a bonus for clients not
    heard of for long; part of the seats explore clients that never sat.

    ``utility = n_k loss_k + sqrt(0.1 ln t / t_k)``: utilities are clipped at the 95th percentile and scaled to the
    largest, and t_k is the round k last sat in. Exploring seats start as ``exploration`` of all and decay by 0.98 a
    round to 0.2; the others are drawn by utility among clients within ``cutoff`` of the last one that would be chosen.
    Its system speed term is left out: hanse's clients report no durations. The loss is the mean that the client
    reported, not a root mean square.
    """

    needs: ClassVar[Named] = CLIENTS
    clients_per_round: PerRound = 10
    exploration: Annotated[float, Field(ge=0, le=1)] = 0.9
    cutoff: Annotated[float, Field(gt=0, le=1)] = 0.95

    def init(self, context: Context) -> State:
        """Nobody has sat."""
        n = context.num_clients
        return {"utility": np.zeros(n), "last": np.full(n, -1), "sat": np.zeros(n, np.int64)}

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return exploring and exploiting clients in ascending order."""
        present, draw = view.present, view.draw("select")
        m = min(self.clients_per_round, len(present))
        fresh = present[state["sat"][present] == 0]
        known = present[state["sat"][present] > 0]
        share = max(0.2, self.exploration * 0.98**view.round)
        exploring = min(len(fresh), max(round(share * m), m - len(known)))
        new = draw.choice(fresh, exploring, replace=False) if exploring else fresh[:0]
        old = self._exploit(view, state, known, m - exploring, draw)
        return Choice(np.sort(np.concatenate([new, old])), metrics={"select/exploring": exploring}), state

    def _exploit(self, view: View, state: State, known: Ints, m: int, draw: np.random.Generator) -> Ints:
        if m == 0:
            return known[:0]
        score = self._scores(view.round, state, known)
        level = self.cutoff * np.sort(score)[-min(m, len(score))]
        pool = np.flatnonzero(score >= level)
        weights = score[pool] + 1e-12
        return known[pool[without_replacement(weights / weights.sum(), m, draw)]]

    @staticmethod
    def _scores(round: int, state: State, known: Ints) -> Floats:
        utility = np.minimum(state["utility"][known], np.percentile(state["utility"][known], 95))
        largest = utility.max()
        stale = np.sqrt(0.1 * np.log(round + 1) / (state["last"][known] + 1))
        return np.asarray((utility / largest if largest > 0 else utility) + stale)

    def learn(self, outcome: View, state: State) -> State:
        """Remember what each client reported, and when."""
        updates = outcome.trained
        utility, last, sat = state["utility"].copy(), state["last"].copy(), state["sat"].copy()
        if outcome.choice is not None:
            sat[outcome.choice.clients] += 1
            last[outcome.choice.clients] = outcome.round
            utility[outcome.choice.clients] = 0.0
        utility[updates.seats.client] = updates.num_samples * updates.loss
        return {"utility": utility, "last": last, "sat": sat}
