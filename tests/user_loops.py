"""Training loops as users write them, reached by import path or as objects."""

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hanse.learning.loop import Penalty, TrainingData, TrainingRound


def fit(model: nn.Module, data: TrainingData, round: TrainingRound) -> dict[str, float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=round.lr)
    total = 0.0
    for _ in range(round.epochs):
        total = 0.0
        for x, y in data.loader():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += float(loss.detach()) * len(y)
    return {"loss": total / len(data), "right": float((model(data.x).argmax(1) == data.y).float().mean())}


def pulled(model: nn.Module, data: TrainingData, round: TrainingRound, penalty: Penalty) -> None:
    """SGD over whole batches: what hanse's own training does, number by number."""
    optimizer = torch.optim.SGD(model.parameters(), round.lr, round.momentum, weight_decay=round.weight_decay)
    for _ in range(round.epochs):
        optimizer.zero_grad()
        (F.cross_entropy(model(data.x), data.y) + penalty(model)).backward()
        optimizer.step()


def drawing(model: nn.Module, data: TrainingData, round: TrainingRound) -> dict[str, float]:
    """Draws from every generator there is."""
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * round.lr)
    return {"python": random.random(), "numpy": float(np.random.rand()), "torch": float(torch.rand(()))}  # noqa: NPY002


def private(model: nn.Module, data: TrainingData, round: TrainingRound) -> dict[str, float]:
    """DP-SGD by Opacus: samples drawn by lot, gradients clipped one by one, noise added."""
    from opacus import PrivacyEngine

    optimizer = torch.optim.SGD(model.parameters(), lr=round.lr)
    engine = PrivacyEngine(accountant="rdp")
    wrapped, noisy, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=data.loader(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        noise_generator=torch.Generator().manual_seed(round.seed),
    )
    for _ in range(round.epochs):
        for x, y in loader:
            noisy.zero_grad()
            F.cross_entropy(wrapped(x), y).backward()
            noisy.step()
    return {"epsilon": engine.get_epsilon(delta=1e-3)}


def lightning(model: nn.Module, data: TrainingData, round: TrainingRound, penalty: Penalty) -> dict[str, float]:
    """Lightning's trainer around the model."""
    import lightning as L  # noqa: N812

    class Task(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def training_step(self, batch: Any, step: int) -> Tensor:
            x, y = batch
            loss = F.cross_entropy(self.net(x), y) + penalty(self.net)
            self.log("loss", loss)
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=round.lr)

    trainer = L.Trainer(
        max_epochs=round.epochs, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(Task(), data.loader())
    return {"loss": float(trainer.callback_metrics["loss"])}


def tuned(input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
    """A frozen body with batch norm below a head that trains."""
    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU())
    body.requires_grad_(False)
    return nn.Sequential(body, nn.Linear(16, num_classes or 1))


def tuned_plainly(input_shape: tuple[int, ...], num_classes: int | None) -> nn.Module:
    """The same without batch norm, whose statistics move in training whatever is frozen."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes or 1))
    model[1].requires_grad_(False)
    return model
