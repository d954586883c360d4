"""iPFL (Zhang et al. 2024): a market of models, in which clients buy models that help them and sell their own.

In each round of Alg. 1 all clients train their own models, pulled towards a proximal centre (eq. 7). The server learns
from declared costs and from distances between models who should import whom (Alg. 2), and bills the buyers (eq. 10). A
client that pays gets its next centre (eq. 6). One that does not pay gets none, and trains the next round without the
pull. A client may quit after any round, with its best model so far.

The table has a row "model" and a row "centre" for each client, the client's private row "best" with its best model so
far, and the row "initial".

:class:`IPFL` is the whole system as one part for four slots, and :func:`ipfl` the mechanism. :class:`Utilities`
accounts for what other mechanisms would bring their clients at such a market without payments. The graph, the prices
and the utilities themselves are game theory: :mod:`hanse.games.market`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hanse.base.errors import UserError
from hanse.base.factories import Rate, Weight
from hanse.core.book import LARGEST
from hanse.core.declared import LARGEST_COUNT
from hanse.core.entry import TOKEN, Transaction, tokens, units_of
from hanse.core.entry import client as account
from hanse.core.part import (
    Choice,
    Context,
    Mechanism,
    SelectPart,
    Settlement,
    SettlePart,
    State,
    TrainPart,
    View,
    Weighed,
    WeighPart,
    by_slot,
)
from hanse.core.port import Ask, Request, Score, Scored
from hanse.core.table import PER_CLIENT, Block, Floats, Ints, Replace, Seats
from hanse.core.telling import FREE, Joining, Kind, Plot, Telling, Terms, Worth
from hanse.federation.profiles import MOST, amount, at_round
from hanse.games.gram import inner_products
from hanse.games.market import Graph, Market, Stop, best_imports, gains, prices, utilities_of
from hanse.games.market_checks import critical_prices, local_optimality
from hanse.games.market_models import Kind as Distance
from hanse.games.market_models import (
    centre_weights,
    cosine_distances,
    cosine_gram,
    distances,
    gram_distances,
    within_reach,
)
from hanse.games.market_numbers import gain
from hanse.learning.adapters import has_adapters, travel_gram
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.feedback import gone, news, no_news, with_worth
from hanse.mechanisms.train import chosen_seats, units
from hanse.mechanisms.weigh import Centres, Received

Cost = Annotated[float, Field(ge=0)]
Eagerness = Annotated[float, Field(ge=0, le=MOST)]
Of = Literal["travel", "models", "updates"]
Pricing = Literal["marginal", "critical"]
CosineGram = tuple[Floats, Floats]  # cosines [m, m] and lengths [m]
Bill = dict[int, int]  # what a buyer owes: units by the seller's place at the market

OWN = "own model"  # the question for a model's validation score
FAR = 1e9  # longer models are left out of the market; up to this, squares of squared lengths fit into float32
UNPAYABLE = LARGEST + 1  # units: more than any account can hold
ONE_BY_ONE = 64  # up to this many clients have metrics of their own; of more, the figures are only in the records


@dataclass(frozen=True)
class Traits:
    """The traits of clients that decide about trade: what they declare, or what is true of them.

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
        info = {c.id: c for c in view.roster}
        now = [at_round(info[c].profile, view.round) for c in clients.tolist()]
        return Traits(
            np.array([float(min(info[c].num_samples, LARGEST_COUNT)) for c in clients.tolist()]),
            np.array([_known(amount(t.get("cost"), infinite=True), cost) for t in now]),
            np.array([_known(amount(t.get("eagerness")), eagerness) for t in now]),
        )


@dataclass(frozen=True)
class Trade:
    """Hands on one round's market.

    Attributes:
        clients: who was at the market, ``[m]``.
        market: what they declared, and the distances between their models.
        graph: ``graph[i, j]`` is 1 if client i imports the model of j, ``[m, m]``.
        truth: the clients' true traits.
    """

    clients: Ints
    market: Market
    graph: Graph
    truth: Traits


