"""PI-FL's scheduler (Alg. 3): each tier trains the best of those who bid for it, and a few clients at random.

Bids come from the auction that the settle part holds; a bid is good once its price is in escrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from hanse.games import tiers as games
from hanse.mechanisms.part import Choice, Context, Floats, Ints, SelectPart, State, View
from hanse.mechanisms.tiers import held_bids, tier_rows, widened

__all__ = ["PretrainedTiers", "Tiers"]

Count = Annotated[int, Field(ge=0)]


@dataclass(frozen=True)
class Tiers(SelectPart):
    """The ``by_contribution`` bidders of a tier that were worth most to it so far, and ``at_random`` of all others that
    are present: those without a bid are invited and pay nothing (papers.md P7-P9).

    What a client was worth to a tier is its "last" value there or the "mean" of all, 0 before the first (values of
    PI-FL eq. 2 sum to 0). If a tier has at most as many bidders as seats, all of them train, and this is recorded; a
    tier that nobody bids for keeps its model. In round 0 the clients are dealt out to the tiers at random.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "values", "bids"})
    by_contribution: Count = 8
    at_random: Count = 2
    contribution: Literal["last", "mean"] = "last"

    def init(self, context: Context) -> State:
        """Nobody has been worth anything."""
        n = context.num_clients
        return {"worth": np.zeros((n, 0)), "times": np.zeros((n, 0))}

    def decide(self, view: View, state: State) -> Choice:
        """Return who trains which tier."""
        if view.round == 0:
            return self.dealt(view)
        return self.scheduled(view, state)

    def dealt(self, view: View, label: Ints | None = None, start: int | None = None) -> Choice:
        """Return the first choice: clients in random order, each in one tier, or in that of its ``label [N]``.

        They train from row ``start``, if that is given, and from their tier's otherwise.
        """
        rows = tier_rows(view.table)
        order = view.draw("first tiers").permutation(view.present)
        place = np.arange(len(order)) % len(rows) if label is None else label[order]
        groups = [order[place == k][: self.by_contribution + self.at_random] for k in range(len(rows))]
        choice = _choice(rows, groups, {})
        return choice if start is None else replace(choice, start=np.full_like(choice.clients, start))

    def scheduled(self, view: View, state: State) -> Choice:
        """Return the choice by bids and contributions."""
        rows, present = tier_rows(view.table), view.present
        worth, seats = widened(state["worth"], view.table.size), self.by_contribution + self.at_random
        bids, bidders, orders = held_bids(view), [], []
        for k in rows.tolist():
            held = present[bids[present, k]].tolist()
            order = view.draw("schedule", start=k).permutation(present).tolist()
            if len(held) <= seats:  # all of them train: whom contributions leave over comes first among the drawn
                order.sort(key=lambda c, held=set(held): c not in held)
            bidders.append(held)
            orders.append(order if held else [])
        found = games.schedule(bidders, worth[:, rows].T, self.by_contribution, self.at_random, orders)
        metrics: dict[str, float] = {}
        for k, held, seated in zip(rows.tolist(), bidders, found.tiers, strict=True):
            metrics[f"select/tier {k}/bidders"] = len(held)
            metrics[f"select/tier {k}/invited"] = len(set(seated) - set(held))
        metrics["select/all_bidders_train"] = sum(0 < len(held) <= seats for held in bidders)
        return _choice(rows, [np.array(c, np.int64) for c in found.tiers], metrics)

    def learn(self, outcome: View, state: State) -> State:
        """Remember what the seats were worth to the tiers that they trained."""
        if outcome.values is None:
            return state
        size, seats = outcome.table.size, outcome.trained.seats
        worth, times = widened(state["worth"], size).copy(), widened(state["times"], size).copy()
        value = np.nan_to_num(outcome.values.per_seat)
        at = (seats.client, seats.target)
        times[at] += 1
        worth[at] = value if self.contribution == "last" else worth[at] + (value - worth[at]) / times[at]
        return {"worth": worth, "times": times}


def _choice(rows: Ints, groups: Sequence[Ints], metrics: dict[str, float]) -> Choice:
    clients = np.concatenate([*groups, np.zeros(0, np.int64)]).astype(np.int64)
    tier = np.repeat(rows, [len(g) for g in groups])
    order = np.lexsort((tier, clients))  # seats by client, as everywhere
    return Choice(clients[order], tier[order], tier[order], metrics)


@dataclass(frozen=True)
class PretrainedTiers(SelectPart):
    """As ``tiers``, after ``rounds`` of pre-training: everybody present trains one model, and the first tiers are
    groups of clients whose local models are alike (PI-FL sec. 3.1, eq. 5).

    Alike are those that K-means puts together by the F1 scores, on the server's validation set, of the ``rho`` classes
    in which local models differ most (default: half of the classes). Clients whose update did not come in the last of
    these rounds are dealt out at random.
    """

    needs: ClassVar[frozenset[str]] = Tiers.needs | frozenset({"validation"})
    rounds: Annotated[int, Field(ge=1)] = 1
    rho: Annotated[int, Field(ge=1)] | None = None
    by_contribution: Count = 8
    at_random: Count = 2
    contribution: Literal["last", "mean"] = "last"

    @property
    def then(self) -> Tiers:
        """The scheduler of all later rounds."""
        return Tiers(self.by_contribution, self.at_random, self.contribution)

    def init(self, context: Context) -> State:
        """No labels yet."""
        return {**self.then.init(context), "label": np.full(context.num_clients, -1, np.int64)}

    def decide(self, view: View, state: State) -> Choice:
        """Return everybody for the first tier's row, then the first tiers, then the choice by bids."""
        first = tier_rows(view.table)[0]
        if view.round < self.rounds:
            return Choice(view.present, np.full(len(view.present), first, np.int64))
        if view.round == self.rounds:
            return self.then.dealt(view, state["label"], int(first))
        return self.then.scheduled(view, state)

    def learn(self, outcome: View, state: State) -> State:
        """Remember contributions; at the end of pre-training, group the clients."""
        label = state["label"]
        if outcome.round == self.rounds - 1:
            label = self._labels(outcome)
        if outcome.round < self.rounds:
            return {**state, "label": label}
        return {**self.then.learn(outcome, state), "label": label}

    def _labels(self, outcome: View) -> Ints:
        tiers, n = len(tier_rows(outcome.table)), outcome.context.num_clients
        draw = outcome.draw("first tiers of the unexplored")
        label = draw.integers(tiers, size=n)
        updates = outcome.trained
        if len(updates) < tiers:
            return label
        f1 = self._scores(outcome, updates.rows)
        rho = min(self.rho or max(1, f1.shape[1] // 2), f1.shape[1])
        seed = int(draw.integers(2**31))
        label[updates.seats.client] = games.first_tiers(f1, rho, tiers, seed=seed).labels
        return label

    @staticmethod
    def _scores(outcome: View, rows: torch.Tensor) -> Floats:
        counts: Any = outcome.server.confusion(rows)
        return games.f1_scores(counts.numpy())
