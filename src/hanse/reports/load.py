"""Reads run directories: one run, its seats as arrays, and the seeds of one experiment gathered into a group."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.files import CLIENTS, is_count, json_lines, read_arrays, read_json, read_toml, run_folder
from hanse.base.files import table as _section
from hanse.base.toml import flat
from hanse.core.about import About, read_about
from hanse.reports.chart import Floats, Ints
from hanse.runs.config import ClientsSection

__all__ = ["Curve", "Group", "LoadedRun", "Seats", "group_runs", "is_number", "load_run", "load_runs"]

# what may differ between two runs of one experiment: the seeds, and how (not what) it computes
_SEEDS = (("run", "seed"), ("data", "seed"))
_APART = (*_SEEDS, ("run", "checkpoint_every"), ("data", "path"), ("data", "download"), ("clients", "named"))


@dataclass(frozen=True)
class Seats:
    """All seats of a run, a column each, ``[S]`` in order of rounds: ``value`` and its standard errors are NaN where
    there is none, ``error`` from the sampling of coalitions and ``drawn`` from the draw of the validation samples,
    ``exact`` the exact value where the run computed it beside an estimate, ``score`` is the client's cumulative value
    after the round as the mechanism keeps it.
    """

    round: Ints
    client: Ints
    value: Floats
    error: Floats
    drawn: Floats
    exact: Floats
    score: Floats


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run directory in memory. ``metrics`` has a dictionary a round, ``clients`` one a seat. ``ledger_url`` is where
    the user says that its books are; None: in the directory.
    """

    path: Path
    name: str
    label: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    clients: Sequence[Mapping[str, Any]]
    ledger_url: str | None = None

    @property
    def mechanism(self) -> str:
        """The mechanism's name, or the last word of its import path."""
        return str(_section(self.config, "mechanism").get("name", "?")).rpartition(":")[2]

    @property
    def seeds(self) -> tuple[Any, ...]:
        """The seed of the run and the seed of the split."""
        return tuple(_section(self.config, section).get(key, 0) for section, key in _SEEDS)

    @property
    def rounds_planned(self) -> int:
        """The number of rounds that the experiment asked for."""
        rounds = _section(self.config, "run").get("rounds")
        return rounds if isinstance(rounds, int) else len(self.metrics)

    @property
    def grant(self) -> float:
        """What a new client got, in tokens."""
        given = _section(self.config, "clients").get("grant")
        return float(given) if is_number(given) else ClientsSection().grant

    @property
    def num_clients(self) -> int:
        """The number of registered clients; at least as many as ever had a seat."""
        data = _section(self.config, "data")
        registered = 1 if data.get("partition") == "pooled" else len(self.members) or data.get("clients")
        return max(registered if isinstance(registered, int) else 0, int(self.seats.client.max(initial=-1)) + 1)

    @cached_property
    def members(self) -> Mapping[int, Mapping[str, Any]]:
        """The register of a federation on a network, by client; empty for a simulation. Raises UserError."""
        file = self.path / "members.json"
        if not file.is_file():
            return {}
        listed = read_json(file)
        whole = isinstance(listed, list) and all(
            isinstance(m, dict) and is_count(m.get("id"), "client") for m in listed
        )
        if not whole:
            raise UserError(f"{file}: cannot be read: must be a list of members, each with its number as 'id'")
        return {member["id"]: member for member in listed}

    @cached_property
    def about(self) -> About:
        """What the run's parts and behaviours say of themselves, as recorded; what built-in ones would have said, of a
        run from before they did. Raises UserError.
        """
        said = read_about(self.path)
        if said is None:
            from hanse.reports.older import older  # here: the parts take a while to import, and few runs need them

            said = older(self.config, self.num_clients, self.seeds[0])
        return said

    def series(self, key: str) -> tuple[Ints, Floats]:
        """Return the rounds (0-based) that recorded a number under ``key``, ``[n]``, and the numbers, ``[n]``."""
        found = [(line["round"], line[key]) for line in self.metrics if is_number(line.get(key))]
        rounds = np.array([r for r, _ in found], np.int64)
        return rounds, np.array([v for _, v in found], np.float64)

    @cached_property
    def seats(self) -> Seats:
        """The seats as arrays."""

        def column(key: str) -> Floats:
            return np.array([v if is_number(v := c.get(key)) else np.nan for c in self.clients], np.float64)

        return Seats(
            round=np.array([c["round"] for c in self.clients], np.int64),
            client=np.array([c["client"] for c in self.clients], np.int64),
            value=column("value"),
            error=column("value_error"),
            drawn=column("value_draw_error"),
            exact=column("value_exact"),
            score=column("cumulative_value"),
        )

    def client_label(self, client: int) -> str:
        """Return what to call a client: its name if the run gives it one, else its number."""
        return self._names.get(client, str(client))

    @cached_property
    def _names(self) -> dict[int, str]:
        told = {c["client"]: str(c["name"]) for c in self.clients if c.get("name")}
        return told | {i: str(member["name"]) for i, member in self.members.items() if member.get("name")}

    def arrays(self, round: int, only: Collection[str] = ()) -> dict[str, NDArray[Any]]:
        """Read the arrays of one round (0-based), all or ``only`` those named of them; empty if its file is not there.

        ``[S]`` by seat, ``[n]`` by those tested or refused, ``[N]`` by client (balances).

        Raises UserError if it is broken.
        """
        file = self.path / "rounds" / f"{round:05d}.npz"
        return read_arrays(file, only) if file.exists() else {}

    @cached_property
    def without_block(self) -> Mapping[int, tuple[Ints, Floats]]:
        """By round, of those that recorded it: the clients ``[S]`` whose updates were valued, and their values without
        each block of the validation samples ``[S, B]``.
        """
        found = {}
        for line in self.metrics:
            stored = self.arrays(line["round"], only=("answered", "value_without_block"))
            clients, without = stored.get("answered"), stored.get("value_without_block")
            if clients is not None and without is not None and without.ndim == 2 and len(clients) == len(without):
                found[int(line["round"])] = (clients, without)
        return found

    def refusals(self) -> Iterator[tuple[int, int, str]]:
        """Yield (round, client, reason) of every refusal; only rounds that had one are opened."""
        for line in self.metrics:
            if not line.get("refused"):
                continue
            stored = self.arrays(line["round"], only=("refused", "reason"))
            if "reason" in stored:
                pairs = zip(stored["refused"].tolist(), stored["reason"].tolist(), strict=False)
                yield from ((line["round"], int(client), str(reason)) for client, reason in pairs)
            else:
                mine = (c for c in self.clients if c["round"] == line["round"] and "refused" in c)
                yield from ((c["round"], c["client"], str(c["refused"])) for c in mine)


