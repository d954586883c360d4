"""Charts of an economy of tokens: balances over the rounds, who earns, how tiers tell distributions apart; and the
distribution of clients' own accuracies, which personal models are for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from hanse.ledger.entry import TOKEN
from hanse.reports.chart import Chart, Floats, Ints, Line, Lines, even
from hanse.reports.contributions import slug
from hanse.reports.load import Group, LoadedRun
from hanse.streams import stream

__all__ = ["balances", "free_riders", "token_charts"]

SECTION = "Tokens and tiers"
MOST_ROUNDS = 200
_TIER = re.compile(r"test/tier (\d+)/distribution (\d+)")


def token_charts(groups: Sequence[Group]) -> list[Chart]:
    """Return the charts of the experiments that kept books of tokens, and of those that tested personal models."""
    charts: list[Chart] = []
    for group in groups:
        charts += [c for c in (_balance_chart(group), _riders_chart(group), _tier_chart(group)) if c is not None]
    own = [c for c in (_cdf_chart(groups),) if c is not None]
    return charts + own


def balances(run: LoadedRun) -> tuple[Ints, Floats] | None:
    """Return rounds ``[n]`` and every client's tokens after them ``[n, N]``; None if the run kept no such books."""
    if not any(name.startswith("tokens/") for name in (run.metrics[-1] if run.metrics else {})):
        return None
    played = np.array([line["round"] for line in run.metrics], np.int64)
    played = played[even(len(played), MOST_ROUNDS)]
    found = [(r, run.arrays(int(r)).get("balances")) for r in played]
    kept = [(r, held) for r, held in found if held is not None]
    if not kept:
        return None
    return np.array([r for r, _ in kept], np.int64), np.stack([held for _, held in kept]) / TOKEN


def free_riders(run: LoadedRun) -> Ints:
    """Return the clients that the behaviour "free_rider" made free riders of."""
    given: Mapping[str, float] = run.config.get("behaviour", {}).get("free_rider", {})
    if "fraction" not in given and "free_rider" not in run.config.get("behaviour", {}):
        return np.zeros(0, np.int64)
    place = np.argsort(stream(run.seeds[0], "free riders").permutation(run.num_clients))
    return np.flatnonzero(place < given.get("fraction", 0.2) * run.num_clients)


def _balance_chart(group: Group) -> Chart | None:
    found = balances(group.runs[0])
    if found is None:
        return None
    rounds, held = found
    x = 1.0 + rounds.astype(np.float64)
    names = (("richest", 1.0), ("upper tenth", 0.9), ("median", 0.5), ("lower tenth", 0.1), ("poorest", 0.0))
    lines = tuple(Line(name, x, np.quantile(held, q, axis=1)) for name, q in names)
    return Chart(
        f"balances-{slug(group.label)}", SECTION, f"Token balances over the rounds: {group.label}",
        "Clients pay for the seats that they win and earn by contribution; bids in escrow are not counted. "
        f"Seed {group.runs[0].seeds[0]}.",
        "rounds played", "tokens", Lines(lines),
    )  # fmt: skip


def _riders_chart(group: Group) -> Chart | None:
    lines = []
    for run in group.runs:
        found, riders = balances(run), free_riders(run)
        if found is None or not 0 < len(riders) < run.num_clients:
            continue
        rounds, held = found
        honest = np.setdiff1d(np.arange(run.num_clients), riders)
        for look, (name, clients) in enumerate((("honest", honest), ("free riders", riders))):
            label = f"{name}, seed {run.seeds[0]}"
            lines.append(Line(label, 1.0 + rounds.astype(np.float64), held[:, clients].mean(axis=1), look=look))
    if not lines:
        return None
    return Chart(
        f"riders-{slug(group.label)}", SECTION, f"What free riders lose: {group.label}",
        "Mean balance of clients that train, and of those that send back what they were sent; every seed by itself.",
        "rounds played", "tokens", Lines(tuple(lines)),
    )  # fmt: skip


def _tier_chart(group: Group) -> Chart | None:
    names = sorted({name for line in group.runs[0].metrics for name in line if _TIER.fullmatch(name)})
    lines = []
    for name in names:
        curve = group.curve(name)
        match = _TIER.fullmatch(name)
        if curve is not None and match is not None:
            label = f"tier {match[1]} on distribution {match[2]}"
            low, high = (None, None) if curve.sd is None else (curve.mean - curve.sd, curve.mean + curve.sd)
            lines.append(Line(label, 1.0 + curve.rounds.astype(np.float64), curve.mean, low, high))
    if not lines:
        return None
    return Chart(
        f"tiers-{slug(group.label)}", SECTION, f"Each tier on each distribution: {group.label}",
        "Held-out data of each distribution; tier d is the one that serves distribution d best.",
        "rounds played", "accuracy", Lines(tuple(lines)),
    )  # fmt: skip


def _cdf_chart(groups: Sequence[Group]) -> Chart | None:
    lines = []
    for group in groups:
        own = [a for run in group.runs if (a := _last_accuracies(run)) is not None]
        if own:
            values = np.sort(np.concatenate(own))
            share = np.arange(1, len(values) + 1) / len(values)
            lines.append(Line(group.label, 100.0 * values, share))
    if not lines:
        return None
    return Chart(
        "own-accuracy-cdf", SECTION, "How clients fare on their own test data",
        "The share of clients whose own accuracy after the last round is at most this; further right is better.",
        "own test accuracy %", "share of clients", Lines(tuple(lines), steps=True, whole=False),
    )  # fmt: skip


def _last_accuracies(run: LoadedRun) -> Floats | None:
    """Return the clients' own accuracies at the last test, ``[n]``; None if there are none."""
    tested = [line["round"] for line in run.metrics if line.get("client/test_accuracy") is not None]
    accuracy = run.arrays(tested[-1]).get("test_accuracy") if tested else None
    if accuracy is None:
        return None
    found: Floats = accuracy[np.isfinite(accuracy)]
    return found if len(found) else None
