"""Gathers the seeds of one experiment into a group, and finds which clients cheat or have which role.

Almost every chart and table starts here. :func:`group_runs` turns runs into one :class:`SeedGroup` for each experiment,
and :meth:`SeedGroup.curve` gives mean and deviation of a figure over the seeds. :func:`honest_of` and :func:`roles_of`
tell the clients of a run apart.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import read_text
from hanse.base.plain_text import quantity
from hanse.base.toml import flat
from hanse.reports.chart import Curve, Floats, Ints, even
from hanse.runs.run_record import SEEDS, RunRecord

CALLED = "called.txt"  # in a run directory: what a sweep calls the run's experiment
# what may differ between two runs of one experiment: the seeds, and how (not what) it computes
_APART = (*SEEDS, ("run", "checkpoint_every"), ("data", "path"), ("data", "download"), ("clients", "named"))


@dataclass(frozen=True)
class SeedCurve:
    """A figure over the rounds, averaged over seeds.

    Attributes:
        rounds: ``[n]``, from 0.
        mean: ``[n]``.
        sd: ``[n]``, the sample standard deviation over the seeds; None for a single run.
    """

    rounds: Ints
    mean: Floats
    sd: Floats | None

    def line(self, name: str, most: int, factor: float = 1.0, look: int | None = None) -> Curve:
        """Return the mean as a line over the rounds played (1, 2, ...), with a band of one standard deviation.

        Args:
            name: the line's name.
            most: how many points at most, evenly spaced.
            factor: the factor of the figure, such as 100 for percent.
            look: the number of the colour and dash. None: they follow from the order of the lines.
        """
        kept = even(len(self.rounds), most)
        x, mean = 1.0 + self.rounds[kept].astype(np.float64), self.mean[kept] * factor
        if self.sd is None:
            return Curve(name, x, mean, look=look)
        sd = self.sd[kept] * abs(factor)
        return Curve(name, x, mean, mean - sd, mean + sd, look)


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """The runs of one experiment, one for each seed.

    Attributes:
        label: the experiment's name: what a sweep calls it, or its mechanism, and what distinguishes it from the
            report's other experiments.
        runs: the experiment's runs, at least one.

    Examples:
        A group of one small run:

        >>> import hanse
        >>> from hanse.runs.run_record import load_run
        >>> from hanse.runs.rehearsal import rehearse
        >>> run = hanse.run(rehearse("greedyfed").experiment, out="small", overwrite=True)
        >>> group = SeedGroup("GreedyFed", (load_run("small"),))
        >>> group.curve("test/accuracy").mean.shape
        (3,)
    """

    label: str
    runs: tuple[RunRecord, ...]

    def curve(
        self, key: str, read: Callable[[RunRecord, str], tuple[Ints, Floats]] = RunRecord.series
    ) -> SeedCurve | None:
        """Return a figure's mean and deviation over the rounds in which all runs recorded it; None without such rounds.

        Runs that never recorded it do not count.

        Args:
            key: the figure, as in ``metrics.jsonl``.
            read: a function that returns a run's rounds ``[n]`` and figures ``[n]``. By default it returns what was
                recorded.
        """
        series = [read(run, key) for run in self.runs]
        series = [s for s in series if len(s[0])]
        if not series:
            return None
        rounds = series[0][0]
        for other, _ in series[1:]:
            rounds = np.intersect1d(rounds, other)
        if not len(rounds):
            return None
        values = np.stack([v[np.searchsorted(r, rounds)] for r, v in series])
        sd = values.std(axis=0, ddof=1) if len(series) > 1 else None
        return SeedCurve(rounds, values.mean(axis=0), sd)

    @property
    def same_clients(self) -> tuple[RunRecord, ...]:
        """The runs in which a client's number means the same client.

        These are all runs if the runs share the seed of the split, and only the first otherwise. For instance, figures
        of client 7 may be averaged only over runs in which it has the same data.
        """
        splits = {run.seeds[1] for run in self.runs}
        return self.runs if len(splits) == 1 else self.runs[:1]

    @property
    def seeds_text(self) -> str:
        """What the title of a chart by client adds: ", mean of 3 seeds", ", seed 0" of several splits, or ""."""
        many = len(self.same_clients)
        if many > 1:
            return f", mean of {quantity(many, 'seed')}"
        return f", seed {self.runs[0].seeds[0]}" if len(self.runs) > 1 else ""


def group_runs(runs: Sequence[RunRecord]) -> list[SeedGroup]:
    """Return runs gathered by experiment, in order of appearance; runs that differ only in their seeds are one.

    If runs agree even in their seeds, only the longest counts: they have the same numbers, and counting these twice
    would make the deviation too small.

    Args:
        runs: any runs.
    """
    found: dict[str, dict[tuple[Any, ...], RunRecord]] = {}
    for run in runs:
        seeds = found.setdefault(json.dumps(_without_seeds(run.config), sort_keys=True, default=str), {})
        if run.seeds not in seeds or len(run.metrics) > len(seeds[run.seeds].metrics):
            seeds[run.seeds] = run
    groups = [tuple(seeds.values()) for seeds in found.values()]
    labels = _labels([g[0] for g in groups])
    return [SeedGroup(label, runs) for label, runs in zip(labels, groups, strict=True)]


def different_settings(groups: Sequence[SeedGroup]) -> dict[str, list[str]]:
    """Return the settings in which experiments differ, by key ("data.clients"), with their values in order.

    Args:
        groups: the experiments.
    """
    settings = _compared([group.runs[0] for group in groups])
    keys = dict.fromkeys(key for one in settings for key in one)
    found = {key: list(dict.fromkeys(str(one.get(key, "none")) for one in settings)) for key in keys}
    return {key: values for key, values in found.items() if len(values) > 1}


def _labels(firsts: Sequence[RunRecord]) -> list[str]:
    """Return a label for each group's first run: what a sweep calls it, or its mechanism; and up to three settings.

    They are the settings in which it differs from other groups of the same name. Labels that are still the same get the
    run's name.
    """
    settings, names = _compared(firsts), [_called(run) for run in firsts]
    labels = []
    for name, mine in zip(names, settings, strict=True):
        rivals = [other for called, other in zip(names, settings, strict=True) if called == name]
        told = [f"{_short(key)}={mine.get(key, 'default')}" for key in _telling(mine, rivals)[:3]]
        labels.append(" ".join([name, *told]))
    twice = {label for label in labels if labels.count(label) > 1}
    return [f"{x} ({run.name})" if x in twice else x for x, run in zip(labels, firsts, strict=True)]


def _called(run: RunRecord) -> str:
    try:
        return " ".join(read_text(run.folder / CALLED, 1000).split())[:80] or run.mechanism
    except UserError:
        return run.mechanism


def _telling(mine: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings in which experiments of the same mechanism differ, the names of parts and models first.

    An option of a part counts only among the rivals that have the same part: where parts differ, their names say it.
    """

    def alike(key: str, rival: Mapping[str, Any]) -> bool:
        """Return whether a rival has the same named things above the key, such as the part whose option it is."""
        steps = key.split(".")
        owners = (".".join([*steps[:i], "name"]) for i in range(1, len(steps)))
        return all(mine.get(owner) == rival.get(owner) for owner in owners if owner != key)

    keys = sorted(set().union(*rivals), key=lambda key: (not key.endswith(".name"), key))
    return [k for k in keys if len({repr(r.get(k)) for r in rivals if alike(k, r)}) > 1]


