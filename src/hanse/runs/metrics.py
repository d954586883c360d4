"""Checks, before round 0, whether an experiment's metrics can be computed on its data.

An AUC needs samples of both classes, for example. :func:`refused_metrics` finds metrics that are undefined in every
test, which are errors. :func:`missing_metrics` finds those that are undefined only for some clients, which are
warnings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hanse.base.streams import stream
from hanse.core.table import Ints
from hanse.data import FederatedData
from hanse.learning.job import Problem
from hanse.learning.metrics import OF_TEXTS, WHERE, Metric, Predictions

_TRIED = 256  # samples on which a function of the user's own is tried
_NAMED = 5  # clients in one line


def refused_metrics(problem: Problem, data: FederatedData, tested: Ints) -> list[str]:
    """Return a line for each metric that is undefined in every test of this experiment.

    There are three cases: the server's whole test set lacks what the metric needs, every testing client's share lacks
    it, or the user's own function fails.

    Args:
        problem: the model with its metrics.
        data: the data with their test sets.
        tested: the ids ``[n]`` of the clients that test.
    """
    lines = []
    for metric in problem.metrics:
        if data.test_weights is not None and metric.key not in OF_TEXTS:
            lines.append(
                f"{WHERE}: '{metric.key}': with data.client_test_from = 'classes' test samples count by weights; "
                f"allowed: {', '.join(OF_TEXTS)}"
            )
            continue
        own = _targets_of(data, tested)
        server = None if data.server_test is None or not len(data.server_test) else data.server_test.y.cpu().numpy()
        gaps = _gaps(metric, own)
        if server is not None and (gap := metric.gap(server)):
            lines.append(f"{WHERE}: '{metric.key}': on the server's test set {gap}")
        elif own and len(gaps) == len(own):
            lines.append(
                f"{WHERE}: '{metric.key}': no client's own test share can have it: {next(iter(gaps.values()))}"
            )
        elif not metric.built_in and (wrong := _fails(metric, problem, [*own.values(), server], data.num_classes)):
            given = "numbers [n, d]" if problem.regression else "probabilities [n, k] of k classes"
            lines.append(
                f"{WHERE}: '{metric.key}': fails on the test samples, called with the true targets and the "
                f"predictions, {given}: {wrong}"
            )
    return lines


def missing_metrics(problem: Problem, data: FederatedData, tested: Ints) -> list[str]:
    """Return a warning for each metric that is undefined on some clients' own test shares. Arguments as
    :func:`refused_metrics`.
    """
    own, lines = _targets_of(data, tested) if problem.metrics else {}, []
    for metric in problem.metrics:
        if gaps := _gaps(metric, own):
            names = [data.called(c) for c in list(gaps)[:_NAMED]] + (["others"] if len(gaps) > _NAMED else [])
            count = f"{len(gaps)} of {len(own)} clients have no {metric.reading.title} of their own"
            first = next(iter(gaps))
            lines.append(
                f"warning: {WHERE}: '{metric.key}': {count} ({', '.join(names)}): of client {first} {gaps[first]}"
            )
    return lines


def _targets_of(data: FederatedData, tested: Ints) -> Mapping[int, NDArray[np.generic]]:
    """Return the targets of the test share of each client that tests, by client, of those that have one in this
    process.
    """
    if not len(tested):
        return {}
    pool, index = data.pool(tested.tolist(), "test")
    found = zip(tested.tolist(), index, strict=True)
    return {c: pool.y[own.to(pool.y.device)].cpu().numpy() for c, own in found if len(own)}


def _gaps(metric: Metric, own: Mapping[int, NDArray[np.generic]]) -> dict[int, str]:
    """Return why clients cannot have a metric, by client, of those that cannot."""
    return {client: gap for client, y in own.items() if (gap := metric.gap(y))}


def _fails(
    metric: Metric, problem: Problem, targets: Sequence[NDArray[np.generic] | None], num_classes: int | None
) -> str:
    """Return why a function of the user's own fails, or "".

    It is tried on the largest of these targets, at most 256 samples, with made-up predictions.
    """
    largest = max((y for y in targets if y is not None), key=len, default=None)
    if largest is None:
        return ""
    y = torch.from_numpy(largest[:_TRIED].copy())
    width = y.reshape(len(y), -1).shape[1] if num_classes is None else 1 if problem.one_output else num_classes
    outputs = torch.from_numpy(stream(0, "metrics").standard_normal((width, len(y))))
    judged = Predictions.of(y, outputs, torch.zeros(len(y)), problem.objective, regression=problem.regression)
    return metric.of(judged)[1]
