"""Charts of what a run cost: seconds by stage, and megabytes on the wire."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hanse.reports.chart import Bars, Chart, Series
from hanse.reports.groups import Group

__all__ = ["cost_charts", "mean_of", "stage_seconds"]

_WHOLE = ("time/round_s", "time/play_s")  # sums of stages, not stages
_ORDER = ("train", "value", "test", "weigh", "mix", "select", "ask", "settle")
_SECTION = "What it cost"


def mean_of(group: Group, key: str) -> float:
    """Return the mean of a metric over all rounds of all seeds; 0 if nothing was recorded."""
    values = np.concatenate([run.series(key)[1] for run in group.runs])
    return float(values.mean()) if len(values) else 0.0


def stage_seconds(group: Group) -> dict[str, float]:
    """Return the mean seconds a round of each stage, and as "other" what no stage accounts for (if above 2 %).

    A stage that does not happen in a round counts as 0 seconds in it, so that the stages add up to the round.
    """
    lines = [line for run in group.runs for line in run.metrics]
    keys = {k for line in lines for k in line if k.startswith("time/") and k not in _WHOLE}
    rounds = sum(len(run.series("time/round_s")[0]) for run in group.runs) or len(lines)
    sums = {k: float(np.concatenate([run.series(k)[1] for run in group.runs]).sum()) / rounds for k in keys}
    stages = {k.removeprefix("time/").removesuffix("_s"): v for k, v in sums.items()}
    rest = mean_of(group, "time/round_s") - sum(stages.values())
    if rest > 0.02 * mean_of(group, "time/round_s"):
        stages["other"] = rest
    return stages


def cost_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return the time chart and the bytes chart, whichever the runs recorded."""
    return [*_time(groups), *_bytes(groups)]


def _time(groups: Sequence[Group]) -> list[Chart]:
    spent = [stage_seconds(group) for group in groups]
    found = set().union(*spent)
    # what nobody would see is gathered, so that the legend stays short
    most = max((sum(s.values()) for s in spent), default=0.0)
    small = {stage for stage in found if max(s.get(stage, 0.0) for s in spent) < 0.01 * most}
    if most == 0:
        return []
    named = [*(s for s in _ORDER if s in found), *sorted(found - {*_ORDER, "other"})]
    named = [s for s in named if s not in small]
    series = [Series(stage, np.array([s.get(stage, 0.0) for s in spent])) for stage in named]
    rest = np.array([sum(v for k, v in s.items() if k in small | {"other"}) for s in spent])
    series += [Series("other", rest)] if rest.any() else []
    marks = Bars(tuple(group.label for group in groups), tuple(series), stacked=True)
    caption = (
        "Mean wall-clock seconds of a round on the machine that ran it, by stage: 'train' is the clients' training, "
        "'value' the valuation of their updates, 'test' the evaluation. Comparable only between runs on one quiet "
        "machine."
    )
    return [Chart("time", _SECTION, "Time a round, by stage", caption, "seconds a round", "", marks)]


def _bytes(groups: Sequence[Group]) -> list[Chart]:
    down = np.array([mean_of(group, "bytes/down") for group in groups]) / 1e6
    up = np.array([mean_of(group, "bytes/up") for group in groups]) / 1e6
    if not (down.any() or up.any()):
        return []
    marks = Bars(
        tuple(group.label for group in groups),
        (Series("server to clients", down), Series("clients to server", up)),
        stacked=True,
    )
    caption = (
        "Megabytes (10⁶ bytes) that the models and answers of a round take on the wire, mean over rounds and seeds."
    )
    return [Chart("bytes", _SECTION, "Traffic a round", caption, "MB a round", "", marks)]
