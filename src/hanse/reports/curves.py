"""Charts of how good the models are, round by round: a line an experiment, a band over its seeds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hanse.reports.chart import Chart, Floats, Ints, Line, Lines, even
from hanse.reports.groups import Group
from hanse.reports.honesty import own_accuracy
from hanse.runs.record import RunRecord

__all__ = ["curve_charts"]

MOST_POINTS = 400
MOST_READ = 200  # rounds whose file has to be opened

# key, title, axis, factor
_CURVES = (
    ("test/accuracy", "Test accuracy", "accuracy on the test set (%)", 100.0),
    ("test/loss", "Test loss", "loss on the test set", 1.0),
    ("client/test_accuracy", "Accuracy at the clients", "mean accuracy on own test data (%)", 100.0),
    ("client/test_loss", "Loss at the clients", "mean loss on own test data", 1.0),
    ("train/loss", "Training loss", "mean loss of those who trained", 1.0),
)
_MEANING = {
    "test/accuracy": "The share of the server's test samples that the deployed models get right.",
    "test/loss": "The loss of the deployed models on the server's test samples; lower is better.",
    "client/test_accuracy": "Each client tests the model that it holds on its own test samples; mean over clients, "
    "without those that the experiment makes cheat.",
    "client/test_loss": "Each client tests the model that it holds on its own test samples; lower is better.",
    "train/loss": "What the clients that trained reported, averaged. It depends on who was selected.",
}


def curve_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return a chart for each figure that any experiment recorded; a round counts once it is over (1, 2, ...).

    Losses on a test set are left out where there is an accuracy of the same name, but the server's own is kept.
    """
    charts = []
    for key, title, axis, factor in _CURVES:
        lines = [line for i, group in enumerate(groups) if (line := _line(group, key, factor, i)) is not None]
        accurate = any(len(run.series("client/test_accuracy")[0]) for group in groups for run in group.runs)
        if not lines or (key == "client/test_loss" and accurate):
            continue
        caption = f"{_MEANING[key]} {_band(groups, lines)}"
        name = key.replace("/", "-").replace("_", "-")
        charts.append(Chart(name, "How well it learned", title, caption, "rounds played", axis, Lines(tuple(lines))))
    return charts


def _line(group: Group, key: str, factor: float, look: int) -> Line | None:
    curve = group.curve(key, _read)
    if curve is None:
        return None
    kept = even(len(curve.rounds), MOST_POINTS)
    x: Floats = curve.rounds[kept].astype(np.float64) + 1
    mean = curve.mean[kept] * factor
    if curve.sd is None:
        return Line(group.label, x, mean, look=look)
    sd = curve.sd[kept] * factor
    low, high = mean - sd, mean + sd
    if key.endswith("accuracy"):
        low, high = low.clip(0.0, 100.0), high.clip(0.0, 100.0)
    elif curve.mean.min() >= 0:
        low = low.clip(0.0)
    return Line(f"{group.label} ({len(group.runs)} seeds)", x, mean, low, high, look)


def _read(run: RunRecord, key: str) -> tuple[Ints, Floats]:
    return own_accuracy(run, MOST_READ) if key == "client/test_accuracy" else run.series(key)


def _band(groups: Sequence[Group], lines: Sequence[Line]) -> str:
    alone = " A single marker is a single tested round." if any(len(line.x) == 1 for line in lines) else ""
    if all(line.low is None for line in lines):
        return f"One run a line: how much a different seed would change is not known.{alone}"
    single = " A line without a band is a single run." if any(len(group.runs) == 1 for group in groups) else ""
    return f"A line is the mean over seeds, its band one standard deviation up and down.{single}{alone}"
