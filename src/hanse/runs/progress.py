"""A progress bar on the terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hanse.rounds.round import Played
from hanse.runs.config import Experiment
from hanse.runs.experiment import Run
from hanse.runs.record import figure_of

__all__ = ["ProgressBar", "mostly_refused"]

_NAMED = 5  # clients that are named; of the others it is said how many there are


def mostly_refused(seats: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line for each client from which most of the rounds that it sat in got no update, the worst first, with
    the reason met most often. ``seats``: the lines of ``clients.jsonl``.
    """
    sat: defaultdict[int, set[int]] = defaultdict(set)
    got: defaultdict[int, set[int]] = defaultdict(set)
    reasons: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for line in seats:
        client, round = int(line["client"]), int(line["round"])
        sat[client].add(round)
        if "refused" in line:
            reasons[client][str(line["refused"])] += 1
        else:
            got[client].add(round)
    lost = {client: len(rounds - got[client]) for client, rounds in sat.items()}
    worst = sorted((c for c in lost if 2 * lost[c] > len(sat[c])), key=lambda c: (-lost[c], c))
    lines = [
        f"client {c}: no update in {lost[c]} of the {len(sat[c])} rounds that it sat in; "
        f"most often: {reasons[c].most_common(1)[0][0]}"
        for c in worst[:_NAMED]
    ]
    more = len(worst) - _NAMED
    return [*lines, f"and {more} more client{'s' if more > 1 else ''} like that"] if more > 0 else lines


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
            warns = "checkpoint" in line or line.startswith(("warning: ", "note: "))
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
