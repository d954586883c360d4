"""The same experiment with every client by itself: found (:func:`find_alone`) or played (:func:`train_alone`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hanse.base.errors import UserError
from hanse.base.factories import OBJECT, named_choice
from hanse.base.files import read_toml, table
from hanse.runs.run_record import RunRecord, load_run

if TYPE_CHECKING:
    from hanse.runs.config import Experiment
    from hanse.runs.experiment import Observer, PlayedRun


ALONE = "local"  # the mechanism of clients that train alone
_SAME = ("data", "model", "train")  # what both runs must share, or the difference is not that of joining
HERE = "alone"  # the folder inside a run directory where --train-alone leaves its run
# what plays a member of a network by itself, where its table is, with the rehearsal that all have
THERE = "hanse run rehearsal.toml --set mechanism=local --set 'data.source.files=[\"own.csv\"]'"


def alone_experiment(experiment: Experiment) -> Experiment:
    """Return the same experiment with every client by itself (the mechanism ``local``).

    Data, model, training, tests, rounds and seed stay the same. Behaviours are left out: a client that sends nothing
    has nobody to cheat.

    Args:
        experiment: the experiment that the clients joined.

    Examples:
        >>> from hanse import Experiment
        >>> joined = Experiment(mechanism="greedyfed", run={"rounds": 5})
        >>> alone = alone_experiment(joined)
        >>> alone.mechanism.name, alone.run.rounds
        ('local', 5)
    """
    given = experiment.sections()
    keep = {name: given[name] for name in ("data", "model", "train", "eval")}
    engine = {"device": given["engine"]["device"], "precision": given["engine"]["precision"]}
    run = {name: given["run"][name] for name in ("rounds", "seed", "checkpoint_every")}
    return type(experiment)(**keep, mechanism={"name": ALONE}, engine=engine, run=run)


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
    if run.path is None:
        return "run.alone()"
    return f"hanse.load({str(run.path)!r}{', model=...' * model}).alone({'data=...' * data})"


def play_alone(experiment: Experiment, place: Path | None, *, data: Any = None, **how: Any) -> PlayedRun:
    """Play an experiment with every client alone, or go on with that run if it is there, and return it.

    Args:
        experiment: the experiment that the clients joined.
        place: the run directory. None: it is not kept.
        data: the data, if they were given as an object.
        how: other arguments that :func:`hanse.run` and :func:`hanse.resume` share.
    """
    from hanse.runs import experiment as running  # imported here, since most statements play nothing

    if place is not None and (place / "config.toml").is_file():
        own = data if experiment.data.source.name == OBJECT else None
        return running.resume(place, data=own, rounds=experiment.run.rounds, **how)
    return running.run(alone_experiment(experiment), data=data, out=place, **how)


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
    from hanse.runs.config import Experiment  # imported here, since most statements play nothing

    place, run = folder / HERE, load_run(folder)
    if (folder / "members.json").exists():
        raise UserError(f"--train-alone: the data of {folder} are with participants, who can train alone themselves")
    if python := by_python(run):
        found = find_alone(run)
        if found is not None and found.path == place and not found.unfinished:
            return place
        raise UserError(
            f"--train-alone: {folder}: data or model were objects in Python, which can also play this: {python}"
        )
    play_alone(Experiment.read(folder / "config.toml"), place, observers=observers)
    return place


def given_alone(run: RunRecord, given: Sequence[RunRecord]) -> RunRecord | None:
    """Return that of some runs of single clients which is the same experiment, one with the same seeds first, or None.

    Args:
        run: the run that the clients joined, or one of single clients, for which there is none.
        given: the runs of single clients.
    """
    if run.mechanism == ALONE:
        return None
    by_seeds = sorted(given, key=lambda other: other.seeds != run.seeds)
    return next((other for other in by_seeds if _alike(run.config, other.config)), None)


def find_alone(run: RunRecord) -> RunRecord | None:
    """Return a run of the same clients by themselves: from the folder "alone" of the run, or from next to it.

    It must have the same data, model, training and number of rounds, and at least one finished round. If there are
    several, the first by name is used.

    Args:
        run: the run.
    """
    if run.mechanism == ALONE or run.path is None:
        return None
    # glob passes over folders that this user may not read
    beside = sorted(run.path.resolve().parent.glob("*/config.toml"))
    for file in (run.path / HERE / "config.toml", *beside):
        try:
            if _alike(run.config, read_toml(file)):
                return load_run(file.parent)
        except UserError:  # damaged, or without a round: another run's fault must not cost this run its statement
            continue
    return None


def _alike(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    """Return whether an experiment is another's of single clients: as long, and the data's files may be elsewhere."""

    def known(config: Mapping[str, Any], name: str) -> dict[str, Any]:
        return {key: one for key, one in table(config, name).items() if key not in ("path", "download")}

    as_long = table(ours, "run").get("rounds") == table(theirs, "run").get("rounds")
    lone = table(theirs, "mechanism").get("name") == ALONE
    return lone and as_long and all(known(ours, name) == known(theirs, name) for name in _SAME)
