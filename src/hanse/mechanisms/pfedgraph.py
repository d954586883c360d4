"""pFedGraph (Ye et al. 2023): every client starts from its own mix of models, by a graph of who helps whom.

In each round client i starts from its row "centre" a_i, with the term ``-lam cos(theta, a_i)`` in its loss. After
training, this model becomes the client's row "own", which it holds. The server then makes the next centres from the
collaboration graph. Row i of the graph minimises ``sum_j w_j d_ij + alpha |w - p|^2`` on the probability simplex. Here
p are the sample shares, and ``d_ij`` is minus the cosine between the changes of models i and j since the initial model.

:class:`FromCentres` is the train part, :class:`PFedGraph` the weigh part, and :func:`collaboration` the graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hanse.base.factories import Count, Rate, SomeShare, Weight
from hanse.base.pytorch import torch
from hanse.core.part import Context, Mechanism, State, TrainPart, View, Weighed, WeighPart
from hanse.core.table import PER_CLIENT, Block, Floats, Ints, Seats, Table
from hanse.mechanisms.deploy import OwnModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import chosen_seats, units
from hanse.mechanisms.weigh import mixed_centres, sample_shares, way_cosines

Sign = Literal["attract", "repel"]


def onto_simplex(points: Floats) -> Floats:
    """Return, for each row of ``points [r, m]``, the nearest point (Euclidean) of the probability simplex.

    The threshold of each row comes from one sort (Held, Wolfe, Crowder 1974).

    Examples:
        >>> onto_simplex([[0.5, 0.5], [2.0, 0.0], [0.75, 0.75]])
        array([[0.5, 0.5],
               [1. , 0. ],
               [0.5, 0.5]])
    """
    points = np.asarray(points, np.float64)
    falling = -np.sort(-points, axis=1)
    excess = (np.cumsum(falling, axis=1) - 1.0) / np.arange(1, points.shape[1] + 1)
    last = np.count_nonzero(falling > excess, axis=1) - 1
    found = np.maximum(points - excess[np.arange(len(points)), last][:, None], 0.0)
    return np.asarray(found / found.sum(axis=1, keepdims=True))  # the sum is 1 but for rounding


def collaboration(shares: Floats, difference: Floats, alpha: float) -> Floats:
    """Return pFedGraph's graph (Ye et al. 2023), ``[m, m]``: row i says how much each model counts for client i.

    Row i minimises ``sum_j w_j d_ij + alpha |w - p|^2`` on the simplex, which makes it the projection of ``p - d_i / (2
    alpha)``.

    Args:
        shares: the sample shares p, ``[m]``.
        difference: the differences d between models, ``[m, m]``.
        alpha: how strongly the weights are held at the shares, above 0.
    """
    return onto_simplex(shares[None, :] - difference / (2.0 * alpha))


@dataclass(frozen=True)
class FromCentres(TrainPart):
    """pFedGraph (Ye et al. 2023): clients start from their centres a_i, with ``-lam cos(theta, a_i)`` in the loss.

    A seat's loss cannot have a cosine. Instead it has a pull that agrees with the cosine to second order. Near a_i the
    cosine is ``1 - |d|^2 / (2 |a_i|^2)``, where d is the part of ``theta - a_i`` that is orthogonal to a_i. So the term
    acts as the pull ``mu/2 |theta - a_i|^2`` with ``mu = lam / |a_i|^2``, except that the pull also opposes changes of
    length.

    Attributes:
        cosine: the paper's lam, the weight of the term.
        sign: "attract" as in the paper, or "repel" for the opposite term ``+lam cos(theta, a_i)``: a push with ``-mu``,
            as in the public code of pFedGraph and of iPFL's comparison.
        term_from: the first round with the term. It is 1 in the public code.

    Examples:
        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("pfedgraph").before("train")
        >>> seats, state = part.seats(view, state)
        >>> len(seats)
        4
    """

    adds = (("pull", ""),)

    needs = frozenset({"clients", "penalty", "new rows centre"})
    cosine: Weight = 0.01
    sign: Sign = "attract"
    term_from: Count = 0

    def blocks(self, context: Context) -> Sequence[Block]:
        """Return a row "own" for the trained model and a row "centre", for each client."""
        return Block("own", PER_CLIENT, held=True), Block("centre", PER_CLIENT)

    def home(self, table: Table, context: Context) -> Ints:
        """Return each client's centre, ``[N]``."""
        return table.at("centre")

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        """Return a seat for each chosen client.

        It starts from the client's centre, and its update becomes the client's own row.
        """
        client = chosen_seats(view).client
        start, own = view.at("centre", client), view.at("own", client)
        width = view.context.layout.num_parameters
        # one row at a time: all start rows together would be a second table
        length = [float(torch.linalg.vector_norm(view.table.rows[k, :width])) for k in start.tolist()]
        squared = np.square(np.array(length, np.float64))
        cosine = self.cosine if view.round >= self.term_from else 0.0
        mu = np.divide(cosine, squared, out=np.zeros(len(client)), where=squared > 0)
        mu = -mu if self.sign == "repel" else mu
        return Seats(client, start, own, R=units(start, view.table.size), mu=mu), state


@dataclass(frozen=True)
class PFedGraph(WeighPart):
    """pFedGraph (Ye et al. 2023): centres by a graph made from sample shares and cosines between the models' changes.

    Attributes:
        alpha: how strongly the weights are held at the sample shares.
        snap: cosines above this count as 1 (0.9 in the authors' code). None: cosines are used as they are.
    """

    needs = frozenset({"clients", "rows centre"})
    fills = frozenset({"centre"})
    alpha: Rate = 0.8
    snap: SomeShare | None = None

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the new centres; ``weigh/edges`` counts the pairs of different models with a weight above 0.

        Args:
            view: the round. The method reads ``at`` and ``trained``.
            state: as :meth:`init` makes it.
        """
        cosine = way_cosines(view)
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
    """pFedGraph (Ye et al. 2023): start models by a graph of who helps whom; each client holds the model it trained.

    Args:
        clients_per_round: how many clients, drawn at random, train in a round. None: all of them.
        lam: weight of the cosine term.
        alpha: how strongly the graph is held at the sample shares.
        sign: "attract" or "repel"; see :class:`FromCentres`.
        term_from: the first round with the cosine term.
    """
    train = FromCentres(lam, sign, term_from)
    return Mechanism("pfedgraph", who(clients_per_round), train, PFedGraph(alpha), deploy=OwnModel())
