"""The reports of a run that is started like a Flower strategy: log lines in Flower's style, and a ``Result``."""

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

from hanse.flower.arrays import ArrayLayout
from hanse.flower.existing_app.federation import PlainFederation
from hanse.learning.figures import Figures, as_figures

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]  # of the round's number in Flower, and the model


@dataclass
class ServerTest:
    """The server's own test by ``evaluate_fn``, for Flower's result and for hanse's record.

    Attributes:
        federation: the federation, which knows the round that was trained last.
        form: the form that turns a row into arrays.
        evaluate_fn: the function that the user has given to ``start``, or None.
        result: Flower's result. The function's figures are added to it by round; round 0 is the initial model.
    """

    federation: PlainFederation
    form: ArrayLayout
    evaluate_fn: EvaluateFn | None
    result: Result

    def first(self, arrays: ArrayRecord) -> None:
        """Test the model that training starts from."""
        if self.evaluate_fn is not None and (said := self.evaluate_fn(0, arrays)) is not None:
            self.result.evaluate_metrics_serverapp[0] = said

    def figures(self, row: Tensor) -> Figures:
        """Return the figures of ``evaluate_fn`` for the model in ``row [P]``, by name; empty without a function."""
        number = self.federation.round + 1
        said = None if self.evaluate_fn is None else self.evaluate_fn(number, self.form.arrays(row))
        if said is None:
            return {}
        self.result.evaluate_metrics_serverapp[number] = said
        return as_figures(said, "evaluate_fn")


@dataclass(frozen=True)
class RoundLog:
    """An observer that logs each round as Flower's own strategies do.

    Attributes:
        rounds: how many rounds are planned.

    Examples:
        >>> RoundLog(rounds=3).on_round({"round": 0, "answered": 4, "seats": 4, "test/accuracy": 0.5}, None)
    """

    rounds: int

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        """Log a finished round: its test figures and how many seats answered, or why it failed."""
        figures = [f"{name} {x:.4g}" for name in ("test/loss", "test/accuracy") if (x := metrics.get(name)) is not None]
        answered = f"{metrics.get('answered', 0)} of {metrics.get('seats', 0)} seats answered"
        said = [metrics["failed"]] if "failed" in metrics else [answered, *figures]
        log(INFO, "[ROUND %s/%s] %s", metrics["round"] + 1, self.rounds, ", ".join(said))


def aggregated(records: Sequence[MetricRecord], weighted_by: str) -> MetricRecord:
    """Return the metrics of a round's replies as one record of sample-weighted means, as Flower's strategies make them.

    Args:
        records: one for each reply. Only metrics that all of them have are kept.
        weighted_by: the metric that holds the number of samples.

    Returns:
        The means, or an empty record if the replies report no samples at all.
    """
    common = set.intersection(*(set(one) for one in records)) if records else set()
    alike = [RecordDict({"metrics": MetricRecord({k: v for k, v in one.items() if k in common})}) for one in records]
    if not sum(float(cast(float, one[weighted_by])) for one in records):
        return MetricRecord()
    return aggregate_metricrecords(alike, weighted_by)
