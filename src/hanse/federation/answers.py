"""How clients answer: questions about their own data, and tests of the models that they hold.

Questions ask for gradients, confusion counts, scores, and which model fits a sample best. The same code answers for one
client on a network (:mod:`hanse.federation.node`) and for all clients of a process (:mod:`hanse.federation.local`). A
personal model and its weights are computed at its client (PI-FL eq. 4).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from hanse.base.pytorch import Tensor, nn, torch
from hanse.base.streams import stream
from hanse.core.part import ModelScores
from hanse.core.port import Confused, Confusion, Counted, Derived, Gradient, Mixture, Nearest, Score, Test, Tested
from hanse.core.table import Floats, mix
from hanse.data.federated import FederatedData
from hanse.data.samples import Samples
from hanse.federation.policy import fits
from hanse.games.tiers import mixture
from hanse.learning.intervals import UNITS, count_units, unit_error
from hanse.learning.job import Engine, ModelOutputs, Problem
from hanse.learning.local import gradients_of
from hanse.learning.losses import classes_of
from hanse.learning.sequences import IGNORED
from hanse.learning.slopes import CHUNK, summed_loss

# clients whose samples are fetched at once, so a source which makes them on demand need not hold all
_CLIENTS = 512


@dataclass(frozen=True)
class Share:
    """One client's samples of one share.

    Attributes:
        pool: samples of this client and possibly others.
        index: ``[n]``, where the client's samples lie in ``pool``.

    Examples:
        Client 1's test share in a small federation, in pieces:

        >>> from hanse.runs.rehearsal import rehearse
        >>> pool, (mine,) = rehearse().session.data.pool([1], "test")
        >>> share = Share(pool, mine)
        >>> sum(len(piece) for piece in share.chunks()) == len(mine)
        True
    """

    pool: Samples
    index: Tensor

    def limited(self, limit: int | None, seed: int, round: int, client: int) -> Share:
        """Return at most ``limit`` samples (None: all): the first ones in a random order keyed by round and client.

        Args:
            limit: the most samples. None: all.
            seed: the run's seed.
            round: the round's number.
            client: the client's id.
        """
        if limit is None or len(self.index) <= limit:
            return self
        order = stream(seed, "score", round=round, client=client).permutation(len(self.index))
        keep = torch.from_numpy(np.sort(order[:limit])).to(self.index.device)
        return Share(self.pool, self.index[keep])

    def chunks(self, device: torch.device | str = "cpu") -> Sequence[Samples]:
        """Return the samples in chunks that a model can take in one pass, on the device where the model is."""
        return [self.pool.take(part).to(torch.device(device)) for part in torch.split(self.index, CHUNK)]


def _copied(problem: Problem, models: Tensor) -> nn.Module:
    """Return a copy of the module in evaluation mode, with the device and type of ``models [C, P]``."""
    return copy.deepcopy(problem.module).to(device=models.device, dtype=models.dtype).eval()


def gradient(task: Gradient, share: Share, problem: Problem) -> Derived:
    """Return the mean loss gradient ``[C, P]`` of each model on a share, in evaluation mode.

    Entries of buffers and of frozen parameters are zero.

    Args:
        task: the models.
        share: the client's samples.
        problem: the model as a module and its loss.
    """
    rows = torch.zeros_like(task.models)
    module = _copied(problem, task.models)
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for model, row in zip(task.models, rows, strict=True):
        problem.layout.load(module, model)
        summed = problem.layout.unflatten(row)
        for part in share.chunks(row.device):
            found = gradients_of(summed_loss(module, part, problem), list(trained.values()))
            for name, slope in zip(trained, found, strict=True):
                summed[name] += slope / max(1, len(share.index))
    return Derived(task.name, rows, len(share.index))


def confusion(task: Confusion, share: Share, problem: Problem, num_classes: int) -> Confused:
    """Return how often each class (row) was predicted as each class (column), ``[C, classes, classes]`` int64.

    Args:
        task: the models.
        share: the client's samples.
        problem: the model as a module and its loss.
        num_classes: how many classes the targets have.
    """
    counts = torch.zeros((task.models.shape[0], num_classes, num_classes), dtype=torch.int64)
    module = _copied(problem, task.models)
    with torch.no_grad():
        for c, model in enumerate(task.models):
            problem.layout.load(module, model)
            for part in share.chunks(model.device):
                guess = classes_of(problem.objective, module(part.x))
                counted = part.y != IGNORED  # at every position of a text
                flat = torch.bincount((part.y * num_classes + guess)[counted], minlength=num_classes**2)
                counts[c] += flat.view(num_classes, num_classes).cpu()
    return Confused(task.name, counts)


def nearest(task: Nearest, share: Share, engine: Engine) -> Counted:
    """Return on how many samples of a share each model of the task has the lowest loss, ``[C]`` int64.

    Ties go to the first model. A loss that is not a number counts as the highest.

    Args:
        task: the models.
        share: the client's samples.
        engine: scores the models.
    """
    models = task.models.shape[0]
    if not len(share.index):
        return Counted(task.name, torch.zeros(models, dtype=torch.int64))
    # each sample is a list of its own, so all of them go through the models in one pass
    found = engine.score_each(task.models, share.pool, torch.split(share.index, 1))
    losses = np.nan_to_num(np.stack([s.loss for s in found]), nan=np.inf, posinf=np.inf)
    counts = np.bincount(losses.argmin(axis=1), minlength=models)
    return Counted(task.name, torch.from_numpy(counts.astype(np.int64)))


def score_shares(
    asked: Sequence[tuple[int, Score]], data: FederatedData, engine: Engine, seed: int, round: int
) -> Sequence[ModelScores]:
    """Return the loss and accuracy of models on clients' shares, one :class:`ModelScores` a task, in their order.

    Clients that score the same models are scored in one pass.

    Args:
        asked: (client, task).
        data: the clients' samples.
        engine: scores the models.
        seed: the seed that keys the order of samples, with round and client, if a task limits their number.
        round: the round's number.

    Examples:
        Client 1 of four scores a model of zeros, which gives all ten digits the same probability:

        >>> from hanse.core.table import Layout
        >>> from hanse.data import DataSpec, build
        >>> from hanse.learning.sequential import SequentialEngine
        >>> module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        >>> engine = SequentialEngine(Problem(module, Layout.of(module)))
        >>> data = build(DataSpec(source="digits", clients=4))
        >>> (found,) = score_shares([(1, Score("zeros", torch.zeros(1, 650)))], data, engine, seed=0, round=0)
        >>> found.loss.round(4), int(found.count[0]) == int(data.sizes[1])
        (array([2.3026]), True)
    """
    # models are the same if they lie at the same place in memory
    alike: dict[tuple[object, ...], list[int]] = {}
    for i, (_, task) in enumerate(asked):
        m = task.models
        alike.setdefault((task.share, m.data_ptr(), m.dtype, m.device, tuple(m.shape), m.stride()), []).append(i)
    found: dict[int, ModelScores] = {}
    for places in alike.values():
        models, share = asked[places[0]][1].models, asked[places[0]][1].share
        for first in range(0, len(places), _CLIENTS):
            some = places[first : first + _CLIENTS]
            pool, lists = data.pool([asked[i][0] for i in some], share)
            index = [
                Share(pool, own).limited(asked[i][1].limit, seed, round, asked[i][0]).index
                for i, own in zip(some, lists, strict=True)
            ]
            found.update(zip(some, engine.score_each(models, pool, index), strict=True))
    return [found[i] for i in range(len(asked))]


def answer_tests(
    asked: Sequence[tuple[int, Test]], data: FederatedData, engine: Engine, problem: Problem
) -> list[Tested]:
    """Return the results of tests, all scored in one pass.

    The results contain the weights of mixtures. A node removes these before it sends the results.

    Args:
        asked: (client, task), in ascending order of the clients.
        data: the clients' samples.
        engine: scores the models.
        problem: the model's layout, loss and metrics.
    """
    weights = _weights(asked, data, engine)
    scored = [i for i, (_, task) in enumerate(asked) if task.scored]
    own = [weights.get(i) for i in scored]
    made = _score([asked[i] for i in scored], own, data, engine, problem) if scored else []
    found = dict(zip(scored, made, strict=True))
    return [
        found[i] if i in found else Tested(task.name, None, None, 0, weights=_tensor(weights.get(i)))
        for i, (_, task) in enumerate(asked)
    ]


def mixed(weights: Floats, own: Mixture) -> Tensor:
    """Return personal models ``[n, P]``: the mixture's models ``[k, P]``, weighted by ``weights [n, k]``."""
    return mix(weights, own.models[:0], own.models)


