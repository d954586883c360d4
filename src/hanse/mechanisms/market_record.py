"""A market of models as a round's record has it, read from the arrays and checked (:class:`MarketRound`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.games.market import Market, Stop
from hanse.games.market_posted import Pricing, Tariff

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
