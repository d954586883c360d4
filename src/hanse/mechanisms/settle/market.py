"""SETTLE a market of models: every import is paid for, or not delivered (iPFL eq. 10)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.federation.profiles import MOST
from hanse.games.market import Floats, Graph, gains, prices, utilities_of
from hanse.games.market_checks import critical_prices
from hanse.ledger.book import LARGEST
from hanse.ledger.entry import TOKEN, Transaction, units_of
from hanse.ledger.entry import client as account
from hanse.mechanisms.part import Context, Ints, Settlement, SettlePart, State, View
from hanse.mechanisms.settle.terms import market_telling, market_terms, utilities_telling
from hanse.mechanisms.weigh.market import MarketMix, Trade, Truth
from hanse.telling import FREE, Joining, Telling, Terms

__all__ = ["Payments", "Pricing", "Utilities", "graph_of"]

Pricing = Literal["marginal", "critical"]
Bill = dict[int, int]  # what a buyer owes: units by the seller's place at the market

UNPAYABLE = LARGEST + 1  # units: more than any account can hold
ONE_BY_ONE = 64  # clients: more of them are only in the records, not in the metrics


@dataclass(frozen=True)
class Payments(SettlePart):
    """Posts what each client pays for its imports, in one transaction a buyer; each edge is rounded down to the unit,
    but a price above 0 to one unit at least.

    A buyer whose bill is larger than what its training reply authorised, or than its account can bear, pays nothing
    and its proximal centre is withheld; its sellers share nothing with it, and all other payments stay as they are. So
    it is for a buyer whose centre keeps its old model. Amounts are Python integers, from the price to the posting.
    ``pricing`` is "marginal", iPFL's eq. (10), or "critical": the highest cost at which the seller would still have
    been imported, which leaves no motive to misreport the cost.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"market"})
    pricing: Pricing = "marginal"

    def init(self, context: Context) -> State:
        """Nobody has gained, paid or earned anything."""
        return _nothing(context.num_clients)

    def decide(self, view: View, state: State) -> Settlement:
        """Return the payments of those who can pay, and the centres withheld from the others."""
        trade = view.mix.trade if isinstance(view.mix, MarketMix) else None
        if trade is None:
            return Settlement(metrics=_metrics(state, None))
        market, N = trade.market, view.context.num_clients
        due = prices(market, trade.graph) if self.pricing == "marginal" else critical_prices(market, trade.graph)
        bills = _bills(due, trade.graph)
        authorised = [_limit(view.authorised.get(c)) for c in trade.clients.tolist()]
        paid, transactions = _clear(view, trade.clients, bills, authorised)
        units = _recorded(bills)
        realised = np.where(paid[:, None], trade.graph, 0).astype(np.int8)
        money = np.where(paid[:, None], units, 0)
        utility = _utilities(realised, money / TOKEN, trade.truth)
        arrays = _arrays(trade, self.pricing) | {
            "market_units": units,
            "market_paid": paid,
            "market_authorised": np.array([-1 if most is None else most for most in authorised], np.int64),
            "market_utility": utility,
        }
        unpaid = int((~paid).sum())
        metrics = {
            "market/money": float(money.sum() / TOKEN),
            "market/withheld": float(unpaid),
            **_metrics(_after(state, arrays), utility),
        }
        return Settlement(frozenset((N + trade.clients[~paid]).tolist()), transactions, metrics, arrays)

    def learn(self, outcome: View, state: State) -> State:
        """Add up what everyone gained."""
        return _added(outcome, state)

    def tells(self) -> Telling:
        """Return what the market's payments are called."""
        return market_telling()

    def terms(self, joining: Joining) -> Terms:
        """Return what imports may cost and bring, and what a client's own model earns."""
        return market_terms(joining, self.pricing)


def _bills(due: Floats, graph: Graph) -> list[Bill]:
    """Return what each buyer owes at prices ``due [m, m]`` (tokens); a price that is no number cannot be paid, and one
    above 0 is at least a unit: a buyer that overstates its size pushes prices towards 0, and rounded down they were 0.
    """
    found: list[Bill] = []
    for i in range(len(due)):
        sellers = np.flatnonzero(graph[i])
        tokens = zip(sellers.tolist(), due[i, sellers].tolist(), strict=True)
        found.append({j: _owed(price) for j, price in tokens})
    return found


