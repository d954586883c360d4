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

from hanse.data.federated import FederatedData
from hanse.federation.bids import fits
from hanse.federation.port import Mixture, Test, Tested
from hanse.games.tiers import mixture
from hanse.learning.job import Engine, Scores
from hanse.table import Floats, mix

__all__ = ["answer_tests", "mixed"]


def answer_tests(asked: Sequence[tuple[int, Test]], data: FederatedData, engine: Engine) -> list[Tested]:
    """Return the results of tests, (client, task) in ascending order of the clients, all scored in one pass.

    Weights of mixtures are in the results: whoever sends these on takes them out.
    """
    weights = _weights(asked, data, engine)
    scored = [i for i, (_, task) in enumerate(asked) if task.scored]
    found = {i: Tested(task.name, None, None, 0, weights=_tensor(weights.get(i))) for i, (_, task) in enumerate(asked)}
    if not scored:
        return list(found.values())
    pool, index = data.pool([asked[i][0] for i in scored], "test")
    scores = engine.score(_held([asked[i][1] for i in scored], [weights.get(i) for i in scored]), pool, index)
    beside = [(i, place, model) for place, i in enumerate(scored) if (model := asked[i][1].beside) is not None]
    others: dict[int, float | None] = {}
    if beside:
        other = engine.score(torch.stack([m for _, _, m in beside]), pool, [index[place] for _, place, _ in beside])
        others = {i: _known(right) for (i, _, _), right in zip(beside, other.accuracy.tolist(), strict=True)}
    for place, i in enumerate(scored):
        found[i] = _result(asked[i][1], scores, place, others.get(i), found[i].weights)
    return list(found.values())


def mixed(weights: Floats, own: Mixture) -> Tensor:
    """Return personal models ``[n, P]`` for ``weights [n, k]`` of the mixture's models."""
    return mix(weights, own.models[:0], own.models)


def _result(task: Test, scores: Scores, place: int, beside: float | None, weights: Tensor | None) -> Tested:
    """Return what the scores at a ``place`` say; a model that has diverged may have lost NaN."""
    count = int(scores.count[place])
    if count == 0:
        return Tested(task.name, None, None, 0, weights=weights)
    error = None if scores.loss_error is None or count == 1 else float(scores.loss_error[place])
    accuracy = _known(float(scores.accuracy[place]))
    return Tested(task.name, float(scores.loss[place]), accuracy, count, error, beside, weights)


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
