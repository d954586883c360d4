"""What both sides train: digits, an MLP of 40,960 parameters, one epoch in batches of 32."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

import hanse
from hanse.core.part import State, View
from hanse.core.port import Request, Score
from hanse.data.spec import DataSpec
from hanse.mechanisms.weigh import BySamples

HIDDEN, BATCH, LR = 546, 32, 0.05


def spec(nodes: int) -> DataSpec:
    return DataSpec(clients=nodes, client_test=0.2, client_validation=0.2)


def module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 10))


@dataclass(frozen=True)
class ScoringAverage(BySamples):
    """Averages by samples, and asks who trains for the test scores of the model that it starts from: in one message."""

    def asks(self, view: View, state: State) -> Sequence[Request]:
        if view.stage != "train":
            return ()
        seats = zip(view.seats.client.tolist(), view.seats.start.tolist(), strict=True)
        return [Request(c, (Score("test", view.table.rows[k][None], "test"),)) for c, k in seats]


def experiment(nodes: int, rounds: int, mechanism: dict[str, Any], **more: Any) -> hanse.Experiment:
    return hanse.Experiment(
        data=spec(nodes).model_dump(),
        model={"name": "mlp", "hidden": [HIDDEN]},
        mechanism=mechanism,
        train={"lr": LR, "batch_size": BATCH},
        federation={"deadline_s": 300.0},
        eval={"clients": 0},
        run={"rounds": rounds},
        **more,
    )


def hanses(nodes: int) -> dict[str, dict[str, Any]]:
    """What is compared, by name: mechanisms of one exchange a round, and of two."""
    everyone = {"by_contribution": nodes, "at_random": 0}
    return {
        "train": {"name": "fedavg", "clients_per_round": nodes},
        "train and score": {"name": "fedavg", "clients_per_round": nodes, "weigh": "setting:ScoringAverage"},
        "PI-FL": {"name": "pifl", "tiers": 1, **everyone, "value": "first_order"},
    }
