"""Who paid whom, as a graph: clients on a circle, arrows as wide as the money, a colour and a marker for each role."""

from __future__ import annotations

from collections import Counter

import numpy as np
from matplotlib.figure import Figure

from hanse.reports.chart import Bars, Chart, Floats, Graph, Series
from hanse.reports.contributions import slug
from hanse.reports.draw_matplotlib import to_matplotlib
from hanse.reports.market import SECTION, Trades
from hanse.reports.money import Books
from hanse.reports.who import roles_of
from hanse.runs.record import RunRecord

__all__ = ["draw_transactions", "flow_chart", "kinds_chart"]

MOST_NODES = 40
MOST_KINDS = 30


def draw_transactions(trades: Trades, title: str) -> Figure:
    """Return the transaction graph of a market: an arrow goes from the buyer to the seller; beside each client stands
    its net payment, in tokens.
    """
    names = [str(c) for c in trades.clients]
    return to_matplotlib(_chart(title, names, trades.roles, trades.money, "", "transactions"))


def flow_chart(run: RunRecord, books: Books, label: str) -> Chart | None:
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


def kinds_chart(run: RunRecord, books: Books, label: str) -> Chart | None:
    """Return how many tokens each kind of transaction moved, by what the parts call them; None if nothing moved."""
    if not books.kinds:
        return None
    kinds = books.kinds[:MOST_KINDS]
    names = tuple(run.about.kinds.get(kind, kind)[:80] for kind, _ in kinds)
    called = Counter(names)
    labels = tuple(n if called[n] == 1 else f"{n} ({kind})" for n, (kind, _) in zip(names, kinds, strict=True))
    marks = Bars(labels, (Series("moved", np.array([tokens for _, tokens in kinds])),))
    caption = "All tokens that came to an account by each kind of transaction, over the whole run; grants are left out."
    title = f"What tokens moved for: {label}"
    return Chart(f"kinds-{slug(label)}", SECTION, title, caption, "tokens", "", marks)


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
