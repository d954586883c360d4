"""BlazeFL: its FedAvg handler and its thread pool, a thread a core, on a Python without a global lock.

Its trainer's step has no momentum and reads samples one by one through a DataLoader; training loops are the user's to
replace there, so this one slices tensors and has momentum, as the other runners' do. Each client keeps a generator of
its own for the order of its batches, BlazeFL's way to the same bits from run to run.
"""

from __future__ import annotations

import copy
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from blazefl.contrib import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer
from blazefl.contrib.fedavg import FedAvgUplinkPackage
from blazefl.core import deserialize_model, serialize_model
from common import Job, accuracy, given_job
from job_files import Clock

WORKERS = os.cpu_count() or 1


class Loader:
    """A client's batches, in a new order every epoch."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor, batch: int, generator: torch.Generator) -> None:
        self.x, self.y, self.batch, self.generator = x, y, batch, generator

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for taken in torch.randperm(len(self.y), generator=self.generator).split(self.batch):
            yield self.x[taken], self.y[taken]


class Samples:
    """BlazeFL's partitioned data set: each client's samples as tensors."""

    def __init__(self, job: Job) -> None:
        x, y = job.load("train")
        self.clients = [(x[taken], y[taken]) for taken in map(torch.from_numpy, job.clients)]

    def get_dataloader(self, type_: Any, cid: int, batch_size: int, generator: torch.Generator) -> Loader:
        return Loader(*self.clients[cid], batch_size, generator)


class Models:
    """BlazeFL's model selector: the job's model."""

    def __init__(self, job: Job) -> None:
        self.first = job.model()

    def select_model(self, name: str) -> torch.nn.Module:
        return copy.deepcopy(self.first)


class Planned(FedAvgBaseServerHandler):
    """The job's seats."""

    seats: Any

    def sample_clients(self) -> list[int]:
        return [int(seat) for seat in self.seats[self.round]]


class Trainer(FedAvgThreadPoolClientTrainer):
    """SGD with momentum."""

    momentum: float

    def train(
        self,
        model: torch.nn.Module,
        model_parameters: torch.Tensor,
        train_loader: Any,
        device: str,
        epochs: int,
        lr: float,
        stop_event: threading.Event,
        cid: int,
    ) -> FedAvgUplinkPackage:
        deserialize_model(model, model_parameters)
        model.train()
        optimiser = torch.optim.SGD(model.parameters(), lr=lr, momentum=self.momentum)
        for _ in range(epochs):
            for x, y in train_loader:
                optimiser.zero_grad(set_to_none=True)
                F.cross_entropy(model(x), y).backward()
                optimiser.step()
        return FedAvgUplinkPackage(cid, serialize_model(model), len(train_loader.y))


def main() -> None:
    if sys._is_gil_enabled():  # type: ignore[attr-defined]
        sys.exit("BlazeFL's threads run at the same time only on a Python without a global lock (python3.14t)")
    torch.set_num_threads(1)
    job, clock = given_job(), Clock()
    given = job.given
    test, samples, models = job.load("test"), Samples(job), Models(job)
    shared = {"model_selector": models, "model_name": given.model, "dataset": samples, "device": "cpu", "seed": 0}
    shared |= {"num_clients": given.clients, "batch_size": given.batch}
    handler = Planned(global_round=given.rounds, sample_ratio=given.seats / given.clients, **shared)
    trainer = Trainer(epochs=given.epochs, lr=given.lr, num_parallels=WORKERS, **shared)
    handler.seats, trainer.momentum = job.seats, given.momentum
    trainer.progress_fn = lambda futures: futures  # type: ignore[method-assign] # no bar
    clock.ready(WORKERS, 1)
    while not handler.is_stopped():
        sampled = handler.sample_clients()
        trainer.local_process(handler.downlink_package(), sampled)
        for package in trainer.uplink_package():
            handler.load(package)
        clock.done(accuracy(handler.model, *test, 10_000))


if __name__ == "__main__":
    main()