def _score(
    asked: Sequence[tuple[int, Test]],
    weights: Sequence[Floats | None],
    data: FederatedData,
    engine: Engine,
    problem: Problem,
) -> list[Tested]:
    """Return the results of tests that are scored. The loss of a model that has diverged may be NaN."""
    clients, tasks = [client for client, _ in asked], [task for _, task in asked]
    pool, index = data.pool(clients, "test")
    shares = data.test_weights

    def scored(models: Tensor, places: Sequence[int]) -> ModelScores:
        own = [index[place] for place in places]
        if shares is None:
            return engine.score(models, pool, own)
        return weighted_scores(models, pool, own, [shares[clients[place]] for place in places], engine)

    held = _held(tasks, weights)
    scores = scored(held, range(len(tasks)))
    error = scores.count * math.nan if scores.loss_error is None else scores.loss_error
    others = {place: task.beside for place, task in enumerate(tasks) if task.beside is not None}
    beside = np.full(len(tasks), math.nan)
    if others:
        beside[list(others)] = scored(torch.stack(list(others.values())), list(others)).accuracy
    columns = (scores.loss, scores.accuracy, scores.count, error, beside)
    made = [
        Tested(task.name, None, None, 0, weights=_tensor(w))
        if count == 0
        else Tested(task.name, loss, _known(right), count, None if count == 1 else wrong, _known(other), _tensor(w))
        for task, w, loss, right, count, wrong, other in zip(
            tasks, weights, *(column.tolist() for column in columns), strict=True
        )
    ]
    some = [place for place, own in enumerate(index) if len(own)]
    if some and pool.units is not None and shares is None:
        outputs = engine.outputs(held[some], pool, [index[i] for i in some])
        for place, output in zip(some, outputs, strict=True):
            made[place] = _by_units(made[place], output, index[place], pool)
    if not problem.metrics or shares is not None:
        return made
    for place, one in zip(some, measured(problem, engine, held[some], pool, [index[i] for i in some]), strict=True):
        without, interval = torch.from_numpy(one.without_block), _tensor(np.array(one.interval))
        made[place] = replace(made[place], gaps=one.gaps, without_block=without, interval=interval)
        made[place] = replace(made[place], metrics={**made[place].metrics, **one.values})
    return made


