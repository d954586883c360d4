"""Whether the others do better without a client: the same experiment trained anew without it, in pairs.

:func:`retrain` plays the pairs (``hanse report DIR --retrain``) and keeps them in the run directory, :func:`harms_of`
reads them. Only these say *harmful*: a value says what a step added, and a sum below zero is at most a suspicion.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import MEMBERS, read_json, table, write_whole
from hanse.base.plain_text import quantity
from hanse.games.jackknife import SURE, interval_errors, t_quantile
from hanse.reports.alone import by_python
from hanse.runs.run_record import RunRecord, load_run

if TYPE_CHECKING:
    from hanse.core.table import Floats, Ints, Table
    from hanse.runs.config import Experiment
    from hanse.runs.round import Played

STARTS = 5  # pairs of trainings, which differ in their seeds: with fewer nobody is called harmful
LEAST = 0.02  # of what training gained: less than that also comes of leaving out any other client
HERE = "without"  # the folder in a run directory that keeps them
MOST = 20  # clients that are all left out in turn; of more the user names some
_JUDGED = "judged.json"  # in each of these runs: how good its first and its last models are, by block of samples


@dataclass(frozen=True)
class Without:
    """How the others do without a client. All figures are in the run's utility, above 0: better without it.

    Attributes:
        mean: the mean difference over the starts.
        low: the lower end of its 95 % interval, for other starts and other validation samples.
        high: the upper end.
        starts: how many pairs of trainings there are.
        harmful: whether, with at least five starts, ``low`` is above 2 % of what training with all clients gains, and
            so is the difference on the middle one of the classes. Where leaving out a client helps with few classes
            alone, it only gives more weight to their owners.
    """

    mean: float
    low: float
    high: float
    starts: int
    harmful: bool


def without(experiment: Experiment, client: int | None, start: int) -> Experiment:
    """Return an experiment with another seed, in which one client never takes part.

    The split of the data stays as it was.

    Args:
        experiment: the experiment that was played.
        client: the number of the client. None: all take part.
        start: the number that is added to ``run.seed``.

    Raises:
        UserError: the experiment has clients that join and clients that leave, which leaves no way to keep one away.

    Examples:
        >>> from hanse import Experiment
        >>> played = Experiment(mechanism="fedavg", run={"rounds": 5})
        >>> apart = without(played, 3, start=1).sections()
        >>> apart["behaviour"]["leaver"], apart["run"]["seed"]
        ({'clients': [3], 'at': 0}, 1)
    """
    given = experiment.sections()
    rounds, acts = given["run"]["rounds"], given["behaviour"]
    if client is not None:
        ways = {"leaver": {"clients": [client], "at": 0}, "joiner": {"clients": [client], "at": rounds}}
        free = next((name for name in ways if name not in acts), None)
        if free is None:
            raise UserError("--retrain: the experiment has clients that join and that leave: none can be kept away")
        acts = {**acts, free: ways[free]}
    run = {**given["run"], "seed": given["run"]["seed"] + start}
    return type(experiment)(**{**given, "behaviour": acts, "run": run, "eval": {**given["eval"], "every": rounds}})


def retrain(
    dirs: Sequence[Path],
    left_out: Sequence[str] = (),
    starts: int = STARTS,
    observers: Callable[[str], Sequence[Any]] = lambda label: (),
) -> None:
    """Train a run's experiment anew with all clients and without each of some, and keep what came of it.

    A pair that is there is not trained again.

    Args:
        dirs: the run directory, one.
        left_out: the numbers or names of the clients that are left out in turn. Empty: all, if there are at most 20.
        starts: how often, each time with another seed.
        observers: returns what watches one training, such as a progress bar, from what it is called.

    Raises:
        UserError: the data are with participants on a network or were given in Python, the server has no validation
            samples to judge by, there is no such client, or there are too many.
    """
    from hanse.runs import experiment as running  # late: most reports play nothing
    from hanse.runs.config import Experiment

    if len(dirs) > 1:
        raise UserError("--retrain: goes with one run")
    folder = dirs[0]
    run = load_run(folder)
    if (folder / MEMBERS).exists():
        raise UserError(
            f"--retrain: the data of {folder} are with its participants; only a rehearsal on data like theirs can tell"
        )
    if by_python(run):
        raise UserError(
            f"--retrain: {folder}: data or model were objects in Python: name both in the experiment's file"
        )
    clients = [run.client_of(name, "--without") for name in left_out]
    if not clients and run.num_clients > MOST:
        raise UserError(f"--retrain: {quantity(run.num_clients, 'client')}: name those to leave out, as in --without 3")
    if wrong := [client for client in clients if not 0 <= client < run.num_clients]:
        raise UserError(f"--without {wrong[0]}: no such client; this run has clients 0 to {run.num_clients - 1}")
    experiment = Experiment.read(folder / "config.toml")
    players = [None, *(clients or range(run.num_clients))]
    for start in range(starts):
        for number, client in enumerate(players):
            place = folder / HERE / f"start-{start}" / ("all" if client is None else f"client-{client}")
            if (place / _JUDGED).is_file():
                continue
            judged = _Judged()
            watching = observers(f"start {start + 1} of {starts}, {number} of {len(players) - 1} left out")
            played = running.run(
                without(experiment, client, start), out=place, observers=[*watching, judged], overwrite=True
            )
            if played.interrupted:
                raise UserError(f"--retrain: stopped; the same command goes on with training {number} of this start")
            write_whole(place / _JUDGED, json.dumps(judged.judged()))


class _Judged:
    """An observer that keeps the models before the first round and after the last, to be judged."""

    def __init__(self) -> None:
        self._models: dict[str, tuple[Table, Ints]] = {}

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Keep the models. Raises UserError if there is nothing to judge them by."""
        from hanse.runs.server_judge import ServerJudge

        judge = played.view.judge
        if not isinstance(judge, ServerJudge) or judge.validation is None:
            raise UserError("--retrain: the server has no validation samples to judge by (data.validation)")
        self._judge, self._samples = judge, judge.validation
        first = self._models.get("first", (played.view.table, played.view.home))
        self._models = {"first": first, "last": (played.state.table, played.state.home)}

    def judged(self) -> dict[str, Any]:
        """Return how good both are, on blocks of the validation samples and on each class."""
        import torch

        from hanse.learning.intervals import sample_blocks
        from hanse.runs.server_judge import by_class

        judge, samples = self._judge, self._samples
        blocks = sample_blocks(len(samples), samples.units)
        found: dict[str, Any] = {"shares": [len(block) / len(samples) for block in blocks]}
        parts = {"blocks": blocks, "classes": by_class(judge.problem, samples)}
        for (when, (rows, home)), (of, index) in product(self._models.items(), parts.items()):
            which, held = np.unique(home, return_counts=True)
            scores = judge.engine.score_each(rows.rows[torch.from_numpy(which)], samples, index)
            for key, sign in (("loss", -1.0), ("accuracy", 1.0)):
                means = [sign * float(np.average(getattr(one, key), weights=held)) for one in scores]
                found[f"{when}_{key}_{of}"] = [None if math.isnan(mean) else mean for mean in means]
        return found