@dataclass(frozen=True)
class Curve:
    """A figure over rounds: ``rounds [n]`` (0-based), ``mean [n]``, and the sample standard deviation over the seeds
    ``sd [n]``, None for a single run.
    """

    rounds: Ints
    mean: Floats
    sd: Floats | None


@dataclass(frozen=True, eq=False)
class Group:
    """The runs of one experiment, a seed each."""

    label: str
    runs: tuple[LoadedRun, ...]

    def curve(self, key: str, read: Callable[[LoadedRun, str], tuple[Ints, Floats]] = LoadedRun.series) -> Curve | None:
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
        return Curve(rounds, values.mean(axis=0), sd)

    @property
    def same_clients(self) -> tuple[LoadedRun, ...]:
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


def load_run(path: str | Path, ledger_url: str | None = None) -> LoadedRun:
    """Read a run directory, which may be a stranger's: nothing of it is imported, and no link in it is followed.

    ``ledger_url``: where its books are, if not in the directory. Raises UserError with one line: it is not a run
    directory, holds links, has no finished round yet, or is damaged.
    """
    path = run_folder(Path(path))
    config = read_toml(path / "config.toml")
    registered = _section(config, "data").get("clients")
    if isinstance(registered, int) and registered > CLIENTS:
        raise UserError(f"{path / 'config.toml'}: data.clients: {str(registered)[:40]}: must be at most {CLIENTS}")
    metrics = list(json_lines(path / "metrics.jsonl", ("round",)))
    if not metrics:
        raise UserError(f"{path}: has no finished rounds yet; let it run, or go on with 'hanse resume {path}'")
    clients = list(json_lines(path / "clients.jsonl", ("round", "client")))
    name = path.name or path.resolve().name
    run = LoadedRun(path, name, "", config, metrics, clients)
    label = f"{run.mechanism}, seed {run.seeds[0]}"
    return LoadedRun(path, name, label, config, metrics, clients, ledger_url)


def load_runs(paths: Sequence[str | Path], ledger_url: str | None = None) -> list[LoadedRun]:
    """Read run directories; one that is given twice is read once. Raises UserError."""
    if not paths:
        raise UserError("no run directory was given")
    once = {Path(path).resolve(): Path(path) for path in reversed(paths)}
    return [load_run(path, ledger_url) for path in reversed(once.values())]


def group_runs(runs: Sequence[LoadedRun]) -> list[Group]:
    """Gather runs that differ only in their seeds, in order of appearance, and label the groups apart.

    Of runs that agree even in their seeds only the longest counts: it says the same thing, and counting it twice would
    make the deviation too small.
    """
    found: dict[str, dict[tuple[Any, ...], LoadedRun]] = {}
    for run in runs:
        seeds = found.setdefault(json.dumps(_without_seeds(run.config), sort_keys=True, default=str), {})
        if run.seeds not in seeds or len(run.metrics) > len(seeds[run.seeds].metrics):
            seeds[run.seeds] = run
    groups = [tuple(seeds.values()) for seeds in found.values()]
    labels = _labels([g[0] for g in groups])
    return [Group(label, runs) for label, runs in zip(labels, groups, strict=True)]


def _labels(firsts: Sequence[LoadedRun]) -> list[str]:
    """Return a label for each group's first run: its mechanism, and what sets it apart from others of the same name."""
    labels = []
    for run in firsts:
        rivals = [dict(flat(_without_seeds(r.config))) for r in firsts if r.mechanism == run.mechanism]
        mine = dict(flat(_without_seeds(run.config)))
        keys = [k for k in sorted(set().union(*rivals)) if len({repr(r.get(k)) for r in rivals}) > 1]
        told = [f"{k.removeprefix('mechanism.')}={mine.get(k, 'default')}" for k in keys[:3]]
        labels.append(" ".join([run.mechanism, *told]))
    twice = {label for label in labels if labels.count(label) > 1}
    return [f"{x} ({run.name})" if x in twice else x for x, run in zip(labels, firsts, strict=True)]


def _without_seeds(config: Mapping[str, Any]) -> dict[str, Any]:
    sections = {k: dict(v) if isinstance(v, Mapping) else v for k, v in config.items() if k != "engine"}
    for section, key in _APART:
        if isinstance(sections.get(section), dict):
            sections[section].pop(key, None)
    return sections


def is_number(value: object) -> TypeGuard[int | float]:
    """Say whether this is a finite number that a page can show."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else -(2**63) <= value < 2**63
