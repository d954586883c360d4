"""Runs an experiment: builds its objects, plays its rounds, writes the results.

:func:`run` and :func:`resume` are what users call, as ``hanse.run`` and ``hanse.resume``. Both build the experiment
(:mod:`hanse.runs.setup`), take the lock of the run directory, and play round after round (:func:`play_rounds`) until
the last one, a limit of ``[run]``, or Ctrl-C. :func:`run_remote` does the same with clients on a network, and
:func:`play` with a session that you already have.

In a simulation, a part that raises ends the run with a traceback. On a network a round cannot simply be replayed: a
failed one is undone and recorded as failed (:func:`attempt`), and the run continues; only several failed rounds in a
row end it.

Writing a run directory is mostly waiting for the disk, so a thread does it while the next round is played. No observer
hears of a round before it and its payments are on the disk. A round that cannot be written ends the run, and the round
played meanwhile is dropped.
"""

from __future__ import annotations

import logging
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, current_thread, main_thread
from types import FrameType
from typing import Any

import numpy as np

from hanse.base.errors import InPlaceError, MachineError, RunFailedError, UserError
from hanse.base.factories import MOST_COUNT, OBJECT
from hanse.base.files import given_path, going_on, on_network, read_toml, table, write_whole
from hanse.base.lock import Hold
from hanse.base.plain_text import quantity
from hanse.base.pytorch import nn
from hanse.core.part import Deployment
from hanse.core.port import Call, Federation, Request
from hanse.core.recipe import NEVER
from hanse.core.table import Seats
from hanse.data.federated import FederatedData
from hanse.learning.job import LOOP, NO_STEP
from hanse.learning.models import Factory
from hanse.learning.process import undisturbed
from hanse.learning.threads import intra_op
from hanse.ledger.note import PrivateKey
from hanse.ledger.receipts import AGREEMENT, close
from hanse.runs.chance import UNMOVED, nothing_mixed
from hanse.runs.checkpoint import LoopState, own_copy
from hanse.runs.config import Experiment
from hanse.runs.played_run import Observer, PlayedRun
from hanse.runs.recomputable import Commitment, audit_folder
from hanse.runs.round import Exchange, Played, failed_round, finish, first_state, play_round, port_of
from hanse.runs.round_record import METRICS, SEATS, RoundRecord
from hanse.runs.run_record import guess_of, nobody_trains_on, played_lines, same_frozen
from hanse.runs.rundir import RunDir, claim, settings_played
from hanse.runs.sections import RunSection
from hanse.runs.setup import Own, Session, build
from hanse.runs.testing import Figures, ask_tests, still_known, trained_models

log = logging.getLogger(__name__)

MOST_FAILED = 3  # rounds in a row that may fail before the run ends
LONGEST = 300  # characters of what was raised that are recorded
# seconds: a round that took longer is told before the next is played: who watches would wait for long, and writing is a
# small part of it
LONG_S = 1.0


@contextmanager
def interruptible(ours: bool) -> Iterator[Event]:
    """Handle Ctrl-C inside this block: the first sets the event, and the second raises KeyboardInterrupt at once.

    Outside the main thread signals cannot be handled, and the block changes nothing.

    Args:
        ours: whether this process may handle the signal. It is False in Flower's server apps, because Flower ends them
            with that signal.

    Yields:
        The event to look at after each round, so that no work is lost.
    """
    stop = Event()
    # Flower ends its server apps with the same signal, and must be able to; only the main thread can handle signals
    if not ours or current_thread() is not main_thread():
        yield stop
        return

    def ask(signum: int, frame: FrameType | None) -> None:
        """Note the first signal; a user who repeats it does not want to wait for the round."""
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    old = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, old)


