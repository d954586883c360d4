"""Charts of who took part and what that cost: selections, refusals, seconds by stage, megabytes transferred.

:func:`participation_charts` draws how often clients were selected and why updates were refused; :func:`cost_charts`
draws time and traffic. The figures can also be had by themselves: :func:`selection`, :func:`refusal_counts`,
:func:`stage_seconds` and :func:`mean_of`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hanse.reports.chart import Bars, Chart, Curve, Floats, Lines, Series, even
from hanse.reports.facts import facts_of
from hanse.reports.groups import SeedGroup
from hanse.reports.words import said

MOST_REASONS = 12  # bars of the chart of refusals
_SECTION = "Who took part"


def selection(group: SeedGroup) -> Floats:
    """Return the share of rounds in which each client was selected, ``[N]``, 0 to 1.

    Args:
        group: the seeds of one experiment. The mean is over the runs with the same clients.
    """
    shares: dict[int, list[float]] = {}
    for run in group.same_clients:
        for row in facts_of(run).clients:
            shares.setdefault(row.client, []).append(row.asked / len(run.metrics))
    return np.array([sum(one) / len(group.same_clients) for one in shares.values()])


def refusal_counts(group: SeedGroup) -> Counter[str]:
    """Return how many updates were refused in all runs of a group, by the reason in the record."""
    return Counter(reason for run in group.runs for _, _, reason in run.refusals())


def participation_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the charts of selections and refusals.

    There is none of selections if everyone trains in every round, and none of refusals if nothing was refused.

    Args:
        groups: the experiments.
    """
    return [*_selections(groups), *_refusals(groups)]


def _selections(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the chart of selections, a sorted curve for each experiment that chooses."""
    shares = {group.label: selection(group) * 100 for group in groups}
    choosing = {label: s for label, s in shares.items() if s.any() and (s < 100).any()}
    if not choosing:
        return []
    lines = []
    for i, group in enumerate(groups):
        if (share := choosing.get(group.label)) is not None:
            kept = even(len(share), 400)
            lines.append(Curve(group.label, kept.astype(np.float64) + 1, np.sort(share)[::-1][kept], look=i))
    told, x = said("selections", len(choosing) < len(groups)), "clients, the most often selected first"
    title = "How often each client was selected"
    return [Chart("selection", _SECTION, title, told, Lines(tuple(lines)), x=x, y="rounds selected (%)")]


def _refusals(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the chart of refusals by reason, a series for each experiment that has any."""
    counts = {group.label: refusal_counts(group) for group in groups}
    counts = {label: c for label, c in counts.items() if c}
    if not counts:
        return []
    total = sum(counts.values(), Counter[str]())
    reasons = [reason for reason, _ in total.most_common(MOST_REASONS)]
    places = {group.label: i for i, group in enumerate(groups)}
    series = tuple(
        Series(label, np.array([float(c[r]) for r in reasons]), look=places[label]) for label, c in counts.items()
    )
    caption = said("refusals", len(reasons), len(total))
    marks = Bars(tuple(reasons), series)
    return [Chart("refusals", _SECTION, "What was refused, and why", caption, marks, x="number of updates")]


# ---- what it cost


_WHOLE = ("time/round_s", "time/play_s")  # these are sums of stages
_ORDER = ("train", "value", "test", "weigh", "mix", "select", "ask", "settle")
_COST = "What it cost"


def mean_of(group: SeedGroup, key: str) -> float:
    """Return the mean of a metric over all rounds of all seeds; 0 if it was never recorded.

    Args:
        group: the seeds of one experiment.
        key: the metric, as in ``metrics.jsonl``.
    """
    values = np.concatenate([run.series(key)[1] for run in group.runs])
    return float(values.mean()) if len(values) else 0.0


def stage_seconds(group: SeedGroup) -> dict[str, float]:
    """Return how many seconds each stage takes in a round, on average over all rounds of all seeds.

    A stage that does not happen in a round counts as 0 seconds in it, so the stages add up to the round. "other" is the
    time that belongs to no stage, if that is more than 2 % of the round.

    Args:
        group: the seeds of one experiment.
    """
    lines = [line for run in group.runs for line in run.metrics]
    keys = sorted({k for line in lines for k in line if k.startswith("time/") and k not in _WHOLE})
    rounds = sum(len(run.series("time/round_s")[0]) for run in group.runs) or len(lines)
    sums = {k: float(np.concatenate([run.series(k)[1] for run in group.runs]).sum()) / rounds for k in keys}
    stages = {k.removeprefix("time/").removesuffix("_s"): v for k, v in sums.items()}
    rest = mean_of(group, "time/round_s") - sum(stages.values())
    if rest > 0.02 * mean_of(group, "time/round_s"):
        stages["other"] = rest
    return stages


def cost_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the charts of time and of traffic, as far as the runs recorded them.

    Args:
        groups: the experiments, one bar each.
    """
    return [*_time(groups), *_bytes(groups)]


def _time(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the chart of seconds a round by stage."""
    spent = [stage_seconds(group) for group in groups]
    found = set().union(*spent)
    # stages of less than a hundredth of the longest bar could not be seen: they join "other"
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
    return [Chart("time", _COST, "Time a round, by stage", said("seconds_by_stage"), marks, x="seconds a round")]


def _bytes(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the chart of megabytes a round in each direction."""
    down = np.array([mean_of(group, "bytes/down") for group in groups]) / 1e6
    up = np.array([mean_of(group, "bytes/up") for group in groups]) / 1e6
    if not (down.any() or up.any()):
        return []
    marks = Bars(
        tuple(group.label for group in groups),
        (Series("server to clients", down), Series("clients to server", up)),
        stacked=True,
    )
    return [Chart("bytes", _COST, "Traffic a round", said("traffic"), marks, x="MB a round")]
