"""FedAMP and HeurFedAMP (Huang et al. 2021): own models, each pulled to a centre of the others that are like it.

Eqs (3) to (6): client i goes on with its own model, the row "model", and is pulled by ``mu/2 |theta - u_i|^2`` to the
row "centre" u_i, which mixes all models by the matrix ``xi [m, m]`` of who counts how much for whom. FedAMP makes xi
from distances, its heuristic form from cosines. The server sees both rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.base.factories import Count, Rate, Share, Weight
from hanse.core.part import Context, Mechanism, State, TrainPart, View, Weighed, WeighPart
from hanse.core.table import PER_CLIENT, Block, Floats, Seats
from hanse.games.gram import distances
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats, units
from hanse.mechanisms.weigh import mixed_centres, way_cosines


def attention(distance: Floats, alpha: float, sigma: float) -> Floats:
    """FedAMP's weights (Huang et al. 2021): ``xi_ij = alpha exp(-d_ij^2 / sigma) / sigma``, the rest its own.

    ``distance [m, m]`` is Euclidean. Rows whose others add up to more than 1 are scaled down to it, so that a centre
    stays between the models; the paper asks for an alpha that is small enough.
    """
    weights = alpha * np.exp(-np.square(distance) / sigma) / sigma
    np.fill_diagonal(weights, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    weights = weights / np.maximum(total, 1.0)
    np.fill_diagonal(weights, np.maximum(0.0, 1.0 - weights.sum(axis=1)))
    return np.asarray(weights)


def heuristic_attention(cosine: Floats, self_weight: float, scale: float) -> Floats:
    """HeurFedAMP's weights (Huang et al. 2021): ``self_weight``, and ``(1 - self_weight)`` shared out over the
    others by a softmax of ``scale cos_ij``. A model that is alone has weight 1.
    """
    m = len(cosine)
    if m == 1:
        return np.ones((1, 1))
    scores = scale * np.asarray(cosine, np.float64)
    scores = np.where(np.eye(m, dtype=bool), -np.inf, scores)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights *= (1.0 - self_weight) / weights.sum(axis=1, keepdims=True)
    np.fill_diagonal(weights, self_weight)
    return np.asarray(weights)


@dataclass(frozen=True)
class TowardsCentres(TrainPart):
    """Each client goes on with its own model, pulled by ``mu/2 |theta - u_i|^2`` to its centre u_i.

    Any weigh part that fills the rows "centre" makes the centres. Before round ``pull_from`` nobody is pulled: centres
    are the initial model in round 0, of which iPFL's comparison runs no pull (``pull_from = 1``).
    """

    needs = frozenset({"clients"})
    reads = frozenset({"centre"})
    pulls = True
    mu: Weight = 0.01
    pull_from: Count = 0

    def blocks(self) -> Sequence[Block]:
        """Return a model and a centre for each client."""
        return Block("model", PER_CLIENT), Block("centre", PER_CLIENT)

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at its own model, pulled towards its centre."""
        client = chosen_seats(view).client
        own = view.at("model", client)
        R = units(view.at("centre", client), view.table.size)
        mu = self.mu if view.round >= self.pull_from else 0.0
        return Seats(client, own, own, R=R, mu=np.full(len(client), mu)), state


@dataclass(frozen=True)
class FedAMP(WeighPart):
    """FedAMP (Huang et al. 2021): the nearer two models are, the more they count for each other's centre.

    ``sigma`` is the scale of squared distances, by default their mean over the round's pairs; ``step``, its alpha,
    defaults to ``sigma / m`` for m models, with which the others never add up to more than 1. The scale is recorded.
    """

    needs = frozenset({"clients"})
    reads = frozenset({"centre"})
    fills = frozenset({"centre"})
    step: Rate | None = None
    sigma: Rate | None = None

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the centres."""
        distance = distances(view.trained.rows[:, : view.context.layout.num_parameters])
        m = len(distance)
        mean = float(np.square(distance).sum() / max(1, m * (m - 1)))
        sigma = self.sigma or (mean if mean > 0 else 1.0)
        step = self.step or sigma / m
        scale = {"weigh/sigma": sigma, "weigh/squared_distance": mean}
        return mixed_centres(view, attention(distance, step, sigma), scale), state


@dataclass(frozen=True)
class HeurFedAMP(WeighPart):
    """HeurFedAMP (Huang et al. 2021): weights by the cosines of how far the models have come from the initial one.

    ``self_weight`` 0.3 and ``sharpness`` 10 are what the published comparisons of pFedGraph and iPFL run.
    """

    needs = frozenset({"clients"})
    reads = frozenset({"centre"})
    fills = frozenset({"centre"})
    self_weight: Share = 0.3
    sharpness: Weight = 10.0

    def init(self, context: Context) -> State:
        """Remember the initial model."""
        return {"origin": context.initial(0).clone()}

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the centres."""
        cosine = way_cosines(view, state["origin"])
        return mixed_centres(view, heuristic_attention(cosine, self.self_weight, self.sharpness), {}), state


def fedamp(
    clients_per_round: Seated = None, lam: Weight = 0.01, step: Rate | None = None, sigma: Rate | None = None
) -> Mechanism:
    """FedAMP (Huang et al. 2021): own models pulled by ``lam / step`` (``lam`` where the step follows the distances) to
    centres that weigh the others by their distance; ``step`` is its alpha.
    """
    mu = lam if step is None else lam / step
    weigh = FedAMP(step, sigma)
    return Mechanism("fedamp", who(clients_per_round), TowardsCentres(mu), weigh, deploy=ServerModel())


def heur_fedamp(clients_per_round: Seated = None, lam: Weight = 0.01, pull_from: Count = 0) -> Mechanism:
    """HeurFedAMP (Huang et al. 2021): FedAMP with weights by cosines, as pFedGraph's and iPFL's comparisons run it
    (with ``pull_from = 1``).
    """
    train = TowardsCentres(lam, pull_from)
    return Mechanism("heur_fedamp", who(clients_per_round), train, HeurFedAMP(), deploy=ServerModel())
