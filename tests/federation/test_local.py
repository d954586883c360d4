"""The embedded federation: answers to every question, bytes, and clients that cannot train."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import hanse
from hanse.core.port import Confusion, Gradient, Reply, Request, Score, Train
from hanse.learning.job import smallest_batch
from hanse.runs.setup import Session, build


def world(**sections: Any) -> Session:
    given: dict[str, Any] = {
        "data": {"clients": 5, "client_test": 0.2},
        "model": {"name": "mlp", "hidden": [6]},
        "mechanism": {"name": "fedavg", "clients_per_round": 3},
        "engine": {"train": "stacked", "threads": 1},
        **sections,
    }
    return build(hanse.Experiment(**given))


@pytest.fixture(scope="module")
def here() -> Session:
    return world()


def ask(here: Session, client: int, *tasks: Any) -> Reply:
    [reply] = here.federation.exchange(0, [Request(client, tasks)], None, None)
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

    def weigh(round: int, *tasks: Any) -> tuple[int, int]:
        [reply] = federation.exchange(round, [Request(1, tasks)], None, None)
        return reply.bytes_down, reply.bytes_up

    assert weigh(10, Train(0, 0, row, centre=row, mu=0.1)) == (size, size)
    assert weigh(11, Score("q", row[None])) == (size, 16)  # a loss and an accuracy, float64
    assert weigh(11, Train(0, 0, row)) == (0, size)  # it has the row from the question before
    assert weigh(12, Train(0, 0, row), Train(1, 1, other, centre=row, mu=0.1, private=True)) == (size, size)


def test_a_client_with_too_few_samples_refuses_and_the_others_train() -> None:
    here = world(
        data={
            "source": "digits",
            "partition": {"name": "pathological", "classes_per_client": 1},
            "clients": 5,
            "client_test": 0.0,
        },
        model={"name": "mlp", "hidden": [6], "batch_norm": True},
    )
    assert smallest_batch(here.problem) == 2
    here.data.sizes[3] = 1
    requests = [Request(c, (Train(c, 0, row_of(here)),)) for c in (2, 3)]
    first, second = here.federation.exchange(0, requests, None, None)
    assert first.refused is None
    assert second.refused == "has 1 samples to train on; 2 are needed"
