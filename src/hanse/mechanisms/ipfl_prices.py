"""How iPFL's market comes to its prices: from what clients declare, or posted by the operator.

:class:`Declared` is the paper's way, eq. (10), and :class:`Posted` is hanse's own (:mod:`hanse.games.market_posted`).
Everything else is the same market (:class:`hanse.mechanisms.ipfl.IPFL`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hanse.base.plain_text import quantity
from hanse.core.declared import LARGEST_COUNT
from hanse.core.entry import client as account
from hanse.core.part import View
from hanse.core.port import Ask, ClientInfo, Request
from hanse.core.table import Floats
from hanse.federation.policy import amount
from hanse.games.market import Graph, Market
from hanse.games.market_models import Kind as Distance
from hanse.games.market_models import within_reach, within_shares
from hanse.games.market_posted import Tariff, on_sale, sold


@dataclass(frozen=True)
class Declared:
    """iPFL's prices, eq. (10): clients declare cost and eagerness, and Alg. 2 chooses for the buyers.

    Attributes:
        cost: in tokens, for clients that declare none.
        eagerness: for clients that declare none.
    """

    tariff: ClassVar[Tariff | None] = None
    answer: ClassVar[str] = "declare"
    memo: ClassVar[str] = "iPFL eq. (10)"
    imports: ClassVar[str] = "models that it imports"
    cost: float
    eagerness: float

    def question(self, info: ClientInfo, round: int) -> Ask:
        """Return what a client is asked with its training: what it declares."""
        return Ask(self.answer, {"profile": dict(info.profile), "round": round})

    def declared(self, said: Mapping[str, Any], size: float) -> tuple[float | None, float | None]:
        """Return a client's cost and eagerness by its answer; None for what is no amount."""
        cost = amount(said.get("cost", self.cost), infinite=True)
        return cost, amount(said.get("eagerness", self.eagerness))

    def offers(self, view: View, sizes: Floats, costs: Floats) -> tuple[Floats, Floats]:
        """Return what each model costs, and the least that its owner sells it for, ``[m]`` each in tokens."""
        return costs, np.zeros(len(costs))

    def limited(self, W: Floats, gram: Floats, graph: Graph | Floats, distance: Distance) -> Floats:
        """Return weights of centres ``[m, m]`` within reach of what is imported."""
        return within_reach(W, gram, graph != 0)

    def sale(self, cost: float) -> str:
        """Return what a client of this cost is paid for its model, for who considers joining."""
        if not math.isfinite(cost):
            return "Its declared cost is infinite: nobody can buy its model, so it earns nothing."
        least = quantity(f"{cost:g}", "token")
        return f"Each time another client imports its model it is paid at least its declared cost, {least}."


