"""Observers of a run: a progress bar, and a tracker for TensorBoard.

They also serve as examples of :class:`hanse.runs.played_run.Observer`. :func:`make_trackers` makes those that
``--track`` names. TensorBoard gets a round's numbers under their names in ``metrics.jsonl``.

The function :func:`mostly_refused` checks a finished run and returns warnings.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hanse.base.errors import library
from hanse.base.imports import import_path
from hanse.base.plain_text import quantity
from hanse.base.terminal import Terminal
from hanse.learning.metrics import ACCURACY, main_of
from hanse.runs.chance import NAMED, told_used_up, used_up
from hanse.runs.round_record import figure_of

if TYPE_CHECKING:
    from hanse.runs.config import Experiment
    from hanse.runs.played_run import Observer, PlayedRun
    from hanse.runs.round import Played

# how reasons begin of too large numbers
_OVERFLOWN = ("ended with NaN or infinite", "Trained.loss: ", "update of norm")


def mostly_refused(seats: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> list[str]:
    """Return warnings about clients that delivered no update in most rounds for which they were selected.

    Args:
        seats: the lines of ``clients.jsonl``.
        names: the clients' names by number; empty if clients have no names.

    Returns:
        A line for each of the first five clients that failed, with the most frequent reason; a line with the number of
        others; and a line for clients whose privacy budget is used up. Where the model had diverged
        (:func:`_diverged`), a line says so instead of naming clients that did not fail before.
    """
    sat: defaultdict[int, set[int]] = defaultdict(set)
    got: defaultdict[int, set[int]] = defaultdict(set)
    reasons: defaultdict[int, Counter[str]] = defaultdict(Counter)
    spoiled = _diverged(seats)
    for line in seats:
        client, round = int(line["client"]), int(line["round"]) - int(line.get("staleness", 0))  # when it was asked
        sat[client].add(round)
        if "refused" in line:
            reasons[client][str(line["refused"])] += 1
        else:
            got[client].add(round)
    lost = {client: sorted(rounds - got[client]) for client, rounds in sat.items()}
    spent = used_up((int(line["client"]), int(line["round"]), line.get("refused")) for line in seats)
    # most: more than half of the rounds that it sat in
    most = [c for c in lost if 2 * len(lost[c]) > len(sat[c]) and c not in spent]
    worst = sorted((c for c in most if spoiled is None or lost[c][0] < spoiled), key=lambda c: (lost[c][0], c))
    called = dict(enumerate(f" ({name})" for name in names))
    lines = [
        f"client {c}{called.get(c, '')}: no update in {len(lost[c])} of the {quantity(len(sat[c]), 'round')} that it "
        f"sat in; most often: {reasons[c].most_common(1)[0][0]}"
        for c in worst[:NAMED]
    ]
    more = len(worst) - NAMED
    lines += [f"and {quantity(more, 'more client')} like that"] if more > 0 else []
    if spoiled is not None:
        lines.append(
            f"from round {spoiled} on the training of most clients ends in numbers too large, which is the model's "
            "fault rather than theirs: scale the features and the target, or take a smaller train.lr"
        )
    return [*lines, *told_used_up(spent)]


def _diverged(seats: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the first round after round 0 in which more than half of the seats were refused for too large numbers.

    Updates that were accepted before had then pulled the model away. None: there is no such round.
    """
    overflown: defaultdict[int, list[bool]] = defaultdict(list)
    for line in seats:
        overflown[int(line["round"])].append(str(line.get("refused", "")).startswith(_OVERFLOWN))
    return next((r for r in sorted(overflown) if r and 2 * sum(overflown[r]) > len(overflown[r])), None)


def errors() -> Console:
    """Return the console on standard error, for progress bars. Without ipywidgets, a notebook gets bars as in a
    terminal.
    """
    console = Terminal(stderr=True, emoji=False)
    if console.is_jupyter and find_spec("ipywidgets") is None:
        return Terminal(stderr=True, force_jupyter=False, force_terminal=True, width=80, emoji=False)
    return console


_BAR_WIDTH = 62  # of a bar with its numbers, in characters: what is left of a line is for its text
PATIENCE = 2.0
"""Seconds without a sign of life after which :func:`counting` shows its bar."""


def bar(console: Console, *, transient: bool = False, thread: bool = True) -> Progress:
    """Return a progress bar, not yet started, with a text "figure" and the time left.

    ``transient``: whether it disappears at the end. ``thread``: if false, it is drawn only when it is refreshed.
    """
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figure]}"),
        console=console,
        transient=transient,
        auto_refresh=thread,
        speed_estimate_period=120,  # seconds: steps of different length follow each other
    )


class ProgressCallback(Protocol):
    """A function that gets the amount done, the largest possible total (None: not known), and a text to show."""

    def __call__(self, done: int, most: float | None, figure: str = "") -> None:
        """Show it."""


