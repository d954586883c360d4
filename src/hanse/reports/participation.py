"""A chart of who took part: why updates were refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from hanse.reports.chart import Bars, Chart, Series
from hanse.reports.groups import SeedGroup
from hanse.reports.words import said

MOST_REASONS = 12  # bars of the chart of refusals
_SECTION = "Who took part"


def refusal_counts(group: SeedGroup) -> Counter[str]:
    """Return how many updates were refused in all runs of a group, by the reason in the record."""
    return Counter(reason for run in group.runs for _, _, reason in run.refusals())


def refusal_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
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