def play_rounds(session: Session, state: LoopState, folder: RunDir | None, observers: Sequence[Observer]) -> PlayedRun:
    """Play the rounds that are left, and return the run with everything that it leaves.

    Args:
        session: what stays the same over the run.
        state: the state from which the run goes on.
        folder: the run directory. None: nothing is written.
        observers: objects that see every round.

    Raises:
        MachineError: a round could not be written. It is a RunFailedError after several failed rounds in a row.
    """
    experiment, limits, failures = session.experiment, session.experiment.run, 0
    first = state.table.rows if experiment.train.loop is not None and state.round == 0 else None
    notes = [f"warning: {line}" for line in (*session.data.warnings, *session.data.notes)]
    doubt = [f"warning: {session.data.doubt}"] if session.data.doubt else []
    run = PlayedRun(
        experiment, session.problem, table=state.table, home=state.home, names=session.data.names,
        about=session.about, guess=guess_of(session.data, session.problem), said=(*doubt, *session.said, *notes),
    )  # fmt: skip
    if folder is not None:
        run.path = folder.path
        run.metrics, run.clients = (played_lines(folder.path, name) for name in (METRICS, SEATS))
    lines = [*run.metrics]  # with those of a round that is being written
    tell(observers, "on_start", experiment, state.round, list(run.said))
    run.over = limits.over(lines)  # a resumed run has used up some of its limits already
    if state.left and experiment.clients.leaving.models == "anew":
        run.over = nobody_trains_on(state.round)
    writing = _Writing(run, folder, observers)
    # engines and games bring their own threads; for what lies between, one is robust next to busy neighbours
    with intra_op(1), interruptible(ours=not session.remote) as stop, writing.thread:
        while state.round < limits.rounds and run.over is None and not stop.is_set():
            try:
                record = attempt(session, state, lines)
            finally:
                # what an observer asks for in "settle" is about the round before, what was asked until here about this
                asked = stop.is_set()
                writing.settle()
            if stop.is_set() and not asked:
                break  # an observer of the round before ended the run there: this one does not count
            tell(observers, "on_played", record.played)  # hanse's own: what must not be lost if this is killed below
            state, metrics = record.played.state, record.metrics
            failures = failures + 1 if "failed" in metrics else 0
            run.keep(record)
            lines.append(metrics)
            run.over = limits.over(lines)
            last = state.round == limits.rounds or run.over is not None or stop.is_set() or failures == MOST_FAILED
            due = folder is not None and (last or state.round % limits.checkpoint_every == 0)
            # a part that writes into arrays of its old state must not write into a checkpoint
            writing.begin(record, own_copy(state) if due else None)
            # on a network the next round tells its members what became of this one
            if last or session.remote or metrics["time/round_s"] > LONG_S:
                writing.settle()
            if failures == MOST_FAILED:
                raise RunFailedError(
                    f"{failures} rounds in a row failed; the last, round {metrics['round']}, by {metrics['failed']}"
                )
            del record  # with all updates of the round, of which the next one has as many
        writing.settle()
        run.interrupted = state.round < limits.rounds and run.over is None
        if not run.interrupted:
            state = ended(session, state, folder)
        elif folder is not None and state.round > folder.kept:  # told, but between checkpoints
            folder.checkpoint(state)
    if folder is not None:
        # before "on_end", so observers find the whole directory
        folder.close()
    run.hold(state)
    run.nothing = nothing_mixed(run.metrics, ((s.get("refused"), s.get("weight")) for s in run.clients))
    if run.nothing is None and run.metrics and first is not None and first.equal(run.table.rows):
        run.nothing = UNMOVED
    tell(observers, "on_end", run)
    return run


class _Writing:
    """Writes a round in a thread while the next one is played, and tells observers of it once it is on the disk."""

    def __init__(self, run: PlayedRun, folder: RunDir | None, observers: Sequence[Observer]) -> None:
        self.run, self.folder, self.observers = run, folder, observers
        self.thread = ThreadPoolExecutor(1, "hanse-writer")  # starts when it has something to do
        self._begun: tuple[RoundRecord, Future[None]] | None = None

    def begin(self, record: RoundRecord, state: LoopState | None) -> None:
        """Begin to write a round, and a checkpoint of the state after it, if one is due; without a directory, tell of
        the round at once.
        """
        if self.folder is None:
            self._tell(record)
        else:
            self._begun = record, self.thread.submit(self.folder.append, record.filed(), state)

    def settle(self) -> None:
        """Wait until the round before is on the disk, and tell observers of it."""
        if self._begun is not None:
            (record, written), self._begun = self._begun, None
            written.result()  # what cannot be written is never told
            self._tell(record)

    def _tell(self, record: RoundRecord) -> None:
        """Add a round to the run, and tell observers of it."""
        self.run.metrics.append(record.metrics)
        self.run.clients.extend(record.seats)
        tell(self.observers, "on_round", record.metrics, record.played)


