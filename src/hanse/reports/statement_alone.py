"""The same experiment with every client by itself (:func:`train_alone`), which a statement compares with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hanse.base.errors import UserError
from hanse.runs.config import Experiment

if TYPE_CHECKING:
    from hanse.runs.experiment import Observer


HERE = "alone"  # the folder inside a run directory where --train-alone leaves its run


def alone_experiment(experiment: Experiment) -> Experiment:
    """Return the same experiment with every client by itself (the mechanism ``local``).

    Data, model, training, tests, rounds and seed stay. Behaviours are left out: a client that sends nothing has nobody
    to cheat.

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


def train_alone(folder: Path, observers: Sequence[Observer] = ()) -> Path:
    """Train every client of a run by itself, and return the directory of that run, ``folder/alone``.

    If it is there already, an unfinished run is continued and a finished one stays as it is.

    Args:
        folder: the run directory of the federation.
        observers: watch the run, such as a progress bar.

    Raises:
        UserError: there is no run, or it was a federation on a network, whose data are with the participants.
    """
    from hanse.runs import experiment as running  # imported here, since most statements play nothing

    if not (folder / "config.toml").is_file():
        raise UserError(f"{folder}: is not a run directory (it has no config.toml)")
    if (folder / "members.json").exists():
        raise UserError(
            f"--train-alone: the data of {folder} are with its participants, who can train alone themselves"
        )
    experiment = alone_experiment(Experiment.read(folder / "config.toml"))
    place = folder / HERE
    if (place / "config.toml").is_file():
        running.resume(place, observers=observers)
    else:
        running.run(experiment, out=place, observers=observers)
    return place