def harms_of(run: RunRecord) -> Mapping[int, Without]:
    """Return how the others do without each client that was left out, as the server's validation samples show.

    A model counts as often as clients hold it. The figure is the accuracy if ``mechanism.value.utility`` says so, else
    the loss.

    Args:
        run: the run.
    """
    value = table(run.config, "mechanism").get("value")
    accuracy = isinstance(value, Mapping) and value.get("utility") == "accuracy"
    key = "accuracy" if accuracy else "loss"
    places = [] if run.path is None else sorted((run.path / HERE).glob(f"start-*/*/{_JUDGED}"))
    read = {(place.parent.parent.name, place.parent.name): read_json(place) for place in places}
    pairs: dict[int, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}
    for (start, name), judged in read.items():
        client, everybody = re.fullmatch(r"client-(\d+)", name), read.get((start, "all"))
        if client is not None and everybody is not None:
            pairs.setdefault(int(client[1]), []).append((judged, everybody))
    return {client: _without(found, key) for client, found in pairs.items() if len(found) > 1}


def _without(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], key: str) -> Without:
    """Return the comparison over some starts.

    The samples are the same for all starts, so their error is that of the mean difference.

    Args:
        pairs: for each start, the figures without the client and those with all.
        key: "loss" or "accuracy".
    """

    def columns(of: int, when: str, parts: str) -> Floats:
        return np.array([pair[of][f"{when}_{key}_{parts}"] for pair in pairs], np.float64)

    many, shares = len(pairs), np.array(pairs[0][1]["shares"], np.float64)
    apart = columns(0, "last", "blocks") - columns(1, "last", "blocks")
    gain = float(((columns(1, "last", "blocks") - columns(1, "first", "blocks")) @ shares).mean())
    classes = (columns(0, "last", "classes") - columns(1, "last", "classes")).mean(axis=0)
    each, blocks = apart @ shares, apart.mean(axis=0)
    drawn = SURE * float(interval_errors((shares @ blocks - shares * blocks) / (1 - shares)))
    half = math.hypot(t_quantile(many - 1) * float(each.std(ddof=1)) / math.sqrt(many), drawn)
    mean, least = float(each.mean()), max(0.0, LEAST * gain)
    harmful = many >= STARTS and mean - half > least and float(np.median(classes)) > least
    return Without(mean, mean - half, mean + half, many, harmful)
