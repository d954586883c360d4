"""fluke: its CentralizedFL with its own clients, server, channel and evaluator (accuracy only), one process."""

from __future__ import annotations

from typing import Any

import torch

# PyPI's torchvision has its operators only beside a CUDA build of PyTorch, and cannot be imported without this one;
# fluke uses no more of it than its data sets
if not hasattr(torch.ops.torchvision, "nms"):
    _operators = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from common import given_job
from fluke import FlukeENV
from fluke.algorithms import CentralizedFL
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import Server
from fluke.utils import FederationObserver, ServerObserver
from job_files import Clock
from torch.nn import CrossEntropyLoss
from torchmetrics import Accuracy


def main() -> None:
    job, clock = given_job(), Clock()
    given = job.given
    (x, y), test = job.load("train"), job.load("test")
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_evaluator(ClassificationEval(1, 10, accuracy=Accuracy(task="multiclass", num_classes=10)))
    sgd = OptimizerConfigurator({"name": "SGD", "lr": given.lr, "momentum": given.momentum})

    class Planned(Server):
        """The job's seats."""

        def get_eligible_clients(self, eligible_perc: float) -> Any:
            return [self.clients[int(seat)] for seat in job.seats[clock.round]]

    class Times(FederationObserver, ServerObserver):
        def server_evaluation(self, round: int, eval_type: str, evals: dict[str, float], **more: Any) -> None:
            if clock.round < given.rounds:  # it evaluates once more at the end
                clock.done(evals["accuracy"])

    clients = [
        Client(
            index=number,
            train_set=FastDataLoader(x[taken], y[taken], num_labels=10, batch_size=given.batch, shuffle=True),
            test_set=None,
            optimizer_cfg=sgd,
            loss_fn=CrossEntropyLoss(),
            local_epochs=given.epochs,
        )
        for number, taken in enumerate(job.clients)
    ]
    server = Planned(job.model(), FastDataLoader(*test, num_labels=10, batch_size=10_000), clients, weighted=True)
    algorithm = CentralizedFL(given.clients, None, {}, clients=clients, server=server)
    algorithm.set_callbacks([Times()])
    clock.ready(1, torch.get_num_threads())
    algorithm.run(given.rounds, given.seats / given.clients)


if __name__ == "__main__":
    main()
