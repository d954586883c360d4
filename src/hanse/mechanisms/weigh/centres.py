"""WEIGH for personal models around centres: each trained model is kept, and each client's centre mixes all of them.

The parts here differ in one thing, the matrix ``A [m, m]`` of who counts how much for whom. Seat s's centre is the row
that it is pulled to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field
from torch import Tensor

from hanse.games.gram import cosines, distances
from hanse.mechanisms.part import Context, Floats, State, View, WeighPart
from hanse.mechanisms.weigh.average import sample_shares
from hanse.table import Mix

__all__ = [
    "FedAMP",
    "HeurFedAMP",
    "PFedGraph",
    "attention",
    "collaboration",
    "heuristic_attention",
    "keep_all",
    "onto_simplex",
]

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NEEDS = frozenset({"clients", "centres"})
GIVES = frozenset({"centres_mixed"})


def keep_all(view: View) -> Floats:
    """Return the ``W`` that keeps every row of the table, ``[K, S + K]``."""
    count, rows = len(view.trained), view.table.size
    W = np.zeros((rows, count + rows))
    W[np.arange(rows), count + np.arange(rows)] = 1.0
    return W


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


def onto_simplex(points: Floats) -> Floats:
    """Return the nearest point of the probability simplex to each row of ``points [r, m]`` (Euclidean).

    The threshold of each row comes from one sort (Held, Wolfe, Crowder 1974).
    """
    points = np.asarray(points, np.float64)
    falling = -np.sort(-points, axis=1)
    excess = (np.cumsum(falling, axis=1) - 1.0) / np.arange(1, points.shape[1] + 1)
    last = np.count_nonzero(falling > excess, axis=1) - 1
    found = np.maximum(points - excess[np.arange(len(points)), last][:, None], 0.0)
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def collaboration(shares: Floats, difference: Floats, alpha: float) -> Floats:
    """pFedGraph's graph (Ye et al. 2023): row i minimises ``sum_j w_j d_ij + alpha |w - p|^2`` on the simplex,
    which is the projection of ``p - d_i / (2 alpha)``. ``shares [m]``, ``difference [m, m]``.
    """
    return onto_simplex(shares[None, :] - difference / (2.0 * alpha))


def mix_centres(view: View, A: Floats, metrics: dict[str, float]) -> Mix:
    """Return the mix in which each seat's target is its update and its centre ``A [S, S]`` times all updates."""
    seats = view.trained.seats
    if seats.R is None:
        raise RuntimeError("these seats have no centres; the part should have been refused by its needs")
    W = keep_all(view)
    centre = seats.R.argmax(axis=1)
    W[seats.target] = 0.0
    W[seats.target, np.arange(len(seats))] = 1.0
    W[centre] = 0.0
    W[centre, : len(seats)] = A
    own = float(np.diag(A).mean())
    return Mix(W, view.table.owner, view.home, {"weigh/self_weight": own, **metrics})


def _parameters(view: View) -> Tensor:
    return view.trained.rows[:, : view.context.layout.num_parameters]


@dataclass(frozen=True)
class FedAMP(WeighPart):
    """FedAMP (Huang et al. 2021): the nearer two models are, the more they count for each other's centre.

    ``sigma`` is the scale of squared distances, by default their mean over the round's pairs; ``step``, its alpha,
    defaults to ``sigma / m`` for m models, with which the others never add up to more than 1. The scale is recorded.
    """

    needs: ClassVar[frozenset[str]] = NEEDS
    gives: ClassVar[frozenset[str]] = GIVES
    step: Positive | None = None
    sigma: Positive | None = None

    def decide(self, view: View, state: State) -> Mix:
        """Return each model as it is, and the centres."""
        distance = distances(_parameters(view))
        m = len(distance)
        mean = float(np.square(distance).sum() / max(1, m * (m - 1)))
        sigma = self.sigma or (mean if mean > 0 else 1.0)
        step = self.step or sigma / m
        scale = {"weigh/sigma": sigma, "weigh/squared_distance": mean}
        return mix_centres(view, attention(distance, step, sigma), scale)


@dataclass(frozen=True)
class HeurFedAMP(WeighPart):
    """HeurFedAMP (Huang et al. 2021): weights by the cosines of how far the models have come from the initial one.

    ``self_weight`` 0.3 and ``sharpness`` 10 are what the published comparisons of pFedGraph and iPFL run.
    """

    needs: ClassVar[frozenset[str]] = NEEDS
    gives: ClassVar[frozenset[str]] = GIVES
    self_weight: Annotated[float, Field(ge=0, le=1)] = 0.3
    sharpness: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 10.0

    def init(self, context: Context) -> State:
        """Remember the initial model."""
        return {"origin": context.initial(0).clone()}

    def decide(self, view: View, state: State) -> Mix:
        """Return each model as it is, and the centres."""
        cosine = _way_cosines(view, state)
        return mix_centres(view, heuristic_attention(cosine, self.self_weight, self.sharpness), {})


@dataclass(frozen=True)
class PFedGraph(WeighPart):
    """pFedGraph (Ye et al. 2023): a collaboration graph from sample shares and ``d_ij = -cos`` of the ways that the
    models have come from the initial one; ``alpha`` weighs the shares. Cosines above ``snap`` are taken for 1, as the
    authors' code does with 0.9 (default: none are).
    """

    needs: ClassVar[frozenset[str]] = NEEDS
    gives: ClassVar[frozenset[str]] = GIVES
    alpha: Positive = 0.8
    snap: Annotated[float, Field(gt=0, le=1)] | None = None

    def init(self, context: Context) -> State:
        """Remember the initial model."""
        return {"origin": context.initial(0).clone()}

    def decide(self, view: View, state: State) -> Mix:
        """Return each model as it is, and the centres."""
        cosine = _way_cosines(view, state)
        if self.snap is not None:
            cosine = np.where(cosine > self.snap, 1.0, cosine)
        graph = collaboration(sample_shares(view.trained.num_samples), -cosine, self.alpha)
        edges = int(np.count_nonzero(graph) - np.count_nonzero(np.diag(graph)))
        return mix_centres(view, graph, {"weigh/edges": edges})


def _way_cosines(view: View, state: State) -> Floats:
    """Return the cosines ``[m, m]`` between the models' ways from the initial model."""
    rows = _parameters(view)
    return cosines(rows - state["origin"][: rows.shape[1]].to(rows.device))
