"""Runs an experiment: builds its objects, plays its rounds, writes the results.

:func:`run` and :func:`resume` are what users call, as ``hanse.run`` and ``hanse.resume``. Both build the experiment
(:mod:`hanse.runs.setup`), take the lock of the run directory, and play round after round (:mod:`hanse.runs.play`)
until the last one, a limit of ``[run]``, or Ctrl-C. :func:`run_remote` does the same with clients on a network, and
:func:`play` with a session that you already have.

Engines for clients in other processes register as entry points "hanse.engines", so this module imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from hanse.base.errors import MachineError, UserError, library
from hanse.base.factories import OBJECT
from hanse.base.files import going_on, on_network, read_toml, table, write_whole
from hanse.base.lock import Hold
from hanse.core.port import Federation
from hanse.data.federated import FederatedData
from hanse.learning.models import Factory
from hanse.learning.process import undisturbed
from hanse.runs.config import Experiment
from hanse.runs.play import play_rounds
from hanse.runs.played_run import Observer, PlayedRun
from hanse.runs.recomputable import Commitment, audit_folder
from hanse.runs.round import LoopState, first_state
from hanse.runs.round_record import METRICS
from hanse.runs.run_record import played_lines
from hanse.runs.rundir import RunDir, claim
from hanse.runs.sections import RunSection
from hanse.runs.session import Session
from hanse.runs.setup import Own, build
from hanse.runs.shape import same_frozen

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["Observer", "PlayedRun", "play", "resume", "run", "run_remote"]

NEEDS_RAY = "federation.engine: 'ray': needs Flower and Ray; pip install '.[ray]' in a clone of hanse"


def _check(observers: Sequence[Observer]) -> None:
    """Raise UserError for an observer that would never be told anything, most likely because its method is misspelt."""
    moments = ("on_start", "on_round", "on_end")
    for observer in observers:
        if not any(callable(getattr(observer, moment, None)) for moment in moments):
            raise UserError(f"observers: {observer!r}: has none of the methods {', '.join(moments)}")


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
    _check(observers)
    experiment = _valued(_read(experiment), value)
    if out is not None and experiment.run.rounds == 0:
        raise UserError("run.rounds: 0: must be at least 1 for a run with a run directory")
    observers = _watching(observers, progress, experiment.mechanism.name)
    own = Own(data, model)
    if experiment.federation.engine != "local":
        _refuse_objects(experiment, own)
        return _engine(experiment)(experiment, out=out, observers=observers, overwrite=overwrite)
    if out is None:
        return play(build(experiment, own=own), observers)
    with Hold(Path(out)) as hold:
        claim(hold, overwrite=overwrite)
        return play(build(experiment, own=own), observers, hold, overwrite)


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
        UserError: it is not a run directory, or belongs to a federation on a network; another process is playing the
            run; data, model or settings are not the run's; or ``rounds`` is impossible (fewer than were played, or the
            last one was already settled).
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
    _check(observers)
    path = Path(path)
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
    if rounds is not None:
        experiment = _longer(path, experiment, rounds)
    own = Own(data, model)
    if experiment.federation.engine != "local":
        _refuse_objects(experiment, own)
        return _engine(experiment)(experiment, out=path, observers=observers, again=True, other_data=other_data)
    with Hold(path) as hold:
        hold.take()
        _same_objects(path, experiment, own)
        session = build(experiment, own=own)
        _same_model(path, experiment, session.experiment)
        return _from_a_checkpoint(session, observers, hold, other_data)


def _longer(path: Path, experiment: Experiment, rounds: int) -> Experiment:
    """Return the experiment with this many rounds. Raises UserError if they are fewer than were played."""
    played = len(played_lines(path, METRICS))
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < played:
        raise UserError(f"--rounds {rounds}: must be a whole number, at least the {played} rounds already played")
    section = RunSection(**{**experiment.run.model_dump(), "rounds": rounds})
    longer: Experiment = experiment.model_copy(update={"run": section})
    return longer


def _written_longer(folder: Path, experiment: Experiment) -> list[str]:
    """Let ``config.toml`` say how many rounds are played from now on, and return lines to tell of it."""
    file = folder / "config.toml"
    planned, rounds = table(read_toml(file), "run").get("rounds"), experiment.run.rounds
    if not isinstance(planned, int) or planned == rounds:
        return []
    write_whole(file, experiment.to_toml())
    notes = [f"note: {rounds} rounds instead of {planned}; config.toml says so from now on"]
    if planned % experiment.eval.every and any(line["round"] == planned - 1 for line in played_lines(folder, METRICS)):
        notes.append(
            f"note: round {planned} was tested as the last one, which a run of {rounds} rounds would not have done"
        )
    return notes


def _watching(observers: Sequence[Any], progress: bool, label: str) -> Sequence[Any]:
    """Return the observers, with a progress bar on standard error before them if that is asked for."""
    if not progress:
        return observers
    from hanse.runs.observers import ProgressBar, errors  # here: most runs from Python show nothing

    return [ProgressBar(errors(), label), *observers]


def _refuse_objects(experiment: Experiment, own: Own) -> None:
    """Raise UserError for data or a model given as objects of this process where clients are in others."""
    for key, given in (("data", own.data), ("model", own.model)):
        if given is not None:
            raise UserError(
                f"{key}: an object of this process, and federation.engine = '{experiment.federation.engine}' plays in "
                f"others: name an import path as {'data.source' if key == 'data' else 'model.name'}, or take 'local'"
            )


def _same_objects(path: Path, experiment: Experiment, own: Own) -> None:
    """Raise UserError for an object that is given on resume though the run was played without it."""
    for key, given, name in (
        ("data.source", own.data, experiment.data.source.name),
        ("model.name", own.model, experiment.model.name),
    ):
        if given is not None and name != OBJECT:
            raise UserError(f"{path}: was played with {key} = '{name}', not with an object; leave the object out")


def _same_model(path: Path, experiment: Experiment, now: Experiment) -> None:
    """Raise UserError if the model that is given as an object has another structure than that of the run."""
    before, given = (e.model.model_extra or {} for e in (experiment, now))
    if experiment.model.name == OBJECT and before.get("fingerprint") != given.get("fingerprint"):
        raise UserError(
            f"{path}: was played with another model: {before.get('object')}, fingerprint {before.get('fingerprint')}; "
            f"model is {given.get('object')}, fingerprint {given.get('fingerprint')}"
        )


def _engine(experiment: Experiment) -> Callable[..., PlayedRun]:
    """Return what plays an experiment with clients elsewhere, a function like :func:`run`.

    Raises:
        UserError: no engine of this name is installed, or a library that it needs is not.
    """
    name = experiment.federation.engine
    engines = entry_points(group="hanse.engines", name=name)
    if not engines:
        raise UserError(f"federation.engine: '{name}': is not installed here; reinstall hanse, or take 'local'")
    if name == "ray":
        library("flwr", NEEDS_RAY)
    play: Callable[..., PlayedRun] = next(iter(engines)).load()
    return play


@undisturbed()
def run_remote(
    experiment: Experiment,
    data: FederatedData,
    federation: Federation,
    *,
    hold: Hold,
    observers: Sequence[Any] = (),
    other_data: bool = False,
    key: Ed25519PrivateKey | None = None,
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
    if (hold.folder / "config.toml").exists():
        return _from_a_checkpoint(session, observers, hold, other_data, key)
    return play(session, observers, hold, key=key)


def play(
    session: Session,
    observers: Sequence[Observer],
    hold: Hold | None = None,
    overwrite: bool = False,
    key: Ed25519PrivateKey | None = None,
) -> PlayedRun:
    """Play all rounds of a session.

    Args:
        session: what is played. It is closed at the end.
        observers: objects that see every round.
        hold: the right (a lock) to write into the run directory that will be made. None: nothing is written.
        overwrite: whether an earlier run in that directory may be deleted.
        key: the operator's key, which signs the heads of the ledger. None: they are not signed.

    Raises:
        MachineError: the machine failed. The directory stays as it is, to be resumed.
    """
    with closing(session.engine):
        state = first_state(session)
        if hold is None:
            if session.kept:
                raise UserError("run.recomputable: true: needs a run directory: give out (--out)")
            return play_rounds(session, state, None, observers)
        folder = RunDir.create(session, hold, overwrite=overwrite, key=key)
        with closing(folder):
            try:
                if session.kept:
                    state = _begun(state, folder)
                    note = f"note: {audit_folder(hold.folder)} is for an auditor alone"
                    session = replace(session, said=[*session.said, note])
                return play_rounds(session, state, folder, observers)
            except MachineError:
                raise
            except Exception:
                # an error of a part or of the user in the first round: nothing is lost, and the next try finds the
                # place free
                if folder.is_new:
                    folder.discard()
                raise


def _begun(state: LoopState, folder: RunDir) -> LoopState:
    """Return the state before the first round with the commitment as the first line of its books."""
    line = Commitment.read(folder.path).transaction()
    folder.owe(0, [line])
    return replace(state, book=state.book.post(0, [line]))


def _from_a_checkpoint(
    session: Session, observers: Sequence[Observer], hold: Hold, other_data: bool, key: Ed25519PrivateKey | None = None
) -> PlayedRun:
    """Play the rounds that are left of the run in a directory, from its last sound checkpoint (or from the start)."""
    experiment, said = session.experiment, session.said
    hold.take()
    same_frozen(hold.folder, session.problem)
    with closing(session.engine):
        folder, snapshot, lines = RunDir.reopen(session, hold, other_data=other_data, key=key)
        with closing(folder):
            # the file changes only once the directory has proved sound
            said = [*said, *_written_longer(hold.folder, experiment)]
            state = first_state(session)
            if snapshot is not None:
                _same_parts(hold.folder, state, snapshot.state)
                state = snapshot.state
                if session.of_guards("accounts") is None and state.accounts is not None:
                    raise UserError(
                        "federation.private: is missing: clients began this run with privacy accounts, and keep them"
                    )
                guards, sizes = session.guards.values(), session.data.sizes
                spent = [line for guard in guards for line in guard.resumed(state.accounts, state.round, sizes)]
                said = [*dict.fromkeys([*said, *spent])]
            elif session.kept:
                state = _begun(state, folder)
            told = ("corrupt checkpoint", "no sound checkpoint", "warning: ", "note: ")
            said += [line if line.startswith(told) else f"warning: {line}" for line in lines]
            return play_rounds(replace(session, said=said), state, folder, observers)


def _same_parts(folder: Path, first: LoopState, kept: LoopState) -> None:
    """Raise UserError if a part's kept state lacks something that the part starts with in this version of hanse."""
    for slot, state in first.states.items():
        lacking = sorted(state.keys() - kept.states.get(slot, {}).keys())
        if lacking:
            raise UserError(
                f"{folder}: the state of its {slot} part has no {', '.join(lacking)}: another version of hanse wrote "
                "it; go on in the version that environment.json names, or play its config.toml again with 'hanse run'"
            )
