"""CFL, clustered federated learning (Sattler, Mueller, Samek 2020): clusters of clients that are split when needed.

All clients start in one cluster, which trains one model. Sometimes the members' updates are long but their mean is
short. Then they point in different directions, one model cannot serve all members, and the cluster is split in two.
:class:`CFL` is the weigh part that moves and splits the rows. :func:`bipartition` decides who goes where. :func:`cfl`
is the whole mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from hanse.base.factories import Count, Weight
from hanse.base.pytorch import torch
from hanse.core.part import GROUPS, Group, Mechanism, State, View, Weighed, WeighPart
from hanse.core.table import Add, Floats, Ints, Replace
from hanse.games.gram import cosines
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import SharedModel

Linkage = Literal["single", "complete"]


def bipartition(similarity: Floats, method: Linkage = "single") -> np.ndarray:
    """Return which members belong to the second of two clusters, as a mask ``[m]``.

    The first cluster is the larger one. If both have the same size, it is the one with the member at position 0.

    Args:
        similarity: cosine similarities ``[m, m]`` between the members' updates.
        method: "single" minimises the largest similarity across the two clusters, which is the optimum of CFL Alg. 1.
            "complete" maximises the smallest similarity inside the clusters greedily, as the authors' code does.

    Raises:
        ValueError: there are fewer than two members.

    Examples:
        Members 0 and 1 move in the same direction, and so do members 2 to 4:

        >>> ways = np.array([[1.0, 0.1], [1.0, -0.1], [0.0, 1.0], [0.1, 1.0], [-0.1, 1.0]])
        >>> bipartition(cosines(torch.tensor(ways)))
        array([ True,  True, False, False, False])
    """
    if len(similarity) < 2:
        raise ValueError(f"similarity: {len(similarity)} rows: at least two can be split")
    # rounding may leave the cosines slightly asymmetric or above 1, which the clustering does not accept
    apart = np.maximum(1.0 - (similarity + similarity.T) / 2.0, 0.0)
    np.fill_diagonal(apart, 0.0)
    from scipy.cluster.hierarchy import fcluster, linkage  # late: it takes longer to import than a short run
    from scipy.spatial.distance import squareform

    label = fcluster(linkage(squareform(apart, checks=False), method), 2, "maxclust")
    second = np.asarray(label != label[0])
    return ~second if np.count_nonzero(second) * 2 > len(second) else second


def moved_by(group: Group, members: Ints) -> tuple[Floats, Floats]:
    """Return the weights that move a group's row by the mean change of some of its members.

    The change of a seat is its update minus the model it started from, ``U_s - M[start_s]``.

    Args:
        group: the group whose row moves.
        members: positions of the seats among all of the round's updates.

    Returns:
        The weights on the round's updates ``[S]`` and on the rows of the table ``[K]``.
    """
    view = group.view
    start = view.trained.seats.start[members]
    updates, models = np.zeros(len(view.trained)), np.zeros(view.table.size)
    updates[members] = 1.0 / len(members)
    # If all members started from this row, then row + mean(U - row) is mean(U): no weight on rows, and no rounding.
    if (start != group.row).any():
        models[group.row] += 1.0
        np.add.at(models, start, -1.0 / len(members))
    return updates, models


@dataclass(frozen=True)
class CFL(WeighPart):
    """CFL: clusters move by their members' mean update, and split in two when their members disagree.

    A cluster of more than two seats splits when its mean update is shorter than ``eps1`` although its longest update is
    longer than ``eps2`` (CFL Alg. 1). Members are divided by the cosines of their updates. The larger part keeps the
    row, and with it the members that did not train in this round. The other part gets a new row, which becomes the home
    row of its clients.

    Attributes:
        eps1: a cluster splits only if its mean update is shorter than this (Euclidean length over the parameters),
        eps2: and its longest update longer than this.
        linkage: how members are divided; see :func:`bipartition`.
        first_round: the first round in which a cluster may split.
    """

    needs = frozenset({"clients", "groups"})
    fills = frozenset({GROUPS})
    eps1: Weight = 2.0
    eps2: Weight = 2.5
    linkage: Linkage = "single"
    first_round: Count = 0

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return each cluster's new row, an added row for each split, and the clients' new home rows.

        Recorded: the number of splits and of clusters, and the largest mean and longest update of any cluster, which
        help to choose ``eps1`` and ``eps2``.
        """
        client, home, rows = view.trained.seats.client, view.home.copy(), view.table.size
        replaced: list[Replace] = []
        new: list[Add] = []
        means, longest = [0.0], [0.0]
        for group in view.groups():
            first, second = group.at, group.at[:0]
            if len(group) > 2:
                width = view.context.layout.num_parameters
                moved = group.parameters - group.start[:, :width]
                means.append(float(torch.linalg.vector_norm(moved.mean(dim=0, dtype=torch.float64))))
                longest.append(float(torch.linalg.vector_norm(moved, dim=1, dtype=torch.float64).max()))
                if view.round >= self.first_round and means[-1] < self.eps1 and longest[-1] > self.eps2:
                    apart = bipartition(cosines(moved), self.linkage)
                    first, second = group.at[~apart], group.at[apart]
            updates, models = moved_by(group, first)
            replaced.append(Replace(np.array([group.row]), updates[None], models[None]))
            if len(second):
                leaving = client[second]
                # only clients at home here move: a selector may have sent others to this row for the round
                home[leaving[view.home[leaving] == group.row]] = rows + len(new)
                block = view.table.blocks[view.table.block[group.row]].name
                new.append(Add(block, *moved_by(group, second)))
        metrics = {
            "weigh/splits": float(len(new)),
            "weigh/mean_update": max(means),
            "weigh/longest_update": max(longest),
            "weigh/clusters": float(len(np.unique(home))),
        }
        return Weighed(tuple(replaced), tuple(new), home, metrics), state


def cfl(
    clients_per_round: Seated = None, eps1: Weight = 2.0, eps2: Weight = 2.5, linkage: Linkage = "single"
) -> Mechanism:
    """CFL (Sattler et al. 2020): clusters that split when their members' updates are long and their mean is short.

    Args:
        clients_per_round: how many clients, drawn at random, train in a round. None: all of them.
        eps1: see :class:`CFL`.
        eps2: see :class:`CFL`.
        linkage: see :func:`bipartition`.
    """
    return Mechanism("cfl", who(clients_per_round), SharedModel(), CFL(eps1, eps2, linkage), deploy=ServerModel())
