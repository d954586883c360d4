"""What holds in a market of models, whatever part has made it: iPFL's theorems, prices, deliveries and the books.

The functions look at markets as rounds' records have them (:class:`MarketRound`) and compute with :mod:`hanse.games`
alone, so that they find mistakes of :class:`hanse.mechanisms.ipfl.IPFL` itself. A function on one market returns "", or
a phrase that names the first error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.plain_text import quantity
from hanse.core.book import LARGEST
from hanse.core.entry import TOKEN, Transaction
from hanse.core.entry import client as account
from hanse.core.part import PostedRound
from hanse.core.telling import Check, Fact
from hanse.games.market import Market, Stop, best_imports, utilities_of
from hanse.games.market_posted import Pricing, Tariff, due, on_sale, sold
from hanse.mechanisms.token_checks import unlike

Arrays = Mapping[str, NDArray[Any]]

# the arrays of a recorded market: how many axes of clients, and of what kinds of dtype
MARKET: Mapping[str, tuple[int, str]] = {
    "market_client": (1, "iu"),
    "market_distance": (2, "f"),
    "market_size": (1, "iuf"),
    "market_cost": (1, "iuf"),
    "market_eagerness": (1, "iuf"),
    "market_lam": (0, "iuf"),
    "market_graph": (2, "iubf"),
    "market_units": (2, "i"),
    "market_paid": (1, "b"),
    "market_pricing": (0, "U"),
    "market_utility": (1, "f"),
}
TRUTH = ("market_true_size", "market_true_cost", "market_true_eagerness")
SOME: Mapping[str, tuple[int, str]] = {  # what not every market has
    **dict.fromkeys(TRUTH, (1, "iuf")),
    "market_least": (1, "f"),
}
NEEDED = (*MARKET, *SOME, "withheld", "market_stop", "market_tariff")


@dataclass(frozen=True, kw_only=True)
class MarketRound:
    """One recorded market of ``m`` clients.

    Attributes:
        round: the round.
        clients: ``[m]``, the clients' numbers.
        market: what the clients declared.
        graph: ``[m, m]``, 1 if the row's client imports the column's model. At posted prices, it is a number up to 1:
            the share of the model's size with which it is imported.
        units: ``[m, m]``, what the row's client was billed by the column's, in units.
        paid: ``[m]``, whether each client paid its bill.
        pricing: the pricing rule's name.
        utility: ``[m]``, each client's utility under its true size, cost and eagerness.
        truth: the true sizes, costs and eagerness, ``[m]`` each. None: they are not recorded.
        withheld: the centres that were not delivered, as rows of the table.
        stop: how iPFL's Algorithm 2 treated sellers that do not pay.
        tariff: the posted prices, if ``pricing`` is "posted". The market's costs are then prices (infinite for a model
            that is not on sale), and no eagerness was declared.
        least: ``[m]``, the lowest price at which each client sold, in tokens, if prices are posted.

    Examples:
        The market that a small round of iPFL records:

        >>> from hanse.runs.rehearsal import rehearse
        >>> settlement = rehearse("ipfl").view.settlement
        >>> first = market_of(0, {**settlement.arrays, "withheld": np.array([], np.int64)})
        >>> first.round, first.graph.shape
        (0, (4, 4))
    """

    round: int
    clients: NDArray[np.int64]
    market: Market
    graph: NDArray[np.generic]
    units: NDArray[np.int64]
    paid: NDArray[np.bool_]
    pricing: str
    utility: NDArray[np.float64]  # under what is true of the clients
    withheld: NDArray[np.int64]  # the centres that were not delivered: rows of the table
    truth: tuple[NDArray[np.float64], ...] | None = None
    stop: Stop = "skip"  # what Algorithm 2 did at a seller that does not pay
    tariff: Tariff | None = None
    least: NDArray[np.float64] | None = None

    @property
    def realised(self) -> NDArray[np.generic]:
        """The imports that were delivered, ``[m, m]``: those of clients that paid."""
        return np.where(self.paid[:, None], self.graph, 0)

    @property
    def money(self) -> NDArray[np.int64]:
        """The actual payments, in units ``[m, m]``."""
        return np.where(self.paid[:, None], self.units, 0)


def market_of(number: int, record: Arrays) -> MarketRound | None:
    """Return the market of a round, or None if it had none.

    Args:
        number: the round.
        record: the round's arrays. Those that ``NEEDED`` names are read.

    Raises:
        UserError: the arrays do not fit each other.
    """
    try:
        return _checked_market(number, record) if "market_units" in record else None
    except (ValueError, KeyError, IndexError, TypeError) as wrong:
        raise UserError(f"round {number}: its record cannot be read: {wrong}") from None


def _checked_market(number: int, record: Arrays) -> MarketRound:
    """Return the market that these arrays describe. Raises ValueError or KeyError if one is missing or has another
    form.
    """
    m = len(record["market_size"])
    wanted = {**MARKET, **{name: form for name, form in SOME.items() if name in record}}
    for name, (axes, kinds) in wanted.items():
        array = record[name]
        if array.shape != (m,) * axes or array.dtype.kind not in kinds:
            raise ValueError(f"{name} is {array.dtype} {array.shape} with {m} clients")
    graph, pricing, withheld = record["market_graph"], str(record["market_pricing"]), record["withheld"]
    if pricing not in get_args(Pricing) or withheld.ndim != 1 or withheld.dtype.kind not in "iu":
        raise ValueError(f"market_pricing is {pricing!r}, and withheld {withheld.dtype} {withheld.shape}")
    if not ((graph >= 0) & (graph <= 1)).all() or not (record.get("market_least", np.zeros(0)) >= 0).all():
        raise ValueError("market_graph has numbers that are not from 0 to 1, or market_least some below 0")
    d, n, c, K = (record[f"market_{name}"] for name in ("distance", "size", "cost", "eagerness"))
    truth = tuple(record[name].astype(np.float64) for name in TRUTH if name in record)
    return MarketRound(
        round=number,
        clients=record["market_client"],
        market=Market.of(d, n, c, K, float(record["market_lam"])),
        graph=graph,
        units=record["market_units"],
        paid=record["market_paid"],
        pricing=pricing,
        utility=record["market_utility"],
        truth=truth if len(truth) == len(TRUTH) else None,
        withheld=withheld,
        stop="break" if str(record.get("market_stop", "skip")) == "break" else "skip",
        tariff=_tariff(record) if pricing == "posted" else None,
        least=record["market_least"] if pricing == "posted" else None,
    )


def _tariff(record: Arrays) -> Tariff:
    """Return the tariff of a market at posted prices. Raises ValueError for one that cannot be."""
    numbers = np.asarray(record["market_tariff"], np.float64)
    if numbers.shape != (2,) or not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise ValueError(f"market_tariff is {numbers.tolist()}")
    flat, per_thousand = numbers.tolist()
    return Tariff(flat, per_thousand)


SLACK = 1e-6  # tokens, one unit: what rounding a payment down to the unit may cost a seller
_TRULY = "nobody lost in any round, by what the run has as true of the clients"
_BUT_BY_CHOICE = "nobody lost in any round but by what it chose itself, by what the run has as true of the clients"


def checks(rounds: Iterable[PostedRound], parts: Mapping[str, Any]) -> Iterator[Check]:
    """Yield whether the postings are those of the markets: their rules, prices, deliveries, and who paid.

    Args:
        rounds: the rounds of the run.
        parts: the mechanism's parts by slot, as far as they are known.
    """
    looks: dict[str, tuple[Callable[[MarketRound], str], str]] = {
        "payments": (wrong_payments, "every payment is its price, rounded down to the unit"),
        "delivery": (wrong_delivery, "clients that did not pay got nothing"),
    }
    wrong, count = dict.fromkeys((*looks, "bills"), ""), 0
    for posted in rounds:
        market = market_of(posted.number, posted.arrays)
        said = {"bills": unlike_bills(market, posted.posted) or wrong_clearing(market, posted)}
        if market is not None:
            count += 1
            said |= {name: look(market) for name, (look, _) in looks.items()}
        for name, error in said.items():
            wrong[name] = wrong[name] or (f"round {posted.number}: {error}" if error else "")
    if not count and not any(wrong.values()):
        return
    for name, (_, meaning) in looks.items():
        yield Check(name, not wrong[name], wrong[name] or meaning)
    right = f"the books have the bills of {quantity(count, 'market')}, unit by unit"
    yield Check("bills", not wrong["bills"], wrong["bills"] or right)


def promises(rounds: Iterable[PostedRound], parts: Mapping[str, Any]) -> Iterator[Check | Fact]:
    """Yield whether the markets kept their promises: iPFL's graph and rationality, or the rules of posted prices.

    Args:
        rounds: the rounds of the run.
        parts: as for :func:`checks`.
    """
    found = (market_of(posted.number, posted.arrays) for posted in rounds)
    markets = [market for market in found if market is not None]
    if not markets:
        return
    if any(r.tariff for r in markets):
        meaning = "only models that were on sale were bought, each at the posted price"
        yield Check.of("offers", meaning, ((r.round, _not_on_sale(r)) for r in markets))
    else:
        meaning = "who imports whom is what iPFL's Algorithm 2 makes of the declarations"
        yield Check.of("graph", meaning, ((r.round, _graph(r)) for r in markets))
    yield from _truly(markets)


def wrong_payments(r: MarketRound) -> str:
    """Return the first bill that is negative, zero for a positive price, or not its price rounded down to a unit."""
    owed = due(r.market, r.graph, r.tariff)
    most = LARGEST // len(r.clients)  # what nobody can pay is recorded as this much, so sums fit
    apart = np.abs(np.minimum(np.floor(np.maximum(owed, 0) * TOKEN), most) - r.units)
    free = (r.graph != 0) & (owed > 0) & (r.units == 0)
    bad = np.argwhere(~(apart <= 1) | free | (r.units < 0))  # a last bit may cross a unit
    if not len(bad):
        return ""
    i, j = bad[0]
    return (
        f"client {r.clients[i]} owed client {r.clients[j]} {owed[i, j]:.6f} and was billed {r.units[i, j] / TOKEN:.6f}"
    )


def wrong_delivery(r: MarketRound) -> str:
    """Return a client that got its centre without paying, or paid without getting it."""
    unpaid = np.sort(r.clients[~r.paid])
    # rows of one block lie in the order of the clients, wherever the block begins: both differ by one number
    if len(unpaid) == len(r.withheld) and len(np.unique(np.sort(r.withheld) - unpaid)) <= 1:
        return ""
    who = ", ".join(map(str, unpaid[:10].tolist())) or "nobody"
    return f"a model without payment: {len(r.withheld)} were withheld, and {len(unpaid)} were not paid (by {who})"


def unlike_bills(r: MarketRound | None, posted: Sequence[Transaction]) -> str:
    """Return the first payment in which a market's record and the ledger differ, or "".

    Args:
        r: the market. None: the round had none.
        posted: what the payment rule posted in the round.
    """
    owed: dict[str, dict[str, int]] = {}
    if r is not None:
        clients = r.clients.tolist()
        for buyer, bill in zip(clients, r.money.tolist(), strict=True):
            paid = {account(seller): units for seller, units in zip(clients, bill, strict=True)}
            owed[f"market/{buyer}"] = paid | {account(buyer): -sum(bill)}
    return unlike([one for one in posted if one.kind == "market"], owed)


def wrong_clearing(r: MarketRound | None, posted: PostedRound) -> str:
    """Return who paid more than it had agreed to, or did not pay although it could and its centre would have changed;
    "" if nobody, or if the record does not have what clients had agreed to.
    """
    agreed = posted.arrays.get("market_authorised")
    if r is None or agreed is None:
        return ""
    owed = r.units.sum(axis=1)
    willing = (agreed < 0) | (owed <= agreed)
    if len(over := np.flatnonzero(r.paid & ~willing)):
        return f"client {r.clients[over[0]]} paid {quantity(owed[over[0]], 'unit')} and had agreed to {agreed[over[0]]}"
    book, rows = posted.book.post(posted.number, posted.posted), posted.arrays["W_row"]
    moved = dict(zip(*np.unique(rows, return_counts=True), strict=True))
    unpaid = np.argsort(r.clients)[~r.paid[np.argsort(r.clients)]]
    for i, row in zip(unpaid.tolist(), np.sort(r.withheld).tolist(), strict=False):
        column = posted.arrays["W_column"][rows == row]
        kept = moved.get(row) == 1 and column[0] == len(posted.arrays["answered"]) + row
        if willing[i] and not kept and book.can_pay(account(int(r.clients[i])), int(owed[i])):
            return f"client {r.clients[i]} did not pay {quantity(owed[i], 'unit')}, which it had agreed to and had"
    return ""


def _not_on_sale(r: MarketRound) -> str:
    """Return who bought something that was not offered, or not offered at the tariff's price; "" if nobody."""
    if r.tariff is None or r.least is None:
        return "it has no tariff, and other rounds have one"
    offered = np.isfinite(r.market.costs)
    wrong = np.flatnonzero(offered & ~np.isclose(r.market.costs, r.tariff.price(r.market.sizes), rtol=1e-12))
    if len(wrong):
        return f"the model of client {r.clients[wrong[0]]} was on sale at another price than the tariff's"
    bad = np.argwhere((r.graph != 0) & ~on_sale(r.market))
    if len(bad):
        i, j = bad[0]
        return f"client {r.clients[i]} bought the model of client {r.clients[j]}, which was not on sale to it"
    graph = np.asarray(r.graph, np.float64)
    cheap = np.flatnonzero((graph != sold(graph, r.market.sizes, r.tariff, r.least)).any(axis=0))
    return f"client {r.clients[cheap[0]]} sold for less than the least that it sells for" if len(cheap) else ""