def tell(observers: Sequence[Observer], moment: str, *given: Any) -> None:
    """Call the method of this name on each observer that has it."""
    for observer in observers:
        if (method := getattr(observer, moment, None)) is not None:
            method(*given)


def attempt(session: Session, state: LoopState, before: Sequence[Mapping[str, Any]] = ()) -> RoundRecord:
    """Play a round, test the clients' models, close the round's books, and return the round's record.

    On a network, a round in which a part raises an exception is undone and recorded as failed; the traceback is logged.
    Errors of the network, of a part that wrote into what it was shown, and UserErrors propagate; one of the user's
    module names the round.

    Args:
        session: what stays the same over the run.
        state: the state before the round.
        before: the metrics of the rounds before it, by which it may be the last one.
    """
    begun, port = time.perf_counter(), port_of(session, state)
    ports = [port]  # the round's, and then that of its test
    tested, seconds, failed = Figures(), dict[str, float](), ""
    try:
        played = play_round(session, state, port)
        if state.round == 0 and not session.remote:
            _check_first(session, played)
        seconds["play"] = seconds["round"] = time.perf_counter() - begun
        spent = {"time/round_s": seconds["round"], "bytes/down": played.bytes_down, "bytes/up": played.bytes_up}
        experiment, number = session.experiment, played.state.round
        over = number == experiment.run.rounds or experiment.run.over([*before, spent]) is not None
        due = over or number % experiment.eval.every == 0
        ports.append(replace(port_of(session, played.state), answers=None))
        tested = _test(session, state, played, ports[1], due)
        seconds["test"] = time.perf_counter() - begun - seconds["play"]
        seconds["round"] += seconds["test"] if due else 0.0  # without a test a limit finds it as it was asked of above
        personal = played.state.personal if tested.personal is None else tested.personal
        after = replace(played.state, personal=personal, on_server=tested.on_server)
        played = replace(played, state=after)
    except UserError as wrong:
        if wrong.__cause__ is None or "round" in str(wrong):
            raise
        raise UserError(*(f"round {state.round}: {line}" for line in wrong.lines)) from wrong.__cause__
    except Exception as wrong:
        if not session.remote or isinstance(wrong, InPlaceError) or any(one.lost for one in ports):
            raise
        log.exception("round %d failed and is undone", state.round)
        failed = " ".join(f"{type(wrong).__name__}: {wrong}".split())[:LONGEST]
        client, start = (np.array([pair[i] for pair in port.sat], np.int64) for i in (0, 1))
        played = failed_round(session, state, port.roster, Seats.at(client, start), f"the round failed: {failed}")
        played = replace(played, bytes_down=sum(p.down for p in ports), bytes_up=sum(p.up for p in ports))
        tested, seconds = Figures(), {"round": time.perf_counter() - begun}
    record = RoundRecord.of(played, tested, seconds, None if failed else port.answers)
    if failed:
        record.metrics["failed"] = failed
    if session.agreement:
        record.metrics[AGREEMENT] = session.agreement
    return record.closed() if session.books else record


def _check_first(session: Session, played: Played) -> None:
    """Raise UserError if no client of the first round could train: it will not be otherwise in any later round.

    On a network, loops and data are the participants' own. Where clients misbehave or a rule refuses updates, the next
    round may differ. A loop that makes no step may do so for some clients; a run of nothing else ends with that reason.
    """
    seats, reasons, experiment = played.view.seats, dict(played.view.refusals), session.experiment
    seated = set() if seats is None else set(seats.client.tolist())
    if not reasons or not reasons.keys() >= seated or any(NO_STEP in why for why in reasons.values()):
        return
    why = Counter(reasons.values()).most_common(1)[0][0]
    if why.startswith(LOOP):
        raise UserError(f"train.loop: {why.removeprefix(f'{LOOP} ')}; no client of the first round was trained")
    if seated and not experiment.behaviour and experiment.federation.refuse is None:
        raise UserError(f"round {played.view.round}: no update counts, so no later round can differ: {why}")


