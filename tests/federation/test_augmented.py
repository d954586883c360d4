"""Augmented training: every engine takes the same copies, a resumed run too, and each pass has new ones."""

from typing import Any

import numpy as np
import torch
from experiments import digits

import hanse
from hanse.core.recipe import Recipe
from hanse.data.augment import Augment
from hanse.data.samples import Samples
from hanse.federation.local import augmented
from hanse.learning.job import SeatJob, batch_plan, plan_of


def experiment(engine: str = "sequential", rounds: int = 3, **data: Any) -> hanse.Experiment:
    data = {"partition": "iid", "augment": "crop-flip", "client_test": 0.2} | data
    train = {"batch_size": 16, "lr": 0.05, "momentum": 0.9, "epochs": 2}
    sections = {"data": data, "model": {"name": "mlp", "hidden": [12]}, "train": train, "engine": {"train": engine}}
    return digits({"name": "fedavg", "clients_per_round": 3}, 4, rounds, **sections)


def test_every_engine_trains_on_the_same_copies() -> None:
    one, two, three = (hanse.run(experiment(name)) for name in ("sequential", "stacked", "vmapped"))
    assert torch.allclose(one.table.rows, two.table.rows, atol=1e-5)
    assert torch.allclose(one.table.rows, three.table.rows, atol=1e-5)
    assert [line["samples"] for line in one.clients] == [line["samples"] for line in two.clients]
    plain = hanse.run(experiment(augment=None))
    assert not torch.allclose(one.table.rows, plain.table.rows, atol=1e-2)
    assert [line["samples"] for line in one.clients] == [line["samples"] for line in plain.clients]


def test_the_copies_lie_in_the_order_of_the_batches() -> None:
    x = torch.arange(10.0).view(10, 1, 1, 1).repeat(1, 1, 9, 9) + 1
    pool, recipe = Samples(x, torch.arange(10)), Recipe(steps=5, batch_size=3)
    index = torch.tensor([1, 3, 5, 7])
    jobs = {4: SeatJob(index, torch.zeros(1), (0, 2, 7, 0)), 9: SeatJob(index + 1, torch.zeros(1), (0, 2, 8, 0))}
    [(samples, made)] = augmented(Augment("crop-flip"), pool, jobs, recipe, 1)
    assert list(made) == [4, 9]
    for place, job in jobs.items():
        plan, own = plan_of(job, recipe, 1), plan_of(made[place], recipe, 1)
        assert plan.batches.tolist() == batch_plan(4, recipe, job.key).tolist()
        assert plan.reported == own.reported == 4
        assert np.array_equal(plan.batches >= 0, own.batches >= 0)
        for step, copies in zip(plan.batches, own.batches, strict=True):
            taken = made[place].index[torch.from_numpy(copies[copies >= 0])]
            assert samples.y[taken].tolist() == job.index[torch.from_numpy(step[step >= 0])].tolist()
            assert samples.x[taken].amax((1, 2, 3)).tolist() == (samples.y[taken] + 1).tolist()  # the image's own level
    left = [(samples.x[samples.y == 3] > 0).float()[k] for k in range(2)]
    assert not torch.equal(left[0], left[1])  # drawn anew when a sample comes up again
    twice = [part for one in jobs.items() for part, _ in augmented(Augment("crop-flip"), pool, dict([one]), recipe, 1)]
    assert torch.equal(torch.cat([part.x for part in twice]), samples.x)  # a client's copies are its own stream's
