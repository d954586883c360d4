"""Observers of a run for people: a progress bar on the terminal, and TensorBoard event files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hanse.config import Experiment
from hanse.errors import UserError
from hanse.experiment import Run
from hanse.rounds import Played

__all__ = ["ProgressBar", "TensorBoard", "make_trackers"]


class ProgressBar:
    """Shows the round, the last test accuracy and the time left; prints what the engine said first if ``explain``."""

    def __init__(self, console: Console, label: str, *, explain: bool = False) -> None:
        self._console, self._label, self._explain = console, label, explain
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
        if metrics.get("test/accuracy") is not None:
            self._progress.update(self._task, figure=f"test accuracy {metrics['test/accuracy']:.3f}")
        elif metrics.get("test/loss") is not None:
            self._progress.update(self._task, figure=f"test loss {metrics['test/loss']:.4g}")

    def on_end(self, result: Run) -> None:
        """Stop the bar."""
        self._progress.stop()


class TensorBoard:
    """Writes every numeric metric as a scalar, under its own name."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise UserError("--track tensorboard: is not installed; pip install 'hanse[track]'") from None
        self._folder, self._make = folder, SummaryWriter

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Open the event file; what an earlier, killed process wrote of the rounds to come no longer counts."""
        self._writer = self._make(log_dir=str(self._folder), purge_step=first_round)
        self._writer.add_text("experiment", f"```\n{experiment.to_toml()}\n```", first_round)

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Write the round's scalars."""
        for name, value in metrics.items():
            if name != "round" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, metrics["round"])

    def on_end(self, result: Run) -> None:
        """Flush to disk."""
        self._writer.close()


def make_trackers(names: Sequence[str], folder: Path) -> list[TensorBoard]:
    """Return the trackers of ``--track``. Raises UserError for a name that does not exist."""
    for name in names:
        if name != "tensorboard":
            raise UserError(f"--track {name}: no such tracker; allowed: tensorboard")
    return [TensorBoard(folder / "tensorboard") for _ in names]
