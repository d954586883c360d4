"""Runs an experiment: builds what it names, plays its rounds, keeps what they leave."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from torch import nn

from hanse.base.errors import MachineError, RunFailedError, UserError, library
from hanse.base.files import read_toml, table, write_whole
from hanse.base.lock import Hold
from hanse.base.stopping import Stop, interruptible
from hanse.core.port import Federation
from hanse.data.federated import FederatedData
from hanse.data.fingerprint import fingerprint
from hanse.data.spec import OBJECT
from hanse.learning.models import Factory
from hanse.learning.threads import intra_op
from hanse.rounds.round import LoopState, Setup, finish, first_state
from hanse.runs.attempt import MOST_FAILED, RecordedRound, attempt, tell_owners, telling
from hanse.runs.background import LONG_S, BackgroundWriter
from hanse.runs.budget import Budget
from hanse.runs.config import Experiment, RunSection
from hanse.runs.record import METRICS, SEATS, RoundRecord, played_lines
from hanse.runs.run import Observer, Run
from hanse.runs.rundir import RunDir, claim
from hanse.runs.setup import Own, build, settle_engine
from hanse.runs.shape import model_made_for, same_frozen

__all__ = ["Observer", "Run", "play_setup", "resume", "run", "run_remote"]

NEEDS_RAY = "federation.engine: 'ray': needs Flower and Ray; pip install 'hanse[ray]'"


def _tell(observers: Sequence[Observer], moment: str, *given: Any) -> None:
    for observer in observers:
        method = getattr(observer, moment, None)
        if method is not None:
            method(*given)


def _check(observers: Sequence[Observer]) -> None:
    """Raise UserError for an observer that would never be told anything: a misspelt method, most likely."""
    moments = ("on_start", "on_round", "on_end")
    for observer in observers:
        if not any(callable(getattr(observer, moment, None)) for moment in moments):
            raise UserError(f"observers: {observer!r}: has none of the methods {', '.join(moments)}")


def run(
    experiment: Experiment | str | Path,
    *,
    data: Any = None,
    model: nn.Module | Factory | None = None,
    out: str | Path | None = None,
    observers: Sequence[Any] = (),
    overwrite: bool = False,
    progress: bool = False,
) -> Run:
    """Run an experiment (an :class:`Experiment`, or the path of a TOML file) and return the :class:`Run`.

    ``data`` takes the place of ``data.source``: a :class:`hanse.data.Dataset`, a pandas DataFrame, arrays ``(x, y)`` or
    ``(x, y, clients)``, a PyTorch or Hugging Face data set, or a dictionary of these by client (:mod:`hanse.data.own`).
    ``model`` takes the place of ``model.name``: a module, whose weights are where training starts, or a function
    ``(input_shape, num_classes, **options)`` that returns one.

    With ``out`` it leaves a run directory and can be resumed; without, nothing is written. With ``progress`` a bar
    shows the round, the accuracy and the time left. ``observers`` see every round (:class:`Observer`). Raises
    UserError for what cannot be run, before round 0, and MachineError for what the machine cannot do. What fails before
    a round is finished leaves no directory.
    """
    _check(observers)
    if not isinstance(experiment, Experiment):
        experiment = Experiment.read(experiment)
    observers = _watching(observers, progress, experiment.mechanism.name)
    own = Own(data, model)
    if experiment.federation.engine != "local":
        _refuse_objects(experiment, own)
        return _engine(experiment)(experiment, out=out, observers=observers, overwrite=overwrite)
    if out is None:
        return play_setup(*settle_engine(experiment, build(experiment, own=own)), observers)
    with Hold(Path(out)) as hold:
        claim(hold, overwrite=overwrite)
        ready = settle_engine(experiment, build(experiment, own=own))
        return play_setup(*ready, observers, hold, overwrite)


def resume(
    path: str | Path,
    *,
    data: Any = None,
    model: nn.Module | Factory | None = None,
    observers: Sequence[Any] = (),
    other_data: bool = False,
    rounds: int | None = None,
    progress: bool = False,
) -> Run:
    """Go on with the run in a directory from its last sound checkpoint; with ``progress`` a bar shows how far it is.

    A run whose ``data`` or ``model`` were given as objects needs them again; the model's weights are the checkpoint's.

    With ``rounds`` it goes on to so many rounds in all, which ``config.toml`` says from then on. It is then the run
    that would have been played if they had been asked for at the start, bit for bit, but for a test that only a last
    round has; what differs is said. Raises UserError if that cannot be (the last round was settled as the last one), if
    it is no run directory, if another process plays it, or if the data are not those that it was played with
    (``other_data`` allows that, and it is recorded), and MachineError for what the machine cannot do.
    """
    observers = _watching(observers, progress, Path(path).name)
    _check(observers)
    path = Path(path)
    if not (path / "config.toml").exists():
        raise UserError(f"{path}: is not a run directory (it has no config.toml)")
    experiment = Experiment.read(path / "config.toml")
    if rounds is not None:
        experiment = _longer(path, experiment, rounds)
    own = Own(data, model)
    if experiment.federation.engine != "local":
        _refuse_objects(experiment, own)
        return _engine(experiment)(experiment, out=path, observers=observers, again=True, other_data=other_data)
    with Hold(path) as hold:
        hold.take()
        _same_objects(path, experiment, own)
        blueprint = build(experiment, own=own)
        _same_model(path, experiment, blueprint.experiment)
        ready = settle_engine(experiment, blueprint)
        return _from_a_checkpoint(*ready, observers, hold, other_data)


def _longer(path: Path, experiment: Experiment, rounds: int) -> Experiment:
    """Return the experiment with this many rounds. Raises UserError for fewer than were played, or if they were ended
    as the last ones.
    """
    planned, played = experiment.run.rounds, len(played_lines(path, METRICS))
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < played:
        raise UserError(f"--rounds {rounds}: must be a whole number, at least the {played} rounds that are played")
    if rounds != planned and played >= planned and experiment.mechanism.built.settle is not None:
        raise UserError(
            f"--rounds {rounds}: round {played} was settled as the last one, which cannot be taken back; play the "
            f"experiment anew: hanse run {path / 'config.toml'} --set run.rounds={rounds}"
        )
    section = RunSection(**{**experiment.run.model_dump(), "rounds": rounds})
    longer: Experiment = experiment.model_copy(update={"run": section})
    return longer


def _written_longer(folder: Path, experiment: Experiment) -> list[str]:
    """Let ``config.toml`` say how many rounds are played now, and return what is told of a run that got more."""
    file = folder / "config.toml"
    planned, rounds = table(read_toml(file), "run").get("rounds"), experiment.run.rounds
    if not isinstance(planned, int) or planned == rounds:
        return []
    write_whole(file, experiment.to_toml())
    said = [f"note: {rounds} rounds instead of {planned}; config.toml says so from now on"]
    if planned % experiment.eval.every and any(line["round"] == planned - 1 for line in played_lines(folder, METRICS)):
        said.append(
            f"note: round {planned} was tested as the last one, which a run of {rounds} rounds would not have done"
        )
    return said


def _watching(observers: Sequence[Any], progress: bool, label: str) -> Sequence[Any]:
    """Return the observers, and a bar on standard error if ``progress`` is asked for."""
    if not progress:
        return observers
    from rich.console import Console  # here: most runs from Python show nothing

    from hanse.runs.observers import ProgressBar

    return [ProgressBar(Console(stderr=True), label), *observers]


def _refuse_objects(experiment: Experiment, own: Own) -> None:
    """Raise UserError for objects of this process where clients are in others."""
    for key, given in (("data", own.data), ("model", own.model)):
        if given is not None:
            raise UserError(
                f"{key}: an object of this process, and federation.engine = '{experiment.federation.engine}' plays in "
                f"others: name an import path as {'data.source' if key == 'data' else 'model.name'}, or take 'local'"
            )


def _same_objects(path: Path, experiment: Experiment, own: Own) -> None:
    """Raise UserError for an object that a run, which is to go on, was not given."""
    for key, given, name in (
        ("data.source", own.data, experiment.data.source),
        ("model.name", own.model, experiment.model.name),
    ):
        if given is not None and name != OBJECT:
            raise UserError(f"{path}: was played with {key} = '{name}', not with an object; leave the object out")


def _same_model(path: Path, experiment: Experiment, now: Experiment) -> None:
    """Raise UserError if the model that was given as an object is built otherwise than that of the run."""
    before, given = (e.model.model_extra or {} for e in (experiment, now))
    if experiment.model.name == OBJECT and before.get("fingerprint") != given.get("fingerprint"):
        raise UserError(
            f"{path}: was played with another model: {before.get('object')}, fingerprint {before.get('fingerprint')}; "
            f"model is {given.get('object')}, fingerprint {given.get('fingerprint')}"
        )


def _engine(experiment: Experiment) -> Callable[..., Run]:
    """Return what plays an experiment with clients elsewhere: engines register themselves as entry points
    "hanse.engines", so that a run knows none of them. Raises UserError if it is not installed.
    """
    name = experiment.federation.engine
    found = entry_points(group="hanse.engines", name=name)
    if not found:
        raise UserError(f"federation.engine: '{name}': is not installed here; reinstall hanse, or take 'local'")
    if name == "ray":
        library("flwr", NEEDS_RAY)
    play: Callable[..., Run] = next(iter(found)).load()
    return play


def run_remote(
    experiment: Experiment,
    data: FederatedData,
    federation: Federation,
    *,
    hold: Hold,
    observers: Sequence[Any] = (),
    other_data: bool = False,
) -> Run:
    """Run an experiment with clients behind another federation (on a network), or go on with it if the directory that
    ``hold`` is of has it.

    ``data`` says what the server knows: its own sets, the shape of samples and each client's reported size.
    ``other_data`` allows sets of the server that are not those of the rounds before.
    """
    ready = settle_engine(experiment, build(experiment, data), federation=federation)
    if (hold.folder / "config.toml").exists():
        return _from_a_checkpoint(*ready, observers, hold, other_data)
    return play_setup(*ready, observers, hold)


def play_setup(
    experiment: Experiment,
    setup: Setup,
    said: Sequence[str],
    observers: Sequence[Observer],
    hold: Hold | None = None,
    overwrite: bool = False,
) -> Run:
    """Play all rounds of a setup, into the directory that ``hold`` is of if there is one; ``said`` is told at first."""
    with closing(setup.engine):
        state = first_state(setup)
        if hold is None:
            return _play(experiment, setup, state, None, observers, said)
        books, data = setup.mechanism.settle is not None, fingerprint(setup.data)
        shape = model_made_for(setup.data, setup.problem)
        folder = RunDir.create(
            hold.folder, experiment, hold, data=data, about=setup.about, shape=shape, overwrite=overwrite, books=books
        )
        with closing(folder):
            try:
                return _play(experiment, setup, state, folder, observers, said)
            except MachineError:
                raise
            except Exception:
                if folder.is_new:  # nothing is lost, and the next try finds the place free
                    folder.discard()
                raise


def _from_a_checkpoint(
    experiment: Experiment,
    setup: Setup,
    said: Sequence[str],
    observers: Sequence[Observer],
    hold: Hold,
    other_data: bool,
) -> Run:
    hold.take()
    same_frozen(hold.folder, setup.problem)
    with closing(setup.engine):
        folder, snapshot, warnings = RunDir.reopen(
            hold.folder, experiment, setup.device,
            data=fingerprint(setup.data), names=setup.data.names, other_data=other_data,
        )  # fmt: skip
        with closing(folder):
            said = [*said, *_written_longer(hold.folder, experiment)]
            state = first_state(setup)
            if snapshot is not None:
                _same_parts(hold.folder, state, snapshot.state)
                state = snapshot.state
            told = [w if "checkpoint" in w or w.startswith("warning: ") else f"warning: {w}" for w in warnings]
            return _play(experiment, setup, state, folder, observers, [*said, *told])


def _same_parts(folder: Path, first: LoopState, kept: LoopState) -> None:
    """Raise UserError if a part's kept state lacks something that it starts with in this version."""
    for slot, state in first.states.items():
        lacking = sorted(state.keys() - kept.states.get(slot, {}).keys())
        if lacking:
            raise UserError(
                f"{folder}: the state of its {slot} part has no {', '.join(lacking)}: another version of hanse wrote "
                "it; go on in the version that environment.json names, or play its config.toml again with 'hanse run'"
            )


