"""WEIGH with clusters that split: CFL (Sattler, Mueller, Samek 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field

from hanse.games.gram import cosines
from hanse.mechanisms.part import Floats, Ints, State, View, WeighPart
from hanse.mechanisms.weigh.centres import keep_all
from hanse.table import SERVER, Mix

__all__ = ["CFL", "bipartition", "moved_by"]

Linkage = Literal["single", "complete"]


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


def moved_by(base: int, members: Ints, start: Ints, count: int, size: int) -> Floats:
    """Return the row of W ``[count + size]`` that moves table row ``base`` by the mean of ``U_s - M[start_s]`` over the
    seats ``members``; ``start [S]``.
    """
    row = np.zeros(count + size)
    row[members] = 1.0 / len(members)
    if (start[members] != base).any():  # else the start rows cancel, exactly
        row[count + base] += 1.0
        np.add.at(row, count + start[members], -1.0 / len(members))
    return row


@dataclass(frozen=True)
class CFL(WeighPart):
    """CFL: groups move by their members' plain mean update, and a group whose members pull apart is split in two.

    A group of more than two seats splits when its mean update is shorter than ``eps1`` while its longest one is longer
    than ``eps2``, from round ``first_round`` on: by the cosines of the updates, from one Gram product. The larger half
    keeps the row, and with it the clients that are absent; the other half gets a new row, which is their home.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients", "groups"})
    eps1: Annotated[float, Field(ge=0)] = 2.0
    eps2: Annotated[float, Field(ge=0)] = 2.5
    linkage: Linkage = "single"
    first_round: Annotated[int, Field(ge=0)] = 0

    def decide(self, view: View, state: State) -> Mix:
        """Return the moved rows, one more for each split."""
        updates, table = view.trained, view.table
        count, width = len(updates), view.context.layout.num_parameters
        start, client = updates.seats.start, updates.seats.client
        W, home = keep_all(view), view.home.copy()
        new: list[Floats] = []
        means, longest = [0.0], [0.0]
        for row, group in updates.seats.groups().items():
            moved = updates.rows[group, :width] - table.rows[start[group], :width]
            first, second = group, group[:0]
            if len(group) > 2:
                means.append(float(torch.linalg.vector_norm(moved.mean(dim=0, dtype=torch.float64))))
                longest.append(float(torch.linalg.vector_norm(moved, dim=1, dtype=torch.float64).max()))
                if view.round >= self.first_round and means[-1] < self.eps1 and longest[-1] > self.eps2:
                    apart = bipartition(cosines(moved), self.linkage)
                    first, second = group[~apart], group[apart]
            W[row] = moved_by(row, first, start, count, table.size)
            if len(second):
                leaving = client[second]
                home[leaving[view.home[leaving] == row]] = table.size + len(new)
                new.append(moved_by(row, second, start, count, table.size))
        owner = np.append(table.owner, np.full(len(new), SERVER, np.int64))
        metrics = {
            "weigh/splits": float(len(new)),
            "weigh/mean_update": max(means),
            "weigh/longest_update": max(longest),
            "weigh/clusters": float(len(np.unique(home))),
        }
        return Mix(np.concatenate([W, *(r[None] for r in new)]), owner, home, metrics)
