"""Charts of who took part: how often each client was selected, and what was refused and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hanse.reports.chart import Bars, Chart, Floats, Heat, Line, Lines, Series, even
from hanse.reports.groups import Group
from hanse.runs.record import RunRecord

__all__ = ["participation_charts", "refusal_counts", "selection"]

MOST_NAMED = 60  # clients with a place of their own on the axis
MOST_REASONS = 12
_SECTION = "Who took part"


def selection(group: Group) -> Floats:
    """Return the share of rounds in which each registered client was selected, ``[N]``, mean over seeds."""
    runs = group.same_clients
    most = max(run.num_clients for run in runs)
    return np.asarray(np.mean([_one(run, most) for run in runs], axis=0))


def _one(run: RunRecord, clients: int) -> Floats:
    # a client may hold several seats in a round, and was still selected once
    pairs = np.unique(np.stack([run.seats.round, run.seats.client]), axis=1)
    return np.bincount(pairs[1], minlength=clients)[:clients] / len(run.metrics)


def refusal_counts(group: Group) -> Counter[str]:
    """Return how many updates were refused in all of a group's runs, by reason."""
    return Counter(reason for run in group.runs for _, _, reason in run.refusals())


def participation_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return what there is to see: no selection if everyone always sits, no refusals if there are none."""
    return [*_selections(groups), *_refusals(groups)]


def _selections(groups: Sequence[Group]) -> list[Chart]:
    shares = {group.label: selection(group) * 100 for group in groups}
    choosing = {label: s for label, s in shares.items() if s.any() and (s < 100).any()}
    if not choosing:
        return []
    most = max(len(s) for s in choosing.values())
    marks: Lines | Bars | Heat
    places = {group.label: i for i, group in enumerate(groups)}
    x, y = "client", "rounds selected (%)"
    if most > MOST_NAMED:
        lines = []
        for label, s in choosing.items():
            kept = even(len(s), 400)
            lines.append(Line(label, kept.astype(np.float64) + 1, np.sort(s)[::-1][kept], look=places[label]))
        marks, x = Lines(tuple(lines)), "clients, the most often selected first"
        caption = "A flat curve treats everyone alike; a steep one relies on few. "
    elif len(choosing) == 1:
        label, s = next(iter(choosing.items()))
        marks = Bars(_names(groups, label, len(s)), (Series(label, s, look=places[label]),), upright=True)
        caption = ""
    else:
        z = np.full((len(choosing), most), np.nan)
        for row, s in zip(z, choosing.values(), strict=True):
            row[: len(s)] = s
        marks = Heat(tuple(choosing), _names(groups, next(iter(choosing)), most), z, "% of rounds", floor=0.0)
        y, caption = "", "A row of one shade treats everyone alike; light cells are the clients that it relies on. "
    caption += (
        "The share of all rounds in which a client was asked to train (mean over seeds where the clients are the same)."
    )
    if len(choosing) < len(groups):
        caption += " Experiments in which everyone trains in every round are left out."
    return [Chart("selection", _SECTION, "How often each client was selected", caption, x, y, marks)]


def _names(groups: Sequence[Group], label: str, count: int) -> tuple[str, ...]:
    run = next(group.runs[0] for group in groups if group.label == label)
    return tuple(run.client_label(client) for client in range(count))


def _refusals(groups: Sequence[Group]) -> list[Chart]:
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
    caption = "Updates that were asked for and not used, by the reason in the record; sums over all seeds."
    if len(total) > len(reasons):
        caption += f" The {len(reasons)} most frequent of {len(total)} reasons."
    marks = Bars(tuple(reasons), series)
    return [Chart("refusals", _SECTION, "What was refused, and why", caption, "number of updates", "", marks)]