def _test(session: Session, before: LoopState, played: Played, port: Exchange, due: bool) -> Figures:
    """Return what the round's test found; if no test is due, only what is still known of the one before."""
    state = played.state
    known = still_known(before.on_server, before.table, state.table)
    if not due:
        return Figures(on_server=known)
    held = played.view.deployment or Deployment(state.home)
    trained = {}
    if session.experiment.eval.model == "trained" and played.view.updates is not None:
        trained = trained_models(played.view.updates, held)
    return ask_tests(session, port, state, held, trained, known)


def ended(session: Session, state: LoopState, folder: RunDir | None) -> LoopState:
    """Settle what the last round left open and tell the owners of private rows; return the state after it."""
    if session.pays and not state.finished:
        port = port_of(session, state)
        last = finish(session, state, port)
        view, closing = last.view, close(last.view.round, last.view.book, last.view.posted)
        state = replace(last.state, book=view.book.post(view.round, [closing]))
        if folder is not None:
            if port.answers is not None:
                folder.keep(state.round, port.answers.packed())
            folder.owe(state.round, (*view.posted, closing))
            folder.checkpoint(state)
    if folder is not None:  # also after a restart between these two
        folder.receipts()
    owners = np.unique(state.table.owner[np.flatnonzero(state.moved != NEVER)])
    if session.remote and len(owners):  # whether their last updates were accepted
        port = port_of(session, state)
        here = np.intersect1d(port.present(state.round).ids, owners).tolist()
        port.exchange(Call(state.round, [Request(c, ()) for c in here]))
    return state


__all__ = ["Observer", "PlayedRun", "play", "resume", "run", "run_remote"]


def _watching(observers: Sequence[Any], progress: bool, label: str) -> Sequence[Any]:
    """Return the observers, with a progress bar on standard error before them if that is asked for.

    Raises UserError for one that would never be told anything, most likely because its method is misspelt.
    """
    moments = ("on_start", "on_round", "on_end")
    if not isinstance(observers, Sequence):
        raise UserError(f"observers: {observers!r:.80}: must be a list of objects")
    for observer in observers:
        if not any(callable(getattr(observer, moment, None)) for moment in moments):
            raise UserError(f"observers: {observer!r}: has none of the methods {', '.join(moments)}")
    if not progress:
        return observers
    from hanse.runs.observers import ProgressBar, errors  # here: most runs from Python show nothing

    return [ProgressBar(errors(), label), *observers]


