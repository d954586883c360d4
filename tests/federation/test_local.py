"""The embedded federation: answers to every question, bytes, and clients that cannot train."""

from typing import Any
from weakref import ref

import numpy as np
import pytest
import torch
from experiments import digits, over
from torch.func import functional_call
from torch.nn import functional

from hanse.core.port import Call, Confusion, Counted, Gradient, Nearest, Reply, Request, Score, Train
from hanse.core.recipe import Recipe
from hanse.data import DataSpec
from hanse.data import build as build_data
from hanse.federation.check import refusal
from hanse.federation.codec import Traffic
from hanse.federation.local import LocalFederation
from hanse.learning.job import smallest_batch
from hanse.learning.models import build_problem
from hanse.learning.sequential import SequentialEngine
from hanse.learning.stacked import StackedEngine
from hanse.runs.setup import Session, build


def world(**sections: Any) -> Session:
    laid = {"data": {"client_test": 0.2}, "model": {"name": "mlp", "hidden": [6]}, "engine": {"train": "stacked"}}
    return build(digits({"name": "fedavg", "clients_per_round": 3}, 5, **over(laid, sections)))


@pytest.fixture(scope="module")
def here() -> Session:
    return world()


def ask(here: Session, client: int, *tasks: Any) -> Reply:
    [reply] = here.federation.exchange(Call(0, [Request(client, tasks)]))
    return reply


def own(here: Session, client: int, share: str = "train") -> tuple[torch.Tensor, torch.Tensor]:
    pool, [index] = here.data.pool([client], share)
    return pool.x[index], pool.y[index]


def row_of(here: Session, k: int = 0) -> torch.Tensor:
    return here.context.initial(k)


def output(here: Session, row: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    here.problem.layout.load(here.problem.module, row)
    return here.problem.module(x)


def test_gradients_are_autograds(here: Session) -> None:
    row = row_of(here)
    [result] = ask(here, 3, Gradient("g", row[None])).results
    x, y = own(here, 3)
    loss = functional.cross_entropy(output(here, row, x), y)
    want = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(here.problem.module.parameters()))])
    torch.testing.assert_close(result.gradients[0], want, rtol=1e-4, atol=1e-6)


def test_confusion_counts_every_sample_once(here: Session) -> None:
    row = row_of(here)
    [result] = ask(here, 0, Confusion("c", row[None])).results
    x, y = own(here, 0)
    want = np.zeros((10, 10), int)
    np.add.at(want, (y.numpy(), output(here, row, x).argmax(1).numpy()), 1)
    np.testing.assert_array_equal(result.counts[0].numpy(), want)


def test_bytes_count_each_model_once_a_round_and_private_rows_never(here: Session) -> None:
    size = 4 * here.problem.layout.size
    row, other = row_of(here), row_of(here, 1)
    federation = here.federation

    def weigh(round: int, *tasks: Any, more: bool = False) -> tuple[int, int]:
        _ = more or federation.present(round)
        [reply] = federation.exchange(Call(round, [Request(1, tasks)]))
        return reply.bytes_down, reply.bytes_up

    assert weigh(10, Train(0, 0, row, centre=row, mu=0.1)) == (size, size)
    assert weigh(11, Score("q", row[None])) == (size, 16)  # a loss and an accuracy, float64
    assert weigh(11, Train(0, 0, row), more=True) == (0, size)  # it has the row from the question before
    assert weigh(12, Train(0, 0, row), Train(1, 1, other, centre=row, mu=0.1, private=True)) == (size, size)
    assert weigh(13, Train(0, 0, row, centre=other, mu=0.1, tilt=row + 1)) == (3 * size, size)
    assert weigh(14, Score("q", torch.stack([row, other, row + 1]))) == (3 * size, 48)


def test_a_model_is_known_while_it_is_there_and_not_kept() -> None:
    traffic, model = Traffic(), torch.zeros(4)
    assert [traffic.down(Request(1, (Train(0, 0, model),))) for _ in range(2)] == [16, 0]
    there = ref(model.untyped_storage())
    del model
    assert there() is None


def test_a_client_with_too_few_samples_refuses_and_the_others_train() -> None:
    partition = {"name": "pathological", "classes_per_client": 1}
    here = world(data={"partition": partition, "client_test": 0.0}, model={"batch_norm": True})
    assert smallest_batch(here.problem) == 2
    here.data.sizes[3] = 1
    requests = [Request(c, (Train(c, 0, row_of(here)),)) for c in (2, 3)]
    first, second = here.federation.exchange(Call(0, requests))
    assert first.refused is None
    assert second.refused == "has 1 sample to train on; 2 are needed"


# ---- counts of samples by the model that fits them best

DATA = build_data(DataSpec(clients=4, partition={"alpha": 0.5}, client_validation=0.2))
PROBLEM, INITIAL = build_problem("mlp", DATA.input_shape, DATA.num_classes, 0, hidden=[6])
MODELS = INITIAL + 0.3 * torch.randn(3, len(INITIAL), generator=torch.Generator().manual_seed(4))


def counted(engine: Any, task: Nearest, client: int) -> Counted:
    federation = LocalFederation(DATA, PROBLEM, engine, Recipe(), seed=5)
    [reply] = federation.exchange(Call(0, [Request(client, (task,))]))
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
        found = counted(make(PROBLEM, threads=1), Nearest("n", MODELS, share), client)
        assert found.counts.tolist() == want.tolist()
        assert found.counts.dtype == torch.int64


def test_a_limit_bounds_the_samples_ties_go_to_the_first_and_no_number_fits_nothing() -> None:
    models = INITIAL.expand(3, -1).clone()
    models[0] = float("nan")
    assert counted(StackedEngine(PROBLEM, threads=1), Nearest("n", models, limit=7), 1).counts.tolist() == [0, 7, 0]
