"""iPFL (Zhang et al. 2024): a market of models, in which clients buy models that help them and sell their own.

In each round of Alg. 1 all clients train their own models, pulled towards a proximal centre (eq. 7). From declared
costs and distances between models, the server learns who should import whose model (Alg. 2), and it bills the buyers
(eq. 10). A client that pays gets its next centre (eq. 6). One that does not pay gets none, and trains the next round
without the pull. A client may quit after any round, with its best model so far.

The table has three rows for each client: "model", "centre", and the private row "best" with its best model so far. One
more row is "initial".

:class:`IPFL` is the whole system as one part for four slots, and :func:`ipfl` the mechanism. :class:`Utilities`
computes what other mechanisms would bring their clients in such a market without payments. The graph, the prices and
the utilities themselves are game theory: :mod:`hanse.games.market`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.base.errors import UserError
from hanse.base.factories import Rate, Weight, options_of
from hanse.base.pytorch import Tensor, torch
from hanse.core.book import LARGEST
from hanse.core.declared import LARGEST_COUNT
from hanse.core.entry import TOKEN, Transaction, in_tokens, units_of
from hanse.core.entry import client as account
from hanse.core.part import (
    Choice,
    Context,
    Mechanism,
    Most,
    PostedRound,
    Questions,
    SelectPart,
    Settlement,
    SettlePart,
    State,
    TrainPart,
    Unproved,
    View,
    Weighed,
    WeighPart,
    by_slot,
)
from hanse.core.port import Request, Score, Scored
from hanse.core.table import PER_CLIENT, Block, Floats, Ints, Replace, Seats
from hanse.core.telling import FREE, BeforeJoining, Check, Fact, Kind, Plot, Telling, Terms
from hanse.federation.policy import MOST, amount
from hanse.games.gram import inner_products
from hanse.games.market import Graph, Market, best_imports, gain, gains, local_optimality, utilities_of
from hanse.games.market_models import Kind as Distance
from hanse.games.market_models import centre_weights, cosine_distances, cosine_gram, distances, gram_distances
from hanse.games.market_posted import APART, Pricing, Tariff, due
from hanse.learning.adapters import has_adapters, travel_gram
from hanse.mechanisms import market_checks
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.feedback import gone, news, no_news, with_worth
from hanse.mechanisms.ipfl_prices import Declared, Posted
from hanse.mechanisms.train import chosen_seats, units
from hanse.mechanisms.weigh import Centres

Cost = Annotated[float, Field(ge=0)]
Eagerness = Annotated[float, Field(ge=0, le=MOST)]
Of = Literal["travel", "models", "updates", "first"]
Start = Literal["own", "centre"]
CosineGram = tuple[Floats, Floats]  # cosines [m, m] and lengths [m]

OWN = "own model"  # the question for a model's validation score
FAR = 1e9  # longer models are left out of the market; up to this, squares of squared lengths fit into float32
ONE_BY_ONE = 64  # up to this many clients have metrics of their own; of more, the figures are only in the records


@dataclass(frozen=True)
class Traits:
    """What decides who trades with whom: either the values that clients declare or the true ones.

    Attributes:
        sizes: numbers of samples, ``[m]``.
        costs: the cost of sharing a model, in tokens, ``[m]``.
        eagerness: K of eq. (2), how much a client gains from more data, ``[m]``.
    """

    sizes: Floats
    costs: Floats
    eagerness: Floats

    @staticmethod
    def true_of(view: View, clients: Ints, cost: float, eagerness: float) -> Traits:
        """Return the true traits of ``clients [m]``, from their profiles.

        Args:
            view: the round.
            clients: client ids.
            cost: for clients whose profile has none.
            eagerness: for clients whose profile has none.
        """
        info = [view.roster.by_id[c] for c in clients.tolist()]
        return Traits(
            np.array([float(min(one.num_samples, LARGEST_COUNT)) for one in info]),
            np.array([_known(amount(one.profile.get("cost"), infinite=True), cost) for one in info]),
            np.array([_known(amount(one.profile.get("eagerness")), eagerness) for one in info]),
        )


@dataclass(frozen=True)
class Trade:
    """Tells later parts about one round's market.

    Attributes:
        clients: who was at the market, ``[m]``.
        market: what they declared, and the distances between their models.
        graph: ``[m, m]``; ``graph[i, j]`` is 1 if client i imports the model of j. At posted prices it is the share of
            j's size with which i imports it.
        truth: the clients' true traits.
        least: ``[m]``, the lowest price in tokens at which each client would sell; 0 under eq. (10).
    """

    clients: Ints
    market: Market
    graph: Graph | Floats
    truth: Traits
    least: Floats


@dataclass(frozen=True)
class Offers:
    """Keeps the sellers' offers, from the moment when buyers are asked until they buy.

    Attributes:
        market: what clients declared or offer, and the distances between their models.
        gram: the cosines and lengths from which centres are made. None: the centres do not need them.
        out: the reason for each that was left out, by its place.
        least: ``[m]``, the lowest price in tokens at which each client would sell; 0 under eq. (10).
    """

    market: Market
    gram: CosineGram | None
    out: Mapping[int, str]
    least: Floats


@dataclass(frozen=True)
class Bills:
    """Tells later parts what became of one round's bills.

    Attributes:
        clients: who was at the market, ``[m]``.
        units: what client i owes client j, ``[m, m]``.
        authorised: ``[m]``, the most units that each client had agreed to pay; -1 if it had agreed to any bill.
        paid: who paid, ``[m]``.
        utility: each client's utility in this round, eq. (1), ``[m]`` in tokens.
    """

    clients: Ints
    units: NDArray[np.int64]
    authorised: Ints
    paid: NDArray[np.bool_]
    utility: Floats


@dataclass(frozen=True)
class IPFL(SelectPart, TrainPart, WeighPart, SettlePart):
    """iPFL, in the slots select, train, weigh and settle: a market of models with prices.

    SELECT: everyone who is present and has not left. After each market, a client is told how it went. It learns its
    utility in the last round (``value``), the ``mean`` so far and the number of ``times``. It also learns its ``bill``,
    what it had ``authorised`` and its ``balance``, in units, and in how many rounds its centre was withheld
    (``unpaid``). The client answers whether it stays. Clients that leave cannot return.

    TRAIN: each client trains its own model, pulled towards its centre, eq. (7). A client that has not paid trains
    without the pull. So does a client that imports nothing: eq. (5) then has no such term, and the sellers in Table 5
    train as if alone (papers.md I19).

    WEIGH: the graph of imports and the centres, from what clients declare and how far apart their models are. A client
    is left out of a round's market, where it then neither buys nor sells, in three cases: it declares a cost or an
    eagerness that is not a number from 0 to 1e15 (a cost may be infinite); it reports more than 2^53 samples; or it
    sends a model longer than 1e9. The record says why.

    SETTLE: each client pays for its imports, in one transaction. The price of each import is rounded down to the unit,
    but a price above 0 is at least one unit. A buyer pays nothing, and its centre is withheld, in three cases: its bill
    exceeds what it authorised with its training reply; its account cannot pay the bill; or its centre would not change
    anyway. Its sellers then share nothing with it, and all other payments stay as they are. Amounts are Python integers
    throughout.

    Attributes:
        lam: lambda, the weight of the distances between models in eqs (8) and (10).
        eta: the step with which centres are made, eq. (6).
        cost: in tokens, for clients that declare none, and the true cost of those whose profile has none. A posted
            price below it sells nothing.
        eagerness: for clients that declare none, and the true one of those whose profile has none.
        distance: "cosine" (``1 - cos``) or "squared_l2" (half of the squared Euclidean distance; papers.md I15).
            Centres take the gradient of the same distance.
        of: what is compared: the models' changes since the initial one ("travel"), the "models" themselves, the round's
            "updates", or what each client changed at "first", before it bought anything. Nothing pulled it then, so
            neither buying from somebody nor copying brings a client closer to the seller. Centres then use "travel".
        related: clients trade only if their changes are more alike than random ones: their cosine must exceed ``related
            / sqrt(P)``, for P parameters (random directions have about ``1 / sqrt(P)``). The market takes their
            distance as 1e9. None: all may trade. It needs distances by "cosine".
        bounded: centres stay within reach of the imported models (:func:`hanse.games.market_models.within_reach`).
            Otherwise the step of eq. (6) is taken as printed.
        pricing: "marginal" is iPFL's eq. (10). "posted" takes the prices of a tariff
            (:mod:`hanse.games.market_posted`). Clients then declare neither cost nor eagerness. Each is told the price
            of its model and decides whether to offer it, and each buyer chooses from the offers.
        keep_best: whether a private row keeps each client's best model so far, which is the client's when it quits.
        adapters: how distances between LoRA adapters are measured: between their "factors", as for any parameters, or
            between the "products" B A. The products do not depend on how a change is factored
            (:mod:`hanse.learning.adapters`). Centres always mix factors, because that is what the rows of the table
            hold.
        mu: strength of the pull of eq. (7). None: ``lam / eta``.
        flat: tokens for any model, at posted prices, before its size counts. The best choice is the lowest cost that
            sharing a model has for anybody.
        per_thousand: tokens for each thousand samples with which its buyer imports a model, at posted prices. A seller
            names the lowest price at which it sells, and buyers are shown this. A buyer may buy only a share of a
            model's size; the model then moves the centre at most that share of the way towards itself.
        start: what a client that imports models trains from: its "own" model or its "centre". The minimum of eq. (7) is
            the same.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("ipfl").before("settle")
        >>> settlement, state = part.settle(view, state)
        >>> len(settlement.transactions)
        4
    """

    adds = (("pull", "mu"),)

    needs = by_slot(
        select={"clients", "trade", "bills"},
        train={"clients", "penalty", "bills", "new rows centre"},
        weigh={"clients", "bills", "rows model", "rows centre", "rows initial"},
        settle={"trade", "bills", "rows centre"},
    )
    gives = by_slot(weigh={"trade"})
    fills = by_slot(weigh={"centre", "best"})
    lam: Weight = 2.0
    eta: Rate = 5.0
    cost: Cost = 1.0
    eagerness: Eagerness = 5e5
    distance: Distance = "cosine"
    of: Of = "travel"
    bounded: bool = True
    pricing: Pricing = "marginal"
    keep_best: bool = True
    adapters: Literal["factors", "products"] = "factors"
    mu: Weight | None = None
    flat: Weight = Tariff.flat
    per_thousand: Weight = Tariff.per_thousand
    related: Weight | None = None
    start: Start = "own"

    def __post_init__(self) -> None:
        """Fill in the default of ``mu``. Raises UserError for a tariff without effect."""
        if self.mu is None:  # eq. (7): lambda / (2 eta) |theta - centre|^2
            object.__setattr__(self, "mu", self.lam / self.eta)
        if self.related is not None and self.distance != "cosine":
            raise UserError(f"related: {self.related:g}: needs distance = 'cosine'; must be 'none'")
        if self.pricing != "posted" and Tariff(self.flat, self.per_thousand) != Tariff():
            raise UserError("flat, per_thousand: of no effect without pricing = 'posted'")

    @property
    def prices(self) -> Declared | Posted:
        """How the market comes to its prices."""
        if self.pricing == "posted":
            return Posted(Tariff(self.flat, self.per_thousand), self.cost, self.eagerness)
        return Declared(self.cost, self.eagerness)

    def init(self, context: Context) -> State:
        """Return the state in which everyone is present and nothing has been traded.

        Raises UserError for distances between adapters' products if the model is no adapter.
        """
        if self.adapters == "products" and not has_adapters(context.layout):
            raise UserError("mechanism.weigh.adapters: 'products': the model has no adapters (model.name = 'lora' has)")
        n = context.num_clients
        return {
            **no_news(n),
            "bill": np.zeros(n, np.int64),
            "authorised": np.full(n, -1, np.int64),
            "unpaid": np.zeros(n, np.int64),
            "pulled": np.zeros(n, bool),  # whose centre is made of others' models, and was delivered
            "best": np.full(n, -np.inf),  # the validation score of each client's best model
            "own": torch.zeros((n, context.layout.num_parameters if self.of == "first" else 0)),
            "bought": np.zeros(n, bool),  # who has ever got a centre of others' models
            **_nothing(n),
        }

    def questions(self, clients: int, rows: int) -> Mapping[str, Most]:
        """Return what :meth:`asks` asks at most."""
        return {"Ask": Most(3, 0), "Score": Most(1, 1, "validation")}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask whether clients stay ("open"), for cost and eagerness ("train"), and to score models ("close").

        Only clients of the last market are asked whether they stay. Models are scored only if each client's best one is
        kept.

        Args:
            view: the round. The method reads ``stage``, ``round``, ``roster``, ``present``, ``table``, ``choice``,
                ``trained`` and ``book``.
            state: as :meth:`init` makes it.
        """
        here = view.context.standing(self)
        if view.stage == "open" and "select" in here:
            return news(view, state, lambda client: _market_news(view, state, client))
        if view.stage == "train" and "weigh" in here and view.choice is not None:
            info, prices = view.roster.by_id, self.prices
            return [Request(c, (prices.question(info[c], view.round),)) for c in view.choice.clients.tolist()]
        if view.stage != "close" or "weigh" not in here:
            return ()
        updates, asked = view.trained, []
        if "best" in view.table:
            asked = [
                Request(c, (Score(OWN, updates.rows[s : s + 1], "validation"),))
                for s, c in enumerate(updates.seats.client.tolist())
            ]
        prices = self.prices
        if isinstance(prices, Declared) or self._over(view) or len(updates) == 0:
            return asked
        offers = self._offers(view, state)
        return Questions.of([*asked, *prices.shop_windows(view, offers.market, offers.least)], offers)

    # SELECT

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the present clients that have not left.

        Args:
            view: the round, with the answers to "stay". The method reads ``present`` and ``leaving``.
            state: has the mask ``gone`` ``[N]`` of those who left before, as :meth:`init` makes it.
        """
        left = gone(view, state)
        choice = Choice(view.present[~left[view.present]], metrics={"market/quit": float(left.sum())})
        return choice, {**state, "gone": left}

    # TRAIN

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return the rows. All of them start as the initial model (papers.md I14).

        Models are uploaded to the market. Only a best model never leaves its client.
        """
        best = (Block("best", PER_CLIENT, private=True),) if self.keep_best else ()
        return Block("model", PER_CLIENT), Block("centre", PER_CLIENT), *best, Block("initial")

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat for each client.

        The seat starts from the client's own model or its centre. It is pulled to the centre if others' models are in
        it.

        Args:
            view: the round. The method reads ``table``, ``at``, ``home`` and ``choice``.
            state: as :meth:`init` makes it.
        """
        clients = chosen_seats(view).client
        own = view.at("model", clients)
        centre, pulled = view.at("centre", clients), state["pulled"][clients]
        assert self.mu is not None
        start = np.where(pulled & (self.start == "centre"), centre, own)
        return Seats(clients, start, own, R=units(centre, view.table.size), mu=self.mu * pulled), state

    # WEIGH

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the models that are their client's best so far, and the new centres.

        These are two :class:`hanse.core.table.Replace`. One is for the clients whose model became better (perhaps
        none), and one for all centres. The :class:`Trade` that the centres come from is handed on.

        After the last training there is no market (papers.md I21).

        Args:
            view: the round. The method reads ``round``, ``roster``, ``leaving``, ``answers``, ``said``, ``table``,
                ``at``, ``home`` and ``trained``.
            state: as :meth:`init` makes it.
        """
        keeps, clients, home = "best" in view.table, view.trained.seats.client, view.home.copy()
        # Alg. 1: who quits leaves with its best model
        home[view.leaving] = view.at("best" if keeps else "model", view.leaving)
        kept: tuple[Replace, ...] = ()
        if keeps:
            best, scores = state["best"].copy(), self._scores(view, state)
            better = np.flatnonzero(scores > best[clients])
            best[clients] = np.maximum(best[clients], scores)
            kept = (Replace(view.at("best", clients[better]), np.eye(len(clients))[better]),)
            state = {**state, "best": best}
        if self._over(view):
            return Weighed(kept, home=home), state  # nothing is trained after it: no graph, no payment
        trade, centres, out = self._market(view, state)
        if self.of == "first":
            own = state["own"].clone()
            own[clients] = self._went(view, state).cpu()
            state = {**state, "own": own}
        metrics = {
            "market/edges": float(np.count_nonzero(trade.graph)),
            "market/mean_distance": _mean_distance(trade.market.distance),
            "market/isolated": float(((trade.graph.sum(axis=0) == 0) & (trade.graph.sum(axis=1) == 0)).sum()),
        }
        worst = max(local_optimality(trade.market, trade.graph))
        if math.isfinite(worst) and isinstance(self.prices, Declared):  # else buyers choose for themselves
            metrics["market/eq9"] = worst  # above 0: an import too many, or one left out
        refused = tuple((int(clients[s]), f"not at the market: {why}") for s, why in sorted(out.items()))
        found = (trade, Centres(clients, np.asarray(trade.graph.any(axis=1))))
        return Weighed((*kept, centres), (), home, metrics, refused, found), state

    def _over(self, view: View) -> bool:
        """Whether nobody trains with what this round's market would bring."""
        return view.round == view.context.rounds - 1

    def _imports(self, market: Market) -> Graph:
        """Return who imports whose model, by Alg. 2."""
        return best_imports(market)

    def _market(self, view: View, state: State) -> tuple[Trade, Replace, Mapping[int, str]]:
        """Return the trade, the centres that follow from it, and the reason for each that was left out, by place."""
        offers = view.get(Offers) or self._offers(view, state)
        market, prices, clients = offers.market, self.prices, view.trained.seats.client
        graph: Graph | Floats
        void = dict[int, str]()
        if isinstance(prices, Posted):
            graph, void = prices.purchases(view, market, offers.least)
        else:
            graph = self._imports(market)
        truth = Traits.true_of(view, clients, self.cost, self.eagerness)
        trade = Trade(clients, market, graph, truth, offers.least)
        return trade, self._centres(view, trade, offers), {**offers.out, **void}

    def _offers(self, view: View, state: State) -> Offers:
        """Return the market of what clients declared or offer and of their models' distances.

        At posted prices, a market's costs are the prices, infinite for what is not on sale, and nobody's eagerness is
        known.
        """
        measured = self._measured(view)
        declared, out = self._declared(view, measured)
        measured = _without_rows(measured, out)
        # one product of the models for the distances and for the centres
        gram = cosine_gram(measured) if self.distance == "cosine" else None
        if self.adapters == "products":
            apart = self._product_distances(view)
        elif self.of == "first":
            apart = distances(_without_rows(self._went(view, state), out), self.distance)
        else:
            apart = distances(measured, self.distance) if gram is None else cosine_distances(gram[0])
        if self.related is not None:
            apart = np.where(apart < 1 - self.related / math.sqrt(measured.shape[1]), apart, APART)
            np.fill_diagonal(apart, 0.0)
        if self.distance == "squared_l2":
            apart = apart / 2  # papers.md I15: 0.5 |.|^2, so that eta sum A n_j/n_i <= 1 keeps the centre between
        costs, least = self.prices.offers(view, declared.sizes, declared.costs)
        market = Market.of(apart, declared.sizes, costs, declared.eagerness, self.lam)
        return Offers(market, gram, out, least)

    def _went(self, view: View, state: State) -> Tensor:
        """Return how far the clients had gone before they first bought anything, ``[m, parameters]``.

        Nothing had pulled them until then. This round is included for those that have still not bought.
        """
        updates, width = view.trained, view.context.layout.num_parameters
        moved = updates.rows[:, :width] - view.table.rows[updates.seats.start, :width]
        moved[torch.from_numpy(state["bought"][updates.seats.client]).to(moved.device)] = 0.0
        return moved.add(state["own"][updates.seats.client].to(moved.device))

    def _scores(self, view: View, state: State) -> Floats:
        """Return each update's score ``[S]`` at its client: accuracy, or minus the loss without classes.

        If a client has no validation share, its latest model counts as its best.
        """
        found = np.zeros(len(view.trained))
        for s, c in enumerate(view.trained.seats.client.tolist()):
            result = view.answers.get((c, OWN))
            value = math.nan
            if isinstance(result, Scored) and result.num_samples > 0:
                value = float(result.accuracy[0])
                value = -float(result.loss[0]) if math.isnan(value) else value
            # without a score: just above the best so far, so the latest model becomes the best one
            found[s] = value if math.isfinite(value) else np.nextafter(state["best"][c], np.inf)
        return found

    def _declared(self, view: View, measured: Tensor) -> tuple[Traits, Mapping[int, str]]:
        """Return what the clients declare and report, and the reason for each that is left out, by its place among the
        updates.

        A client that is left out has size 0, an infinite cost and no eagerness, so it neither sells nor buys.
        """
        updates, out = view.trained, dict[int, str]()
        lengths = torch.linalg.vector_norm(measured, dim=1).tolist()
        costs, eager = np.full(len(updates), math.inf), np.zeros(len(updates))
        sizes = np.where(updates.num_samples >= 1, updates.num_samples, 0.0)  # less than one are none
        prices, unproved = self.prices, view.get(Unproved)
        shut = () if unproved is None else unproved.clients.tolist()
        for s, c in enumerate(updates.seats.client.tolist()):
            said = view.said(c, prices.answer)
            cost, eagerness = prices.declared(said or {}, float(sizes[s]))
            cost = math.inf if c in shut else cost
            if said is None:
                out[s] = "it declares nothing"
            elif cost is None:
                out[s] = f"its cost is no number from 0 to {MOST:g}, nor infinite"
            elif eagerness is None:
                out[s] = f"its eagerness is no number from 0 to {MOST:g}"
            elif sizes[s] > LARGEST_COUNT:
                out[s] = f"it reports more than {LARGEST_COUNT} samples"
            elif not lengths[s] <= FAR:
                out[s] = f"its model is {lengths[s]:.3g} long: at most {FAR:g}"
            else:
                # papers.md I13: who reports no samples neither buys nor sells
                costs[s], eager[s] = cost, eagerness if sizes[s] > 0 else 0.0
        sizes[list(out)] = 0.0
        return Traits(sizes, costs, eager), out

    def _product_distances(self, view: View) -> Floats:
        """Return the distances ``[m, m]`` between the adapters' products: of the models or of the changes that ``of``
        names.
        """
        updates, layout = view.trained, view.context.layout
        reference = None
        if self.of != "models":
            reference = view.table.rows[updates.seats.start] if self.of == "updates" else view.context.initial(0)
        gram = travel_gram(layout, updates.rows, reference)
        return gram_distances(gram, self.distance)

    def _measured(self, view: View) -> Tensor:
        """Return what distances are taken of, ``[m, parameters]``."""
        width, updates = view.context.layout.num_parameters, view.trained
        rows = updates.rows[:, :width]
        if self.of == "models":
            return rows
        if self.of == "updates":  # centres of "first" looks go by "travel"
            return rows - view.table.rows[updates.seats.start, :width]
        return rows - view.context.initial(0)[:width]

    def _centres(self, view: View, trade: Trade, offers: Offers) -> Replace:
        """Return the new centres, iPFL eq. (6), as weights on updates and old rows."""
        rows, S, gram = view.at("centre", trade.clients), len(view.trained), offers.gram
        limited = self.prices.limited
        if gram is None:
            measured = _without_rows(self._measured(view), offers.out)
            # eta / 2, because the distance is half of the squared one
            inner = centre_weights(trade.graph, trade.market.sizes, self.eta / 2, "squared_l2")
            if self.bounded:
                inner = limited(inner, inner_products(measured), trade.graph, self.distance)
        else:
            cosines, lengths = gram
            moved = lengths > 0  # a model that did not move has no direction: it neither pulls nor is pulled
            graph, sizes = trade.graph * (moved[:, None] & moved[None, :]), trade.market.sizes
            inner = centre_weights(graph, sizes, self.eta, "cosine", cosines, np.where(moved, lengths, 1.0))
            if self.bounded:
                products = cosines * lengths[:, None] * lengths[None, :]
                inner = limited(inner, products, trade.graph, self.distance)
        # with squared L2 the weights sum to 1, so that a reference which all share cancels
        if self.of == "models" or (self.of != "updates" and gram is None):
            return Replace(rows, inner)
        # the weights act on theta - reference, so the centre is theta_i + (W - I) (theta - reference)
        reference = view.trained.seats.start if self.of == "updates" else np.full(S, view.table.row("initial"))
        models = np.zeros((S, view.table.size))
        np.add.at(models.T, reference, -(inner - np.eye(S)).T)
        return Replace(rows, inner, models)

    # SETTLE

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return the payments of clients that can pay, and the centres that are withheld from the others.

        Args:
            view: the round. The method reads ``stage``, ``round``, ``authorised``, ``table``, ``at``, ``mixed``,
                ``get(Trade)`` and ``book``.
            state: as :meth:`init` makes it.
        """
        trade = view.get(Trade)
        if view.stage != "close":
            return Settlement(), state
        if trade is None:
            return Settlement(metrics=_metrics(state, None)), state
        prices = self.prices
        owed, payable = _billed(due(trade.market, trade.graph, prices.tariff), trade.graph)  # eq. (10), or the tariff
        authorised = [_limit(view.authorised.get(c)) for c in trade.clients.tolist()]
        paid, transactions = _clear(view, trade.clients, owed, payable, authorised, prices.memo)
        realised = np.where(paid[:, None], trade.graph, 0)
        money = np.where(paid[:, None], owed, 0)
        utility = _utilities(realised, money / TOKEN, trade.truth)
        most = np.array([-1 if limit is None else limit for limit in authorised], np.int64)
        settled = Bills(trade.clients, owed, most, paid, utility)
        arrays = _arrays(trade, self.pricing, prices.tariff) | {
            "market_units": owed,
            "market_paid": paid,
            "market_authorised": most,
            "market_utility": utility,
        }
        after = _added(state, trade.clients, utility, money)
        metrics = {
            "market/money": float(money.sum() / TOKEN),
            "market/withheld": float((~paid).sum()),
            **_metrics(after, utility),
        }
        withheld = frozenset(view.at("centre", trade.clients[~paid]).tolist())
        return Settlement(withheld, transactions, metrics, arrays, (settled,)), after

    def learn(self, outcome: View, state: State) -> State:
        """Remember how the market went for each client, and whose centre was delivered.

        Args:
            outcome: the finished round. The method reads ``get(Centres)`` and ``get(Bills)``.
            state: as :meth:`init` makes it.
        """
        n, nobody = len(state["gone"]), np.zeros(0, np.int64)
        after = {
            **state,
            **with_worth(state, nobody, np.zeros(0)),
            "bill": np.zeros(n, np.int64),
            "authorised": np.full(n, -1, np.int64),
        }
        pulled, centres, bills = state["pulled"].copy(), outcome.get(Centres), outcome.get(Bills)
        if centres is not None:
            pulled[centres.clients] = centres.imports
        if bills is not None:
            pulled[bills.clients[~bills.paid]] = False
        after |= {"pulled": pulled, "bought": state["bought"] | pulled}
        if bills is None:
            return after
        after |= with_worth(state, bills.clients, bills.utility)
        after["bill"][bills.clients] = bills.units.sum(axis=1)
        after["authorised"][bills.clients] = bills.authorised
        after["unpaid"] = state["unpaid"].copy()
        after["unpaid"][bills.clients] += ~bills.paid
        return after

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what the market's payments are called, if this part settles."""
        return MARKET_TELLING if "settle" in slots else Telling()

    def checks(self, rounds: Iterable[PostedRound], parts: Mapping[str, Any]) -> Iterator[Check]:
        """Yield whether the postings are those of the recorded markets."""
        return market_checks.checks(rounds, parts)

    def promises(self, rounds: Iterable[PostedRound], parts: Mapping[str, Any]) -> Iterator[Check | Fact]:
        """Yield whether the markets kept what they promise: iPFL's theorems, or the rules of posted prices."""
        return market_checks.promises(rounds, parts)

    def _markets(self, rounds: int) -> int:
        """Return how many markets there are in so many rounds."""
        return max(0, rounds - 1)

    def terms(self, joining: BeforeJoining) -> Terms:
        """Return what imports may cost and gain a client that considers joining, and what its own model may earn."""
        weigh, profile = joining.parts.get("weigh"), joining.profile
        markets = self._markets(joining.rounds)
        eager = float(profile.get("eagerness", getattr(weigh, "eagerness", np.nan)))
        cost = float(profile.get("cost", getattr(weigh, "cost", np.nan)))
        agreed, gains, unknown = joining.agreed, list[str](), ["Whose models will be like its own."]
        caps = [] if agreed is None else [agreed]
        prices = self.prices
        pays = [f"It pays for the {prices.imports}, in each of up to {markets} markets: {joining.at_stake_in_words}."]
        if joining.sizes is not None and hasattr(weigh, "eagerness") and np.isfinite(eager):
            own = float(joining.sizes[joining.client])
            most = float(gain(own, float(joining.sizes.sum()) - own, eager)) if own > 0 else 0.0
            gains.append(
                f"With {own:.0f} own samples and its eagerness of {eager:g}, all others' models would be worth "
                f"{most:.2f} tokens a round to it (eq. 2); that is the most it can gain as a buyer."
            )
            if isinstance(prices, Declared) and own > 0:
                highest = float(np.sqrt(eager / own))  # eq. (2) as imports grow without end
                caps.append(int(np.ceil(highest * TOKEN)))
                pays.append(f"Whatever the sellers report, no bill is above {highest:.2f} tokens (eq. 10).")
        else:
            unknown.append("What the others' models could be worth to it: the sizes of their data are not known here.")
        if agreed is None:
            pays.append("Its policy sets no limit of its own to a round's bill; 'trader' with 'most' does.")
        else:
            pays.append(f"Its policy agrees to at most {in_tokens(agreed)} a round; above that it gets nothing.")
        gains.append(prices.sale(cost))
        most_round = min(caps) if caps else None
        least = joining.at_stake if most_round is None else min(joining.at_stake, most_round * markets)
        return Terms(tuple(pays), tuple(gains), tuple(unknown), least, most_round)