def _short(key: str) -> str:
    """Return a setting's key without what every reader knows: "value" for "mechanism.value.name"."""
    return key.removeprefix("mechanism.").removesuffix(".name")


def _compared(runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return the settings of runs by key, without seeds, and without those of data in which they do not differ. Runs
    whose data are with their members are not asked: no setting names these.
    """
    found = [dict(flat(_without_seeds(run.config))) for run in runs]
    known = [one for one, run in zip(found, runs, strict=True) if not run.members]
    of_data = {key for one in found for key in one if key.startswith("data.")}
    alike = {key for key in of_data if len({str(one.get(key)) for one in known}) < 2}
    return [{key: value for key, value in one.items() if key not in alike} for one in found]


def _without_seeds(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment without the settings that may differ between its runs."""
    sections = {k: dict(v) if isinstance(v, Mapping) else v for k, v in config.items() if k != "engine"}
    for section, key in _APART:
        if isinstance(sections.get(section), dict):
            sections[section].pop(key, None)
    return sections


# ---- who is who: whom behaviours and policy make cheat, and the roles of profiles


def honest_of(run: RunRecord) -> Ints | None:
    """Return the numbers ``[n]`` of the clients that do not cheat; None if nobody cheats, or it is not known who."""
    cheats = {client for conduct in run.about.conducts if conduct.cheats for client in conduct.clients}
    honest = [client for client in range(run.num_clients) if client not in cheats]
    return np.array(honest, np.int64) if 0 < len(honest) < run.num_clients else None


def roles_of(run: RunRecord) -> Mapping[int, str]:
    """Return each client's role, as the run recorded it; "client" where it recorded none."""
    n, said = run.num_clients, run.about.roles or ()
    return dict.fromkeys(range(n), "client") | {c: role.name for role in said for c in role.clients if c < n}
