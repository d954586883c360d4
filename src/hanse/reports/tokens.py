"""Charts of an economy of tokens: balances over the rounds, who earns, how tiers tell distributions apart."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from hanse.federation.behaviour import FreeRider
from hanse.ledger.entry import TOKEN
from hanse.mechanisms.registry import call
from hanse.reports.chart import Chart, Floats, Ints, Line, Lines, even
from hanse.reports.contributions import slug
from hanse.reports.load import Group, LoadedRun
from hanse.reports.money import Books
from hanse.streams import places

__all__ = ["balances", "free_riders", "token_charts"]

SECTION = "Tokens and tiers"
MOST_ROUNDS = 200
MOST_LINES = 12  # clients with a line each
_TIER = re.compile(r"test/tier (\d+)/distribution (\d+)")


def token_charts(groups: Sequence[Group], books: Mapping[str, Books] | None = None) -> list[Chart]:
    """Return the charts of the experiments that kept books (``books`` by label), and of tiers of models."""
    charts: list[Chart] = []
    for group in groups:
        held = (books or {}).get(group.label)
        found = (None if held is None else _balance_chart(group, held), _riders_chart(group), _tier_chart(group))
        charts += [chart for chart in found if chart is not None]
    return charts


def balances(run: LoadedRun) -> tuple[Ints, Floats] | None:
    """Return rounds ``[n]`` and every client's tokens after them ``[n, N]``; None if the run kept no such books."""
    if not any(name.startswith("tokens/") for name in (run.metrics[-1] if run.metrics else {})):
        return None
    played = np.array([line["round"] for line in run.metrics], np.int64)
    played = played[even(len(played), MOST_ROUNDS)]
    found = [(r, run.arrays(int(r), only=("balances",)).get("balances")) for r in played]
    kept = [(r, held) for r, held in found if held is not None]
    if not kept:
        return None
    return np.array([r for r, _ in kept], np.int64), np.stack([held for _, held in kept]) / TOKEN


def free_riders(run: LoadedRun) -> Ints:
    """Return the ids ``[n]`` of the clients that the behaviour "free_rider" made free riders of."""
    given = run.config.get("behaviour", {})
    if "free_rider" not in given:
        return np.zeros(0, np.int64)
    fraction = call(FreeRider, given["free_rider"], "behaviour.free_rider").fraction
    return np.flatnonzero(places(run.seeds[0], "free riders", run.num_clients) < fraction * run.num_clients)


def _balance_chart(group: Group, books: Books) -> Chart | None:
    run, kept = group.runs[0], even(len(books.rounds), MOST_ROUNDS)
    x, held = 1.0 + books.rounds[kept].astype(np.float64), books.held[kept]
    known = np.flatnonzero(np.isfinite(held[-1]))
    if not len(known):
        return None
    if len(known) <= MOST_LINES:
        lines = [Line(f"client {run.client_label(c)}", x, held[:, c]) for c in known.tolist()]
        what = "A line a client: what its account and its escrow hold together."
    else:
        names = (("richest", 1.0), ("upper tenth", 0.9), ("median", 0.5), ("lower tenth", 0.1), ("poorest", 0.0))
        lines = [Line(name, x, np.nanquantile(held, q, axis=1)) for name, q in names]
        what = (
            f"Of the {len(known)} clients the richest, the poorest, and those between, by what account and escrow "
            "hold together; a line is not always the same client."
        )
    caption = f"{what} A line that rises earns; lines that spread apart: the federation makes some rich. "
    return Chart(
        f"balances-{slug(group.label)}", SECTION, f"Token balances over the rounds: {group.label}",
        caption + f"Seed {run.seeds[0]}.", "rounds played", "tokens", Lines(tuple(lines), steps=True),
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