def _next(
    setup: Setup, experiment: Experiment, state: LoopState, writer: BackgroundWriter, stop: Stop
) -> RecordedRound | None:
    """Play a round while the one before it is written; that one is told then, whatever became of this one. Return None
    if an observer that heard of it ended the run there: then this one does not count.
    """
    try:
        done = attempt(setup, experiment, state)
    finally:
        asked = stop.asked
        writer.settle()
    return None if stop.asked and not asked else done


def _ended(setup: Setup, state: LoopState, folder: RunDir | None) -> LoopState:
    """Settle what the last round left open and tell the owners of private rows; return the state after it."""
    if setup.mechanism.settle is not None and not state.finished:
        last_word = finish(telling(setup, state), state)
        state = last_word.state
        if folder is not None:
            folder.owe(state.round, last_word.view.posted)
            folder.checkpoint(state)
            folder.receipts(state.round, state.book, last_word.view.posted)
    tell_owners(setup, state)
    return state


def _play(
    experiment: Experiment,
    setup: Setup,
    state: LoopState,
    folder: RunDir | None,
    observers: Sequence[Observer],
    said: Sequence[str],
) -> Run:
    """Play the rounds that are left."""
    result = Run(experiment, setup.problem, table=state.table, home=state.home, names=setup.data.names)
    if folder is not None:
        result.path = folder.path
        result.metrics, result.clients = (played_lines(folder.path, name) for name in (METRICS, SEATS))
    lines = [*said, *(f"warning: {line}" for line in setup.data.warnings)]
    _tell(observers, "on_start", experiment, state.round, lines)
    limits, budget = experiment.run, Budget(experiment.run)
    budget.spend(result.metrics)
    result.over, failures = budget.over(), 0

    def tell(record: RoundRecord) -> None:
        result.metrics.append(record.metrics)
        result.clients.extend(record.seats)
        _tell(observers, "on_round", record.metrics, record.played)

    writing = closing(BackgroundWriter(folder, tell))
    # engines and games bring their own threads; for what lies between, one is robust beside busy neighbours
    with intra_op(1), interruptible(ours=not setup.remote) as stop, writing as writer:
        while state.round < limits.rounds and result.over is None and not stop.asked:
            done = _next(setup, experiment, state, writer, stop)
            if done is None:
                break
            state, record, metrics = done.state, done.record, done.record.metrics
            failures = failures + 1 if "failed" in metrics else 0
            if record.tested.arrays:
                result.tested = record.tested.arrays
                if folder is None:  # else it lies there, and long runs keep nothing twice
                    result.tests[metrics["round"]] = record.tested.arrays
            budget.spend([metrics])
            result.over = budget.over()
            last = state.round == limits.rounds or result.over is not None or stop.asked or failures == MOST_FAILED
            writer.begin(record, state if state.round % limits.checkpoint_every == 0 or last else None)
            # on a network the next round tells its members what became of this one
            if last or folder is None or setup.remote or metrics["time/round_s"] > LONG_S:
                writer.settle()
            if failures == MOST_FAILED:
                raise RunFailedError(
                    f"{failures} rounds in a row failed; the last, round {metrics['round']}, by {metrics['failed']}"
                )
        writer.settle()
        result.interrupted = state.round < limits.rounds and result.over is None
        if not result.interrupted:
            state = _ended(setup, state, folder)
        elif folder is not None and state.round > folder.kept:  # told, but between checkpoints
            folder.checkpoint(state)
    if folder is not None:
        folder.close()
    result.table, result.home, result.held = state.table, state.home, state.held
    result.personal, result.book = state.personal, state.book
    _tell(observers, "on_end", result)
    return result
