"""SETTLE by tokens: PI-FL's token manager, whose accuracies come from clients, and TIFF's, from the server's
own set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from hanse.federation.bids import fit, fits
from hanse.federation.declared import LARGEST_COUNT
from hanse.federation.port import Request, Score, Scored
from hanse.games.tokens import reimbursement_rate
from hanse.ledger.entry import TOKEN, Transaction
from hanse.ledger.entry import client as account
from hanse.mechanisms.part import Context, Settlement, SettlePart, State, View
from hanse.mechanisms.settle.auction import escrowed, good_bids, invitations, num_wanted, returned
from hanse.mechanisms.settle.pending import first_state, next_state, paid_now, settle
from hanse.mechanisms.settle.terms import auction_telling, auction_terms
from hanse.mechanisms.tiers import held_bids, tier_models, tier_rows, widened
from hanse.telling import Joining, Telling, Terms

__all__ = ["ServerTokens", "TokenManager", "Tokens"]

NEEDS = frozenset({"clients", "groups", "values"})
GIVES = frozenset({"bids"})
QUESTION = "tier accuracy"
Share = Annotated[float, Field(ge=0, le=1)]
Price = Annotated[float, Field(ge=1e-6, le=1e9)]
Samples = Annotated[int, Field(ge=1)]


@dataclass(frozen=True)
class TokenManager(SettlePart):
    """The auction of both token managers, which differ in where a tier's accuracy comes from.

    A bid puts ``price`` tokens into escrow. Selected bidders pay into their tier's pool; up to the share ``eta`` of it
    goes back to them, the less the better the tier became (nothing from a relative improvement of ``gamma`` on); the
    rest is shared by those who trained, ranked by contribution and participation. Clients score models on
    ``score_samples`` of their samples (none: on all). The ``first`` auction is in this round: before it models know
    nothing, and those who train are invited.
    """

    needs: ClassVar[frozenset[str]] = NEEDS
    gives: ClassVar[frozenset[str]] = GIVES
    price: Price = 1.0
    eta: Share = 0.5
    gamma: Share = 0.1
    score_samples: Samples | None = 64
    first: Annotated[int, Field(ge=0)] = 1

    def accuracies(self, view: View, state: State) -> dict[int, float]:
        """Return the accuracy now of each tier of the round before, by its row."""
        raise NotImplementedError

    @property
    def units(self) -> int:
        """The price in units."""
        return round(self.price * TOKEN)

    def init(self, context: Context) -> State:
        """Nothing is to be settled."""
        return first_state(context)

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask everyone for bids."""
        if view.stage != "open" or view.round < self.first:
            return ()
        rows = tier_rows(view.table)
        paid = widened(state["paid"], view.table.size) / np.maximum(1, widened(state["sat"], view.table.size))
        return invitations(view, self.units, self.score_samples, tier_models(view.table), paid[:, rows])

    def open(self, view: View, state: State) -> Sequence[Transaction]:
        """Settle the round before, and take the bids."""
        settled = self.finish(view, state)
        book = view.book.post(view.round, settled)
        return [*settled, *escrowed(good_bids(view, book, self.units), self.units)]

    def decide(self, view: View, state: State) -> Settlement:
        """Return the bids that won no seat."""
        bids, back = held_bids(view), returned(view, self.units)
        book = view.book.post(view.round, back)
        balances = np.array([book.balance(account(c)) for c in range(len(bids))], np.int64)
        metrics = {
            "tokens/bids": float(bids.sum()),
            "tokens/bids_refused": float(num_wanted(view) - bids.sum()),
            "tokens/poorest": float(balances.min() / TOKEN),
            "tokens/richest": float(balances.max() / TOKEN),
        }
        for k, reached in self.accuracies(view, state).items():
            best = float(state["best"][k])
            metrics[f"tokens/tier {k}/accuracy"] = reached
            metrics[f"tokens/tier {k}/theta"] = reimbursement_rate(reached, best, self.eta, self.gamma)
        arrays = {"balances": balances, "bids": bids, "tokens_paid": paid_now(view, state, self.units)}
        return Settlement(transactions=tuple(back), metrics=metrics, arrays=arrays)

    def learn(self, outcome: View, state: State) -> State:
        """Keep the round for its settlement, with the accuracies that this one's was made with."""
        metrics = {} if outcome.settlement is None else outcome.settlement.metrics
        reached = {k: metrics[f"tokens/tier {k}/accuracy"] for k in np.unique(state["tier"]).tolist()}
        return next_state(outcome, state, reached, self.units)

    def finish(self, view: View, state: State) -> Sequence[Transaction]:
        """Settle the round before."""
        return settle(view, state, self.units, self.eta, self.gamma, self.accuracies(view, state))

    def tells(self) -> Telling:
        """Return what bids, payments and tiers are called."""
        return auction_telling(self.price, self.eta)

    def terms(self, joining: Joining) -> Terms:
        """Return what bids cost, and what seats may bring."""
        return auction_terms(joining, self.units, self.eta, self.gamma, self.first)


@dataclass(frozen=True)
class Tokens(TokenManager):
    """PI-FL's token manager (eqs 6-14; papers.md P7-P17): an auction for each tier, every round.

    A tier's accuracy (eq. 8) is that of its model on the own data of the clients that trained it, which arrives with
    the next bids: a round is settled then, and the last one by a closing exchange.
    """

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask the tiers' clients of the last round for its accuracy, and everyone for bids."""
        if view.stage not in ("open", "end"):
            return ()
        asked = np.intersect1d(state["client"][state["worked"]], view.present).tolist()
        score = Score(QUESTION, tier_models(view.table), limit=self.score_samples)
        return [*(Request(c, (score,)) for c in asked), *super().asks(view, state)]

    def accuracies(self, view: View, state: State) -> dict[int, float]:
        """Return each tier's accuracy on the samples of the clients that trained it, weighted by their numbers; 0 if
        none of them answers.
        """
        place = {int(row): i for i, row in enumerate(tier_rows(view.table))}
        found = {}
        for k in np.unique(state["tier"]).tolist():
            total = weight = 0.0
            for c in state["client"][(state["tier"] == k) & state["worked"]].tolist():
                scored = view.answers.get((c, QUESTION))
                if isinstance(scored, Scored) and scored.num_samples > 0:
                    i, samples = place[k], min(scored.num_samples, LARGEST_COUNT)
                    total += samples * fit(float(scored.loss[i]), float(scored.accuracy[i]))
                    weight += samples
            found[k] = total / weight if weight else 0.0
        return found


@dataclass(frozen=True)
class ServerTokens(TokenManager):
    """TIFF's token manager (Han et al. 2022), which PI-FL extends: as ``tokens``, but a model's accuracy is that on the
    server's validation set.
    """

    needs: ClassVar[frozenset[str]] = NEEDS | frozenset({"validation"})

    def accuracies(self, view: View, state: State) -> dict[int, float]:
        """Return each tier's accuracy on the server's validation set."""
        rows = np.unique(state["tier"])
        if not len(rows):
            return {}
        scores = view.server.score(view.table.rows[rows])
        return dict(zip(rows.tolist(), fits(scores), strict=True))
