"""A run's recorded markets, read from its rounds' arrays and checked (:class:`MarketRound`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.files import read_arrays
from hanse.games.market import Market, Stop
from hanse.games.market_posted import Tariff
from hanse.games.market_prices import Pricing
from hanse.runs.round_record import Arrays, rounds_of

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
    "withheld": (1, "iu"),  # as many as were not delivered
}
# what :func:`market_of` reads; what is not in MARKET is not in every market
EVIDENCE = ("market_claimed", "market_cap", "evidence_loss", "evidence_size")
TRUTH = ("market_true_size", "market_true_cost", "market_true_eagerness")
NEEDED = (*MARKET, "market_stop", "market_tariff", "market_least", *TRUTH, *EVIDENCE)


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
        least: ``[m]``, the lowest price at which each client sold, in tokens. None: prices depend on size.
        claimed: ``[m]``, the sizes before evidence limited them. None: the market uses no evidence.
        cap: ``[m]``, the caps.
        evidence: the losses ``[N, N]`` and the claimed sizes ``[N]`` from which later limits follow. It may be empty.

    Examples:
        The markets that a small run of iPFL has recorded:

        >>> import hanse
        >>> from hanse.runs.rehearsal import rehearse
        >>> run = hanse.run(rehearse("ipfl").experiment, out="market", overwrite=True)
        >>> first = next(recorded_markets(Path("market")))
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
    claimed: NDArray[np.float64] | None = None
    cap: NDArray[np.float64] | None = None
    evidence: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None

    @property
    def realised(self) -> NDArray[np.generic]:
        """The imports that were delivered, ``[m, m]``: those of clients that paid."""
        return np.where(self.paid[:, None], self.graph, 0)

    @property
    def money(self) -> NDArray[np.int64]:
        """The actual payments, in units ``[m, m]``."""
        return np.where(self.paid[:, None], self.units, 0)


def market_of(number: int, file: Path, record: Arrays) -> MarketRound | None:
    """Return the market of a round, or None if it had none.

    Args:
        number: the round.
        file: the file that the arrays are from, for errors.
        record: the round's arrays. Those that ``NEEDED`` names are read.

    Raises:
        UserError: the arrays do not fit each other.
    """
    try:
        return _checked_market(number, record) if "market_units" in record else None
    except (ValueError, KeyError, IndexError, TypeError) as wrong:
        raise UserError(f"{file}: the record of the round cannot be read: {wrong}") from None


def _checked_market(number: int, record: Arrays) -> MarketRound:
    """Return the market that these arrays describe. Raises ValueError or KeyError if one is missing or has another
    form.
    """
    d, n, c, K = (record[f"market_{name}"] for name in ("distance", "size", "cost", "eagerness"))
    for name, (axes, kinds) in MARKET.items():
        array = record[name]
        fits = array.ndim == axes and (name == "withheld" or array.shape == (len(n),) * axes)
        if not fits or array.dtype.kind not in kinds:
            raise ValueError(f"{name} is {array.dtype} {array.shape} with {len(n)} clients")
    graph, pricing = record["market_graph"], str(record["market_pricing"])
    if pricing not in get_args(Pricing):
        raise ValueError(f"market_pricing is {pricing!r}")
    if not ((graph >= 0) & (graph <= 1)).all():
        raise ValueError("market_graph has numbers that are not from 0 to 1")
    return MarketRound(
        round=number,
        clients=record["market_client"],
        market=Market.of(d, n, c, K, float(record["market_lam"])),
        graph=graph,
        units=record["market_units"],
        paid=record["market_paid"],
        pricing=pricing,
        utility=record["market_utility"],
        truth=_truth(record, len(n)),
        withheld=record["withheld"],
        stop="break" if str(record.get("market_stop", "skip")) == "break" else "skip",
        tariff=_tariff(record),
        least=_least(record, len(n)),
        **_evidence(record, len(n)),
    )


def _truth(record: Arrays, m: int) -> tuple[NDArray[np.float64], ...] | None:
    """Return the true sizes, costs and eagerness ``[m]``; None of a record without them. Raises ValueError for another
    form.
    """
    if not all(name in record for name in TRUTH):
        return None
    found = tuple(record[name] for name in TRUTH)
    if any(one.shape != (m,) or one.dtype.kind not in "iuf" for one in found):
        raise ValueError(f"{', '.join(TRUTH)} are {[one.shape for one in found]} with {m} clients")
    return tuple(one.astype(np.float64) for one in found)


def _evidence(record: Arrays, m: int) -> dict[str, Any]:
    """Return what a record says of evidence. Raises ValueError for another form, KeyError if an array is missing."""
    evidence_arrays: dict[str, Any] = {}
    if "market_cap" in record or "market_claimed" in record:
        evidence_arrays = {"claimed": record["market_claimed"], "cap": record["market_cap"]}
    if "evidence_loss" in record:
        losses, sizes = evidence_arrays["evidence"] = record["evidence_loss"], record["evidence_size"]
        if losses.dtype.kind != "f" or sizes.dtype.kind != "f" or losses.shape != (len(sizes),) * 2:
            raise ValueError(f"evidence_loss is {losses.dtype} {losses.shape} with {sizes.shape} sizes")
    for name in ("claimed", "cap"):
        if name in evidence_arrays and (evidence_arrays[name].shape != (m,) or evidence_arrays[name].dtype.kind != "f"):
            raise ValueError(
                f"market_{name} is {evidence_arrays[name].dtype} {evidence_arrays[name].shape} with {m} clients"
            )
    return evidence_arrays


def _tariff(record: Arrays) -> Tariff | None:
    """Return the tariff of a market at posted prices; None of another. Raises ValueError for one that cannot be."""
    if str(record["market_pricing"]) != "posted":
        return None
    numbers = np.asarray(record["market_tariff"], np.float64)
    if numbers.shape != (2,) or not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise ValueError(f"market_tariff is {numbers.tolist()}")
    flat, per_thousand = numbers.tolist()
    return Tariff(flat, per_thousand, "weight" if "market_least" in record else "size")


def _least(record: Arrays, m: int) -> NDArray[np.float64] | None:
    """Return the least that each sold for; None where prices go by size. Raises ValueError for another form."""
    found = record.get("market_least")
    if found is not None and (found.shape != (m,) or found.dtype.kind != "f" or not (found >= 0).all()):
        raise ValueError(f"market_least is {found.dtype} {found.shape} with {m} clients")
    return found


def recorded_markets(folder: Path) -> Iterator[MarketRound]:
    """Yield the markets recorded in a run directory. Raises UserError if a record is damaged."""
    for number, file in rounds_of(folder):
        market = market_of(number, file, read_arrays(file, NEEDED))
        if market is not None:
            yield market
