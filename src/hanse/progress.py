"""A progress bar on the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hanse.config import Experiment
from hanse.experiment import Run
from hanse.rounds import Played

__all__ = ["ProgressBar", "figure_of"]


class ProgressBar:
    """Shows the round, the last test accuracy (at the clients, or else the server's; nothing without ``figure``) and
    the time left; prints what the engine said first if ``explain``.
    """

    def __init__(self, console: Console, label: str, *, explain: bool = False, figure: bool = True) -> None:
        self._console, self._label, self._explain, self._figure = console, label, explain, figure
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figure]}"),
            TimeRemainingColumn(),
            console=console,
            transient=False,
        )
        self._task = TaskID(0)

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Print what was said, start the bar."""
        for line in said:
            warns = "checkpoint" in line or line.startswith("warning: ")
            if self._explain or warns:
                self._console.print(line, style="yellow" if warns else "dim", markup=False)
        self._progress.start()
        self._task = self._progress.add_task(self._label, total=experiment.run.rounds, completed=first_round, figure="")

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Move on by a round."""
        self._progress.advance(self._task)
        if not self._figure:
            return
        if figure := figure_of(metrics):
            self._progress.update(self._task, figure=figure)

    def on_end(self, result: Run) -> None:
        """Stop the bar."""
        self._progress.stop()


def figure_of(metrics: Mapping[str, Any]) -> str:
    """Return the accuracy of a round in words, at the clients or else the server's; the loss if there is none, and
    nothing if nothing was tested.
    """
    own = metrics.get("client/test_accuracy")
    if own is not None:  # the clients' own data come first where they test: it is what they asked for
        return f"own accuracy {own:.3f}"
    if metrics.get("test/accuracy") is not None:
        return f"test accuracy {metrics['test/accuracy']:.3f}"
    return f"test loss {metrics['test/loss']:.4g}" if metrics.get("test/loss") is not None else ""
