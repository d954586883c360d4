"""iPFL (Zhang et al. 2024): a market of models, in which everyone buys what helps it and sells what it has.

Alg. 1: all train their own model, pulled to a proximal centre (eq. 7); the server learns who imports whom (Alg. 2) and
bills it (eq. 10); who pays gets its next centre (eq. 6), who does not stays with the old one or quits with its best
model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hanse.federation.port import Ask, Request
from hanse.federation.profiles import MOST
from hanse.games.market_models import Kind
from hanse.ledger.entry import client as account
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.part import Choice, Context, Ints, Mechanism, SelectPart, State, TrainPart, View
from hanse.mechanisms.settle.market import Payments, Pricing
from hanse.mechanisms.weigh.market import Imports, MarketMix, Of
from hanse.table import SERVER, Seats, Table

__all__ = ["ModelAndCentre", "Staying", "ipfl"]


@dataclass(frozen=True)
class Staying(SelectPart):
    """Everyone who is present and has not quit.

    After each market a client is told how it went (``value``: its utility in the last round, ``mean`` and ``times``;
    ``bill``, ``authorised`` and ``balance`` in units; in how many rounds its centre was withheld, ``unpaid``) and
    says whether it stays. Who leaves is gone for good.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "market"})

    def init(self, context: Context) -> State:
        """All are there, and nothing has been traded."""
        n = context.num_clients
        return {
            "gone": np.zeros(n, bool),
            "last": np.full(n, np.nan),
            "sum": np.zeros(n),
            "times": np.zeros(n, np.int64),
            "bill": np.zeros(n, np.int64),
            "authorised": np.full(n, -1, np.int64),
            "unpaid": np.zeros(n, np.int64),
        }

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask those who were at the last market whether they stay."""
        if view.stage != "open":
            return ()
        told = [c for c in view.present.tolist() if not state["gone"][c] and not np.isnan(state["last"][c])]
        return [Request(c, (Ask("stay", self._told(view, state, c)),)) for c in told]

    def _told(self, view: View, state: State, c: int) -> dict[str, Any]:
        return {
            "value": float(state["last"][c]),
            "mean": float(state["sum"][c] / max(1, state["times"][c])),
            "times": int(state["times"][c]),
            "bill": int(state["bill"][c]),
            "authorised": int(state["authorised"][c]),
            "unpaid": int(state["unpaid"][c]),
            "balance": view.book.balance(account(c)),
        }

    def decide(self, view: View, state: State) -> Choice:
        """Return those who stay."""
        gone = self._gone(view, state)
        found = view.present[~gone[view.present]]
        return Choice(found, metrics={"market/quit": float(gone.sum())})

    def _gone(self, view: View, state: State) -> np.ndarray:
        gone: np.ndarray = state["gone"].copy()
        gone[view.leaving] = True
        return gone

    def learn(self, outcome: View, state: State) -> State:
        """Remember who left, and how the market went for the others."""
        n = len(state["gone"])
        fresh = {"last": np.full(n, np.nan), "bill": np.zeros(n, np.int64), "authorised": np.full(n, -1, np.int64)}
        after = dict(state) | fresh | {"gone": self._gone(outcome, state)}
        arrays = {} if outcome.settlement is None else outcome.settlement.arrays
        if "market_units" not in arrays:
            return after
        clients, utility = arrays["market_client"], arrays["market_utility"]
        after["last"][clients] = utility
        after["bill"][clients] = arrays["market_units"].sum(axis=1)
        after["authorised"][clients] = arrays["market_authorised"]
        after["unpaid"] = state["unpaid"].copy()
        after["unpaid"][clients] += ~arrays["market_paid"]
        after["sum"], after["times"] = state["sum"].copy(), state["times"].copy()
        after["sum"][clients] += utility
        after["times"][clients] += 1
        return after


@dataclass(frozen=True)
class ModelAndCentre(TrainPart):
    """A row for each client's model and one for its proximal centre; training is pulled to it with ``mu``, eq. (7).

    Who imports nothing, or has not paid, trains without the pull: eq. (5) has no such term then, and Table 5's sellers
    train as if alone (papers.md I19). With ``keep_best`` a third row holds each client's best model so far, its own
    and private, for when it quits.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"centres", "market_rows"})
    needs: ClassVar[frozenset[str]] = frozenset({"clients", "centres_mixed"})
    mu: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.4
    keep_best: bool = True

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return models, centres (theta-bar^0 = theta^0: papers.md I14), best models, and the initial one, which all
        are.
        """
        N = context.num_clients
        ids = np.arange(N, dtype=np.int64)
        # models are uploaded to the market, so they are the server's rows; only a best model never leaves its client
        owner = np.concatenate([np.full(2 * N, SERVER), ids if self.keep_best else ids[:0], [SERVER]])
        return Table.of(context.initial(0).repeat(len(owner), 1), owner.astype(np.int64)), ids

    def init(self, context: Context) -> State:
        """Nobody has imported anything."""
        return {"pulled": np.zeros(context.num_clients, bool)}

    def decide(self, view: View, state: State) -> Seats:
        """Seat each client at its own model, pulled to its centre."""
        if view.choice is None:
            raise RuntimeError("no choice yet: seats were asked for before SELECT")
        clients = view.choice.clients
        pull = np.zeros((len(clients), view.table.size))
        pull[np.arange(len(clients)), view.context.num_clients + clients] = 1.0
        return Seats(clients, clients, clients, R=pull, mu=self.mu * state["pulled"][clients])

    def learn(self, outcome: View, state: State) -> State:
        """Remember whose centre is made of others' models and was delivered."""
        pulled = state["pulled"].copy()
        trade = outcome.mix.trade if isinstance(outcome.mix, MarketMix) else None
        if trade is not None:
            pulled[trade.clients] = trade.graph.any(axis=1)
        elif not isinstance(outcome.mix, MarketMix):  # centres of another kind than imports
            pulled[outcome.trained.seats.client] = True
        withheld = () if outcome.settlement is None else outcome.settlement.withheld
        pulled[[row - len(pulled) for row in withheld]] = False
        return {"pulled": pulled}


def ipfl(
    lam: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0,
    eta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0,
    cost: Annotated[float, Field(ge=0)] = 1.0,
    eagerness: Annotated[float, Field(ge=0, le=MOST)] = 5e5,
    distance: Kind = "cosine",
    of: Of = "travel",
    bounded: bool = True,
    pricing: Pricing = "marginal",
    keep_best: bool = True,
    adapters: Literal["factors", "products"] = "factors",
) -> Mechanism:
    """iPFL with the published lambda and eta for CIFAR-10, and the published cost and eagerness for clients whose
    profile has none. The gain is ``sqrt(K/n)``, so that K should grow with the clients' samples: 5e5 is for 5,000.
    """
    return Mechanism(
        name="ipfl",
        select=Staying(),
        train=ModelAndCentre(lam / eta, keep_best),  # eq. (7): lambda / (2 eta) |theta - centre|^2
        weigh=Imports(lam, eta, distance, of, bounded, cost, eagerness, adapters),
        settle=Payments(pricing),
        deploy=ServerModel(),
    )
