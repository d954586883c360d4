"""The seeds of one experiment gathered into a group, with means and deviations of its figures; and who is who in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import table
from hanse.base.toml import flat
from hanse.core.telling import HONEST
from hanse.federation.profiles import build_profiles
from hanse.reports.chart import Floats, Ints, Line, even
from hanse.runs.record import SEEDS, RunRecord

# what may differ between two runs of one experiment: the seeds, and how (not what) it computes
_APART = (*SEEDS, ("run", "checkpoint_every"), ("data", "path"), ("data", "download"), ("clients", "named"))


@dataclass(frozen=True)
class SeedCurve:
    """A figure over rounds: ``rounds [n]`` (0-based), ``mean [n]``, and the sample standard deviation over the seeds
    ``sd [n]``, None for a single run.
    """

    rounds: Ints
    mean: Floats
    sd: Floats | None

    def line(self, name: str, most: int, factor: float = 1.0, look: int | None = None) -> Line:
        """Return the mean as a line of at most ``most`` points over the rounds played (1, 2, ...), times ``factor``,
        with a band of one deviation up and down.
        """
        kept = even(len(self.rounds), most)
        x, mean = 1.0 + self.rounds[kept].astype(np.float64), self.mean[kept] * factor
        if self.sd is None:
            return Line(name, x, mean, look=look)
        sd = self.sd[kept] * abs(factor)
        return Line(name, x, mean, mean - sd, mean + sd, look)


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """The runs of one experiment, a seed each."""

    label: str
    runs: tuple[RunRecord, ...]

    def curve(
        self, key: str, read: Callable[[RunRecord, str], tuple[Ints, Floats]] = RunRecord.series
    ) -> SeedCurve | None:
        """Return mean and deviation over the rounds that all runs recorded; None if there is no such round.

        ``read`` gives a run's rounds ``[n]`` and figures ``[n]``.
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
        """The runs whose client 7 is the same client: all if the split has one seed, else only the first."""
        splits = {run.seeds[1] for run in self.runs}
        return self.runs if len(splits) == 1 else self.runs[:1]

    @property
    def seeds_text(self) -> str:
        """Which seeds a figure by client shows: ", mean of 3 seeds", or ", seed 0" of several splits; else nothing."""
        many = len(self.same_clients)
        if many > 1:
            return f", mean of {many} seeds"
        return f", seed {self.runs[0].seeds[0]}" if len(self.runs) > 1 else ""


def group_runs(runs: Sequence[RunRecord]) -> list[SeedGroup]:
    """Gather runs that differ only in their seeds, in order of appearance, and label the groups apart.

    Of runs that agree even in their seeds only the longest counts: it says the same thing, and counting it twice would
    make the deviation too small.
    """
    found: dict[str, dict[tuple[Any, ...], RunRecord]] = {}
    for run in runs:
        seeds = found.setdefault(json.dumps(_without_seeds(run.config), sort_keys=True, default=str), {})
        if run.seeds not in seeds or len(run.metrics) > len(seeds[run.seeds].metrics):
            seeds[run.seeds] = run
    groups = [tuple(seeds.values()) for seeds in found.values()]
    labels = _labels([g[0] for g in groups])
    return [SeedGroup(label, runs) for label, runs in zip(labels, groups, strict=True)]


def _labels(firsts: Sequence[RunRecord]) -> list[str]:
    """Return a label for each group's first run: its mechanism, and what sets it apart from others of the same name."""
    settings = [dict(flat(_without_seeds(run.config))) for run in firsts]
    labels = []
    for run, mine in zip(firsts, settings, strict=True):
        rivals = [s for r, s in zip(firsts, settings, strict=True) if r.mechanism == run.mechanism]
        told = [f"{_short(key)}={mine.get(key, 'default')}" for key in _telling(mine, rivals)[:3]]
        labels.append(" ".join([run.mechanism, *told]))
    twice = {label for label in labels if labels.count(label) > 1}
    return [f"{x} ({run.name})" if x in twice else x for x, run in zip(labels, firsts, strict=True)]