def untold(done: int, most: float | None, figure: str = "") -> None:
    """Show nothing."""


@contextmanager
def counting(
    label: str, console: Console, *, at_once: bool = False, transient: bool = True, thread: bool = True
) -> Iterator[ProgressCallback]:
    """Yield a function to call with the amount done and the total.

    After two seconds, a bar in the terminal or notebook shows progress and the time left.

    Args:
        label: the text before the bar.
        console: where the bar is drawn.
        at_once: draw the bar from the first call on, even without a terminal.
        transient: whether the bar disappears at the end.
        thread: whether to draw the bar from its own thread. Use False if the process forks meanwhile.
    """
    begun, shown = time.monotonic(), bar(console, transient=transient, thread=thread)
    task = shown.add_task(label, total=None, figure="")
    # of work that says nothing for long; a notebook takes widgets from its own thread only
    timer = threading.Timer(PATIENCE, shown.start)
    timer.daemon = True
    if thread and console.is_terminal and not console.is_jupyter:
        timer.start()

    def told(done: int, most: float | None, figure: str = "") -> None:
        late = done != most and time.monotonic() - begun > PATIENCE and (console.is_terminal or console.is_jupyter)
        if figure and len(figure) > (room := console.width - len(label) - _BAR_WIDTH):
            figure = f"{figure[: max(0, room - 1)]}…"
        if (at_once or late) and not shown.live.is_started:
            shown.start()
        shown.update(task, completed=done, total=most, figure=escape(figure), refresh=not thread)

    try:
        yield told
        if not transient:  # it stays, and what was expected at most may be more
            shown.update(task, total=shown.tasks[0].completed)
    finally:
        timer.cancel()
        if timer.is_alive():
            timer.join()  # it may just be starting
        if shown.live.is_started:  # one that never began would still end its line
            shown.stop()


class ProgressBar:
    """A bar in the terminal with the round, the last accuracy and the time left.

    Args:
        console: where the bar is drawn.
        label: the label before the bar, such as the mechanism's name.
        explain: print all lines about the engine at the start, not only warnings and notes.
        figure: whether to show the last test accuracy (or main metric) of the clients, or else of the server.
    """

    def __init__(self, console: Console, label: str, *, explain: bool = False, figure: bool = True) -> None:
        self._console, self._label, self._explain, self._figure = console, label, explain, figure
        self._progress = bar(console)
        self._task, self._main = TaskID(0), ACCURACY

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Print the notes, and start the bar at the first round."""
        for line in said:
            warns = line.startswith(("warning: ", "note: "))
            if self._explain or warns:
                self._console.print(line, style="yellow" if warns else "dim", markup=False)
        self._main = main_of(experiment.eval.metrics)
        self._progress.start()
        self._task = self._progress.add_task(self._label, total=experiment.run.rounds, completed=first_round, figure="")

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Move on by a round, and show its figure if it was tested."""
        self._progress.advance(self._task)
        if not self._figure:
            return
        if figure := figure_of(metrics, self._main):
            self._progress.update(self._task, figure=figure)

    def on_end(self, result: PlayedRun) -> None:
        """Stop the bar. A figure of all clients leaves it: whoever ends the run tells that of the honest ones."""
        if result.metrics and f"client/test_{self._main.key}" in result.metrics[-1]:
            self._progress.update(self._task, figure="")
        self._progress.stop()


class TensorBoard:
    """Writes event files into ``folder/tensorboard``, for ``tensorboard --logdir``.

    Raises:
        UserError: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "tensorboard"
        # torch asks for it
        library("tensorboard", "--track tensorboard: is not installed; pip install '.[track]' in a clone of hanse")
        self._make = importlib.import_module("torch.utils.tensorboard").SummaryWriter

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Open the event file, discarding later rounds that a killed process wrote."""
        self._writer = self._make(log_dir=str(self._folder), purge_step=first_round)
        self._writer.add_text("experiment", f"```\n{experiment.to_toml()}\n```", first_round)

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Write the round's numbers; what was not measured is None."""
        for name, value in metrics.items():
            if name != "round" and isinstance(value, int | float):
                self._writer.add_scalar(name, value, metrics["round"])

    def on_end(self, result: PlayedRun) -> None:
        """Flush to disk."""
        self._writer.close()


TRACKERS: Mapping[str, Callable[[Path], Observer]] = {"tensorboard": TensorBoard}


def make_trackers(names: Sequence[str], folder: Path) -> list[Observer]:
    """Return the trackers that ``--track`` names, each once.

    Args:
        names: "tensorboard", or the import path of a function ``(folder)`` that returns an observer.
        folder: the run directory.

    Raises:
        UserError: a name does not exist, or TensorBoard is not installed.
    """
    return [(TRACKERS.get(name) or import_path(name, "--track", TRACKERS))(folder) for name in dict.fromkeys(names)]
