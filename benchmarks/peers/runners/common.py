"""What the runners on PyTorch share: the job's samples as tensors, and the model."""

from __future__ import annotations

import torch
from job_files import JobFiles, given_folder
from models import first_model
from torch import Tensor, nn


class Job(JobFiles):
    """A job's files as tensors."""

    def load(self, part: str) -> tuple[Tensor, Tensor]:
        """Return all samples of a part."""
        x, y = self.arrays(part)
        return torch.from_numpy(x), torch.from_numpy(y)

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        """Return one client's samples without reading the others'."""
        x, y = self.arrays("train", mapped=True)
        taken = self.clients[number]
        return torch.from_numpy(x[taken]), torch.from_numpy(y[taken])

    def model(self) -> nn.Module:
        """Return the model with its first weights."""
        return first_model(self.given.model)


def accuracy(model: nn.Module, x: Tensor, y: Tensor, batch: int = 1_000) -> float:
    """Return the share of right answers."""
    model.eval()
    with torch.no_grad():
        right = sum(int((model(a).argmax(1) == b).sum()) for a, b in zip(x.split(batch), y.split(batch), strict=True))
    model.train()
    return right / len(y)


def given_job() -> Job:
    """Return the job of the command line's last argument."""
    return Job(given_folder())
