"""Charts of a market of models: who paid whom, who gained what, and who learns from whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hanse.core.entry import TOKEN
from hanse.mechanisms.market_record import MarketRound
from hanse.reports.audit import client_sums, load_market, no_trade
from hanse.reports.chart import MOST_SHOWN, Bars, Chart, Floats, Graph, Heat, Series, slug
from hanse.reports.groups import SeedGroup, roles_of
from hanse.reports.money import Books
from hanse.reports.words import caption
from hanse.runs.run_record import RunRecord

SECTION = "The market"


@dataclass(frozen=True, kw_only=True)
class Trades:
    """The sums of a run's market.

    There are the ``clients [m]`` with their names and roles. ``money [m, m]`` are the tokens that i paid j, ``imports
    [m, m]`` is the share of the markets in which i imported j's model, and ``utility [m]`` is each client's utility
    over the run.
    """

    clients: tuple[int, ...]
    names: tuple[str, ...]
    roles: tuple[str, ...]
    money: Floats
    imports: Floats
    utility: Floats
    idle: str


def load_trades(run: RunRecord) -> Trades | None:
    """Return what was traded in a run, or None if nothing ever was at a market."""
    if not any("market/money" in line for line in run.metrics):
        return None
    rounds = load_market(run.path)
    clients, money, imports = traded(rounds)
    sums = client_sums(rounds)
    told = roles_of(run)
    roles = tuple(told.get(c, "client") for c in clients)
    names = tuple(f"{run.client_label(c)} {role}" for c, role in zip(clients, roles, strict=True))
    return Trades(
        clients=clients,
        names=names,
        roles=roles,
        money=money,
        imports=imports,
        utility=np.array([c.utility for c in sums]),
        idle=no_trade(run, sums).said,
    )


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
    charts = list[Chart]()
    for group in groups:
        run = group.runs[0]
        trades = load_trades(run)
        if trades is None or len(trades.clients) > MOST_SHOWN:
            continue
        label = group.label + (f", seed {run.seeds[0]}" if len(group.runs) > 1 else "")
        charts += [_gains(trades, label), _imports(trades, label)]
    return charts


def _chart(kind: str, title: str, label: str, told: str, marks: Bars | Heat, *, x: str, y: str) -> Chart:
    return Chart(f"market-{kind}-{slug(label)}", SECTION, f"{title}: {label}", told, marks, x=x, y=y)


def _gains(trades: Trades, label: str) -> Chart:
    series = (
        Series("sold", trades.money.sum(axis=0)),
        Series("bought", -trades.money.sum(axis=1)),
        Series("utility", trades.utility),
    )
    told, marks = caption("gains", trades.idle), Bars(trades.names, series)
    return _chart("gains", "Who gained what", label, told, marks, x="tokens", y="client")


def _imports(trades: Trades, label: str) -> Chart:
    marks = Heat(trades.names, trades.names, trades.imports, "share of the rounds", floor=0.0)
    return _chart("imports", "Who learned from whom", label, caption("imports"), marks, x="model of", y="client")


# ---- who paid whom, as a graph: clients on a circle, arrows as wide as the money


MOST_NODES = 40
MOST_KINDS = 30


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
    names = [run.client_label(c) for c in books.clients] + list(books.pools)
    kinds = [roles.get(c, "client") for c in books.clients] + ["pool"] * len(books.pools)
    weight, dropped = books.flow, 0
    if len(names) > MOST_NODES:  # pools stay, and the clients that moved most
        moved = weight.sum(axis=0) + weight.sum(axis=1)
        moved[len(books.clients) :] = np.inf
        kept = np.sort(np.argsort(-moved, kind="stable")[:MOST_NODES])
        dropped = len(names) - len(kept)
        names, kinds = [names[i] for i in kept], [kinds[i] for i in kept]
        weight = weight[np.ix_(kept, kept)]
    return _flow_graph(f"Who paid whom: {label}", names, kinds, weight, f"transactions-{slug(label)}", dropped)


def kinds_chart(run: RunRecord, books: Books, label: str) -> Chart | None:
    """Return how many tokens each kind of transaction moved, as the parts name it, or None if nothing moved.

    Args:
        run: the run.
        books: what its ledger adds up to.
        label: what the experiment is called.
    """
    if not books.kinds:
        return None
    kinds = books.kinds[:MOST_KINDS]
    names = tuple(run.about.kinds.get(kind, kind)[:80] for kind, _ in kinds)
    called = Counter(names)
    labels = tuple(n if called[n] == 1 else f"{n} ({kind})" for n, (kind, _) in zip(names, kinds, strict=True))
    marks = Bars(labels, (Series("moved", np.array([tokens for _, tokens in kinds])),))
    title = f"What tokens moved for: {label}"
    return Chart(f"kinds-{slug(label)}", SECTION, title, caption("kinds"), marks, x="tokens")


def _flow_graph(
    title: str, names: list[str], kinds: tuple[str, ...] | list[str], weight: Floats, key: str, dropped: int = 0
) -> Chart:
    net = weight.sum(axis=0) - weight.sum(axis=1)
    marks = Graph(tuple(names), tuple(kinds), weight, tuple(f"{x:+.2f}" for x in net), "tokens", kinds.count("pool"))
    return Chart(key, SECTION, title, caption("flows", MOST_NODES, dropped), marks)
