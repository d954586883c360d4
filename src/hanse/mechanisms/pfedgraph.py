"""pFedGraph (Ye et al. 2023): personal start models from a graph of who helps whom.

Each round every client starts from its row "centre" a_i, with the term ``-lam cos(theta, a_i)`` in its loss; what it
trains becomes its row "own", which it holds. The server makes the next centres from the collaboration graph: its row i
minimises ``sum_j w_j d_ij + alpha |w - p|^2`` on the simplex, with ``d_ij = -cos`` of what the models have changed and
the sample shares p.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from hanse.base.factories import Count, Rate, Weight
from hanse.core.part import Context, Mechanism, State, TrainPart, View, Weighed, WeighPart
from hanse.core.table import PER_CLIENT, Block, Floats, Ints, Seats, Table
from hanse.mechanisms.deploy import OwnModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats, units
from hanse.mechanisms.weigh import mixed_centres, sample_shares, way_cosines

Sign = Literal["attract", "repel"]


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


@dataclass(frozen=True)
class FromCentres(TrainPart):
    """pFedGraph (Ye et al. 2023): each client starts from its centre a_i, with ``-lam cos(theta, a_i)`` in its
    loss; lam is ``cosine``.

    Near a_i the cosine is ``1 - |d|^2 / (2 |a_i|^2)``, d the part of ``theta - a_i`` that is orthogonal to a_i, so the
    term acts as the pull ``mu/2 |theta - a_i|^2`` with ``mu = lam / |a_i|^2``, to second order; what differs is that a
    change of length alone is pulled too. That is the form a seat can have, and the one used here.

    ``sign = "repel"`` has the term ``+lam cos(theta, a_i)`` in the loss, a push with ``-mu``, and ``term_from`` the
    first round with the term: the public code of pFedGraph and of iPFL's comparison repels, from round 1 on.
    """

    needs = frozenset({"clients"})
    reads = frozenset({"centre"})
    pulls = True
    cosine: Weight = 0.01
    sign: Sign = "attract"
    term_from: Count = 0

    def blocks(self) -> Sequence[Block]:
        """Return a trained model and a centre for each client."""
        return Block("own", PER_CLIENT, held=True), Block("centre", PER_CLIENT)

    def home(self, table: Table, context: Context) -> Ints:
        """Return each client's centre, ``[N]``."""
        return table.at("centre")

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Seat each chosen client at its centre; its update becomes its own row."""
        client = chosen_seats(view).client
        start, own = view.at("centre", client), view.at("own", client)
        width = view.context.layout.num_parameters
        length = [float(torch.linalg.vector_norm(view.table.rows[k, :width])) for k in start.tolist()]
        squared = np.square(np.array(length, np.float64))
        cosine = self.cosine if view.round >= self.term_from else 0.0
        mu = np.divide(cosine, squared, out=np.zeros(len(client)), where=squared > 0)
        mu = -mu if self.sign == "repel" else mu
        return Seats(client, start, own, R=units(start, view.table.size), mu=mu), state


@dataclass(frozen=True)
class PFedGraph(WeighPart):
    """pFedGraph (Ye et al. 2023): a collaboration graph from sample shares and ``d_ij = -cos`` of the ways that the
    models have come from the initial one; ``alpha`` weighs the shares. Cosines above ``snap`` are taken for 1, as the
    authors' code does with 0.9 (default: none are).
    """

    needs = frozenset({"clients"})
    reads = frozenset({"centre"})
    fills = frozenset({"centre"})
    alpha: Rate = 0.8
    snap: Annotated[float, Field(gt=0, le=1)] | None = None

    def init(self, context: Context) -> State:
        """Remember the initial model."""
        return {"origin": context.initial(0).clone()}

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the centres."""
        cosine = way_cosines(view, state["origin"])
        if self.snap is not None:
            cosine = np.where(cosine > self.snap, 1.0, cosine)
        graph = collaboration(sample_shares(view.trained.num_samples), -cosine, self.alpha)
        edges = int(np.count_nonzero(graph) - np.count_nonzero(np.diag(graph)))
        return mixed_centres(view, graph, {"weigh/edges": edges}), state


def pfedgraph(
    clients_per_round: Seated = None,
    lam: Weight = 0.01,
    alpha: Rate = 0.8,
    sign: Sign = "attract",
    term_from: Count = 0,
) -> Mechanism:
    """pFedGraph (Ye et al. 2023): start models from a graph of who helps whom; each client holds what it trained."""
    train = FromCentres(lam, sign, term_from)
    return Mechanism("pfedgraph", who(clients_per_round), train, PFedGraph(alpha), deploy=OwnModel())
