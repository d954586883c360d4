"""Who paid whom, as a graph: clients on a circle, arrows as wide as the money, a colour and a marker for each role."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hanse.reports.chart import Chart, Floats, Graph
from hanse.reports.contributions import slug
from hanse.reports.draw_matplotlib import to_matplotlib
from hanse.reports.load import LoadedRun
from hanse.reports.market import SECTION, Trades, roles_of
from hanse.reports.money import Books

__all__ = ["draw_transactions", "flow_chart"]

MOST_NODES = 40


def draw_transactions(trades: Trades, title: str) -> Figure:
    """Return the transaction graph of a market: an arrow goes from the buyer to the seller; beside each client stands
    its net payment, in tokens.
    """
    names = [str(c) for c in trades.clients]
    return to_matplotlib(_chart(title, names, trades.roles, trades.money, "", "transactions"))


def flow_chart(run: LoadedRun, books: Books, label: str) -> Chart | None:
    """Return who paid whom by the books, pools among them; None if nobody paid anybody."""
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
    more = f" The {MOST_NODES} that moved most; {dropped} others are left out." if dropped else ""
    return _chart(f"Who paid whom: {label}", names, kinds, weight, more, f"transactions-{slug(label)}")


def _chart(
    title: str, names: list[str], kinds: tuple[str, ...] | list[str], weight: Floats, more: str, key: str
) -> Chart:
    net = weight.sum(axis=0) - weight.sum(axis=1)
    marks = Graph(tuple(names), tuple(kinds), weight, tuple(f"{x:+.2f}" for x in net), "tokens", kinds.count("pool"))
    caption = (
        "An arrow goes from who pays to who is paid, over the whole run; the wider and darker, the more tokens. Beside "
        "each stands what it got less what it paid. Colour and shape tell the roles. Arrows below a hundredth of the "
        "largest are not drawn; grants and bids that came back are no payments." + more
    )
    return Chart(key, SECTION, title, caption, "", "", marks)
