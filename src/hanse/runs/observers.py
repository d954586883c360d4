"""Observers of a run: a progress bar, and optional trackers for TensorBoard, MLflow and Weights & Biases.

They also serve as examples of :class:`hanse.runs.played_run.Observer`. :func:`make_trackers` makes those that
``--track`` names. Trackers log a round's numbers under their names in ``metrics.jsonl``, and settings as
``section.key``.

The functions :func:`mostly_refused` and :func:`valued_otherwise` check a finished run and return warnings.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from hanse.base.errors import UserError, library, nearest
from hanse.base.terminal import Terminal
from hanse.base.toml import flat
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
        f"client {c}{called.get(c, '')}: no update in {len(lost[c])} of the {len(sat[c])} rounds that it sat in; "
        f"most often: {reasons[c].most_common(1)[0][0]}"
        for c in worst[:NAMED]
    ]
    more = len(worst) - NAMED
    lines += [f"and {more} more client{'s' if more > 1 else ''} like that"] if more > 0 else []
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


def valued_otherwise(metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a warning if values assumed that models are averages of updates, but the new model was not one; and one if
    GTG-Shapley took a round's change for none.

    Args:
        metrics: the lines of ``metrics.jsonl``.
    """
    told = []
    if rounds := sum(bool(line.get("value/not_averages")) for line in metrics):
        told.append(
            f"mechanism.value: in {rounds} of {len(metrics)} rounds the new model was no average of the updates alone "
            "(weights below 0, or other rows besides the old one): values are those of the average by the weights "
            "above 0"
        )
    if rounds := sum(bool(line.get("value/truncated_between")) for line in metrics):
        told.append(
            f"mechanism.value: in {rounds} of {len(metrics)} rounds all values are 0, because the model changed by "
            "less than GTG-Shapley's threshold: set mechanism.value.eps = 0 to value these rounds too"
        )
    return told


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
            warns = "checkpoint" in line or line.startswith(("warning: ", "note: "))
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


_AT_ONCE = 100  # parameters that MLflow takes in one call


def scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return a round's numbers by name, for a tracker, without those not measured."""
    return {name: v for name, v in metrics.items() if name != "round" and isinstance(v, int | float)}


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
        """Write the round's scalars."""
        for name, value in scalars(metrics).items():
            self._writer.add_scalar(name, value, metrics["round"])

    def on_end(self, result: PlayedRun) -> None:
        """Flush to disk."""
        self._writer.close()


class MLflow:
    """Logs to an MLflow server, or into a file of the run directory.

    The server is the one that ``MLFLOW_TRACKING_URI`` names. Without it everything goes into ``folder/mlflow.db``,
    which ``mlflow ui --backend-store-uri sqlite:///folder/mlflow.db`` shows. A resumed run continues its MLflow run,
    whose id is in ``folder/mlflow.run``.

    Raises:
        UserError: MLflow is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mlflow = library("mlflow", "--track mlflow: is not installed; pip install mlflow-skinny")
        self._entities = importlib.import_module("mlflow.entities")

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Make or find the MLflow run, and log the experiment's settings as parameters of a new one.

        Raises:
            UserError: the server cannot be reached or refuses.
        """
        place = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(self._folder / 'mlflow.db').resolve()}"
        try:
            self._open(self._mlflow.MlflowClient(tracking_uri=place), experiment)
        except self._mlflow.MlflowException as wrong:  # no such server, not allowed there
            raise UserError(f"--track mlflow: {str(wrong).strip().splitlines()[0]}") from None

    def _open(self, client: Any, experiment: Experiment) -> None:
        """Continue the MLflow run of this directory, or make one."""
        self._client = client
        mark = self._folder / "mlflow.run"
        if mark.exists():
            self._run = mark.read_text().strip()
            self._client.update_run(self._run, status="RUNNING")
            return
        known = self._client.get_experiment_by_name("hanse")
        files = None if os.environ.get("MLFLOW_TRACKING_URI") else (self._folder / "mlflow").resolve().as_uri()
        number = self._client.create_experiment("hanse", files) if known is None else known.experiment_id
        self._run = self._client.create_run(number, run_name=self._folder.name).info.run_id
        mark.write_text(self._run + "\n")
        # MLflow refuses longer values, and more parameters in one call
        settings = [self._entities.Param(key, str(value)[:500]) for key, value in flat(experiment.sections())]
        for start in range(0, len(settings), _AT_ONCE):
            self._client.log_batch(self._run, params=settings[start : start + _AT_ONCE])

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Log the round's numbers, in one call."""
        now = int(time.time() * 1000)
        made = [self._entities.Metric(name, float(v), now, metrics["round"]) for name, v in scalars(metrics).items()]
        self._client.log_batch(self._run, metrics=made)

    def on_end(self, result: PlayedRun) -> None:
        """Mark the MLflow run as finished or killed."""
        self._client.set_terminated(self._run, "KILLED" if result.interrupted else "FINISHED")


class WandB:
    """Logs to Weights & Biases.

    Settings and variables of ``wandb`` itself decide the account and the project. ``WANDB_MODE=offline`` keeps
    everything on this machine, and ``WANDB_PROJECT`` names the project (default "hanse"). A resumed run continues its
    W&B run, whose id is in ``folder/wandb.run``.

    Raises:
        UserError: wandb is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._wandb = library("wandb", "--track wandb: is not installed; pip install wandb")

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Open the W&B run. Raises UserError with wandb's own message if that fails."""
        mark = self._folder / "wandb.run"
        if not mark.exists():
            mark.write_text(uuid.uuid4().hex[:12] + "\n")
        try:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "hanse"), name=self._folder.name, id=mark.read_text().strip(),
                dir=str(self._folder), config=experiment.sections(), resume="allow",
            )  # fmt: skip
        except self._wandb.Error as wrong:  # not logged in, no network
            raise UserError(f"--track wandb: {str(wrong).strip().splitlines()[0]}") from None

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Log the round's numbers."""
        self._run.log(scalars(metrics), step=metrics["round"])

    def on_end(self, result: PlayedRun) -> None:
        """Close the W&B run."""
        self._run.finish(exit_code=1 if result.interrupted else 0)


TRACKERS: Mapping[str, Callable[[Path], Observer]] = {"tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WandB}


def make_trackers(names: Sequence[str], folder: Path) -> list[Observer]:
    """Return the trackers that ``--track`` names, each once.

    Args:
        names: "tensorboard", "mlflow" or "wandb".
        folder: the run directory.

    Raises:
        UserError: a name does not exist, or its library is not installed.
    """
    for name in names:
        if name not in TRACKERS:
            raise UserError(f"--track {name}: no such tracker{nearest(name, TRACKERS)}")
    return [TRACKERS[name](folder) for name in dict.fromkeys(names)]
