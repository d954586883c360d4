"""Scoring for many clients at once against scoring client by client."""

from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits

from hanse.base.streams import stream
from hanse.core.port import Call, Request, Score
from hanse.data.samples import Samples
from hanse.federation.answers import Share, weighted_scores
from hanse.learning.job import Problem
from hanse.learning.models import build_problem
from hanse.learning.scoring import Scorer
from hanse.learning.sequential import SequentialEngine
from hanse.learning.threads import Crew
from hanse.runs.setup import Session, build
from tests.learning.helpers import made, worth_of


def by_hand(problem: Problem, row: torch.Tensor, part: Samples) -> tuple[float, float]:
    right = float("nan") if problem.loss == "mse" else worth_of(problem, row, part, "accuracy")
    return -worth_of(problem, row, part), right


@pytest.mark.parametrize(
    ("name", "options", "shape", "classes"),
    [
        ("mlp", {"hidden": [9, 7]}, (3, 4), 5),
        ("mlp", {"hidden": [9], "batch_norm": True}, (3, 4), 5),
        ("mlp", {"hidden": [9]}, (3, 4), None),
        ("cnn_greedyfed", {}, (3, 32, 32), 10),
    ],
)
@pytest.mark.parametrize("models", [1, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_every_model_on_every_list(
    name: str, options: Any, shape: Any, classes: int | None, models: int, workers: int
) -> None:
    problem, row = build_problem(name, shape, classes, 1, **options)
    rows = row + 0.1 * row.std() * torch.randn((models, len(row)), generator=torch.Generator().manual_seed(0))
    if options.get("batch_norm"):
        rows[:, problem.layout.num_parameters :].abs_()
    pool = made(shape, classes, 600)
    order = torch.from_numpy(stream(0, "order").permutation(600))
    index = [order[:0], order[:1], order[1:300], order[:0], order[200:599], order[5:7]]
    found = Scorer(problem, torch.device("cpu"), crew=Crew(workers)).score_each(rows, pool, index)
    assert [s.count.tolist() for s in found] == [[len(i)] * models for i in index]
    for i, own in enumerate(index):
        for c in range(models):  # of no samples both are NaN
            loss, accuracy = by_hand(problem, rows[c], pool.take(own))
            assert found[i].loss[c] == pytest.approx(loss, abs=1e-6, rel=1e-6, nan_ok=True)
            assert found[i].accuracy[c] == pytest.approx(accuracy, nan_ok=True)


@pytest.fixture(scope="module")
def here() -> Session:
    data, model = {"partition": {"alpha": 0.2}, "client_test": 0.2}, {"name": "mlp", "hidden": [6]}
    mechanism = {"name": "fedavg", "clients_per_round": 3}
    return build(digits(mechanism, 12, data=data, model=model, engine={"train": "stacked"}))


def test_the_federation_answers_as_each_client_alone_would(here: Session) -> None:
    table = torch.stack([here.context.initial(k) for k in range(3)])
    asked = [Request(c, (Score("own", table[c % 3][None], limit=9), Score("all", table, "test"))) for c in range(12)]
    replies = here.federation.exchange(Call(2, asked))
    assert [r.client for r in replies] == list(range(12))
    for request, reply in zip(asked, replies, strict=True):
        for task, result in zip(request.tasks, reply.results, strict=True):
            pool, [index] = here.data.pool([request.client], task.share)
            share = Share(pool, index).limited(task.limit, 0, 2, request.client)
            [alone] = here.engine.score_each(task.models, share.pool, [share.index])
            torch.testing.assert_close(result.loss, torch.from_numpy(alone.loss), atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(result.accuracy, torch.from_numpy(alone.accuracy))
            assert (result.name, result.num_samples) == (task.name, len(share.index))


@pytest.mark.parametrize("apart", [False, True])
def test_weighted_scores_are_the_weighted_means(apart: bool) -> None:
    """All models together, or each alone where the clients' samples have little in common."""
    pool, clients = made((6,), 3, 90), 9
    problem, row = build_problem("mlp", (6,), 3, 0, hidden=[4])
    rows = torch.stack([row + 0.3 * k for k in range(clients)])
    rows[1, :] = 40.0
    rows[2, 0] = torch.nan
    draw = np.random.default_rng(0)
    if apart:
        index = list(torch.arange(90).split(10))
    else:
        index = [torch.from_numpy(np.sort(draw.permutation(90)[:60])) for _ in range(clients)]
    weights = [(w := (pool.y[own] + 1 + c).double().numpy()) / w.sum() for c, own in enumerate(index)]
    found = weighted_scores(rows, pool, index, weights, SequentialEngine(problem))
    assert found.count.tolist() == [len(own) for own in index]
    assert np.isnan(found.loss).tolist() == [c == 2 for c in range(clients)]
    for c, (own, weight) in enumerate(zip(index, weights, strict=True)):
        each = [by_hand(problem, rows[c], pool.take(own[k : k + 1])) for k in range(len(own))]
        loss, right = (float(np.dot(weight, column)) for column in zip(*each, strict=True))
        assert found.loss[c] == pytest.approx(loss, rel=1e-5, nan_ok=True)
        assert c == 2 or found.accuracy[c] == pytest.approx(right)