@dataclass(frozen=True)
class Bills:
    """Hands on what became of the bills of one round's market.

    Attributes:
        clients: who was at the market, ``[m]``.
        units: what client i owes client j, ``[m, m]``.
        authorised: the most that each client had agreed to pay, ``[m]`` in units; -1: any bill.
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

    SELECT: everyone who is present and has not quit. After each market, a client is told how it went: its utility in
    the last round (``value``), the ``mean`` so far and the number of ``times``; its ``bill``, what it had
    ``authorised``, and its ``balance``, in units; and in how many rounds its centre was withheld (``unpaid``). It says
    whether it stays. Who leaves is gone for good.

    TRAIN: each client trains its own model, pulled towards its centre, eq. (7). A client that has not paid trains
    without the pull. So does one that imports nothing, unless ``pull_alone``: eq. (5) has no such term then, and the
    sellers in Table 5 train as if alone (papers.md I19).

    WEIGH: the graph of imports and the centres, from what clients declare and how far apart their models are. A client
    is left out of a round's market, and neither buys nor sells, if it declares what no market can have (a cost or an
    eagerness that is not a number from 0 to 1e15; a cost may be infinite), reports more than 2^53 samples, or sends a
    model longer than 1e9. The record says why.

    SETTLE: each client pays for its imports, in one transaction. The price of each import is rounded down to the unit,
    but a price above 0 is at least one unit. A buyer pays nothing, and its centre is withheld, if its bill is larger
    than what it authorised with its training reply, if its account cannot bear the bill, or if its centre would keep
    its old model anyway. Its sellers share nothing with it, and all other payments stay as they are. Amounts are Python
    integers from the price to the posting.

    Attributes:
        lam: lambda, the weight of the distances between models in eqs (8) and (10).
        eta: the step with which centres are made, eq. (6).
        cost: in tokens, for clients that declare none.
        eagerness: for clients that declare none.
        distance: "cosine" (``1 - cos``) or "squared_l2" (half of the squared Euclidean distance; papers.md I15).
            Centres take the gradient of the same distance.
        of: what distances are taken of: how models have come from the initial one ("travel"), the "models" themselves,
            or the round's "updates".
        bounded: centres stay within reach of the imported models (:func:`hanse.games.market_models.within_reach`).
            Otherwise the step of eq. (6) is taken as printed.
        pricing: "marginal" is iPFL's eq. (10). "critical" is the highest cost at which the seller would still have been
            imported, which leaves no motive to misreport the cost.
        keep_best: whether a private row keeps each client's best model so far, for when it quits.
        adapters: for LoRA adapters: distances between their "factors", as between any parameters, or between the
            "products" B A, which do not depend on how a change is factored (:mod:`hanse.learning.adapters`). Centres
            mix factors in either case, because that is what a row of the table holds.
        mu: strength of the pull of eq. (7); None: ``lam / eta``.
        stop: "skip": Alg. 2 passes over a seller that does not pay off. "break": it ends there
            (:func:`hanse.games.market.learn_graph`).
        pull_alone: whether a client that imports nothing is pulled towards its own last model, as in the authors' code.
        last_market: whether models are traded after the last training too, when nobody trains with them any more: the
            authors' T markets instead of T - 1.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("ipfl").before("settle")
        >>> settlement, state = part.settle(view, state)
        >>> len(settlement.transactions)
        4
    """

    needs = by_slot(select={"clients", "trade"}, train={"clients"}, weigh={"clients"}, settle={"trade"})
    gives = by_slot(weigh={"trade"})
    reads = by_slot(train={"centre"}, weigh={"model", "centre", "initial"}, settle={"centre"})
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
    pulls = True
    mu: Weight | None = None
    stop: Stop = "skip"
    pull_alone: bool = False
    last_market: bool = False

    def __post_init__(self) -> None:
        """Fill in the default of ``mu``. Raises UserError for critical prices with ``stop = "break"``."""
        if self.mu is None:  # eq. (7): lambda / (2 eta) |theta - centre|^2
            object.__setattr__(self, "mu", self.lam / self.eta)
        if self.stop == "break" and self.pricing == "critical":
            raise UserError("mechanism.weigh.pricing: 'critical': must be 'marginal' with stop = 'break'")

    def init(self, context: Context) -> State:
        """Return the state in which everyone is there and nothing has been traded.

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
            **_nothing(n),
        }

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask whether clients stay ("open"), for cost and eagerness ("train"), and to score models ("close").

        Only clients of the last market are asked whether they stay, and models are scored only if the best one is kept.

        Args:
            view: the round; ``stage``, ``round``, ``roster``, ``present``, ``table``, ``choice``, ``trained`` and
                ``book`` are read.
            state: as :meth:`init` makes it.
        """
        here = view.context.standing(self)
        if view.stage == "open" and "select" in here:
            return news(view, state, lambda client: _market_news(view, state, client))
        if view.stage == "train" and "weigh" in here and view.choice is not None:
            profiles = {c.id: dict(c.profile) for c in view.roster}
            return [
                Request(c, (Ask("declare", {"profile": profiles[c], "round": view.round}),))
                for c in view.choice.clients.tolist()
            ]
        if view.stage == "close" and "weigh" in here and "best" in view.table:
            updates = view.trained
            return [
                Request(c, (Score(OWN, updates.rows[s : s + 1], "validation"),))
                for s, c in enumerate(updates.seats.client.tolist())
            ]
        return ()

    # SELECT

    def select(self, view: View, state: State) -> tuple[Choice, State]:
        """Return the present clients that have not left.

        Args:
            view: the round, with the answers to "stay"; ``present`` and ``leaving`` are read.
            state: has the mask ``gone`` ``[N]`` of those who left before, as :meth:`init` makes it.
        """
        left = gone(view, state)
        choice = Choice(view.present[~left[view.present]], metrics={"market/quit": float(left.sum())})
        return choice, {**state, "gone": left}

    # TRAIN

    def blocks(self) -> Sequence[Block]:
        """Return the rows. All of them start as the initial model (papers.md I14).

        Models are uploaded to the market. Only a best model never leaves its client.
        """
        best = (Block("best", PER_CLIENT, private=True),) if self.keep_best else ()
        return Block("model", PER_CLIENT), Block("centre", PER_CLIENT), *best, Block("initial")

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat for each client at its own model, pulled towards its centre if others' models are in it.

        Args:
            view: the round; ``table``, ``at``, ``home`` and ``choice`` are read.
            state: as :meth:`init` makes it.
        """
        clients = chosen_seats(view).client
        own = view.at("model", clients)
        pull = units(view.at("centre", clients), view.table.size)
        assert self.mu is not None
        return Seats(clients, own, own, R=pull, mu=self.mu * state["pulled"][clients]), state

    # WEIGH

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the models that are their client's best so far, and the new centres.

        These are two :class:`hanse.core.table.Replace`: of the rows of clients whose model became better, which may be
        none, and of all centres. The :class:`Trade` that the centres come from is handed on.

        After the last training there is no market, unless ``last_market``.

        Args:
            view: the round; ``round``, ``roster``, ``leaving``, ``answers``, ``said``, ``table``, ``at``, ``home``
                and ``trained`` are read.
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
        if view.round == view.context.rounds - 1 and not self.last_market:
            return Weighed(kept, home=home), state  # nothing is trained after it: no graph, no payment
        trade, centres, out = self._market(view)
        metrics = {
            "market/edges": float(trade.graph.sum()),
            "market/mean_distance": _mean_off_diagonal(trade.market.distance),
            "market/isolated": float(((trade.graph.sum(axis=0) == 0) & (trade.graph.sum(axis=1) == 0)).sum()),
        }
        worst = max(local_optimality(trade.market, trade.graph))
        if math.isfinite(worst):
            metrics["market/eq9"] = worst  # above 0: an import too many or, as "break" allows, one left out
        refused = tuple((int(clients[s]), f"not at the market: {why}") for s, why in sorted(out.items()))
        found = (trade, Centres(clients, np.asarray(trade.graph.any(axis=1))))
        return Weighed((*kept, centres), (), home, metrics, refused, found), state

    def _market(self, view: View) -> tuple[Trade, Replace, Mapping[int, str]]:
        """Return the trade, the centres that follow from it, and by place who was left out, with the reason."""
        measured = self._measured(view)
        declared, out = self._declared(view, measured)
        if out:
            # a huge or broken model must not enter the products with all others; as zeros its distances are finite
            measured = measured.clone()
            measured[list(out)] = 0.0
        # one product of the models for the distances and for the centres
        gram = cosine_gram(measured) if self.distance == "cosine" else None
        trade = self._trade(view, declared, measured, gram)
        return trade, self._centres(view, trade, measured, gram), out

    def _scores(self, view: View, state: State) -> Floats:
        """Return each update's score ``[S]`` at its client: accuracy, or minus the loss without classes.

        If a client has no such share, its latest model counts as its best.
        """
        found = np.zeros(len(view.trained))
        for s, c in enumerate(view.trained.seats.client.tolist()):
            result = view.answers.get((c, OWN))
            value = math.nan
            if isinstance(result, Scored) and result.num_samples > 0:
                value = float(result.accuracy[0])
                value = -float(result.loss[0]) if math.isnan(value) else value
            # without a score: just above the best so far, so that the latest model becomes the best one
            found[s] = value if math.isfinite(value) else np.nextafter(state["best"][c], np.inf)
        return found

    def _declared(self, view: View, measured: Tensor) -> tuple[Traits, Mapping[int, str]]:
        """Return what the clients declare and report, and who is left out: by place among the updates, the reason.

        A client that is left out has size 0, an infinite cost and no eagerness, so it neither sells nor buys.
        """
        updates, out = view.trained, dict[int, str]()
        lengths = torch.linalg.vector_norm(measured, dim=1).tolist()
        costs, eager = np.full(len(updates), math.inf), np.zeros(len(updates))
        sizes = np.where(updates.num_samples >= 1, updates.num_samples, 0.0)
        for s, c in enumerate(updates.seats.client.tolist()):
            said = view.said(c, "declare")
            cost = amount((said or {}).get("cost", self.cost), infinite=True)
            eagerness = amount((said or {}).get("eagerness", self.eagerness))
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

    def _trade(self, view: View, declared: Traits, measured: Tensor, gram: CosineGram | None) -> Trade:
        """Return the market of the declared traits and the models' distances, with the graph of the best imports."""
        clients = view.trained.seats.client
        if self.adapters == "products":
            apart = self._product_distances(view)
        elif gram is None:
            apart = distances(measured, self.distance)
        else:
            apart = cosine_distances(gram[0])
        if self.distance == "squared_l2":
            apart = apart / 2  # papers.md I15: 0.5 |.|^2, so that eta sum A n_j/n_i <= 1 keeps the centre between
        market = Market.of(apart, declared.sizes, declared.costs, declared.eagerness, self.lam)
        truth = Traits.true_of(view, clients, self.cost, self.eagerness)
        return Trade(clients, market, best_imports(market, self.stop), truth)

    def _product_distances(self, view: View) -> Floats:
        """Return the distances ``[m, m]`` between the products of adapters, of whatever ``of`` says."""
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
        if self.of == "updates":
            return rows - view.table.rows[updates.seats.start, :width]
        return rows - view.context.initial(0)[:width]

    def _centres(self, view: View, trade: Trade, measured: Tensor, gram: CosineGram | None) -> Replace:
        """Return the new centres, iPFL eq. (6), as weights on updates and old rows."""
        rows, S = view.at("centre", trade.clients), len(view.trained)
        if gram is None:
            # eta / 2, because the distance is half of the squared one
            inner = centre_weights(trade.graph, trade.market.sizes, self.eta / 2, "squared_l2")
            inner = within_reach(inner, inner_products(measured), trade.graph) if self.bounded else inner
        else:
            cosines, lengths = gram
            moved = lengths > 0  # a model that did not move has no direction: it neither pulls nor is pulled
            graph, sizes = trade.graph * (moved[:, None] & moved[None, :]), trade.market.sizes
            inner = centre_weights(graph, sizes, self.eta, "cosine", cosines, np.where(moved, lengths, 1.0))
            if self.bounded:
                inner = within_reach(inner, cosines * lengths[:, None] * lengths[None, :], trade.graph)
        # with squared L2 the weights sum to 1, so that a reference which all share cancels
        if self.of == "models" or (self.of == "travel" and gram is None):
            return Replace(rows, inner)
        # the weights act on theta - reference, so the centre is theta_i + (W - I) (theta - reference)
        reference = view.trained.seats.start if self.of == "updates" else np.full(S, view.table.row("initial"))
        models = np.zeros((S, view.table.size))
        np.add.at(models.T, reference, -(inner - np.eye(S)).T)
        return Replace(rows, inner, models)

    # SETTLE

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return the payments of those who can pay, and the centres withheld from the others.

        Args:
            view: the round; ``stage``, ``round``, ``authorised``, ``table``, ``at``, ``mixed``, ``get(Trade)`` and
                ``book`` are read.
            state: as :meth:`init` makes it.
        """
        trade = view.get(Trade)
        if view.stage != "close":
            return Settlement(), state
        if trade is None:
            return Settlement(metrics=_metrics(state, None)), state
        market = trade.market
        due = prices(market, trade.graph) if self.pricing == "marginal" else critical_prices(market, trade.graph)
        bills = _bills(due, trade.graph)
        authorised = [_limit(view.authorised.get(c)) for c in trade.clients.tolist()]
        paid, transactions = _clear(view, trade.clients, bills, authorised)
        owed = _recorded(bills)
        realised = np.where(paid[:, None], trade.graph, 0).astype(np.int8)
        money = np.where(paid[:, None], owed, 0)
        utility = _utilities(realised, money / TOKEN, trade.truth)
        most = np.array([-1 if limit is None else limit for limit in authorised], np.int64)
        settled = Bills(trade.clients, owed, most, paid, utility)
        arrays = _arrays(trade, self.pricing) | {
            "market_units": owed,
            "market_paid": paid,
            "market_authorised": most,
            "market_utility": utility,
        }
        if self.stop == "break":
            arrays["market_stop"] = np.array(self.stop)
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
            outcome: the finished round; ``get(Centres)`` and ``get(Bills)`` are read.
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
            # the centre of a client that imports nothing is its own model, to which it is pulled only if asked for
            pulled[centres.clients] = centres.imports | self.pull_alone
        after["pulled"] = pulled
        if bills is None:
            return after
        pulled[bills.clients[~bills.paid]] = False
        after |= with_worth(state, bills.clients, bills.utility)
        after["bill"][bills.clients] = bills.units.sum(axis=1)
        after["authorised"][bills.clients] = bills.authorised
        after["unpaid"] = state["unpaid"].copy()
        after["unpaid"][bills.clients] += ~bills.paid
        return after

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what the market's payments are called, if this part settles."""
        return MARKET_TELLING if "settle" in slots else Telling()

    def terms(self, joining: Joining) -> Terms:
        """Return what imports may cost and bring a client that thinks of joining, and what its own model may earn."""
        weigh, profile = joining.parts.get("weigh"), joining.profile
        markets = joining.rounds if self.last_market else max(0, joining.rounds - 1)
        eager = float(profile.get("eagerness", getattr(weigh, "eagerness", np.nan)))
        cost = float(profile.get("cost", getattr(weigh, "cost", np.nan)))
        agreed = joining.agreed
        caps = [] if agreed is None else [agreed]
        pays = [
            f"It pays for the models that it imports, in each of up to {markets} markets: {joining.at_stake_in_words}."
        ]
        gains = []
        unknown = ["Whose models will be like its own: the market decides on it round by round."]
        if joining.sizes is not None and hasattr(weigh, "eagerness") and np.isfinite(eager):
            own = float(joining.sizes[joining.client])
            most = float(gain(own, float(joining.sizes.sum()) - own, eager)) if own > 0 else 0.0
            gains.append(
                f"With {own:.0f} own samples and its eagerness of {eager:g}, all others' models would be worth "
                f"{most:.2f} tokens a round to it (eq. 2); that is the most it can gain as a buyer."
            )
            if self.pricing == "marginal" and own > 0:
                highest = float(np.sqrt(eager / own))  # eq. (2) as imports grow without end
                caps.append(int(np.ceil(highest * TOKEN)))
                pays.append(
                    "Under marginal prices (eq. 10) its bill never exceeds the gain that follows from its declaration "
                    "and the sizes that the sellers report; whatever they report, no bill is above "
                    f"{highest:.2f} tokens."
                )
        else:
            unknown.append("What the others' models could be worth to it: the sizes of their data are not known here.")
        if agreed is None:
            pays.append("Its policy sets no limit of its own to a round's bill; 'trader' with 'most' does.")
        else:
            pays.append(f"Its policy agrees to at most {tokens(agreed)} tokens a round; above that it gets nothing.")
        if np.isfinite(cost):
            gains.append(
                f"Each time another client imports its model it is paid at least its declared cost, {cost:g} tokens."
            )
        else:
            gains.append("Its declared cost is infinite: nobody can buy its model, so it earns nothing.")
        most_round = min(caps) if caps else None
        least = joining.at_stake if most_round is None else min(joining.at_stake, most_round * markets)
        return Terms(tuple(pays), tuple(gains), tuple(unknown), least, most_round)