def _without_rows(rows: Tensor, out: Mapping[int, str]) -> Tensor:
    """Return ``rows [m, P]`` with zeros for who is left out: a huge or broken model must not enter the products with
    all others.
    """
    if out:
        rows = rows.clone()
        rows[list(out)] = 0.0
    return rows


def _market_news(view: View, state: State, client: int) -> dict[str, Any]:
    """Return what a client is told of the last market besides its utility, in units."""
    told = {name: int(state[name][client]) for name in ("bill", "authorised", "unpaid")}
    return {**told, "balance": view.book.balance(account(client))}


def _known(value: float | None, default: float) -> float:
    """Return a value, or the default if it is None."""
    return default if value is None else value


def _mean_distance(distance: Floats) -> float:
    """Return the mean distance ``[m, m]`` between clients that may trade; 0 if none may."""
    pairs = (distance < APART) & ~np.eye(len(distance), dtype=bool)
    return float(distance[pairs].mean()) if pairs.any() else 0.0


def _billed(due: Floats, graph: NDArray[np.generic]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return what each buyer owes each seller at prices ``due [m, m]`` (tokens), in units ``[m, m]``, and whose bill an
    account could hold, ``[m]``.

    What nobody could pay is cut, so that sums fit into the record. A price above 0 is at least one unit: a buyer that
    overstates its size pushes prices towards 0, and rounding them down to nothing would reward it.
    """
    most = LARGEST // max(1, len(due))
    units, payable = np.zeros(due.shape, np.int64), np.ones(len(due), bool)
    for i, j in np.argwhere(graph).tolist():
        price = float(due[i, j])
        owed = most + 1 if not math.isfinite(price) else max(1, units_of(price)) if price > 0 else 0
        units[i, j], payable[i] = min(owed, most), payable[i] and owed <= most
    return units, payable


def _limit(authorised: object) -> int | None:
    """Return the most that a client pays, in units; None: any bill. What is no amount authorises nothing."""
    if authorised is None:
        return None
    return max(0, min(authorised, LARGEST)) if type(authorised) is int else 0


def _clear(
    view: View,
    clients: Ints,
    units: NDArray[np.int64],
    payable: NDArray[np.bool_],
    authorised: Sequence[int | None],
    memo: str,
) -> tuple[NDArray[np.bool_], tuple[Transaction, ...]]:
    """Return who pays, ``[m]``, and the transactions, in an order in which no account falls below its floor.

    A client that authorised its bill pays as soon as its account can bear it. What it pays may enable others to pay, so
    the clients are gone through until nobody else can. A bill of 0 is paid without a transaction.
    """
    book, owed = view.book, units.sum(axis=1).tolist()
    kept = view.mixed.keeps(view.table, view.at("centre", clients))  # nothing would be delivered for their money
    within = [most is None or bill <= most for bill, most in zip(owed, authorised, strict=True)]
    willing = payable & ~np.asarray(kept) & within
    paid = (willing & (units.sum(axis=1) == 0)).tolist()
    posted: list[Transaction] = []
    progress = True
    while progress:
        progress = False
        for i in range(len(owed)):
            if paid[i] or not willing[i] or not book.can_pay(account(int(clients[i])), owed[i]):
                continue
            buyer = int(clients[i])
            postings = [(account(buyer), -owed[i])]
            postings += [(account(int(clients[j])), price) for j, price in enumerate(units[i].tolist()) if price]
            entry = Transaction(f"market/{buyer}", "market", tuple(postings), memo)
            book = book.post(view.round, [entry])  # a trial of what the loop posts later
            posted.append(entry)
            paid[i] = progress = True
    return np.array(paid, bool), tuple(posted)


def _utilities(graph: NDArray[np.generic], money: Floats, truth: Traits) -> Floats:
    """Return each client's true utility, iPFL eq. (1), ``[m]`` in tokens. ``money [m, m]`` are payments in tokens."""
    if bool(((truth.sizes == 0) & (truth.eagerness > 0)).any()):  # papers.md I13: without samples there is no gain
        truth = Traits(truth.sizes, truth.costs, np.where(truth.sizes == 0, 0.0, truth.eagerness))
    return utilities_of(graph, money, truth.sizes, truth.costs, truth.eagerness)


def _arrays(trade: Trade, pricing: Pricing, tariff: Tariff | None) -> dict[str, NDArray[Any]]:
    """Return the arrays from which an audit can replay a round's market."""
    market, truth = trade.market, trade.truth
    rule: dict[str, NDArray[Any]] = {}
    if tariff is not None:
        rule = {"market_tariff": np.array([tariff.flat, tariff.per_thousand]), "market_least": trade.least}
    return rule | {
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
    """Return the sums over all markets before the first: ``utility [N]`` in tokens and ``money [N]`` in units."""
    return {"utility": np.zeros(num_clients), "money": np.zeros(num_clients, np.int64)}


def _metrics(state: State, utility: Floats | None) -> dict[str, float]:
    """Return the metrics of all clients' utilities so far, and of those at this round's market.

    If there are few clients, each has metrics of its own.
    """
    total = state["utility"]
    found = {"utility/mean": float(total.mean()), "utility/min": float(total.min())}
    if len(total) <= ONE_BY_ONE:
        found |= {f"utility/client/{i}": float(u) for i, u in enumerate(total)}
        found |= {f"balance/client/{i}": float(m / TOKEN) for i, m in enumerate(state["money"])}
    if utility is not None and len(utility):
        found |= {"utility/round_mean": float(utility.mean()), "utility/round_min": float(utility.min())}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def _added(state: State, clients: Ints, utility: Floats, money: NDArray[np.int64] | None = None) -> State:
    """Return the sums with one more market added.

    Args:
        state: has the keys of :func:`_nothing`.
        clients: who was at the market, ``[m]``.
        utility: their utilities in it, ``[m]``.
        money: what client i paid client j, ``[m, m]`` in units; None if nobody paid.
    """
    total, balance = state["utility"].copy(), state["money"].copy()
    total[clients] += utility
    if money is not None:
        balance[clients] += money.sum(axis=0) - money.sum(axis=1)
    return {**state, "utility": total, "money": balance}


@dataclass(frozen=True)
class Utilities(SettlePart):
    """Nobody pays.

    Each client's utility is computed in the way in which iPFL does it for its baselines, eq. (1) with p = 0.

    Client i imports the model of j if j's update is in a row that matters to i: a row that i trained from, was pulled
    to, or starts from next.

    Attributes:
        cost: in tokens, for clients whose profile has none.
        eagerness: for clients whose profile has none.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse({"name": "fedavg", "settle": "utilities"}).before("settle")
        >>> settlement, state = part.settle(view, state)
        >>> settlement.transactions
        ()
    """

    needs = frozenset({"clients"})
    cost: Cost = 1.0
    eagerness: Eagerness = 5e5

    def init(self, context: Context) -> State:
        """Return the state in which nobody has gained anything."""
        return _nothing(context.num_clients)

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return metrics and arrays, and no transactions.

        Args:
            view: the round. The method reads ``stage``, ``round``, ``roster``, ``trained`` and ``mixed``.
            state: as :meth:`init` makes it.
        """
        if view.stage != "close":
            return Settlement(), state
        if len(view.trained) == 0 or self._over(view):
            return Settlement(metrics=_metrics(state, None)), state
        clients = np.unique(view.trained.seats.client)
        truth = Traits.true_of(view, clients, self.cost, self.eagerness)
        graph = self._graph(view, clients)
        utility = _utilities(graph, np.zeros(graph.shape), truth)
        arrays: dict[str, NDArray[Any]] = {
            "market_client": clients,
            "market_graph": graph,
            "market_true_size": truth.sizes,
            "market_true_cost": truth.costs,
            "market_true_eagerness": truth.eagerness,
            "market_utility": utility,
        }
        after = _added(state, clients, utility)
        traded = view.get(Trade) is not None  # then the market has said how many
        metrics = {} if traded else {"market/edges": float(graph.sum())}
        metrics |= _metrics(after, utility)
        return Settlement(metrics=metrics, arrays=arrays), after

    def _over(self, view: View) -> bool:
        """Whether nobody trains with what this round brought."""
        return view.round == view.context.rounds - 1

    def _graph(self, view: View, clients: Ints) -> Graph:
        """Return who imported whose model, ``[m, m]``."""
        return graph_of(view, clients)

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what utilities are called in reports."""
        return UTILITIES_TELLING

    def terms(self, joining: BeforeJoining) -> Terms:
        """Return that joining is free."""
        return FREE


def graph_of(view: View, clients: Ints) -> Graph:
    """Return who got whose update in a round of any mechanism, as a matrix of 0 and 1, ``[m, m]``.

    Args:
        view: the round, once the mix is known.
        clients: client ids ``[m]``, ascending.
    """
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
    # clients -> rows they see -> updates in these rows -> clients that made them
    made_of = mixed.made_of(S)
    holder = np.zeros((S, len(clients)), bool)
    holder[np.arange(S), np.searchsorted(clients, seats.client)] = True
    graph: Graph = ((reach.astype(float) @ made_of.astype(float) @ holder.astype(float)) > 0).astype(np.int8)
    np.fill_diagonal(graph, 0)
    return graph


# What the market says about itself, in reports and to participants.

MARKET_TELLING = Telling(
    "It pays for every model that is imported for it, at most what its policy agrees to, and is paid for every "
    "import of its own. Who does not pay its bill gets nothing.",
    "Clients pay one another for the models that they import; who does not pay its bill gets nothing.",
    "The market",
    (
        Plot(
            "What was paid at the market", "market/money", "tokens a round", "paid",
            "All bills that were paid in a round, together.",
        ),
    ),
    (Kind("market", "models bought and sold"),),
)  # fmt: skip
UTILITIES_TELLING = Telling(
    report="Nobody pays; what the others' models were worth to each client, less its cost of sharing, is accounted "
    "as in a market at a price of nothing.",
    section="The market",
)


def market_of(name: str, part: IPFL) -> Mechanism:
    """Return the mechanism of a market that fills all its slots."""
    return Mechanism(name, select=part, train=part, weigh=part, settle=part, deploy=ServerModel())


@options_of(IPFL, "lam eta cost eagerness distance of bounded pricing keep_best adapters related start")
def ipfl(part: IPFL) -> Mechanism:
    """iPFL with the published lambda and eta for CIFAR-10, and the published cost and eagerness.

    The gain of eq. (2) is ``sqrt(K/n)``, so the eagerness K should grow with the clients' numbers of samples n. The
    value 5e5 is meant for 5,000 samples each. For posted prices, use :func:`ipfl_posted`.
    """
    return market_of("ipfl", part)


@options_of(
    IPFL,
    "flat per_thousand lam eta cost eagerness distance of bounded keep_best adapters related start",
    pricing="posted",
    cost=0.5,
    of="first",
    related=3.0,
    start="centre",
)
def ipfl_posted(part: IPFL) -> Mechanism:
    """iPFL's market at posted prices, hanse's own: nobody gains by misreporting its cost or its eagerness.

    The operator posts what a model of n samples costs. A client is asked whether it sells at that price, and each buyer
    chooses from the offers itself (:mod:`hanse.games.market_posted`). Clients whose models have nothing in common do
    not trade. Neither trading nor copying brings clients closer to each other, because distances compare only what each
    client changed before it first bought anything. So they do not follow data that change later. Everything else is as
    in :func:`ipfl`.
    """
    return market_of("ipfl_posted", part)
