"""Plays an experiment again with every client by itself, for statements to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from hanse.base.errors import UserError
from hanse.reports.statement_accuracy import HERE
from hanse.runs import experiment as running
from hanse.runs.config import Experiment
from hanse.runs.experiment import Observer

__all__ = ["alone_experiment", "train_alone"]


def alone_experiment(experiment: Experiment) -> Experiment:
    """Return the same experiment with the mechanism ``local`` and honest clients: nothing is sent, so nobody cheats."""
    given = experiment.sections()
    keep = {name: given[name] for name in ("data", "model", "train", "eval")}
    engine = {"device": given["engine"]["device"], "precision": given["engine"]["precision"]}
    run = {name: given["run"][name] for name in ("rounds", "seed", "checkpoint_every")}
    return Experiment(**keep, mechanism={"name": "local"}, engine=engine, run=run)


def train_alone(folder: Path, observers: Sequence[Observer] = ()) -> Path:
    """Train every client of the run in ``folder`` by itself, into ``folder/alone``, and return that folder.

    It goes on with an unfinished one, and leaves a finished one as it is. Raises UserError: no run, or a federation on
    a network, whose data are not here.
    """
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