def _owed(price: float) -> int:
    if not math.isfinite(price):
        return UNPAYABLE
    return max(1, units_of(price)) if price > 0 else 0


def _limit(authorised: object) -> int | None:
    """Return the most that a client pays, in units; None: any bill. What is no amount authorises nothing."""
    if authorised is None:
        return None
    return max(0, min(authorised, LARGEST)) if type(authorised) is int else 0


def _recorded(bills: Sequence[Bill]) -> NDArray[np.int64]:
    """Return the bills as an array ``[m, m]`` for the record. What nobody can pay is cut there, so that sums fit."""
    units = np.zeros((len(bills), len(bills)), np.int64)
    for i, bill in enumerate(bills):
        units[i, list(bill)] = [min(owed, LARGEST // len(bills)) for owed in bill.values()]
    return units


def _clear(
    view: View, clients: Ints, bills: Sequence[Bill], authorised: Sequence[int | None]
) -> tuple[NDArray[np.bool_], tuple[Transaction, ...]]:
    """Return who pays ``[m]`` and the transactions, in an order in which no account falls below its floor.

    Those who authorised their bill pay as soon as their account can bear it; what they pay may enable others. Only a
    bill of nothing is paid by nothing.
    """
    book, owed = view.book, [sum(bill.values()) for bill in bills]
    kept = _kept(view, clients)
    willing = [
        not kept[i] and units <= (LARGEST if most is None else most)
        for i, (units, most) in enumerate(zip(owed, authorised, strict=True))
    ]
    paid = [ready and units == 0 for ready, units in zip(willing, owed, strict=True)]
    posted: list[Transaction] = []
    progress = True
    while progress:
        progress = False
        for i in range(len(bills)):
            if paid[i] or not willing[i] or not book.can_pay(account(int(clients[i])), owed[i]):
                continue
            entry = _transaction(clients, bills[i], i)
            book = book.post(view.round, [entry])  # a trial of what the loop posts later
            posted.append(entry)
            paid[i] = progress = True
    return np.array(paid, bool), tuple(posted)


def _kept(view: View, clients: Ints) -> NDArray[np.bool_]:
    """Return whose centre the mix leaves as it was ``[m]``: nothing would be delivered for their money."""
    centres, S = view.context.num_clients + clients, len(view.trained)
    return np.asarray(view.mixed.W[centres, S + centres] == 1.0)


def _transaction(clients: Ints, bill: Bill, i: int) -> Transaction:
    postings = [(account(int(clients[i])), -sum(bill.values()))]
    postings += [(account(int(clients[j])), units) for j, units in bill.items() if units]
    return Transaction(f"market/{int(clients[i])}", "market", tuple(postings), "iPFL eq. (10)")


@dataclass(frozen=True)
class Utilities(SettlePart):
    """Nobody pays; everyone's utility is accounted as iPFL accounts for its baselines, eq. (1) with p = 0.

    Client i imports j's model if any row that i trained from, was pulled to, or starts from next contains j's update.
    ``cost`` and ``eagerness`` stand for clients whose profile has none.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients"})
    cost: Annotated[float, Field(ge=0)] = 1.0
    eagerness: Annotated[float, Field(ge=0, le=MOST)] = 5e5

    def init(self, context: Context) -> State:
        """Nobody has gained anything."""
        return _nothing(context.num_clients)

    def decide(self, view: View, state: State) -> Settlement:
        """Return metrics and arrays alone."""
        if len(view.trained) == 0 or view.round == view.context.rounds - 1:
            return Settlement(metrics=_metrics(state, None))
        clients = np.unique(view.trained.seats.client)
        truth = Truth.of(view, clients, self.cost, self.eagerness)
        graph = graph_of(view, clients)
        utility = _utilities(graph, np.zeros(graph.shape), truth)
        arrays: dict[str, NDArray[Any]] = {
            "market_client": clients,
            "market_graph": graph,
            "market_true_size": truth.sizes,
            "market_true_cost": truth.costs,
            "market_true_eagerness": truth.eagerness,
            "market_utility": utility,
        }
        metrics = {"market/edges": float(graph.sum()), **_metrics(_after(state, arrays), utility)}
        return Settlement(metrics=metrics, arrays=arrays)

    def learn(self, outcome: View, state: State) -> State:
        """Add up what everyone gained."""
        return _added(outcome, state)

    def tells(self) -> Telling:
        """Return what utilities are."""
        return utilities_telling()

    def terms(self, joining: Joining) -> Terms:
        """Nobody pays."""
        return FREE


def graph_of(view: View, clients: Ints) -> Graph:
    """Return who got whose update in a round of any mechanism, ``[m, m]`` of 0/1 over ``clients [m]``."""
    seats, mixed = view.trained.seats, view.mixed
    S = len(seats)
    reach = np.zeros((len(clients), mixed.W.shape[0]), bool)  # the rows that a client sees next
    for i, c in enumerate(clients.tolist()):
        reach[i, mixed.home[c]] = True
        mine = np.flatnonzero(seats.client == c)
        for used in (seats.start[mine], seats.target[mine]):
            reach[i, used] = True
        for pulls in (seats.R, seats.L):
            if pulls is not None:
                reach[i, : pulls.shape[1]] |= (pulls[mine] != 0).any(axis=0)
    made_of = np.abs(mixed.W[:, :S]) > 0  # [K', S]
    holder = np.zeros((S, len(clients)), bool)
    holder[np.arange(S), np.searchsorted(clients, seats.client)] = True
    graph: Graph = ((reach.astype(float) @ made_of.astype(float) @ holder.astype(float)) > 0).astype(np.int8)
    np.fill_diagonal(graph, 0)
    return graph


def _utilities(graph: Graph, money: Floats, truth: Truth) -> Floats:
    if bool(((truth.sizes == 0) & (truth.eagerness > 0)).any()):  # papers.md I13
        truth = Truth(truth.sizes, truth.costs, np.where(truth.sizes == 0, 0.0, truth.eagerness))
    return utilities_of(graph, money, truth.sizes, truth.costs, truth.eagerness)


def _arrays(trade: Trade, pricing: Pricing) -> dict[str, NDArray[Any]]:
    """Return what an audit replays a round from."""
    market, truth = trade.market, trade.truth
    return {
        "market_client": trade.clients,
        "market_graph": trade.graph,
        "market_distance": market.distance,
        "market_size": market.sizes,
        "market_cost": market.costs,
        "market_eagerness": market.eagerness,
        "market_lam": np.array(market.lam),
        "market_pricing": np.array(pricing),
        "market_true_size": truth.sizes,
        "market_true_cost": truth.costs,
        "market_true_eagerness": truth.eagerness,
        "market_gain": gains(trade.graph, market.sizes, market.eagerness),
    }


def _nothing(num_clients: int) -> State:
    return {"utility": np.zeros(num_clients), "money": np.zeros(num_clients, np.int64)}


def _metrics(state: State, utility: Floats | None) -> dict[str, float]:
    """Return the utilities of all clients so far, and of those at this round's market; of few clients one by one."""
    total = state["utility"]
    found = {"utility/mean": float(total.mean()), "utility/min": float(total.min())}
    if len(total) <= ONE_BY_ONE:
        found |= {f"utility/client/{i}": float(u) for i, u in enumerate(total)}
        found |= {f"balance/client/{i}": float(m / TOKEN) for i, m in enumerate(state["money"])}
    if utility is not None and len(utility):
        found |= {"utility/round_mean": float(utility.mean()), "utility/round_min": float(utility.min())}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _added(outcome: View, state: State) -> State:
    return _after(state, {} if outcome.settlement is None else outcome.settlement.arrays)


def _after(state: State, arrays: Mapping[str, NDArray[Any]]) -> State:
    """Return the sums with one more round."""
    total, money = state["utility"].copy(), state["money"].copy()
    if "market_utility" in arrays:
        clients = arrays["market_client"]
        total[clients] += arrays["market_utility"]
        if "market_units" in arrays:
            moved = np.where(arrays["market_paid"][:, None], arrays["market_units"], 0)
            money[clients] += moved.sum(axis=0) - moved.sum(axis=1)
    return {"utility": total, "money": money}
