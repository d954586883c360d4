"""What ``hanse.valued`` costs beside training: pairs of Flower runs, with and without it, in one process.

Ten clients train an MLP or a CNN on noise of the size of Fashion-MNIST; no Flower process and none of Flower's sleeps
are in it, so that what hanse adds is compared with training alone. A pair is a run without and one with hanse, one
after the other, in turn first, with the same training; the figure is the median of the pairs' ratios of processor time
(one thread, since a machine may have other work).

    python benchmarks/flower_valued.py --pairs 3            # averages: FedAvg
    python benchmarks/flower_valued.py --strategy FedAdam   # aggregated again: reported apart
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy
from flwr.supercore.task_identity import TaskIdentity
from torch import nn

import hanse

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "flower"))

from inprocess import StubGrid

SEATS, CLASSES = 10, 10


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(512, CLASSES),
    )  # fmt: skip


MODELS = {"mlp": mlp, "cnn": cnn}


def samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 28, 28, generator=draw)
    return x, (x.mean(dim=(1, 2, 3)) * 28 * 4).long().clamp(-4, 5) + 4


class Training(StubGrid):
    """Clients in this process: each trains ``epochs`` on ``count`` samples of its own, by plain PyTorch."""

    def __init__(self, model: str, count: int, epochs: int) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.make, self.epochs = MODELS[model], epochs
        self.data = {node: samples(count, node) for node in range(1, SEATS + 1)}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.data)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self.answer(message) for message in messages]

    def answer(self, message: Message) -> Message:
        message.metadata.__dict__["_message_id"] = "one"
        x, y = self.data[message.metadata.dst_node_id]
        net, round = self.make(), int(message.content["config"]["server-round"])
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        if message.metadata.message_type == "train":
            torch.manual_seed(1000 * round + message.metadata.dst_node_id)
            optimiser = torch.optim.SGD(net.parameters(), lr=0.05)
            for _ in range(self.epochs):
                for batch in torch.randperm(len(x)).split(32):
                    optimiser.zero_grad()
                    nn.functional.cross_entropy(net(x[batch]), y[batch]).backward()
                    optimiser.step()
        metrics = MetricRecord({"num-examples": len(x), "loss": 1.0})
        content = {"metrics": metrics} | (
            {"arrays": ArrayRecord(net.state_dict())} if message.metadata.message_type == "train" else {}
        )
        return Message(RecordDict(content), reply_to=message)


def seconds(grid: Training, name: str, rounds: int, validation: Any, out: Path | None) -> float:
    """Return the processor seconds of a round, the first left out."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    made, net, ends = getattr(strategy, name)(fraction_evaluate=0.0), grid.make(), list[float]()

    def ended(number: int, arrays: ArrayRecord) -> None:
        ends.append(time.process_time())

    def start() -> None:
        made.start(grid, ArrayRecord(net.state_dict()), num_rounds=rounds, evaluate_fn=ended)

    if out is None:
        start()
    else:
        with hanse.valued(made, validation=validation, model=net, out=out) as made:
            start()
    return (ends[-1] - ends[1]) / (rounds - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), action="append")
    parser.add_argument("--strategy", default="FedAvg")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--samples", type=int, default=600, help="of each client")
    parser.add_argument("--validation", type=int, default=500)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.WARNING)
    torch.set_num_threads(1)
    for model in given.model or sorted(MODELS):
        grid, validation = Training(model, given.samples, given.epochs), samples(given.validation, 0)
        pairs = []
        for pair in range(given.pairs):
            with tempfile.TemporaryDirectory() as folder:
                outs = [None, Path(folder) / "run"]
                took = {
                    out is None: seconds(grid, given.strategy, given.rounds, validation, out)
                    for out in (outs if pair % 2 else outs[::-1])
                }
            pairs.append((took[True], took[False]))
        ratios = sorted(valued / plain - 1 for plain, valued in pairs)
        plain, valued = (float(np.median([pair[i] for pair in pairs])) for i in (0, 1))
        print(
            json.dumps(
                {
                    "model": model,
                    "strategy": given.strategy,
                    "plain_s": round(plain, 3),
                    "valued_s": round(valued, 3),
                    "overhead": round(float(np.median(ratios)), 3),
                    "pairs": [round(ratio, 3) for ratio in ratios],
                }
            )
        )


if __name__ == "__main__":
    main()