def _by_units(tested: Tested, made: ModelOutputs, index: Tensor, pool: Samples) -> Tested:
    """Return a test whose loss has its error over draws of units, with the number of units among its metrics."""
    assert pool.units is not None
    units = pool.units[index.cpu()]
    error = unit_error(made.loss.double().numpy(), units)
    known = None if math.isnan(error) else error
    return replace(tested, loss_error=known, metrics={UNITS: float(count_units(units))})


@dataclass(frozen=True)
class Measured:
    """One model's metrics on some samples.

    Attributes:
        values: the metrics that exist, by name.
        gaps: why other metrics do not exist, by name.
        without_block: ``[B]``, the main metric without each block of the samples; NaN if it then has no value.
        interval: the 95 % interval of the main metric; NaN where it is not known.
    """

    values: Mapping[str, float]
    gaps: Mapping[str, str]
    without_block: Floats
    interval: tuple[float, float]


def measured(
    problem: Problem, engine: Engine, models: Tensor, pool: Samples, index: Sequence[Tensor] | None = None
) -> list[Measured]:
    """Return the problem's metrics of each model.

    Args:
        problem: the problem, which says what metrics are computed and how outputs are judged.
        engine: the engine that computes the models' outputs.
        models: ``[C, P]``.
        pool: the samples.
        index: for each model, the positions of its samples in the pool, ``[n]``. None: all samples, for every model.
    """
    found = []
    for c, made in enumerate(engine.outputs(models, pool, index)):
        y = pool.y if index is None else pool.y[index[c].to(pool.y.device)]
        units = pool.units if index is None or pool.units is None else pool.units[index[c].cpu()]
        judged = problem.predictions(y, made.outputs, made.loss, units)
        values = {metric.key: metric.of(judged) for metric in problem.metrics}
        without = problem.metrics[0].without_blocks(judged)
        found.append(
            Measured(
                {key: value for key, (value, gap) in values.items() if not gap},
                {key: gap for key, (_, gap) in values.items() if gap},
                without,
                problem.metrics[0].interval(judged, without),
            )
        )
    return found