def _telling(mine: Mapping[str, Any], rivals: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys in which ``rivals`` differ from ``mine`` or one another: names of parts, models, ... first; an
    option only where the rivals whose part has the same name differ in it.
    """

    def alike(key: str, rival: Mapping[str, Any]) -> bool:
        steps = key.split(".")
        owners = (".".join([*steps[:i], "name"]) for i in range(1, len(steps)))
        return all(mine.get(owner) == rival.get(owner) for owner in owners if owner != key)

    keys = sorted(set().union(*rivals), key=lambda key: (not key.endswith(".name"), key))
    return [k for k in keys if len({repr(r.get(k)) for r in rivals if alike(k, r)}) > 1]


def _short(key: str) -> str:
    return key.removeprefix("mechanism.").removesuffix(".name")


def _without_seeds(config: Mapping[str, Any]) -> dict[str, Any]:
    sections = {k: dict(v) if isinstance(v, Mapping) else v for k, v in config.items() if k != "engine"}
    for section, key in _APART:
        if isinstance(sections.get(section), dict):
            sections[section].pop(key, None)
    return sections


# ---- who is who: what behaviours and policy make of clients, and the roles of their profiles


OTHERS = "the others"


def kinds_of(run: RunRecord, *, cheats: bool = False) -> dict[str, Ints]:
    """Return the ids of clients ``[n]`` by what the run's behaviours and policy make of them, the rest first: "honest"
    if somebody cheats, unless a behaviour calls it otherwise. Empty if all are alike.

    A client with several goes under the one of the lowest rank. ``cheats``: only those that cheat have a name.
    """
    n = run.num_clients
    told = [c for c in run.about.conducts if c.label and (c.cheats or not cheats)]
    taken, kinds = np.zeros(n, bool), dict[str, Ints]()
    for conduct in sorted(told, key=lambda c: c.rank):
        here = np.zeros(n, bool)
        here[[c for c in conduct.clients if c < n]] = True
        new = np.flatnonzero(here & ~taken)
        if len(new):
            kinds[conduct.label] = np.union1d(kinds.get(conduct.label, new), new)
        taken |= here
    rest = np.flatnonzero(~taken)
    if not kinds or not len(rest):
        return {}
    usual = HONEST if any(c.cheats for c in told) else OTHERS
    return {next((c.rest for c in told if c.rest and c.rest != HONEST), usual): rest} | kinds


def honest_of(run: RunRecord) -> Ints | None:
    """Return the ids ``[n]`` of the clients that do not cheat; None if nobody does, or if it is not known who."""
    kinds = kinds_of(run)
    if HONEST not in kinds:
        return None
    cheating = {c.label for c in run.about.conducts if c.cheats}
    return np.sort(np.concatenate([ids for name, ids in kinds.items() if name not in cheating]))


def roles_of(run: RunRecord) -> Mapping[int, str]:
    """Return the clients' roles, as the run's profiles name them; "client" where they name none."""
    try:
        return _roles(run)
    except UserError:  # the roles are only colours; the report says why they are missing
        return dict.fromkeys(range(run.num_clients), "client")


def unknown_roles(groups: Sequence[SeedGroup]) -> list[str]:
    """Return why the clients' roles are not known, a line for each experiment of which they are not."""
    found = []
    for run in (group.runs[0] for group in groups):
        try:
            _roles(run)
        except UserError as wrong:
            found.append(f"{run.name}: {wrong.lines[0]}")
    return found


def _roles(run: RunRecord) -> dict[int, str]:
    n, said = run.num_clients, run.about.roles
    if said is not None:
        return dict.fromkeys(range(n), "client") | {c: role.name for role in said for c in role.clients if c < n}
    given = table(run.config, "clients").get("profiles")
    profiles = build_profiles(given, n, table(run.config, "run").get("seed", 0))
    return {i: str(p.get("role", "client")) for i, p in enumerate(profiles)}
