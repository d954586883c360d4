"""A personal model that a client mixes for itself, where it lives: PI-FL eq. (4) at the client.

The server sends the models and learns how well the mix does on the client's own test share; the weights and the model
stay with the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hanse.data.federated import FederatedData
from hanse.federation.bids import fits
from hanse.federation.port import Ask
from hanse.federation.said import OWN_ROW, PERSONAL
from hanse.games.tiers import mixture
from hanse.learning.job import Engine
from hanse.mechanisms.part import Floats
from hanse.table import mix

__all__ = ["OWN_ROW", "PERSONAL", "Personal", "mix_own", "tried"]


@dataclass(frozen=True)
class Personal:
    """A client's own mix: its model ``row [P]`` and the ``weights [k]`` of the models that it was sent."""

    row: Tensor
    weights: Floats


def mix_own(engine: Engine, data: FederatedData, client: int, task: Ask) -> Personal:
    """Return the client's mix of ``task.models [k, P]`` by how well each fits its own ``task.share`` (without samples
    there: its train share), normalised if the question says so.
    """
    models = torch.zeros(0, 0) if task.models is None else task.models
    pool, [index] = data.pool([client], task.share)
    if not len(index):
        pool, [index] = data.pool([client], "train")
    [scores] = engine.score_each(models, pool, [index])
    weights = mixture(np.array([fits(scores)]), bool(task.values.get("normalised", True)))
    return Personal(mix(weights, models[:0], models)[0], weights[0])


def tried(engine: Engine, data: FederatedData, client: int, row: Tensor) -> Mapping[str, Any]:
    """Return ``loss``, ``accuracy`` (None for regression) and ``num_samples`` of a model ``row [P]`` on the client's
    test share.
    """
    pool, [index] = data.pool([client], "test")
    if not len(index):
        return {"loss": 0.0, "accuracy": None, "num_samples": 0}
    scores = engine.score(row[None], pool, [index])
    right = float(scores.accuracy[0])
    accuracy = None if np.isnan(right) else right
    return {"loss": float(scores.loss[0]), "accuracy": accuracy, "num_samples": int(scores.count[0])}
