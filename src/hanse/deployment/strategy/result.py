"""What a mechanism that is started as a Flower strategy tells: a line a round, and Flower's Result at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO
from typing import Any, cast

from flwr.app import ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import Result
from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords
from flwr.supercore import log
from torch import Tensor

from hanse.deployment.arrays import Form
from hanse.deployment.strategy.federation import PlainFederation
from hanse.learning.figures import Figures, as_figures

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass
class ServerTest:
    """What ``evaluate_fn`` says of each round's model, for the result and for the record."""

    federation: PlainFederation
    form: Form
    evaluate_fn: EvaluateFn | None
    result: Result

    def first(self, arrays: ArrayRecord) -> None:
        """Test the model that training starts from."""
        if self.evaluate_fn is not None and (said := self.evaluate_fn(0, arrays)) is not None:
            self.result.evaluate_metrics_serverapp[0] = said

    def figures(self, row: Tensor) -> Figures:
        """Return the figures of a round's model."""
        number = self.federation.round + 1
        said = None if self.evaluate_fn is None else self.evaluate_fn(number, self.form.arrays(row))
        if said is None:
            return {}
        self.result.evaluate_metrics_serverapp[number] = said
        return as_figures(said, "evaluate_fn")


@dataclass(frozen=True)
class Told:
    """Logs each round where Flower's own strategies do."""

    rounds: int

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        """Log a finished round."""
        figures = [f"{name} {x:.4g}" for name in ("test/loss", "test/accuracy") if (x := metrics.get(name)) is not None]
        answered = f"{metrics.get('answered', 0)} of {metrics.get('seats', 0)} seats answered"
        said = [metrics["failed"]] if "failed" in metrics else [answered, *figures]
        log(INFO, "[ROUND %s/%s] %s", metrics["round"] + 1, self.rounds, ", ".join(said))


def aggregated(records: Sequence[MetricRecord], weighted_by: str) -> MetricRecord:
    """Return the metrics of a round's replies as Flower's own strategies have them: means weighted by samples, of those
    that all replies have.
    """
    common = set.intersection(*(set(one) for one in records)) if records else set()
    alike = [RecordDict({"metrics": MetricRecord({k: v for k, v in one.items() if k in common})}) for one in records]
    if not sum(float(cast(float, one[weighted_by])) for one in records):
        return MetricRecord()
    return aggregate_metricrecords(alike, weighted_by)
