"""What holds in PI-FL's and TIFF's auctions, whatever part has settled them: PI-FL eqs (6)-(14) on recorded arrays.

A round's record says who bid, who trained for which tier, whose update was mixed and what it was worth, and each tier's
accuracy. With the rule's numbers every movement of the round follows, by :mod:`hanse.games.tokens` alone. One number is
not recorded: the tiers' accuracy after the last round, which clients report when the run ends. Of what goes back then,
only the bound ``eta`` is checked.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.core.entry import Transaction, escrow, pool
from hanse.core.entry import client as account
from hanse.core.part import PostedRound
from hanse.games.tokens import settle_tier, share_out

SEATS = ("client", "start", "tier", "bidder", "worked", "worth")  # of a round as they are recorded, ``[S]`` each
_KINDS = {"6": "pay", "11": "reimburse", "14": "reward"}
Seats = Mapping[str, NDArray[Any]]
Moved = defaultdict[str, Counter[str]]  # units by account, by the step that moves them


@dataclass
class Auctions:
    """The auctions of a run so far.

    Attributes:
        price: the price of a seat in units.
        eta: the largest share of the pool that is returned.
        gamma: the relative improvement from which nothing is returned.
        all_earn: whether clients that were invited share in the pool, too.
        seats: the seats that are still to be settled, ``[S]`` each, by the names of ``SEATS``.
        best: the best accuracy of each tier so far, by row.
        sat: how often each client's update was mixed into a tier, by (client, row).
        pools: units by tier, by row.
    """

    price: int
    eta: float
    gamma: float
    all_earn: bool
    seats: Seats = field(default_factory=lambda: {name: np.zeros(0, bool) for name in SEATS})
    best: dict[int, float] = field(default_factory=dict)
    sat: Counter[tuple[int, int]] = field(default_factory=Counter)
    pools: Counter[int] = field(default_factory=Counter)

    def wrong(self, r: PostedRound) -> str:
        """Return the first difference between a round's postings and its record, or "", and add the round.

        Raises ValueError, KeyError or IndexError for a record that is damaged.
        """
        if "bids" not in r.arrays and not r.ended:
            return unlike(r.posted, {})
        settled = () if r.ended else np.unique(self.seats["tier"]).tolist()
        accuracies = {k: float(r.metrics[f"tokens/tier {k}/accuracy"]) for k in settled}
        moved = self._settled(accuracies, r.posted)
        if r.ended:
            return unlike(r.posted, moved)
        seats, bids = {name: r.arrays[f"tokens_{name}"] for name in SEATS}, r.arrays["bids"].astype(bool)
        seats |= {name: seats[name].astype(bool) for name in ("bidder", "worked")}
        kept = np.zeros_like(bids)
        kept[seats["client"][seats["bidder"]], seats["tier"][seats["bidder"]]] = True
        for step, those, price in (("bid", bids, self.price), ("return", bids & ~kept, -self.price)):
            for c, k in np.argwhere(those).tolist():
                moved[f"{step}/{k}"].update({escrow(c): price, account(c): -price})
        self._played(seats, accuracies)
        return _unfit(r, seats, bids) or unlike(r.posted, moved)

    def _settled(self, accuracies: Mapping[int, float], posted: Sequence[Transaction]) -> Moved:
        """Return the settlement of the seats, tier by tier, and add it to the pools.

        Args:
            accuracies: how good each tier was, by row. For a missing one, the refund is taken from ``posted``.
            posted: what was posted.
        """
        found, seats = Moved(Counter), self.seats
        entitled = seats["worked"] & (self.all_earn | seats["bidder"])
        paid = Counter(seats["client"][seats["bidder"] & seats["worked"]].tolist())
        for k in np.unique(seats["tier"]).tolist():
            here, purse = seats["tier"] == k, pool(f"tier {k}")
            providers, payers = (seats["client"][here & those].tolist() for those in (entitled, seats["bidder"]))
            given: dict[str, Any] = {
                "payers": payers,
                "providers": providers,
                "price": self.price,
                "contributions": dict(zip(seats["client"][here].tolist(), seats["worth"][here].tolist(), strict=True)),
                "participations": {c: float(self.sat[c, k]) for c in providers},
                "pool": self.pools[k],
            }
            if k in accuracies:
                given |= {"best_accuracy": self.best.get(k, 0.0), "eta": self.eta, "gamma": self.gamma}
                moved = settle_tier(**given, accuracy=accuracies[k])
            else:
                back = sum(u for t in posted if t.step == f"reimburse/{k}" for _, u in t.postings if u > 0)
                most = round(self.eta * (self.pools[k] + self.price * len(payers)))
                moved = share_out(**given, returned=min(back, most))
            for equation, source, target, units in moved:
                units = units // paid[int(target)] if equation == "14" and not self.all_earn else units
                names = (escrow(int(source)), purse) if equation == "6" else (purse, account(int(target)))
                found[f"{_KINDS[equation]}/{k}"].update({names[0]: -units})
                found[f"{_KINDS[equation]}/{k}"].update({names[1]: units})
                self.pools[k] += units if equation == "6" else -units
        return found

    def _played(self, seats: Seats, accuracies: Mapping[int, float]) -> None:
        """Add a round: its seats, and how good the tiers were that were settled in it."""
        for k, reached in accuracies.items():
            self.best[k] = max(self.best.get(k, 0.0), reached)
        known = dict(self.best)
        columns = (seats[name].tolist() for name in ("client", "start", "tier", "worked"))
        for client, start, tier, worked in zip(*columns, strict=True):
            self.best[tier] = max(self.best.get(tier, 0.0), known.get(start, 0.0))
            self.sat[client, tier] += worked
        self.seats = seats


def _unfit(r: PostedRound, seats: Seats, bids: NDArray[np.bool_]) -> str:
    """Return where an auction's record contradicts the rest of the round's record, or ""."""
    bid, worked = bids[seats["client"], seats["tier"]], seats["worked"]
    odd = np.flatnonzero((seats["bidder"] & ~bid) | (worked & (seats["bidder"] != bid)))
    if len(odd):
        return f"client {seats['client'][odd[0]]} trained, and its bid of the auction and of its seat differ"
    if len(seats["client"]) < len(r.arrays["client"]):
        return ""  # not all seats are of tiers
    if sorted(seats["client"][worked].tolist()) != sorted(r.arrays["answered"].tolist()):
        return "those whose updates were mixed are not those who trained for the tiers"
    worth = np.nan_to_num(r.arrays.get("value", np.zeros(0)), nan=-np.finfo(np.float64).max)
    same = not len(worth) or np.array_equal(np.sort(seats["worth"][worked]), np.sort(worth))
    return "" if same else "what the tiers' seats were worth is not what the updates were worth"


def unlike(
    posted: Sequence[Transaction], due: Mapping[str, Mapping[str, int]], kinds: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the first difference between what is due and what was posted in a round, or "".

    Args:
        posted: what was posted.
        due: units by account, by step.
        kinds: the kind of each step; for others it is what stands before the "/".
    """
    left = {step: {name: n for name, n in of.items() if n} for step, of in due.items() if any(of.values())}
    for one in posted:
        wanted, step = left.pop(one.step, {}), one.step
        if one.kind != kinds.get(step, step.partition("/")[0]) or not wanted:
            return f"the ledger has '{step}', which does not follow from the records"
        if len(one.postings) != len(wanted) or dict(one.postings) != wanted:
            name, units = next((p for p in one.postings if wanted.get(p[0]) != p[1]), ("another account", 0))
            said = f"'{step}' moves {name} by {units:+d}"
            return f"{said}; by the records by {wanted.get(name, 0):+d} (in units)"
    missing = (f"'{step}' follows from the records, and the ledger does not have it" for step in left)
    return next(missing, "")
