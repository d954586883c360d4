"""A run in Python (:class:`PlayedRun`), and the protocol of objects that watch one (:class:`Observer`).

``hanse.run`` and ``hanse.resume`` return a :class:`PlayedRun` (:mod:`hanse.runs.experiment`), and ``hanse.load`` reads
one from its directory. The progress bars and trackers of hanse are observers
(:mod:`hanse.runs.observers`). Your own observer needs no base class.

A run directory may come from a stranger. So :func:`load` imports nothing that its files name unless the caller trusts
them, and checks claimed sizes before memory is allocated. Reports need only a run's lines and arrays, not its models:
see :mod:`hanse.runs.run_record`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hanse.base.errors import UserError, gated, library
from hanse.base.factories import OBJECT
from hanse.base.files import MEMBERS, in_order
from hanse.base.imports import NOT_TRUSTED, is_looking, looking
from hanse.base.pytorch import Tensor, nn, torch
from hanse.core.book import Book
from hanse.core.table import SERVER, Table, mix
from hanse.core.telling import About
from hanse.data.samples import Inputs
from hanse.learning.job import Problem
from hanse.learning.losses import takes_one_output
from hanse.learning.models import MODELS, build_module, layout_of
from hanse.learning.modules import ByName, own_module
from hanse.runs.chance import Guess
from hanse.runs.checkpoint import CorruptCheckpointError, LoopState
from hanse.runs.checkpoint import load as load_checkpoint
from hanse.runs.config import Experiment
from hanse.runs.round import Played
from hanse.runs.round_record import SEATS, SHAPE
from hanse.runs.run_record import (
    OWN_TESTS,
    RunRecord,
    client_names,
    client_of,
    load_run,
    played_lines,
    read_shape,
    same_frozen,
)

if TYPE_CHECKING:
    import pandas as pd

    from hanse.runs.round_record import RoundRecord


class Observer(Protocol):
    """Watches a run.

    An observer is any object with one or more of these methods. It need not be a subclass. An exception in a method
    ends the run; rounds on the disk stay there.

    Examples:
        The calls that an observer gets, made by hand:

        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> class Prints:
        ...     def on_start(self, experiment, first_round, said):
        ...         print("from round", first_round)
        ...     def on_round(self, metrics, played):
        ...         print("round", metrics["round"], "seats", len(played.view.trained))
        ...     def on_end(self, result):
        ...         print("the end", result.interrupted)
        >>> small = rehearse("fedavg")
        >>> Prints().on_start(small.experiment, 0, [])
        from round 0
        >>> run = hanse.run(small.experiment, observers=[Prints()])
        from round 0
        round 0 seats 4
        round 1 seats 4
        round 2 seats 4
        the end False
    """

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """See the run before its first round.

        Args:
            experiment: the experiment with every default settled, as ``config.toml`` has it.
            first_round: the number of the first round that will be played. It is above 0 in a resumed run.
            said: lines on the engine that was chosen, and warnings.
        """

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """See a finished round once it is on the disk. The next one may already have been played.

        Args:
            metrics: the round's line of ``metrics.jsonl``, such as ``{"round": 0, "test/accuracy": 0.41, ..}``.
            played: everything decided in the round, including models and updates.
        """

    def on_end(self, result: PlayedRun) -> None:
        """See the finished or interrupted run. It is not called if the run raises."""


@dataclass
class PlayedRun:
    """A finished or interrupted run.

    Attributes:
        given: the experiment that was played, or why that of a loaded run is not read: see :attr:`experiment`.
        problem: the model as a module, and how rows become its parameters. None: the model of a loaded run cannot be
            made (see ``why_no_model``).
        metrics: one dictionary per round, the lines of ``metrics.jsonl``.
        clients: the lines of ``clients.jsonl``, one dictionary per seat: round, client, samples, loss, weight, value.
        table: the final models, one per row.
        home: ``[N]``, the row from which each client would start next.
        personal: ``[N, K]``, the weights with which each client mixes the table's rows into its personal model. None:
            there are no such models.
        book: the final balances, in units (a millionth of a token).
        tested: the last test of the clients on their own shares, arrays by name.
        tests: the tests of all rounds, by round, if the run has no directory. Otherwise they are files in it.
        worths: given by round if the run has no directory: the clients whose updates were valued ("answered" ``[S]``),
            and the values without each block of validation samples ("value_without_block" ``[S, B]``).
        about: descriptions of the mechanism's parts and of behaviours.
        guess: what a guess scores on the server's test set. None: not known.
        path: the run directory. None: there is none.
        said: lines on the chosen engine, and warnings, as observers got them at the start. It is empty for a loaded
            run.
        interrupted: whether the run was stopped early.
        over: why the run ended before its last round, for instance because a target accuracy was reached. None: it did
            not.
        names: ``[N]``, the clients' names in the data. Empty: they have only numbers.
        why_no_model: why :meth:`model` cannot return a model. Empty: it can.
        nothing: why the run has no result: no update was mixed in any round. None: it has one.
        held: ``[N]``, the row that each client holds, if it is not its home row. None: all clients hold their home
            rows.

    Examples:
        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> run = hanse.run(rehearse("greedyfed").experiment)
        >>> len(run.metrics), run.clients[0]["client"], type(run.model(0)).__name__
        (3, 0, 'Sequential')
    """

    given: Experiment | UserError
    problem: Problem | None
    metrics: list[dict[str, Any]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    table: Table = field(default_factory=lambda: Table.of(torch.zeros(0, 0)))
    home: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    personal: np.ndarray | None = None
    book: Book = field(default_factory=Book)
    tested: Mapping[str, np.ndarray] = field(default_factory=dict)
    tests: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    worths: dict[int, Mapping[str, np.ndarray]] = field(default_factory=dict)
    about: About = field(default_factory=About)
    guess: Guess | None = None
    path: Path | None = None
    interrupted: bool = False
    over: str | None = None
    names: tuple[str, ...] = ()
    why_no_model: str = ""
    held: np.ndarray | None = None
    nothing: str | None = None
    said: tuple[str, ...] = ()

    @property
    def experiment(self) -> Experiment:
        """The experiment that was played, with every default settled.

        Raises UserError if it names code of its own and the run was loaded without ``trust``.
        """
        if isinstance(self.given, UserError):
            raise self.given
        return self.given

    def model(self, client: int | str = 0) -> nn.Module:
        """Return the model that a client holds at the end, as a new PyTorch module, ready to predict (``eval()``).

        Args:
            client: the client's number or name.

        Raises:
            UserError: there is no such client; the run's models cannot be made; or, on a network, the client's own
                model was never sent.
        """
        if isinstance(client, str):
            client = client_of(client, self.names, "client")
        if not self.why_no_model and not 0 <= client < len(self.home):
            raise UserError(f"client {client}: no such client; this run has clients 0 to {len(self.home) - 1}")
        if self.why_no_model:
            raise UserError(self.why_no_model)
        # a client without weights (all 0) has not mixed a model of its own yet, and holds its row
        if self.personal is not None and client < len(self.personal) and self.personal[client].any():
            return self.model_of(mix(self.personal[[client]], self.table.rows[:0], self.table.rows)[0])
        row = int((self.home if self.held is None else self.held)[client])
        if self.table.owner[row] != SERVER and self._remote:
            raise UserError(f"client {client}: its model is its own and was never sent: it is with the participant")
        return self.model_of(self.table.rows[row])

    def hold(self, state: LoopState) -> None:
        """Take the models, homes and balances of a state, which is the last one."""
        self.table, self.home, self.held = state.table, state.home, state.held
        self.personal, self.book = state.personal, state.book

    def keep(self, record: RoundRecord) -> None:
        """Keep what a round found. Where there is a run directory, it lies there, and long runs keep nothing twice."""
        number, tested, worths = record.metrics["round"], record.tested.arrays, record.worths
        self.tested = tested or self.tested
        if self.path is None and tested:
            self.tests[number] = tested
        if self.path is None and worths:
            self.worths[number] = worths

    @property
    def _remote(self) -> bool:
        """Whether the clients were in other processes, where private rows stay."""
        return self.path is not None and (self.path / MEMBERS).is_file()

    def model_of(self, row: Tensor) -> nn.Module:
        """Return a row ``[P]`` of the table as a new PyTorch module in evaluation mode.

        In this mode dropout is off, and batch norm uses what it learned. Raises UserError if the run's models cannot be
        made.
        """
        if self.problem is None:
            raise UserError(self.why_no_model)
        module = copy.deepcopy(self.problem.module)
        self.problem.layout.load(module, row.cpu())
        return own_module(module).eval()

    def to_pandas(self) -> pd.DataFrame:
        """Return the metrics as a pandas DataFrame, a row per round. Raises UserError if pandas is not installed."""
        return _frame(self.metrics).set_index("round")

    def clients_to_pandas(self) -> pd.DataFrame:
        """Return the seats as a pandas DataFrame, one row per seat, with a column "name" if clients have names.

        If rounds should have had values and none has, there is a column "value" of NaN.

        Raises:
            UserError: pandas is not installed.
        """
        frame = _frame(self.clients)
        if self.names and "client" in frame:
            frame.insert(2, "name", [self.names[client] for client in frame["client"]])
        if "value" not in frame and any("gap" in line for line in self.metrics):
            frame["value"] = np.nan
        return frame


def _frame(lines: list[dict[str, Any]]) -> pd.DataFrame:
    """Return lines as a pandas DataFrame. Pandas is imported here because most runs need none."""
    pandas = library("pandas", "pandas is not installed; 'pip install pandas', or use Run.metrics as it is")
    frame: pd.DataFrame = pandas.DataFrame(lines)
    return frame


_WEIGHED = frozenset({"lora"})  # models that come with weights of their own, which cannot be counted before


def load(
    path: str | Path, *, model: nn.Module | Callable[..., nn.Module] | None = None, trust: bool = False
) -> PlayedRun:
    """Read the run in a directory and return it as :func:`hanse.run` did: metrics, seats, models, balances.

    Nothing is trained, written or locked, and the data are not needed. A run in progress is returned with its rounds so
    far. The models are those of the last checkpoint.

    Args:
        path: the run directory.
        model: the run's model, if it was given as an object or by an untrusted import path. It is a module of the same
            architecture, which is copied, or the function that makes one.
        trust: whether to import modules that the run's files name, which runs their code. Otherwise the run's tables
            can be read, and what needs such a module (:meth:`PlayedRun.model`, :attr:`PlayedRun.experiment`) is refused
            when you ask for it.

    Raises:
        UserError: ``path`` is not a run directory, has no finished round or is damaged; or ``model`` has another
            architecture.

    Examples:
        A run is read again, and the model of client 2 saved for use without hanse.

        >>> import tempfile, hanse
        >>> from pathlib import Path
        >>> from safetensors.torch import load_file, save_file
        >>> experiment = hanse.Experiment(
        ...     data={"source": "digits", "clients": 4}, mechanism="fedavg", train={"lr": 0.1}, run={"rounds": 3}
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     played = hanse.run(experiment, out=Path(folder, "run"))
        ...     again = hanse.load(Path(folder, "run"))
        ...     save_file(again.model(2).state_dict(), Path(folder, "model.safetensors"))
        ...     weights = load_file(Path(folder, "model.safetensors"))
        >>> tuple(weights["1.weight"].shape)  # 64 pixels to 50 hidden units
        (50, 64)
        >>> again.metrics == played.metrics
        True
    """
    record = load_run(path)
    folder = record.folder
    experiment: Experiment | UserError
    problem, why, state = None, "", last_state(folder)
    with looking(trust=trust):
        try:
            experiment = Experiment.read(folder / "config.toml")
            problem, why = _problem(folder, experiment, model, state)
        except UserError as wrong:
            experiment = UserError(*map(_in_python, wrong.lines))
            # what names code of its own is told when it is asked for: the tables of a run need none
            if not all(line.endswith(NOT_TRUSTED) for line in wrong.lines):
                raise experiment from None
            why = experiment.lines[0]
    # what was trained or tested is in the files; the state of the last checkpoint is added below
    run = PlayedRun(
        experiment, problem, [dict(line) for line in record.metrics], played_lines(folder, SEATS),
        path=folder, why_no_model=why, tested=_tests(record),
        over=record.ended_early, interrupted=record.unfinished,
    )  # fmt: skip
    if state is None:
        run.why_no_model = run.why_no_model or f"{folder}: has no checkpoint that can be read, so no models"
    else:
        run.hold(state)
    names = client_names(folder)
    run.names = tuple(names.get(c, str(c)) for c in range(len(run.home) or len(names))) if names else ()
    return run


def _in_python(line: str) -> str:
    """Return a line of an error with the command line's option in the words of Python."""
    return line.replace(NOT_TRUSTED, "hanse.load(..., trust=True) allows it")


def _problem(
    path: Path,
    experiment: Experiment,
    model: nn.Module | Callable[..., nn.Module] | None,
    state: LoopState | None,
) -> tuple[Problem | None, str]:
    """Return the template of the run's models, or None and a line that says why there is none."""

    def made(module: nn.Module) -> Problem:
        problem = Problem(module, layout_of(module, experiment.model.send))
        _same_size(path, state, problem.layout.size, repr(name) if model is None else "the module that was given")
        same_frozen(path, problem)
        return problem

    name = experiment.model.name
    if isinstance(model, nn.Module):
        shape, _ = read_shape(path / SHAPE)
        return made(ByName(model, shape) if isinstance(shape, Inputs) else model), ""
    if model is not None:
        return made(_built(path, experiment, model)), ""
    if name == OBJECT:
        what = (experiment.model.model_extra or {}).get("object", "?")
        return None, (
            f"{path}: its model was given as an object ({what}); give it again, as in hanse.load(..., model=Net())"
        )
    try:
        if name in _WEIGHED and is_looking():
            raise UserError(f"model.name: {name!r}: loads a base model that this run's files name; --trust allows it")
        if name in MODELS and name not in _WEIGHED:
            # first without memory, because how large it is may be a stranger's word
            with gated(f"{path}: the model {name!r} cannot be made"), torch.device("meta"):
                size = layout_of(_built(path, experiment, name), experiment.model.send).size
            _same_size(path, state, size, repr(name))
        return made(_built(path, experiment, name)), ""
    except UserError as wrong:
        return None, f"{_in_python(wrong.lines[0])}; or give the module, as in hanse.load(..., model=Net())"


def _same_size(path: Path, state: LoopState | None, size: int, what: str) -> None:
    """Raise UserError if a model has another number of parameters than those of the last checkpoint."""
    if state is not None and size != (width := state.table.rows.shape[1]):
        raise UserError(f"{path}: its models have {width:,} numbers, and {what} {size:,}: other architectures")


def _built(path: Path, experiment: Experiment, make: str | Callable[..., nn.Module]) -> nn.Module:
    """Return a module of the run's architecture by the name or the function that makes it."""
    shape, classes = read_shape(path / SHAPE)
    outputs = 1 if classes is not None and takes_one_output(experiment.train.loss) else classes
    options = {key: value for key, value in experiment.model.options.items() if key != "send"}
    return build_module(make, shape, outputs, experiment.run.seed, **options)


def last_state(path: Path) -> LoopState | None:
    """Return the state of the last intact checkpoint, or None if there is none.

    Raises:
        UserError: a checkpoint is of another version of hanse, or inconsistent.
    """
    # a run that goes on may be writing the newest one, and an earlier one is as good
    for file in reversed(in_order(path / "checkpoints", ".safetensors")):
        try:
            return load_checkpoint(file, torch.device("cpu")).state
        except CorruptCheckpointError:
            continue
    return None


def _tests(record: RunRecord) -> Mapping[str, Any]:
    """Return the last test of clients on their own shares, arrays by name; empty if there was none."""
    for line in reversed(record.metrics):
        if any(name.startswith("client/test_") for name in line):
            return record.arrays(line["round"], only=OWN_TESTS)
    return {}
