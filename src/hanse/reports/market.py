"""Charts of a market of models: who paid whom, who gained what, and who learns from whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hanse.core.entry import TOKEN
from hanse.reports.chart import MOST_SHOWN, Bars, Chart, Floats, Heat, Series, slug
from hanse.reports.groups import SeedGroup, roles_of
from hanse.reports.money import Books
from hanse.reports.words import caption
from hanse.runs.run_record import RunRecord

if TYPE_CHECKING:
    from hanse.mechanisms.market_record import MarketRound

SECTION = "The market"


def traded(rounds: Sequence[MarketRound]) -> tuple[tuple[int, ...], Floats, Floats]:
    """Return who traded what in some markets.

    The three arrays are the clients ``[m]``, the tokens ``[m, m]`` that i paid j, and ``[m, m]`` the share of the
    markets in which i imported j's model.
    """
    who = np.unique(np.concatenate([r.clients for r in rounds]))
    money, imports = np.zeros((len(who), len(who))), np.zeros((len(who), len(who)))
    for r in rounds:
        at = np.searchsorted(who, r.clients)
        money[np.ix_(at, at)] += r.money / TOKEN
        imports[np.ix_(at, at)] += (r.realised != 0) / len(rounds)
    return tuple(who.tolist()), money, imports


def market_charts(groups: Sequence[SeedGroup]) -> list[Chart]:
    """Return the market's charts: for each experiment with a market, the trades of its first seed."""
    traded_in = [group for group in groups if any("market/money" in line for line in group.runs[0].metrics)]
    return [chart for group in traded_in for chart in _trades(group)]


def _trades(group: SeedGroup) -> list[Chart]:
    """Return who gained what and who learned from whom; nothing of more clients than can be shown."""
    from hanse.reports.audit import client_sums, load_market, no_trade  # late: it builds parts, which bring torch

    run = group.runs[0]
    rounds = load_market(run.path)
    clients, money, imports = traded(rounds)
    if len(clients) > MOST_SHOWN:
        return []
    sums, roles = client_sums(rounds), roles_of(run)
    names = tuple(f"{run.client_label(c)} {roles.get(c, 'client')}" for c in clients)
    label = group.label + (f", seed {run.seeds[0]}" if len(group.runs) > 1 else "")
    columns = {"sold": money.sum(axis=0), "bought": -money.sum(axis=1), "utility": np.array([c.utility for c in sums])}
    gains = Bars(names, tuple(Series(name, numbers) for name, numbers in columns.items()))
    learned = Heat(names, names, imports, "share of the rounds")
    told, title = caption("gains", no_trade(run, sums).said), f"Who gained what: {label}"
    return [
        Chart(f"market-gains-{slug(label)}", SECTION, title, told, gains, x="tokens", y="client"),
        Chart(f"market-imports-{slug(label)}", SECTION, f"Who learned from whom: {label}", caption("imports"), learned,
              x="model of", y="client"),
    ]  # fmt: skip


# ---- who paid whom, by the books


MOST_NODES = 40


def flow_chart(run: RunRecord, books: Books, label: str) -> Chart | None:
    """Return who paid whom according to the books, including pools, or None if nobody paid anybody.

    Args:
        run: the run.
        books: what its ledger adds up to.
        label: what the experiment is called.
    """
    if not books.flow.any():
        return None
    roles = roles_of(run)
    names = [f"{run.client_label(c)} {roles.get(c, 'client')}" for c in books.clients]
    names += [f"pool {name}" for name in books.pools]
    weight, dropped = books.flow, 0
    if len(names) > MOST_NODES:  # pools stay, and the clients that moved most
        moved = weight.sum(axis=0) + weight.sum(axis=1)
        moved[len(books.clients) :] = np.inf
        kept = np.sort(np.argsort(-moved, kind="stable")[:MOST_NODES])
        dropped = len(names) - len(kept)
        names, weight = [names[i] for i in kept], weight[np.ix_(kept, kept)]
    marks, title = Heat(tuple(names), tuple(names), weight, "tokens"), f"Who paid whom: {label}"
    told = caption("flows", MOST_NODES, dropped)
    return Chart(f"transactions-{slug(label)}", SECTION, title, told, marks, x="to", y="from")
