"""Apple's pfl-research: FederatedAveraging on its simulated backend, on one process or on several (``torchrun``).

Its stock data set cuts batches once and never reshuffles: a subclass does. The job's seats are dealt to the processes
in turn. It evaluates the first round's users before and after they train, which cannot be turned off.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from common import given_job
from job_files import Clock
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops.pytorch_ops import get_default_device
from pfl.internal.ops.selector import get_framework_module
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel


class Reshuffled(PyTorchTensorDataset):
    """Batches in a new order every epoch."""

    def iter(self, batch_size: int | None) -> Any:
        if batch_size is None or batch_size >= len(self):
            yield self.raw_data
            return
        order = torch.randperm(len(self), device=self.raw_data[0].device)
        for taken in order.split(batch_size):
            yield [tensor[taken] for tensor in self.raw_data]


class Planned(FederatedDataset):
    """The job's seats, dealt to the processes in turn."""

    def __init__(self, make_dataset: Any, seats: Any) -> None:
        super().__init__(make_dataset, lambda: 0)
        self.rounds = iter(seats)

    def get_cohort(self, cohort_size: int) -> Any:
        ranks = get_framework_module().distributed
        for place, seat in enumerate(next(self.rounds)):
            if place % ranks.world_size == ranks.global_rank:
                yield self.make_dataset_fn(int(seat)), 0


class Times(TrainingProcessCallback):  # type: ignore[type-arg]
    """Tests after every round; pfl's own order of callbacks would leave the first round untested."""

    def __init__(self, clock: Clock, test: CentralEvaluationCallback) -> None:  # type: ignore[type-arg]
        self.clock, self.test = clock, test
        self.speaks = int(os.environ.get("RANK", "0")) == 0

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        metrics = self.test._eval(model)[1]
        if self.speaks:
            self.clock.done(float(metrics["Central val | accuracy"].overall_value))
        return False, Metrics()


def main() -> None:
    job, clock = given_job(), Clock()
    given = job.given
    if "WORLD_SIZE" in os.environ:
        torch.set_num_threads(1)
    device = get_default_device()
    (x, y), test = ([tensor.to(device) for tensor in job.load(part)] for part in ("train", "test"))
    module = job.model()

    def loss(x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        module.train(not eval)
        return F.cross_entropy(module(x), y)

    @torch.no_grad()
    def metrics(x: torch.Tensor, y: torch.Tensor, eval: bool = True) -> dict[str, Weighted]:
        module.eval()
        return {"accuracy": Weighted(float((module(x).argmax(1) == y).sum()), len(y))}

    module.loss, module.metrics = loss, metrics  # type: ignore[assignment]
    model = PyTorchModel(
        module,
        lambda parameters, lr: torch.optim.SGD(parameters, lr=lr, momentum=given.momentum),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )

    def make_dataset(user: int) -> Reshuffled:
        taken = torch.from_numpy(job.clients[user])
        return Reshuffled((x[taken], y[taken]), user_id=str(user))

    data = Planned(make_dataset, job.seats)
    settings = NNAlgorithmParams(
        central_num_iterations=given.rounds,
        evaluation_frequency=given.rounds + 1,
        train_cohort_size=given.seats,
        val_cohort_size=None,
    )
    train = NNTrainHyperParams(
        local_num_epochs=given.epochs, local_learning_rate=given.lr, local_batch_size=given.batch
    )
    central = CentralEvaluationCallback(
        PyTorchTensorDataset(tuple(test)), NNEvalHyperParams(local_batch_size=10_000 if given.model == "mlp" else 1_000)
    )
    if int(os.environ.get("RANK", "0")) == 0:
        clock.ready(int(os.environ.get("WORLD_SIZE", "1")), torch.get_num_threads())
    FederatedAveraging().run(
        algorithm_params=settings,
        backend=SimulatedBackend(training_data=data, val_data=data),
        model=model,
        model_train_params=train,
        callbacks=[Times(clock, central)],
        send_metrics_to_platform=False,
    )


if __name__ == "__main__":
    main()