@dataclass(frozen=True)
class Posted:
    """Posted prices: each client is told the price of its model and decides whether to offer it, and each buyer chooses
    from the offers.

    Attributes:
        tariff: what a model costs.
        cost: in tokens, for clients whose profile has none.
        eagerness: for clients whose profile has none.
    """

    answer: ClassVar[str] = "offer"
    memo: ClassVar[str] = "posted price"
    imports: ClassVar[str] = "offers that it takes, each at its posted price"
    tariff: Tariff
    cost: float
    eagerness: float

    def question(self, info: ClientInfo, round: int) -> Ask:
        """Return what a client is asked with its training: whether it sells at this price."""
        price = float(self.tariff.price(min(info.num_samples, LARGEST_COUNT)))
        told = {"price": price, "cost": self.cost, "flat": self.tariff.flat}
        return Ask(self.answer, {"profile": dict(info.profile), "round": round, **told})

    def declared(self, said: Mapping[str, Any], size: float) -> tuple[float | None, float | None]:
        """Return the price of a client's model, infinite for what is not on sale; nobody's eagerness is known."""
        sells = said.get("sell") is True and 0 < size <= LARGEST_COUNT
        return float(self.tariff.price(size)) if sells else math.inf, 0.0

    def offers(self, view: View, sizes: Floats, costs: Floats) -> tuple[Floats, Floats]:
        """Return what each model costs, and the least that its owner sells it for, ``[m]`` each in tokens.

        Who says no amount sells to nobody. What no weight pays for is no offer: it would only take choices from buyers.
        """
        answers = [view.said(c, self.answer) or {} for c in view.trained.seats.client.tolist()]
        said = [amount(answer.get("least", 0.0), infinite=True) for answer in answers]
        least = np.array([math.inf if one is None else one for one in said], np.float64)
        return np.where(least <= self.tariff.price(sizes), costs, np.inf), least

    def limited(self, W: Floats, gram: Floats, graph: Graph | Floats, distance: Distance) -> Floats:
        """Return weights of centres ``[m, m]`` within reach of what is imported, each import's own part within its
        share.
        """
        return within_reach(within_shares(W, gram, np.asarray(graph, np.float64), distance), gram, graph)

    def sale(self, cost: float) -> str:
        """Return what a client of this cost is paid for its model, for who considers joining."""
        return (
            "Each time another client takes its model it is paid the posted price: "
            f"{quantity(f'{self.tariff.flat:g}', 'token')} and {self.tariff.per_thousand:g} for each thousand samples "
            f"as which the buyer takes it, if that covers its cost, {cost:g}."
        )

    def shop_windows(self, view: View, market: Market, least: Floats) -> list[Request]:
        """Return the offers that each buyer is asked to choose from. Who reports no samples is not asked (papers.md
        I13).

        Args:
            view: the round. The method reads ``roster``, ``trained`` and ``book``.
            market: what is offered. Costs are prices, infinite for what is not on sale.
            least: ``[m]``, the lowest price in tokens at which each client would sell.
        """
        info, clients, offered = view.roster.by_id, view.trained.seats.client, on_sale(market)
        asked = list[Request]()
        for i, c in enumerate(clients.tolist()):
            if market.sizes[i] == 0:
                continue
            shown = np.flatnonzero(offered[i])
            told = {
                "profile": dict(info[c].profile),
                "eagerness": self.eagerness,
                "samples": min(info[c].num_samples, LARGEST_COUNT),
                "balance": view.book.balance(account(c)),
                "lam": market.lam,
                "sellers": clients[shown].tolist(),
                "sizes": market.sizes[shown].tolist(),
                "prices": [self.tariff.flat] * len(shown),
                "per_sample": self.tariff.per_sample,
                "least": least[shown].tolist(),
                "distances": market.distance[i, shown].tolist(),
            }
            asked.append(Request(c, (Ask("buy", told),)))
        return asked

    def purchases(self, view: View, market: Market, least: Floats) -> tuple[Floats, dict[int, str]]:
        """Return who takes which offer with what share of its size, ``[m, m]``, and by its place the reason for each
        whose purchase is void.

        A purchase that names what is not on sale to that buyer, or at a weight not above 0 or above its size, is void
        as a whole. Who reports no samples buys nothing. What brings a seller less than its least is not sold.
        """
        clients, wrong = view.trained.seats.client, dict[int, str]()
        place = {c: s for s, c in enumerate(clients.tolist())}
        graph, offered = np.zeros((market.size, market.size)), on_sale(market)
        for i, c in enumerate(clients.tolist()):
            if market.sizes[i] == 0:  # also of those who were left out
                continue
            said = view.said(c, "buy") or {}
            taken = [place.get(j, -1) for j in said.get("sellers", ())]
            if any(j < 0 or not offered[i, j] for j in taken):
                wrong[i] = "it buys what is not on sale to it"
                continue
            sizes = market.sizes[taken]
            weights = np.array(said.get("weights") or sizes, np.float64)
            if weights.shape != sizes.shape or not ((weights > 0) & (weights <= sizes)).all():
                wrong[i] = "it buys with weights that are not above 0 and up to the sizes on offer, one for each seller"
                continue
            graph[i, taken] = weights / sizes
        return sold(graph, market.sizes, self.tariff, least), wrong