def _graph(r: MarketRound) -> str:
    """Return where the graph differs from that of Algorithm 2 by the declared numbers; "" if nowhere."""
    bad = np.argwhere(best_imports(r.market, r.stop) != r.graph)
    if not len(bad):
        return ""
    i, j = bad[0]
    does, should = ("imports", "should not") if r.graph[i, j] else ("does not import", "should")
    return f"client {r.clients[i]} {does} the model of client {r.clients[j]}, and by Algorithm 2 it {should}"


def _truly(rounds: Sequence[MarketRound]) -> Iterator[Check | Fact]:
    """Yield whether nobody lost by what is true, up to the rounding of payments, and who lost by its own choice.

    At posted prices a client buys and sells what it chooses, so it can choose to lose: nobody else takes that from it.
    What the market promises is that it loses by nothing else, such as by sizes that were not there.
    """
    chosen = {r.round: _chosen(r) for r in rounds}
    losses = _losses(rounds, lambda r: ~(r.utility >= -_rounding(r)) & ~chosen[r.round])
    unknown = [(number, client) for worth, number, client in losses if np.isnan(worth)]
    said = _BUT_BY_CHOICE if any(r.tariff is not None for r in rounds) else _TRULY
    if unknown:
        said = f"the record of round {unknown[0][0]} has no number for client {unknown[0][1]}"
    elif losses:
        worst, number, client = min(losses)
        said = f"{len(losses)} losses; the largest is client {client}'s {-worst:.3f} in round {number}"
    yield Check("true rationality", not losses, said)
    if own := _losses(rounds, lambda r: chosen[r.round]):
        worst, number, client = min(own)
        who = ", ".join(map(str, sorted({client for *_, client in own})))
        told = f"bought or sold at a loss {quantity(len(own), 'time')}; the largest is client {client}'s {-worst:.3f}"
        yield Fact("own choices", f"clients {who} {told} in round {number}. Posted prices leave that to them")


def _losses(
    rounds: Sequence[MarketRound], lost: Callable[[MarketRound], NDArray[np.bool_]]
) -> list[tuple[float, int, int]]:
    """Return the utility, the round and the client of each who ``lost(round) [m]``."""
    return [(float(r.utility[i]), r.round, int(r.clients[i])) for r in rounds for i in np.flatnonzero(lost(r))]


def _chosen(r: MarketRound) -> NDArray[np.bool_]:
    """Return whose purchases and sales at posted prices are a loss even if all sizes are as they were sold, ``[m]``."""
    if r.truth is None or r.tariff is None:
        return np.zeros(r.market.size, bool)
    sizes, (_, costs, eagerness) = r.market.sizes, r.truth
    told = utilities_of(r.realised, r.money / TOKEN, sizes, costs, np.where(sizes > 0, eagerness, 0.0))
    return np.asarray(told < -_rounding(r))


def _rounding(r: MarketRound) -> NDArray[np.float64]:
    """Return what rounding payments down may cost each client, ``[m]`` in tokens: a unit for each sale, and one."""
    return np.asarray(SLACK * (1 + (r.realised != 0).sum(axis=0)))
