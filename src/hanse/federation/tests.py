"""How clients test what they hold: one piece of code for one client on a network and for all clients of this process.

The server sends the models and learns how well the one that counts does on a client's own test share. A personal model
is mixed where its client is (PI-FL eq. 4 at the client), and so are its weights made.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from hanse.core.port import Mixture, Test, Tested
from hanse.core.table import Floats, mix
from hanse.data.federated import FederatedData
from hanse.data.samples import Samples
from hanse.federation.bids import fits
from hanse.games.tiers import mixture
from hanse.learning.job import Engine

__all__ = ["answer_tests", "mixed"]


def answer_tests(asked: Sequence[tuple[int, Test]], data: FederatedData, engine: Engine) -> list[Tested]:
    """Return the results of tests, (client, task) in ascending order of the clients, all scored in one pass.

    Weights of mixtures are in the results: whoever sends these on takes them out.
    """
    weights = _weights(asked, data, engine)
    scored = [i for i, (_, task) in enumerate(asked) if task.scored]
    made = _score([asked[i] for i in scored], [weights.get(i) for i in scored], data, engine) if scored else []
    found = dict(zip(scored, made, strict=True))
    return [
        found[i] if i in found else Tested(task.name, None, None, 0, weights=_tensor(weights.get(i)))
        for i, (_, task) in enumerate(asked)
    ]


def mixed(weights: Floats, own: Mixture) -> Tensor:
    """Return personal models ``[n, P]`` for ``weights [n, k]`` of the mixture's models."""
    return mix(weights, own.models[:0], own.models)


def _score(
    asked: Sequence[tuple[int, Test]], weights: Sequence[Floats | None], data: FederatedData, engine: Engine
) -> list[Tested]:
    """Return the results of tests that are scored. A model that has diverged may have lost NaN."""
    tasks = [task for _, task in asked]
    pool, index = data.pool([client for client, _ in asked], "test")
    scores = engine.score(_held(tasks, weights), pool, index)
    error = scores.count * math.nan if scores.loss_error is None else scores.loss_error
    columns = (scores.loss, scores.accuracy, scores.count, error, _beside(tasks, index, pool, engine))
    return [
        Tested(task.name, None, None, 0, weights=_tensor(w))
        if count == 0
        else Tested(task.name, loss, _known(right), count, None if count == 1 else wrong, _known(other), _tensor(w))
        for task, w, loss, right, count, wrong, other in zip(
            tasks, weights, *(column.tolist() for column in columns), strict=True
        )
    ]


def _beside(tasks: Sequence[Test], index: Sequence[Tensor], pool: Samples, engine: Engine) -> Floats:
    """Return the accuracies ``[n]`` of the models beside those that are held, NaN where there is none."""
    found = np.full(len(tasks), math.nan)
    some = [(place, task.beside) for place, task in enumerate(tasks) if task.beside is not None]
    if some:
        scores = engine.score(torch.stack([model for _, model in some]), pool, [index[place] for place, _ in some])
        found[[place for place, _ in some]] = scores.accuracy
    return found


def _known(accuracy: float) -> float | None:
    return None if math.isnan(accuracy) else accuracy


def _tensor(weights: Floats | None) -> Tensor | None:
    return None if weights is None else torch.from_numpy(weights)


def _weights(asked: Sequence[tuple[int, Test]], data: FederatedData, engine: Engine) -> Mapping[int, Floats]:
    """Return the weights ``[k]`` of each mixture that is asked for, by position; the same mixture is scored at once.

    They are how well each model fits the client's own share (without samples there: its train share).
    """
    found: dict[int, Floats] = {}
    wanted = [(i, client, task.mixture) for i, (client, task) in enumerate(asked) if task.mixture is not None]
    for _, group in groupby(wanted, key=lambda one: id(one[2])):
        places, clients, [own, *_] = zip(*group, strict=True)
        pool, index = data.pool(clients, own.share)
        v = np.array([fits(scores) for scores in engine.score_each(own.models, pool, index)])
        if empty := [j for j, samples in enumerate(index) if not len(samples)]:
            pool, index = data.pool([clients[j] for j in empty], "train")
            v[empty] = [fits(scores) for scores in engine.score_each(own.models, pool, index)]
        found.update(zip(places, mixture(v, own.normalised), strict=True))
    return found


def _held(tasks: Sequence[Test], weights: Sequence[Floats | None]) -> Tensor:
    """Return the model that each client holds, ``[n, P]``."""
    held = torch.stack([task.model for task in tasks])
    own = [(j, task.mixture, w) for j, (task, w) in enumerate(zip(tasks, weights, strict=True)) if w is not None]
    for _, group in groupby((one for one in own if one[2].any()), key=lambda one: id(one[1])):
        places, [given, *_], mine = zip(*group, strict=True)
        held[list(places)] = mixed(np.array(mine), given)
    return held