@undisturbed()
def run(
    experiment: Experiment | str | Path,
    *,
    data: Any = None,
    model: nn.Module | Factory | None = None,
    out: str | Path | None = None,
    value: bool | str | Mapping[str, Any] = False,
    observers: Sequence[Any] = (),
    overwrite: bool = False,
    progress: bool = False,
) -> PlayedRun:
    """Run an experiment and return the result.

    Args:
        experiment: an :class:`Experiment`, or the path of a TOML file.
        data: samples to use instead of ``data.source``. They are a :class:`hanse.data.Dataset`, a pandas DataFrame,
            arrays ``(x, y)`` or ``(x, y, clients)``, a PyTorch or Hugging Face data set, or a dictionary of these by
            client (:mod:`hanse.data.own`).
        model: a model to use instead of ``model.name``: a module, whose weights are where training starts, or a
            function ``(input_shape, num_classes, **options)`` that returns a module.
        out: the run directory to create, for resuming, reports and reading the run again. None: nothing is written.
        value: whether updates are valued. True: by path values (``mechanism.value = "path"``), unless the mechanism
            values them already. A name or a table replaces ``mechanism.value``.
        observers: objects that see every round (:class:`Observer`).
        overwrite: whether an earlier run in ``out`` may be deleted.
        progress: show a bar on standard error with the round, the accuracy and the time left.

    Returns:
        The :class:`PlayedRun`. After Ctrl-C, it is ``interrupted`` and has the rounds so far.

    Raises:
        UserError: the experiment cannot be run, or ``out`` is taken. All mistakes are reported together, before round
            0.
        MachineError: the machine failed, such as a full disk. Rounds that were written stay and can be resumed.

    What fails before the first round is finished leaves no directory behind.

    Examples:
        Four clients train on handwritten digits and every update gets its exact Shapley value. Client 3 sends the
        opposite of what it learned, so its values sum to less than zero.

        >>> import hanse
        >>> experiment = hanse.Experiment(
        ...     data={"source": "digits", "clients": 4, "partition": "iid"},
        ...     mechanism={"name": "fedavg", "select": "everyone", "value": "exact"},
        ...     train={"epochs": 5, "batch_size": 8, "lr": 0.1},
        ...     behaviour={"attacker": {"clients": [3], "kind": "flip"}},
        ...     run={"rounds": 5},
        ... )
        >>> result = hanse.run(experiment)
        >>> round(result.metrics[-1]["test/accuracy"], 1)
        0.9
        >>> [round(sum(seat["value"] for seat in result.clients if seat["client"] == c)) for c in range(4)]
        [1, 2, 2, -3]
        >>> type(result.model(0)).__name__  # the model that client 0 holds
        'Sequential'
    """
    experiment = _valued(_read(experiment), value)
    if out is not None and experiment.run.rounds == 0:
        raise UserError("run.rounds: 0: must be at least 1 for a run with a run directory")
    observers = _watching(observers, progress, experiment.mechanism.name)
    own = Own(data, model)
    if out is None:
        return play(build(experiment, own=own), observers)
    with Hold(given_path("out", out)) as hold:
        claim(hold, overwrite=overwrite)
        return play(build(experiment, own=own), observers, hold, overwrite=overwrite)


def _read(experiment: Experiment | str | Path) -> Experiment:
    """Return an experiment, read if it is the path of a file. Raises UserError for anything else."""
    if not isinstance(experiment, Experiment | str | Path):
        raise UserError(
            f"experiment: {type(experiment).__name__}: must be a hanse.Experiment, which has the sections of an "
            "experiment's file as arguments, or the path of such a file"
        )
    return experiment if isinstance(experiment, Experiment) else Experiment.read(experiment)


def _valued(experiment: Experiment, value: bool | str | Mapping[str, Any]) -> Experiment:
    """Return the experiment with updates valued as :func:`run` was told. Raises UserError for anything else."""
    if not isinstance(value, bool | str | Mapping):
        raise UserError(f"value: {value!r}: must be True, False, or a part's name or table, as for mechanism.value")
    if value is False or (value is True and experiment.mechanism.built.value is not None):
        return experiment
    section = experiment.mechanism
    part = "path" if value is True else value
    mechanism = type(section)(**{**section.table, "value": part})
    mechanism._said = section._said
    _ = mechanism.built  # raises for a part that does not exist
    return experiment.model_copy(update={"mechanism": mechanism})


