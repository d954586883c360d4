"""CFL (Sattler, Mueller, Samek 2020): clusters of clients that split when their members' updates pull apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field

from hanse.base.factories import Count
from hanse.core.part import GROUPS, Group, Mechanism, State, View, Weighed, WeighPart
from hanse.core.table import Add, Floats, Ints, Replace
from hanse.games.gram import cosines
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.select import Seated, who
from hanse.mechanisms.train import SharedModel

Linkage = Literal["single", "complete"]
Length = Annotated[float, Field(ge=0)]


def bipartition(similarity: Floats, method: Linkage = "single") -> np.ndarray:
    """Return a mask ``[m]`` of the second of two clusters by ``similarity [m, m]``; the first one is the larger (ties:
    the one with the lowest position). Raises ValueError for fewer than two.

    "single" minimises the largest similarity between the two (CFL Alg. 1's optimum); "complete" maximises the smallest
    one inside them greedily, as the authors' code does.
    """
    if len(similarity) < 2:
        raise ValueError(f"similarity: {len(similarity)} rows: at least two can be split")
    apart = np.maximum(1.0 - (similarity + similarity.T) / 2.0, 0.0)
    np.fill_diagonal(apart, 0.0)
    from scipy.cluster.hierarchy import fcluster, linkage  # late: it takes longer to import than a short run
    from scipy.spatial.distance import squareform

    label = fcluster(linkage(squareform(apart, checks=False), method), 2, "maxclust")
    second = np.asarray(label != label[0])
    return ~second if np.count_nonzero(second) * 2 > len(second) else second


def moved_by(group: Group, members: Ints) -> tuple[Floats, Floats]:
    """Return the weights on updates ``[S]`` and on rows ``[K]`` that move a group's row by the mean of ``U_s -
    M[start_s]`` over the seats ``members``.
    """
    view = group.view
    start = view.trained.seats.start[members]
    updates, models = np.zeros(len(view.trained)), np.zeros(view.table.size)
    updates[members] = 1.0 / len(members)
    if (start != group.row).any():  # else the start rows cancel, exactly
        models[group.row] += 1.0
        np.add.at(models, start, -1.0 / len(members))
    return updates, models


@dataclass(frozen=True)
class CFL(WeighPart):
    """CFL: groups move by their members' plain mean update, and a group whose members pull apart is split in two.

    A group of more than two seats splits when its mean update is shorter than ``eps1`` while its longest one is longer
    than ``eps2``, from round ``first_round`` on: by the cosines of the updates, from one Gram product. The larger half
    keeps the row, and with it the clients that are absent; the other half gets a new row, which is their home.
    """

    needs = frozenset({"clients", "groups"})
    fills = frozenset({GROUPS})
    eps1: Length = 2.0
    eps2: Length = 2.5
    linkage: Linkage = "single"
    first_round: Count = 0

    def weigh(self, view: View, state: State) -> tuple[Weighed, State]:
        """Return the moved rows, one more for each split, and the new homes."""
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
    clients_per_round: Seated = None, eps1: Length = 2.0, eps2: Length = 2.5, linkage: Linkage = "single"
) -> Mechanism:
    """CFL (Sattler et al. 2020): clusters that split when their members' updates are long and their mean is short."""
    return Mechanism("cfl", who(clients_per_round), SharedModel(), CFL(eps1, eps2, linkage), deploy=ServerModel())
