"""Reads a run from its directory, without training, without its data, and without running code that its files name.

:func:`load` (``hanse.load``) is for Python; :func:`last_state` is for code that needs the loop's state. Reports need
only a run's lines and arrays, not its models: see :mod:`hanse.runs.run_record`.

A run directory may come from a stranger. So nothing that its files name is imported unless the caller trusts them, and
claimed sizes are checked before memory is allocated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hanse.base.errors import NOT_TRUSTED, UserError, first_line
from hanse.base.factories import OBJECT
from hanse.base.import_trust import is_looking, looking
from hanse.data.samples import Inputs
from hanse.learning.by_name import ByName
from hanse.learning.job import Problem
from hanse.learning.losses import takes_one_output
from hanse.learning.models import MODELS, build_module, layout_of
from hanse.runs.checkpoint import CorruptCheckpointError
from hanse.runs.checkpoint import load as load_checkpoint
from hanse.runs.config import Experiment
from hanse.runs.names import client_names
from hanse.runs.played_run import PlayedRun
from hanse.runs.recorded_seats import OWN_TESTS
from hanse.runs.round import LoopState
from hanse.runs.round_record import METRICS, SEATS, SHAPE
from hanse.runs.run_record import RunRecord, load_run, played_lines
from hanse.runs.shape import read_shape, same_frozen

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
            can be read, and what needs such a module (:meth:`Run.model`, :attr:`Run.experiment`) is refused when you
            ask for it.

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
    experiment: Experiment | UserError
    problem, why = None, ""
    with looking(trust=trust):
        try:
            experiment = Experiment.read(record.path / "config.toml")
            problem, why = _problem(record.path, experiment, model)
        except UserError as wrong:
            experiment = UserError(*map(_in_python, wrong.lines))
            # what names code of its own is told when it is asked for: the tables of a run need none
            if not all(line.endswith(NOT_TRUSTED) for line in wrong.lines):
                raise experiment from None
            why = experiment.lines[0]
    metrics, seats = (played_lines(record.path, name) for name in (METRICS, SEATS))
    # what was trained or tested is in the files; the state of the last checkpoint is added below
    run = PlayedRun(
        experiment,
        problem,
        metrics,
        seats,
        path=record.path,
        why_no_model=why,
        tested=_tests(record),
        names=record.names,
    )
    state = last_state(record.path)
    if state is None:
        run.why_no_model = run.why_no_model or f"{record.path}: has no checkpoint that can be read, so no models"
    else:
        run.table, run.home, run.held = state.table, state.home, state.held
        run.personal, run.book = state.personal, state.book
    names = client_names(record.path)
    run.names = tuple(names.get(c, str(c)) for c in range(len(run.home) or len(names))) if names else ()
    run.over, run.interrupted = record.ended_early, record.unfinished
    if problem is not None and state is not None and state.table.rows.shape[1] != problem.layout.size:
        raise UserError(
            f"{record.path}: its models have {state.table.rows.shape[1]:,} numbers, and "
            f"{'the module that was given' if model is not None else repr(run.experiment.model.name)} has "
            f"{problem.layout.size:,}: must be of the same architecture"
        )
    return run


def _in_python(line: str) -> str:
    """Return a line of an error with the command line's option in the words of Python."""
    return line.replace(NOT_TRUSTED, "hanse.load(..., trust=True) allows it")


def _problem(
    path: Path, experiment: Experiment, model: nn.Module | Callable[..., nn.Module] | None
) -> tuple[Problem | None, str]:
    """Return the template of the run's models, or None and a line that says why there is none."""

    def made(module: nn.Module) -> Problem:
        problem = Problem(module, layout_of(module, experiment.model.send))
        same_frozen(path, problem)
        return problem

    if isinstance(model, nn.Module):
        shape, _ = read_shape(path / SHAPE)
        return made(ByName(model, shape) if isinstance(shape, Inputs) else model), ""
    if model is not None:
        return made(build_module(model, *_made_for(path, experiment), experiment.run.seed, **_options(experiment))), ""
    if experiment.model.name == OBJECT:
        what = (experiment.model.model_extra or {}).get("object", "?")
        return None, (
            f"{path}: its model was given as an object ({what}); give it again, as in hanse.load(..., model=Net())"
        )
    try:
        return made(_module(path, experiment)), ""
    except UserError as wrong:
        return None, f"{_in_python(wrong.lines[0])}; or give the module, as in hanse.load(..., model=Net())"


def _module(path: Path, experiment: Experiment) -> nn.Module:
    """Return a module of the run's architecture.

    It is first made without memory (on PyTorch's "meta" device) and its size compared with the checkpoint's, because
    how large it is may be a stranger's word.
    """
    name, send = experiment.model.name, experiment.model.send
    shape, classes = _made_for(path, experiment)
    if name in _WEIGHED and is_looking():
        raise UserError(f"model.name: {name!r}: loads a base model that this run's files name; --trust allows it")
    if name in MODELS and name not in _WEIGHED:
        try:
            with torch.device("meta"):
                size = layout_of(build_module(name, shape, classes, 0, **_options(experiment)), send).size
        except (RuntimeError, OverflowError) as wrong:
            raise UserError(f"{path}: the model {name!r} cannot be made: {first_line(wrong)}") from None
        state = last_state(path)
        if state is not None and size != state.table.rows.shape[1]:
            raise UserError(f"{path}: its models have {state.table.rows.shape[1]:,} numbers, and {name!r} {size:,}")
    return build_module(name, shape, classes, experiment.run.seed, **_options(experiment))


def _options(experiment: Experiment) -> dict[str, Any]:
    """Return the options with which the run's model was made."""
    return {key: value for key, value in experiment.model.options.items() if key != "send"}


def _made_for(path: Path, experiment: Experiment) -> tuple[Any, int | None]:
    """Return the shape of a sample, and the number of outputs that the model was made for.

    That is the number of classes, but 1 if the loss takes one output; None for regression.
    """
    shape, classes = read_shape(path / SHAPE)
    return shape, 1 if classes is not None and takes_one_output(experiment.train.loss) else classes


def last_state(path: Path) -> LoopState | None:
    """Return the state of the last intact checkpoint, or None if there is none.

    Raises:
        UserError: a checkpoint is of another version of hanse, or inconsistent.
    """
    # a run that goes on may be writing the newest one, and an earlier one is as good
    for file in sorted((path / "checkpoints").glob("*.safetensors"), reverse=True):
        try:
            return load_checkpoint(file, torch.device("cpu")).state
        except CorruptCheckpointError:
            continue
        except (KeyError, ValueError, TypeError, AttributeError) as wrong:
            if isinstance(wrong, UserError):
                raise
            raise UserError(f"{file}: cannot be read: {type(wrong).__name__}: {wrong}") from None
    return None


def _tests(record: RunRecord) -> Mapping[str, Any]:
    """Return the last test of clients on their own shares, arrays by name; empty if there was none."""
    for line in reversed(record.metrics):
        if any(name.startswith("client/test_") for name in line):
            return record.arrays(line["round"], only=OWN_TESTS)
    return {}
