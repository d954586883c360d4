"""hanse through its front door: ``hanse.run`` with a run directory, checkpoints and records, as a user has it.

With ``no-graphs`` before the job's folder, its steps are not CUDA graphs on a card.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Job, given_job
from job_files import Clock
from torch import nn

import hanse
from hanse.core.part import Choice, Mechanism, SelectPart
from hanse.data.dataset import Dataset
from hanse.data.samples import Samples
from hanse.learning.models import MODELS
from hanse.mechanisms.baselines import fedavg


@cache
def the_job() -> Job:
    return given_job()


def samples(**_: Any) -> Dataset:
    """The job's samples and whose they are; those that nobody has stay out."""
    job = the_job()
    (x, y), test = job.load("train"), job.load("test")
    owner = np.full(len(y), -1)
    for client, taken in enumerate(job.clients):
        owner[taken] = client
    if (owner < 0).any():
        kept = np.flatnonzero(owner >= 0)
        x, y, owner = x[kept], y[kept], owner[kept]
    return Dataset("peers", Samples(x, y), Samples(*test), 10, tuple(x.shape[1:]), client_of=owner)


def model(input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
    """hanse's own model with the job's first weights; ResNet-18 is the job's."""
    job = the_job()
    if job.given.model not in MODELS:
        return job.model()
    options = {"hidden": [50, 25]} if job.given.model == "mlp" else {}
    module = MODELS[job.given.model](input_shape, num_classes, **options)
    with torch.no_grad():
        for ours, theirs in zip(module.parameters(), job.model().parameters(), strict=True):
            ours.copy_(theirs)
    return module


@dataclass(frozen=True)
class Planned(SelectPart):
    """The job's seats."""

    clients_per_round: int = 10

    def select(self, view: Any, state: Any) -> tuple[Choice, Any]:
        return Choice(the_job().seats[view.round].astype(np.int64)), state


def mechanism(clients_per_round: int = 10) -> Mechanism:
    """FedAvg with the job's seats."""
    return replace(fedavg(clients_per_round=clients_per_round), select=Planned(clients_per_round))


class Times:
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_start(self, experiment: Any, first_round: int, said: Any) -> None:
        self.clock.ready(experiment.engine.workers, experiment.engine.threads)

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        self.clock.done(metrics["test/accuracy"])

    def on_end(self, result: Any) -> None:
        pass


def main() -> None:
    given = the_job().given
    experiment = hanse.Experiment(
        data={"source": "ours:samples", "partition": "natural", "clients": given.clients, "validation": 0.0},
        model={"name": "ours:model"},
        mechanism={"name": "ours:mechanism", "clients_per_round": given.seats},
        train={"epochs": given.epochs, "batch_size": given.batch, "lr": given.lr, "momentum": given.momentum},
        run={"rounds": given.rounds},
        engine={"graphs": False} if "no-graphs" in sys.argv[1:-1] else {},
    )
    with tempfile.TemporaryDirectory() as folder:
        hanse.run(experiment, out=Path(folder) / "run", observers=[Times(Clock())])


if __name__ == "__main__":
    main()