def _market_news(view: View, state: State, client: int) -> dict[str, Any]:
    """Return what a client is told of the last market beside its utility, in units."""
    told = {name: int(state[name][client]) for name in ("bill", "authorised", "unpaid")}
    return {**told, "balance": view.book.balance(account(client))}


def _known(value: float | None, default: float) -> float:
    """Return a value, or the default if it is None."""
    return default if value is None else value


def _mean_off_diagonal(values: Floats) -> float:
    """Return the mean of a matrix without its diagonal, which must be 0."""
    m = len(values)
    return float(values.sum() / (m * (m - 1))) if m > 1 else 0.0


def _bills(due: Floats, graph: Graph) -> list[Bill]:
    """Return what each buyer owes at prices ``due [m, m]`` (tokens).

    A price that is not finite cannot be paid. A price above 0 is at least one unit: a buyer that overstates its size
    pushes prices towards 0, and rounding them down to nothing would reward it.
    """
    found: list[Bill] = []
    for i in range(len(due)):
        sellers = np.flatnonzero(graph[i])
        tokens = zip(sellers.tolist(), due[i, sellers].tolist(), strict=True)
        found.append({j: _owed(price) for j, price in tokens})
    return found


def _owed(price: float) -> int:
    """Return a price in units."""
    if not math.isfinite(price):
        return UNPAYABLE
    return max(1, units_of(price)) if price > 0 else 0


