"""The same experiment with every client by itself (:func:`train_alone`), which a statement compares with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hanse.base.errors import UserError
from hanse.base.factories import named_choice
from hanse.base.files import table
from hanse.data.choices import OBJECT
from hanse.runs.config import Experiment
from hanse.runs.run_record import RunRecord, load_run

if TYPE_CHECKING:
    from hanse.runs.experiment import Observer


APART = "only the participant can, on its own data"  # who trains alone in a run whose data are elsewhere
HERE = "alone"  # the folder inside a run directory where --train-alone leaves its run


def alone_experiment(experiment: Experiment) -> Experiment:
    """Return the same experiment with every client by itself (the mechanism ``local``).

    Data, model, training, tests, rounds and seed stay the same. Behaviours are left out: a client that sends nothing
    has nobody to cheat.

    Args:
        experiment: the experiment that the clients joined.

    Examples:
        >>> joined = Experiment(mechanism="greedyfed", run={"rounds": 5})
        >>> alone = alone_experiment(joined)
        >>> alone.mechanism.name, alone.run.rounds
        ('local', 5)
    """
    given = experiment.sections()
    keep = {name: given[name] for name in ("data", "model", "train", "eval")}
    engine = {"device": given["engine"]["device"], "precision": given["engine"]["precision"]}
    run = {name: given["run"][name] for name in ("rounds", "seed", "checkpoint_every")}
    return Experiment(**keep, mechanism={"name": "local"}, engine=engine, run=run)


def by_python(run: RunRecord) -> str:
    """Return the Python that plays a run with every client by itself; "" if the command line can do it.

    It is needed if the data or the model were objects of Python, which no file of the run has.

    Args:
        run: the run that the clients joined.
    """
    sections = (("data", "source"), ("model", "name"))
    data, model = (named_choice(table(run.config, section).get(key), "") == OBJECT for section, key in sections)
    if not data and not model:
        return ""
    return f"hanse.load({str(run.path)!r}{', model=...' * model}).alone({'data=...' * data})"


def train_alone(folder: Path, observers: Sequence[Observer] = ()) -> Path:
    """Train every client of a run by itself, and return the directory of that run, ``folder/alone``.

    If it is there already, an unfinished run is continued and a finished one stays as it is.

    Args:
        folder: the run directory of the federation.
        observers: watch the run, such as a progress bar.

    Raises:
        UserError: there is no run; its data or model were objects of Python; or it was a federation on a network, whose
            participants have the data.
    """
    from hanse.runs import experiment as running  # imported here, since most statements play nothing

    if not (folder / "config.toml").is_file():
        raise UserError(f"{folder}: is not a run directory (it has no config.toml)")
    if (folder / "members.json").exists():
        raise UserError(
            f"--train-alone: the data of {folder} are with its participants, who can train alone themselves"
        )
    place = folder / HERE
    if python := by_python(load_run(folder)):
        if (place / "config.toml").is_file() and not load_run(place).unfinished:
            return place
        raise UserError(
            f"--train-alone: {folder}: data or model were objects in Python, which can also play this: {python}"
        )
    experiment = alone_experiment(Experiment.read(folder / "config.toml"))
    if (place / "config.toml").is_file():
        running.resume(place, observers=observers)
    else:
        running.run(experiment, out=place, observers=observers)
    return place
