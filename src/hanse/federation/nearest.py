"""How a client counts its samples by the model that fits each of them best."""

from __future__ import annotations

import numpy as np
import torch

from hanse.federation.answers import Share
from hanse.federation.port import Counted, Nearest
from hanse.learning.job import Engine

__all__ = ["nearest"]


def nearest(task: Nearest, share: Share, engine: Engine) -> Counted:
    """Return on how many samples of a share each model of the task has the lowest loss, ``[C]`` int64.

    Ties go to the first model; a loss that is not a number is the highest.
    """
    models = task.models.shape[0]
    if not len(share.index):
        return Counted(task.name, torch.zeros(models, dtype=torch.int64))
    # each sample is a list of its own, so that all of them go through the models in one pass
    found = engine.score_each(task.models, share.pool, torch.split(share.index, 1))
    losses = np.nan_to_num(np.stack([s.loss for s in found]), nan=np.inf, posinf=np.inf)
    counts = np.bincount(losses.argmin(axis=1), minlength=models)
    return Counted(task.name, torch.from_numpy(counts.astype(np.int64)))