# models are scored together unless that means more than this many times the samples that have to be scored
_WASTE = 3


def weighted_scores(
    models: Tensor, pool: Samples, index: Sequence[Tensor], weights: Sequence[Floats], engine: Engine
) -> ModelScores:
    """Return each model's scores on its own weighted samples. Their standard errors are not known.

    Samples with the same weights for all clients, mostly those of one class, are scored as one list. All models go
    through all samples at once. This is twice as fast as one model after another, unless most of these samples are
    other clients'.

    Args:
        models: ``[C, P]``.
        pool: the samples of all clients.
        index: for model c the positions of its samples in the pool, ``[m]``.
        weights: for model c how much each of its samples counts, ``[m]``, summing to 1.
        engine: scores the models.
    """
    table = np.zeros((len(index), len(pool)))
    for own, places, weight in zip(table, index, weights, strict=True):
        own[places.cpu().numpy()] = weight
    used, count = np.flatnonzero(table.any(axis=0)), np.array([len(own) for own in index], dtype=np.int64)
    everybody = list(range(len(index)))
    together = len(index) * len(used) <= _WASTE * count.sum()
    loss, accuracy = np.zeros(len(index)), np.zeros(len(index))
    for some in [everybody] if together else [[c] for c in everybody]:
        theirs = used[table[some][:, used].any(axis=0)]
        each, group = np.unique(table[some][:, theirs], axis=1, return_inverse=True)
        lists = [torch.from_numpy(theirs[group.reshape(-1) == g]) for g in range(each.shape[1])]
        for weight, part, scores in zip(each.T, lists, engine.score_each(models[some], pool, lists), strict=True):
            # a model may lose NaN on classes that its client lacks, and NaN times 0 is NaN
            held = weight > 0
            for found, own in ((loss, scores.loss), (accuracy, scores.accuracy)):
                found[some] += np.where(held, weight * len(part) * np.where(held, own, 0.0), 0.0)
    return ModelScores(loss, accuracy, count)


def _known(accuracy: float) -> float | None:
    """Return an accuracy, or None for NaN."""
    return None if math.isnan(accuracy) else accuracy


def _tensor(weights: Floats | None) -> Tensor | None:
    """Return weights as a tensor, or None."""
    return None if weights is None else torch.from_numpy(weights)


def _weights(asked: Sequence[tuple[int, Test]], data: FederatedData, engine: Engine) -> Mapping[int, Floats]:
    """Return the weights ``[k]`` of each mixture that is asked for, by position in ``asked``.

    They measure how well each model fits the client's own share; a client without samples there uses its train share.
    Clients with the same mixture are scored in one pass.
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
    """Return the model that each client holds, ``[n, P]``.

    That is the one it was sent, or its own mixture, unless all weights of the mixture are 0.
    """
    held = torch.stack([task.model for task in tasks])
    own = [(j, task.mixture, w) for j, (task, w) in enumerate(zip(tasks, weights, strict=True)) if w is not None]
    for _, group in groupby((one for one in own if one[2].any()), key=lambda one: id(one[1])):
        places, [given, *_], mine = zip(*group, strict=True)
        held[list(places)] = mixed(np.array(mine), given)
    return held