def _limit(authorised: object) -> int | None:
    """Return the most that a client pays, in units; None: any bill. What is no amount authorises nothing."""
    if authorised is None:
        return None
    return max(0, min(authorised, LARGEST)) if type(authorised) is int else 0


def _recorded(bills: Sequence[Bill]) -> NDArray[np.int64]:
    """Return the bills as an array ``[m, m]`` for the record, cut where nobody could pay so that sums fit."""
    units = np.zeros((len(bills), len(bills)), np.int64)
    for i, bill in enumerate(bills):
        units[i, list(bill)] = [min(owed, LARGEST // len(bills)) for owed in bill.values()]
    return units


def _clear(
    view: View, clients: Ints, bills: Sequence[Bill], authorised: Sequence[int | None]
) -> tuple[NDArray[np.bool_], tuple[Transaction, ...]]:
    """Return who pays, ``[m]``, and the transactions, in an order in which no account falls below its floor.

    A client that authorised its bill pays as soon as its account can bear it. What it pays may enable others to pay, so
    the clients are gone through until nobody else can. A bill of 0 is paid without a transaction.
    """
    book, owed = view.book, [sum(bill.values()) for bill in bills]
    kept = view.mixed.keeps(view.table, view.at("centre", clients))  # nothing would be delivered for their money
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


def _transaction(clients: Ints, bill: Bill, i: int) -> Transaction:
    """Return the transaction by which buyer ``i`` pays its whole bill."""
    postings = [(account(int(clients[i])), -sum(bill.values()))]
    postings += [(account(int(clients[j])), units) for j, units in bill.items() if units]
    return Transaction(f"market/{int(clients[i])}", "market", tuple(postings), "iPFL eq. (10)")


def _utilities(graph: Graph, money: Floats, truth: Traits) -> Floats:
    """Return each client's true utility, iPFL eq. (1), ``[m]`` in tokens. ``money [m, m]`` are payments in tokens."""
    if bool(((truth.sizes == 0) & (truth.eagerness > 0)).any()):  # papers.md I13: without samples there is no gain
        truth = Traits(truth.sizes, truth.costs, np.where(truth.sizes == 0, 0.0, truth.eagerness))
    return utilities_of(graph, money, truth.sizes, truth.costs, truth.eagerness)


def _arrays(trade: Trade, pricing: Pricing) -> dict[str, NDArray[Any]]:
    """Return the arrays from which an audit can replay a round's market."""
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
    """Nobody pays; each client's utility is accounted as iPFL accounts for its baselines, eq. (1) with p = 0.

    Client i imports the model of j if j's update is in any row that i trained from, was pulled to, or starts from next.

    Attributes:
        cost: in tokens, for clients whose profile has none.
        eagerness: for clients whose profile has none.
        count: "mixed" as above. "received": client i imports what it was sent, where the mechanism sends more models
            than it mixes (FedFomo); so in the authors' code.
        last_market: whether the last round counts, after which nobody trains.

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
    count: Literal["mixed", "received"] = "mixed"
    last_market: bool = False

    def init(self, context: Context) -> State:
        """Return the state in which nobody has gained anything."""
        return _nothing(context.num_clients)

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        """Return metrics and arrays, and no transactions.

        Args:
            view: the round; ``stage``, ``round``, ``roster``, ``trained``, ``mixed`` and ``get(Received)`` are
                read.
            state: as :meth:`init` makes it.
        """
        if view.stage != "close":
            return Settlement(), state
        over = view.round == view.context.rounds - 1 and not self.last_market
        if len(view.trained) == 0 or over:
            return Settlement(metrics=_metrics(state, None)), state
        clients = np.unique(view.trained.seats.client)
        truth = Traits.true_of(view, clients, self.cost, self.eagerness)
        received = view.get(Received) if self.count == "received" else None
        graph = graph_of(view, clients) if received is None else received.among(clients)
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
        metrics = {"market/edges": float(graph.sum()), **_metrics(after, utility)}
        return Settlement(metrics=metrics, arrays=arrays), after

    def tells(self, slots: frozenset[str]) -> Telling:
        """Return what utilities are called in reports."""
        return UTILITIES_TELLING

    def terms(self, joining: Joining) -> Terms:
        """Return that joining is free."""
        return FREE


def graph_of(view: View, clients: Ints) -> Graph:
    """Return who got whose update in a round of any mechanism, as 0 or 1, ``[m, m]``.

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

UTILITY = Worth(
    "utility/client/*", "Utility", "What the market has brought each client so far: its utility, in tokens."
)


MARKET_TELLING = Telling(
    "You pay for every model that is imported for you, at most what your policy agrees to, and are paid for every "
    "import of yours. Who does not pay its bill gets nothing.",
    "Clients pay one another for the models that they import; who does not pay its bill gets nothing.",
    "The market",
    (
        Plot(
            "What was paid at the market", "market/money", "tokens a round", "paid",
            "All bills that were paid in a round, together.",
        ),
    ),
    (Kind("market", "models bought and sold"),),
    UTILITY,
)  # fmt: skip
UTILITIES_TELLING = Telling(
    report="Nobody pays; what the others' models were worth to each client, less its cost of sharing, is accounted "
    "as in a market at a price of nothing.",
    section="The market",
    worth=UTILITY,
)


def ipfl(
    lam: Weight = 2.0,
    eta: Rate = 5.0,
    cost: Cost = 1.0,
    eagerness: Eagerness = 5e5,
    distance: Distance = "cosine",
    of: Of = "travel",
    bounded: bool = True,
    pricing: Pricing = "marginal",
    keep_best: bool = True,
    adapters: Literal["factors", "products"] = "factors",
    stop: Stop = "skip",
    pull_alone: bool = False,
    last_market: bool = False,
) -> Mechanism:
    """iPFL with the published lambda and eta for CIFAR-10, and the published cost and eagerness.

    The gain of eq. (2) is ``sqrt(K/n)``, so the eagerness K should grow with the clients' numbers of samples n; 5e5 is
    for 5,000 samples each.

    Args:
        lam: see :class:`IPFL`, as for all options.
        eta: the step with which centres are made.
        cost: in tokens, for clients whose profile has none.
        eagerness: for clients whose profile has none.
        distance: "cosine" or "squared_l2".
        of: "travel", "models" or "updates".
        bounded: whether centres stay within reach of the imported models.
        pricing: "marginal" or "critical".
        keep_best: whether each client keeps its best model.
        adapters: "factors" or "products".
        stop: "skip" or "break".
        pull_alone: whether a client that imports nothing is pulled towards its own last model.
        last_market: whether there is a market after the last training.
    """
    part = IPFL(
        lam,
        eta,
        cost,
        eagerness,
        distance,
        of,
        bounded=bounded,
        pricing=pricing,
        keep_best=keep_best,
        adapters=adapters,
        stop=stop,
        pull_alone=pull_alone,
        last_market=last_market,
    )
    return Mechanism("ipfl", select=part, train=part, weigh=part, settle=part, deploy=ServerModel())
