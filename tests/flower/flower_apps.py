"""Client apps of Flower's own kind for tests: plain train and evaluate functions, nodes in this process."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from inprocess import InProcessGrid

FIRST = ArrayRecord({"w": Array(np.zeros((2, 2))), "steps": Array(np.array([7]))})
STEPS = np.array([[1.0, 0.0], [0.0, 2.0]])


def plain_app(reply: Mapping[str, Any] | None = None) -> ClientApp:
    """Node i, with i + 1 samples, moves every weight by STEPS * (i + 1); its loss is the distance to that. ``reply``
    changes what comes back of training: "arrays", "metrics".
    """
    app, changed = ClientApp(), dict(reply or {})

    def of(message: Message, context: Context) -> tuple[np.ndarray, int]:
        return message.content["arrays"]["w"].numpy(), int(context.node_config["partition-id"]) + 1

    @app.train()
    def train(message: Message, context: Context) -> Message:
        w, i = of(message, context)
        arrays = changed.get("arrays", {"w": w + i * STEPS, "steps": np.array([7 + i])})
        metrics = changed.get("metrics", {"train_loss": float(np.abs(w - i * STEPS).sum()), "num-examples": i})
        records = {"arrays": ArrayRecord({n: Array(a) for n, a in arrays.items()}), "metrics": MetricRecord(metrics)}
        return Message(RecordDict(records), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        w, i = of(message, context)
        metrics = {"eval_loss": float(np.abs(w - i * STEPS).sum()), "eval_acc": 0.5, "num-examples": i}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def grid_of(apps: Mapping[int, ClientApp], config: Mapping[str, Any] | None = None) -> InProcessGrid:
    """Nodes 100, 101, ... with these apps by partition."""
    grid = InProcessGrid({100 + i: app for i, app in apps.items()})
    for context in grid._contexts.values():
        context.run_config = dict(config or {})
    return grid
