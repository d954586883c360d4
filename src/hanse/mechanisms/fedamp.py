"""FedAMP and HeurFedAMP (Huang et al. 2021): one model per client, pulled towards a mix of similar models.

By eqs (3) to (6), client i trains its own model, the row "model". A term ``mu/2 |theta - u_i|^2`` pulls this model
towards the client's centre u_i, the row "centre". The centres mix all models by a matrix ``xi [m, m]`` that says how
much each model counts for each client. FedAMP makes xi from distances (:func:`attention`), its heuristic form from
cosines (:func:`heuristic_attention`). The server sees both kinds of rows.

:class:`TowardsCentres` is the train part. It works with any weigh part that fills the rows "centre".
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
    """Return FedAMP's weights ``[m, m]`` (Huang et al. 2021) of others' models, ``alpha exp(-d_ij^2 / sigma) / sigma``.

    These are the weights xi_ij for j other than i; a model's own weight is 1 minus their sum. The paper asks for an
    alpha small enough for that. Here, if the weights of others add up to more than 1, they are scaled down to sum to 1.
    A centre then always lies between the models.

    Args:
        distance: Euclidean distances between models, ``[m, m]``.
        alpha: the paper's step length, above 0.
        sigma: the scale of squared distances, above 0.

    Examples:
        >>> distance = np.array([[0.0, 0.0, 9.0], [0.0, 0.0, 9.0], [9.0, 9.0, 0.0]])
        >>> attention(distance, alpha=0.25, sigma=1.0).round(3)
        array([[0.75, 0.25, 0.  ],
               [0.25, 0.75, 0.  ],
               [0.  , 0.  , 1.  ]])
    """
    weights = alpha * np.exp(-np.square(distance) / sigma) / sigma
    np.fill_diagonal(weights, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    weights = weights / np.maximum(total, 1.0)
    np.fill_diagonal(weights, np.maximum(0.0, 1.0 - weights.sum(axis=1)))
    return np.asarray(weights)


def heuristic_attention(cosine: Floats, self_weight: float, scale: float) -> Floats:
    """Return HeurFedAMP's weights ``[m, m]`` (Huang et al. 2021): a fixed own weight, and a softmax over the others.

    A single model has weight 1.

    Args:
        cosine: cosines between models, ``[m, m]``; the diagonal is not read.
        self_weight: each model's weight for itself, from 0 to 1.
        scale: the factor of the cosines in the softmax. The larger it is, the more the most similar model counts.
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
    """Each client trains its own model, pulled by ``mu/2 |theta - u_i|^2`` towards its centre u_i.

    Any weigh part that fills the rows "centre" makes the centres. They start as the initial model.

    Attributes:
        mu: strength of the pull.
        pull_from: the first round with the pull. In round 0 the centres are the initial model, and a pull towards it
            would hold the clients back. iPFL's comparison has ``pull_from = 1``.
    """

    adds = (("pull", "mu"),)

    needs = frozenset({"clients", "penalty", "new rows centre"})
    mu: Weight = 0.01
    pull_from: Count = 0

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return a row "model" and a row "centre" for each client."""
        return Block("model", PER_CLIENT), Block("centre", PER_CLIENT)

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat for each chosen client at its own model, pulled towards its centre."""
        client = chosen_seats(view).client
        own = view.at("model", client)
        R = units(view.at("centre", client), view.table.size)
        mu = self.mu if view.round >= self.pull_from else 0.0
        return Seats(client, own, own, R=R, mu=np.full(len(client), mu)), state


@dataclass(frozen=True)
class FedAMP(WeighPart):
    """FedAMP (Huang et al. 2021): the closer two models are, the more they count for each other's centre.

    Attributes:
        step: the paper's alpha. By default ``sigma / m`` for m models, so the weights of other models never add up to
            more than 1.
        sigma: the scale of squared distances. Default: their mean over the round's pairs, which is recorded.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("fedamp").before("weigh")
        >>> weighed, state = part.weigh(view, state)
        >>> len(weighed.replaced)
        1
    """

    needs = frozenset({"clients", "rows centre"})
    fills = frozenset({"centre"})
    step: Rate | None = None
    sigma: Rate | None = None

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the new centres; ``weigh/sigma`` and ``weigh/squared_distance`` record the scale."""
        distance = distances(view.trained.rows[:, : view.context.layout.num_parameters])
        m = len(distance)
        mean = float(np.square(distance).sum() / max(1, m * (m - 1)))
        sigma = self.sigma or (mean if mean > 0 else 1.0)  # any scale does where all models are equal
        step = self.step or sigma / m
        scale = {"weigh/sigma": sigma, "weigh/squared_distance": mean}
        return mixed_centres(view, attention(distance, step, sigma), scale), state


@dataclass(frozen=True)
class HeurFedAMP(WeighPart):
    """HeurFedAMP (Huang et al. 2021): weights by the cosines between the models' changes since the initial model.

    The defaults are those of the published comparisons of pFedGraph and iPFL.

    Attributes:
        self_weight: each model's weight in its own centre.
        sharpness: the factor of the cosines in the softmax over the other models.
    """

    needs = frozenset({"clients", "rows centre"})
    fills = frozenset({"centre"})
    self_weight: Share = 0.3
    sharpness: Weight = 10.0

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the new centres.

        Args:
            view: the round. The method reads ``at`` and ``trained``.
            state: as :meth:`init` makes it.
        """
        cosine = way_cosines(view)
        return mixed_centres(view, heuristic_attention(cosine, self.self_weight, self.sharpness), {}), state


def fedamp(
    clients_per_round: Seated = None, lam: Weight = 0.01, step: Rate | None = None, sigma: Rate | None = None
) -> Mechanism:
    """FedAMP (Huang et al. 2021): one model per client, pulled towards a centre in which similar models weigh more.

    Args:
        clients_per_round: how many clients, drawn at random, train in a round. None: all of them.
        lam: the paper's lambda. The strength of the pull is ``lam / step``, or ``lam`` if ``step`` is None.
        step: the paper's alpha. None: it is chosen in each round (see :class:`FedAMP`).
        sigma: the scale of squared distances. None: it is chosen in each round.
    """
    mu = lam if step is None else lam / step
    weigh = FedAMP(step, sigma)
    return Mechanism("fedamp", who(clients_per_round), TowardsCentres(mu), weigh, deploy=ServerModel())


def heur_fedamp(clients_per_round: Seated = None, lam: Weight = 0.01, pull_from: Count = 0) -> Mechanism:
    """HeurFedAMP (Huang et al. 2021): FedAMP with weights by cosines.

    Args:
        clients_per_round: how many clients, drawn at random, train in a round. None: all of them.
        lam: strength of the pull.
        pull_from: the first round with the pull; it is 1 in the comparisons of pFedGraph and iPFL.
    """
    train = TowardsCentres(lam, pull_from)
    return Mechanism("heur_fedamp", who(clients_per_round), train, HeurFedAMP(), deploy=ServerModel())
