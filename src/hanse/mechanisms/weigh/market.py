"""WEIGH for a market of models: who imports whom, and each client's proximal centre.

Rows: i is client i's model, N + i its proximal centre; with ``keep_best`` 2N + i is its best model so far; the last
is the initial model. Row i becomes its own update, row N + i the mix of the imports (iPFL eq. 6).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hanse.errors import UserError
from hanse.federation.declared import LARGEST_COUNT
from hanse.federation.port import Ask, Request, Score, Scored
from hanse.federation.profiles import MOST, amount, at_round
from hanse.games.market import Graph, Market, best_imports
from hanse.games.market_checks import local_optimality
from hanse.games.market_models import Kind, centre_weights, cosine_distances, cosine_gram, distances, gram_distances
from hanse.learning.adapters import has_adapters, travel_gram
from hanse.mechanisms.part import Context, Floats, Ints, State, View, WeighPart
from hanse.table import Mix

__all__ = ["Imports", "MarketMix", "Of", "Trade", "Truth", "within_reach"]

Of = Literal["travel", "models", "updates"]
CosineGram = tuple[Floats, Floats]  # cosines [m, m] and lengths [m]
OWN = "own model"  # the question for a model's validation score
FAR = 1e9  # the length of a model, or of its way, that no market measures: squares of squares fit into float32


@dataclass(frozen=True)
class Truth:
    """What is true of the clients at the market, whatever they said: ``sizes``, ``costs``, ``eagerness`` ``[m]``."""

    sizes: Floats
    costs: Floats
    eagerness: Floats

    @staticmethod
    def of(view: View, clients: Ints, cost: float, eagerness: float) -> Truth:
        """Return what the profiles of ``clients [m]`` say; ``cost`` and ``eagerness`` where they say nothing."""
        info = {c.id: c for c in view.roster}
        now = [at_round(info[c].profile, view.round) for c in clients.tolist()]
        return Truth(
            np.array([float(min(info[c].num_samples, LARGEST_COUNT)) for c in clients.tolist()]),
            np.array([_known(amount(t.get("cost"), infinite=True), cost) for t in now]),
            np.array([_known(amount(t.get("eagerness")), eagerness) for t in now]),
        )


@dataclass(frozen=True)
class Trade:
    """One round's market: the ``clients [m]``, what they declared, the graph, and what is true of them."""

    clients: Ints
    market: Market
    graph: Graph
    truth: Truth


@dataclass(frozen=True)
class Offers:
    """What clients bring to the market: ``sizes``, ``costs``, ``eagerness`` ``[m]``, and who is left ``out``: the
    reason, by place.
    """

    sizes: Floats
    costs: Floats
    eagerness: Floats
    out: Mapping[int, str]


@dataclass(frozen=True)
class MarketMix(Mix):
    """A mix with the market that it came from, for SETTLE."""

    trade: Trade | None = None


