"""What clients that cheat (free riders, attackers, liars, senders of noise) gain or lose against honest ones.

The experiment says who cheats, because it makes them do it (:func:`hanse.reports.groups.honest_of`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import numpy as np

from hanse.reports.digits import number
from hanse.reports.facts import ClientFacts, facts_of, mean_interval
from hanse.reports.groups import SeedGroup, honest_of
from hanse.reports.text_table import TextTable
from hanse.runs.run_record import RunRecord

_Figure = Callable[[RunRecord, ClientFacts], float | None]
_FIGURES: dict[str, _Figure] = {
    "value a client, all rounds": lambda run, row: None if facts_of(run).valued is None else row.value or 0.0,
    "utility a client (tokens)": lambda run, row: row.utility,
    "tokens a client, beyond its grant": lambda run, row: row.beyond if row.utility is None else None,
    "rounds selected (%)": lambda run, row: 100.0 * row.asked / len(run.metrics),
    "{} on own test data": lambda run, row: None if row.joined is None else run.main.factor * row.joined,
}


def kinds_table(group: SeedGroup) -> TextTable | None:
    """Return the mean figures of honest clients and of each kind of dishonest ones; None without such kinds.

    Means are over the clients of a kind and over the seeds, with 95 % intervals over the seeds.

    Args:
        group: the seeds of one experiment.
    """
    runs = [(run, kinds) for run in group.runs if (kinds := _kinds(run))]
    if not runs or runs[0][0].mechanism == "local":
        return None
    last, columns = runs[-1][1], dict[str, list[str]]()
    names = list(dict.fromkeys(kind for _, kinds in runs for kind in kinds))
    for title, read in _FIGURES.items():
        means = [[_mean(read, run, kinds.get(kind, ())) for run, kinds in runs] for kind in names]
        if np.isfinite(means).all():
            columns[title.format(runs[0][0].main.title)] = [_cell(own) for own in means]
    rows = zip((f"{kind} ({len(last.get(kind, ()))})" for kind in names), *columns.values(), strict=True)
    return TextTable(("kind (clients)", *columns), tuple(rows))


def _kinds(run: RunRecord) -> dict[str, Collection[int]]:
    """Return the honest clients of a run, and those of each kind of cheats; nothing if nobody cheats."""
    if (honest := honest_of(run)) is None:
        return {}
    kinds: dict[str, Collection[int]] = {"honest": honest.tolist()}
    for one in run.about.conducts:
        if one.cheats:  # several behaviours may call their clients the same, or nothing
            name, there = one.label or "cheats", {c for c in one.clients if c < run.num_clients}
            kinds[name] = sorted(there.union(kinds.get(name, ())))
    return kinds


def _mean(read: _Figure, run: RunRecord, clients: Collection[int]) -> float:
    rows = [facts_of(run).clients[client] for client in clients]
    known = [figure for row in rows if (figure := read(run, row)) is not None]
    return float(np.mean(known)) if known else math.nan


def _cell(means: Sequence[float]) -> str:
    mean, _, high = mean_interval(means)
    return number(mean) if mean is None or high is None else f"{number(mean)} ± {number(high - mean)}"