@undisturbed()
def resume(
    path: str | Path,
    *,
    data: Any = None,
    model: nn.Module | Factory | None = None,
    observers: Sequence[Any] = (),
    other_data: bool = False,
    rounds: int | None = None,
    progress: bool = False,
) -> PlayedRun:
    """Continue the run in a directory from its last intact checkpoint, and return the whole run. The result equals that
    of an uninterrupted run, bit for bit.

    Args:
        path: the run directory.
        data: the data again, if the run was given them as an object.
        model: the model again, if the run was given it as an object. Its weights are then those of the checkpoint.
        observers: objects that see every remaining round.
        other_data: whether to continue even if the data have changed. This is recorded.
        rounds: the total number of rounds to continue to, which is recorded in ``config.toml``. The result is that of a
            run that was planned for so many rounds, except perhaps for a test after the old last round. A note then
            says so.
        progress: show a bar on standard error.

    Raises:
        UserError: it is not a run directory, or belongs to a federation on a network or to a Flower app; another
            process is playing the run; data, model or settings are not the run's; or ``rounds`` is impossible (fewer
            than were played, or the last one was already settled).
        MachineError: the machine failed, such as a full disk.

    Examples:
        A run of two rounds, continued to three, equals a run of three from the start.

        >>> import tempfile, hanse
        >>> from pathlib import Path
        >>> digits = {"source": "digits", "clients": 4}
        >>> short = hanse.Experiment(data=digits, mechanism="fedavg", run={"rounds": 2})
        >>> whole = hanse.Experiment(data=digits, mechanism="fedavg", run={"rounds": 3})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     first = hanse.run(short, out=Path(folder, "run"))
        ...     longer = hanse.resume(Path(folder, "run"), rounds=3)
        >>> len(first.metrics), len(longer.metrics)
        (2, 3)
        >>> bool((longer.table.rows == hanse.run(whole).table.rows).all())
        True
    """
    path = given_path("path", path)
    observers = _watching(observers, progress, path.name)
    if (path / "network.json").exists():
        raise UserError(f"{path}: is a project of a network; 'hanse network run {path}' goes on with its run")
    if not (path / "config.toml").exists():
        raise UserError(f"{path}: is not a run directory (it has no config.toml)")
    if on_network(path):
        raise UserError(
            f"{path}: is the run of a federation on a network, whose data are with its participants; "
            f"'{going_on(path)}' goes on with it"
        )
    experiment = Experiment.read(path / "config.toml")
    if "flower" in experiment.mechanism.table:
        raise UserError(f"{path}: is the run of a Flower app, which hanse recorded: start the app again instead")
    if rounds is not None:
        experiment = _longer(path, experiment, rounds)
    own = Own(data, model)
    with Hold(path) as hold:
        hold.take()
        _same_objects(path, experiment, own)
        session = build(experiment, own=own)
        before, now = (one.model.model_extra or {} for one in (experiment, session.experiment))
        if experiment.model.name == OBJECT and before.get("fingerprint") != now.get("fingerprint"):
            raise UserError(
                f"{path}: was played with another model: {before.get('object')}, fingerprint "
                f"{before.get('fingerprint')}; model is {now.get('object')}, fingerprint {now.get('fingerprint')}"
            )
        return play(session, observers, hold, again=True, other_data=other_data)


def _longer(path: Path, experiment: Experiment, rounds: int) -> Experiment:
    """Return the experiment with this many rounds. Raises UserError if they are fewer than were played."""
    played = len(played_lines(path, METRICS))
    if isinstance(rounds, bool) or not isinstance(rounds, int) or not played <= rounds <= MOST_COUNT:
        raise UserError(f"--rounds {rounds}: must be a whole number, at least the {quantity(played, 'round')} played")
    section = RunSection(**{**experiment.run.model_dump(), "rounds": rounds})
    return experiment.model_copy(update={"run": section})


def _written_longer(folder: Path, experiment: Experiment) -> list[str]:
    """Let ``config.toml`` say how many rounds are played from now on, and return lines to tell of it."""
    file = folder / "config.toml"
    planned, rounds = table(read_toml(file), "run").get("rounds"), experiment.run.rounds
    if not isinstance(planned, int) or planned == rounds:
        return []
    write_whole(file, settings_played(folder, experiment))
    notes = [f"note: {rounds} rounds instead of {planned}; config.toml says so from now on"]
    if planned % experiment.eval.every and any(line["round"] == planned - 1 for line in played_lines(folder, METRICS)):
        notes.append(f"note: round {planned} was tested as the last one, which a run of {rounds} rounds would not do")
    return notes


def _same_objects(path: Path, experiment: Experiment, own: Own) -> None:
    """Raise UserError for an object that is given on resume though the run was played without it."""
    for key, given, name in (
        ("data.source", own.data, experiment.data.source.name),
        ("model.name", own.model, experiment.model.name),
    ):
        if given is not None and name != OBJECT:
            raise UserError(f"{path}: was played with {key} = '{name}', not with an object; leave the object out")