@dataclass(frozen=True)
class Imports(WeighPart):
    """iPFL's graph and proximal centres, from what clients declare and how far their models are apart.

    ``lam`` and ``eta`` are the paper's; ``cost`` and ``eagerness`` stand for clients that declare none. ``distance`` is
    ``1 - cos`` or the squared L2 distance (papers.md I15), ``of`` what it is taken of: what models have "travel"led
    since the initial one, the "models" themselves, or the round's "updates". Centres take the gradient of the same
    distance; ``bounded``: they stay within reach of the imported models (:func:`within_reach`). ``adapters``: whether
    the distances between LoRA adapters are those of their "factors", as of any parameters, or of the "products" B A,
    which do not depend on how a change is factored (:mod:`hanse.learning.adapters`); centres mix factors either way,
    because a table row is the factors.

    Who declares what no market can have (a cost or an eagerness that is no number from 0 to 1e15; a cost may be
    infinite), reports more than 2^53 samples or sends a model longer than 1e9 neither buys nor sells in that round, and
    the record says why.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"market", "centres_mixed"})
    needs: ClassVar[frozenset[str]] = frozenset({"clients", "market_rows"})
    lam: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    eta: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 5.0
    distance: Kind = "cosine"
    of: Of = "travel"
    bounded: bool = True
    cost: Annotated[float, Field(ge=0)] = 1.0
    eagerness: Annotated[float, Field(ge=0, le=MOST)] = 5e5
    adapters: Literal["factors", "products"] = "factors"

    def init(self, context: Context) -> State:
        """Nobody has a best model yet. Raises UserError for products where the model is no adapter."""
        if self.adapters == "products" and not has_adapters(context.layout):
            raise UserError("mechanism.weigh.adapters: 'products': the model is no adapter (model.name = 'lora')")
        return {"best": np.full(context.num_clients, -np.inf)}

    def asks(self, view: View, state: State) -> Sequence[Request]:
        """Ask for cost and eagerness beside training; afterwards, how good the own model is, if the best is kept."""
        if view.stage == "train" and view.choice is not None:
            profiles = {c.id: dict(c.profile) for c in view.roster}
            return [
                Request(c, (Ask("declare", {"profile": profiles[c], "round": view.round}),))
                for c in view.choice.clients.tolist()
            ]
        if view.stage == "close" and _keeps_best(view):
            updates = view.trained
            return [
                Request(c, (Score(OWN, updates.rows[s : s + 1], "validation"),))
                for s, c in enumerate(updates.seats.client.tolist())
            ]
        return ()

    def decide(self, view: View, state: State) -> Mix:
        """Return own updates for all, and new centres unless this was the last training."""
        updates, table, N = view.trained, view.table, view.context.num_clients
        clients, S = updates.seats.client, len(updates)
        W = np.zeros((table.size, S + table.size))
        W[np.arange(table.size), S + np.arange(table.size)] = 1.0
        W[clients] = 0.0
        W[clients, np.arange(S)] = 1.0
        better = np.flatnonzero(self._scores(view, state) > state["best"][clients])
        if _keeps_best(view):
            W[2 * N + clients[better]] = 0.0
            W[2 * N + clients[better], better] = 1.0
        home = view.home.copy()
        gone = view.leaving
        home[gone] = 2 * N + gone if _keeps_best(view) else gone  # iPFL Alg. 1: quits with its best model
        if view.round == view.context.rounds - 1 or S == 0:
            return MarketMix(W, table.owner, home)  # nothing is trained after it: no graph, no payment
        measured = self._measured(view)
        offers = self._offers(view, measured)
        if offers.out:
            measured = measured.clone()
            measured[list(offers.out)] = 0.0
        # one product of the models for the distances and for the centres
        gram = cosine_gram(measured) if self.distance == "cosine" else None
        trade = self._trade(view, offers, measured, gram)
        W[N + clients] = self._centres(view, trade, gram)
        metrics = {
            "market/edges": float(trade.graph.sum()),
            "market/mean_distance": _mean_off_diagonal(trade.market.distance),
            "market/isolated": float(((trade.graph.sum(axis=0) == 0) & (trade.graph.sum(axis=1) == 0)).sum()),
        }
        worst = max(local_optimality(trade.market, trade.graph))
        if math.isfinite(worst):
            metrics["market/eq9"] = worst  # at most 0: no import too many, none too few
        refused = tuple((int(clients[s]), f"not at the market: {why}") for s, why in sorted(offers.out.items()))
        return MarketMix(W, table.owner, home, metrics, refused, trade)

    def learn(self, outcome: View, state: State) -> State:
        """Remember the best validation accuracies."""
        clients = outcome.trained.seats.client
        best = state["best"].copy()
        best[clients] = np.maximum(best[clients], self._scores(outcome, state))
        return {"best": best}

    def _scores(self, view: View, state: State) -> Floats:
        """Return each update's accuracy on its client's validation share (minus the loss where there are no classes).

        Without such a share the latest model counts as the best.
        """
        found = np.zeros(len(view.trained))
        for s, c in enumerate(view.trained.seats.client.tolist()):
            result = view.answers.get((c, OWN))
            known = isinstance(result, Scored) and result.num_samples > 0
            value = math.nan
            if known:
                assert isinstance(result, Scored)
                value = float(result.accuracy[0])
                value = -float(result.loss[0]) if math.isnan(value) else value
            found[s] = value if math.isfinite(value) else np.nextafter(state["best"][c], np.inf)
        return found

    def _offers(self, view: View, measured: Tensor) -> Offers:
        """Return what the clients declare and report, and who is left out: it sells nothing, and buys nothing."""
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
        return Offers(sizes, costs, eager, out)

    def _trade(self, view: View, offers: Offers, measured: Tensor, gram: CosineGram | None) -> Trade:
        clients = view.trained.seats.client
        if self.adapters == "products":
            apart = self._product_distances(view)
        elif gram is None:
            apart = distances(measured, self.distance)
        else:
            apart = cosine_distances(gram[0])
        if self.distance == "squared_l2":
            apart = apart / 2  # papers.md I15: 0.5 |.|^2, so that eta sum A n_j/n_i <= 1 keeps the centre between
        market = Market.of(apart, offers.sizes, offers.costs, offers.eagerness, self.lam)
        truth = Truth.of(view, clients, self.cost, self.eagerness)
        return Trade(clients, market, best_imports(market), truth)

    def _product_distances(self, view: View) -> Floats:
        """Return the distances between adapters' products, of what ``of`` says."""
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

    def _centres(self, view: View, trade: Trade, gram: CosineGram | None) -> Floats:
        """Return the centres as weights on ``[U; M]``, ``[m, S + K]``, iPFL eq. (6)."""
        S, size = len(view.trained), view.table.size
        found = np.zeros((S, S + size))
        if gram is None:  # squared L2: differences of models are those of what they travelled, too
            found[:, :S] = centre_weights(trade.graph, trade.market.sizes, self.eta / 2, "squared_l2")
            return found
        cosines, lengths = gram
        moved = lengths > 0  # what did not move has no direction to be pulled in, or to pull to
        graph = trade.graph * (moved[:, None] & moved[None, :])
        inner = centre_weights(graph, trade.market.sizes, self.eta, "cosine", cosines, np.where(moved, lengths, 1.0))
        if self.bounded:
            inner = within_reach(inner, cosines * lengths[:, None] * lengths[None, :], trade.graph)
        found[:, :S] = inner
        if self.of != "models":  # theta_i + (W - I) (theta - reference)
            starts = view.trained.seats.start if self.of == "updates" else np.full(S, size - 1)
            np.add.at(found.T, S + starts, -(inner - np.eye(S)).T)
        return found


def within_reach(W: Floats, gram: Floats, graph: Graph) -> Floats:
    """Return the centres' weights ``W [m, m]`` with each step away from the own model no longer than the way to the
    farthest import; ``gram [m, m]`` are the models' inner products.

    The gradient of a cosine grows as models get short, and early on they have travelled little: the literal step of
    eq. (6) then lands far behind the imported models (papers.md I20).
    """
    step = W - np.eye(len(W))
    length = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", step, gram, step), 0.0))
    norms = np.diag(gram)
    apart = np.sqrt(np.maximum(norms[:, None] + norms[None, :] - 2 * gram, 0.0))
    reach = np.where(graph != 0, apart, 0.0).max(axis=1, initial=0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        scale = np.where(length > reach, reach / length, 1.0)
    return np.asarray(np.eye(len(W)) + scale[:, None] * step)


def _keeps_best(view: View) -> bool:
    return view.table.size > 2 * view.context.num_clients + 1


def _known(value: float | None, default: float) -> float:
    return default if value is None else value


def _mean_off_diagonal(values: Floats) -> float:
    m = len(values)
    return float(values.sum() / (m * (m - 1))) if m > 1 else 0.0
