"""Centres: a row "centre" for each client that mixes the models of others, whatever the rule, and who is pulled to it.

A part that fills the rows "centre" says so with :class:`Centres`, for seats that are only pulled to what was delivered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hanse.core.part import Floats, Ints, Replace, View, Weighed
from hanse.games.gram import cosines

__all__ = ["Centres", "mixed_centres", "way_cosines"]


@dataclass(frozen=True)
class Centres:
    """Whose centre was made anew: ``clients [m]``, and which of them ``imports [m]`` others' models."""

    clients: Ints
    imports: NDArray[np.bool_]


def mixed_centres(view: View, A: Floats, metrics: dict[str, float]) -> Weighed:
    """Return that each seat's client has the centre ``A [S, S]`` times all updates."""
    client = view.trained.seats.client
    own = float(np.diag(A).mean())
    return Weighed(
        (Replace(view.at("centre", client), A),),
        metrics={"weigh/self_weight": own, **metrics},
        found=(Centres(client, np.ones(len(client), bool)),),
    )


def way_cosines(view: View, origin: Tensor) -> Floats:
    """Return the cosines ``[m, m]`` between the ways that the models have come from the row ``origin [P]``."""
    rows = view.trained.rows[:, : view.context.layout.num_parameters]
    return cosines(rows - origin[: rows.shape[1]].to(rows.device))