@undisturbed()
def run_remote(
    experiment: Experiment,
    data: FederatedData,
    federation: Federation,
    *,
    hold: Hold,
    observers: Sequence[Any] = (),
    other_data: bool = False,
    key: PrivateKey | None = None,
    agreement: str = "",
) -> PlayedRun:
    """Run an experiment with clients behind another federation, or continue it if its directory exists. This combines
    :func:`run` and :func:`resume`, because a server on a network is restarted by starting it again.

    Args:
        experiment: what to play.
        data: what the server knows of the data: its own sets, the shape of samples, and each client's reported size.
        federation: the port to the clients.
        hold: the right (a lock) to write into the run directory. This function acquires it.
        observers: objects that see every round.
        other_data: allow server sets that differ from those of earlier rounds.
        key: the operator's key, which signs the heads of the ledger. None: they are not signed.
        agreement: the hash of what the clients agreed to, which stands in each round's record and statements.

    Raises:
        UserError: the experiment cannot be run on a network, or does not fit the directory.
        MachineError: the machine or the network failed. It is a RunFailedError after several failed rounds in a row.
    """
    session = build(experiment, data, federation=federation, agreement=agreement)
    again = (hold.folder / "config.toml").exists()
    return play(session, observers, hold, again=again, other_data=other_data, key=key)


def play(
    session: Session,
    observers: Sequence[Observer],
    hold: Hold | None = None,
    *,
    again: bool = False,
    overwrite: bool = False,
    other_data: bool = False,
    key: PrivateKey | None = None,
) -> PlayedRun:
    """Play the rounds of a session: all, or those that are left.

    Args:
        session: what is played. It is closed at the end.
        observers: objects that see every round.
        hold: the right (a lock) to write into the run directory. None: nothing is written.
        again: whether the run in that directory goes on from its last sound checkpoint (or from the start). If not, the
            directory is made.
        overwrite: whether an earlier run in that directory may be deleted.
        other_data: whether a run may go on although its data have changed.
        key: the operator's key, which signs the heads of the ledger. None: they are not signed.

    Raises:
        MachineError: the machine failed. The directory stays as it is, to be resumed.
    """
    with closing(session.engine):
        state, said = first_state(session), [*session.said]
        if hold is None:
            if session.recomputable:
                raise UserError("run.recomputable: true: needs a run directory: give out (--out)")
            return play_rounds(session, state, None, observers)
        snapshot, lines = None, list[str]()
        if again:
            hold.take()
            same_frozen(hold.folder, session.problem)
            folder, snapshot, lines = RunDir.reopen(session, hold, other_data=other_data, key=key)
        else:
            folder = RunDir.create(session, hold, overwrite=overwrite, key=key)
        with closing(folder):
            try:
                if again:  # the file changes only once the directory has proved sound
                    said += _written_longer(hold.folder, session.experiment)
                if snapshot is not None:
                    _same_parts(hold.folder, state, snapshot.state)
                    state = snapshot.state
                    said = [*dict.fromkeys([*said, *_accounts(session, state)])]
                elif session.recomputable:  # the commitment is the first line of its books
                    line = Commitment.read(folder.path).transaction()
                    folder.owe(0, [line])
                    state = replace(state, book=state.book.post(0, [line]))
                    said.append(f"note: {audit_folder(hold.folder)} is for an auditor alone")
                return play_rounds(replace(session, said=[*said, *lines]), state, folder, observers)
            except Exception as wrong:
                # an error of a part or of the user in the first round: nothing is lost, and the next try finds the
                # place free
                if folder.is_new and not again and not isinstance(wrong, MachineError):
                    folder.discard()
                raise


def _accounts(session: Session, state: LoopState) -> list[str]:
    """Go on from the clients' accounts in a checkpoint, and return warnings. Raises UserError if they do not fit."""
    if session.accounts is None and state.accounts is not None:
        raise UserError("federation.private: is missing: clients began this run with privacy accounts, and keep them")
    guards, sizes = session.guards.values(), session.data.sizes
    return [line for guard in guards for line in guard.resumed(state.accounts, state.round, sizes)]


def _same_parts(folder: Path, first: LoopState, kept: LoopState) -> None:
    """Raise UserError if a part's kept state lacks something that the part starts with in this version of hanse."""
    for slot, state in first.states.items():
        lacking = sorted(state.keys() - kept.states.get(slot, {}).keys())
        if lacking:
            raise UserError(
                f"{folder}: the state of its {slot} part has no {', '.join(lacking)}: another version of hanse wrote "
                "it; go on in the version that environment.json names, or play its config.toml again with 'hanse run'"
            )
