"""Counts of samples by the model that fits them best: against losses computed one by one, and what is refused."""

from typing import Any

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional

from hanse.core.port import Counted, Nearest, Request
from hanse.core.recipe import Recipe
from hanse.data import DataSpec, build
from hanse.federation.check import refusal
from hanse.federation.local import LocalFederation
from hanse.learning.models import build_problem
from hanse.learning.sequential import SequentialEngine
from hanse.learning.stacked import StackedEngine

DATA = build(DataSpec(clients=4, partition={"alpha": 0.5}, client_validation=0.2))
PROBLEM, INITIAL = build_problem("mlp", DATA.input_shape, DATA.num_classes, 0, hidden=[6])
MODELS = INITIAL + 0.3 * torch.randn(3, len(INITIAL), generator=torch.Generator().manual_seed(4))


def asked(engine: Any, task: Nearest, client: int) -> Counted:
    federation = LocalFederation(DATA, PROBLEM, engine, Recipe(), seed=5)
    [reply] = federation.exchange(0, [Request(client, (task,))], None, None)
    [result] = reply.results
    assert refusal(Request(client, (task,)), reply) is None
    assert reply.bytes_down == MODELS.numel() * 4
    return result


@pytest.mark.parametrize("make", [StackedEngine, SequentialEngine])
@pytest.mark.parametrize("share", ["train", "validation"])
def test_each_sample_counts_for_its_model_of_lowest_loss(make: Any, share: str) -> None:
    for client in range(4):
        pool, [index] = DATA.pool([client], share)
        losses = []
        for row in MODELS:
            output = functional_call(PROBLEM.module, dict(PROBLEM.layout.unflatten(row)), (pool.x[index],))
            losses.append(functional.cross_entropy(output, pool.y[index], reduction="none"))
        want = torch.bincount(torch.stack(losses).argmin(0), minlength=3)
        found = asked(make(PROBLEM, threads=1), Nearest("n", MODELS, share), client)
        assert found.counts.tolist() == want.tolist()
        assert found.counts.dtype == torch.int64


def test_a_limit_bounds_the_samples_ties_go_to_the_first_and_no_number_fits_nothing() -> None:
    models = INITIAL.expand(3, -1).clone()
    models[0] = float("nan")
    found = asked(StackedEngine(PROBLEM, threads=1), Nearest("n", models, limit=7), 1)
    assert found.counts.tolist() == [0, 7, 0]
