"""Recomputes the postings of PI-FL's and TIFF's token managers from a run's records.

``hanse ledger verify`` and ``hanse audit`` use it. A round's records say who bid, who trained for which tier, whose
update was mixed and what it was worth. ``metrics.jsonl`` has each tier's accuracy. With the rule's options in
``config.toml``, every transaction of the round follows (PI-FL eqs 6-14), and the ledger must have exactly these.

One number is not recorded: the tiers' accuracy after the last round, which clients report when the run ends. For that
settlement the refunds, up to the share ``eta``, are taken from the ledger. Everything else must follow from the
records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from hanse.base.errors import UserError
from hanse.base.files import json_lines, read_arrays, read_toml
from hanse.core.entry import BONDS, Transaction, pool
from hanse.games.tokens import settle_tier, share_out
from hanse.mechanisms.pifl import TokenManager, moved_bids, tier_transactions
from hanse.mechanisms.registry import built_in_parts
from hanse.runs.round_record import METRICS, Arrays, round_file

# the seats of a round as they are recorded: the kinds of their dtypes
_SEATS = {"client": "iu", "start": "iu", "tier": "iu", "bidder": "b", "worked": "b", "worth": "f"}
_NAMES = ("bids", *(f"tokens_{name}" for name in _SEATS))


@dataclass
class _Replay:
    """The outcome of the rounds so far.

    Attributes:
        rule: the run's token manager.
        seats: the seats that are still to be settled, ``[S]`` each, by the names of ``_SEATS``.
        best: the best accuracy of each tier so far, by row.
        sat: how often each client's update was mixed into a tier, by (client, row).
        pools: units by tier, by row.
    """

    rule: TokenManager
    seats: Arrays = field(default_factory=lambda: {name: np.zeros(0, np.int64) for name in _SEATS})
    best: dict[int, float] = field(default_factory=dict)
    sat: dict[tuple[int, int], int] = field(default_factory=dict)
    pools: dict[int, int] = field(default_factory=dict)

    def settled(self, accuracies: Mapping[int, float], posted: Iterable[Transaction]) -> list[Transaction]:
        """Return the settlement of the seats, tier by tier.

        Args:
            accuracies: how good each tier was, by row. For a missing one, the refund is taken from ``posted``.
            posted: the round's transactions in the ledger.
        """
        found, seats = [], self.seats
        steps = {transaction.step: transaction for transaction in posted}
        for k in np.unique(seats["tier"]).tolist():
            here = seats["tier"] == k
            clients = seats["client"][here].tolist()
            providers = self.rule.providers(clients, seats["worked"][here].tolist(), seats["bidder"][here].tolist())
            given: dict[str, Any] = {
                "payers": [c for c, bid in zip(clients, seats["bidder"][here].tolist(), strict=True) if bid],
                "providers": providers,
                "price": self.rule.units,
                "contributions": dict(zip(clients, seats["worth"][here].tolist(), strict=True)),
                "participations": {c: float(self.sat[c, k]) for c in providers},
                "pool": self.pools.get(k, 0),
            }
            if k in accuracies:
                given |= {"best_accuracy": self.best.get(k, 0.0), "eta": self.rule.eta, "gamma": self.rule.gamma}
                moved = settle_tier(**given, accuracy=accuracies[k])
            else:
                moved = share_out(**given, returned=self._said(k, given, steps.get(f"reimburse/{k}")))
            moved = self.rule.shared(moved, seats)
            grown = sum(units if equation == "6" else -units for equation, _, _, units in moved)
            self.pools[k] = self.pools.get(k, 0) + grown
            found += tier_transactions(k, moved)
        return found

    def _said(self, tier: int, given: Mapping[str, Any], posted: Transaction | None) -> int:
        """Return the units that the ledger refunds, at most the share eta of the tier's pool (eqs 9, 10)."""
        purse = pool(f"tier {tier}")
        units = 0 if posted is None else -sum(amount for name, amount in posted.postings if name == purse)
        held: int = given["pool"] + given["price"] * len(given["payers"])
        return min(max(0, units), round(self.rule.eta * held))

    def played(self, seats: Arrays, accuracies: Mapping[int, float]) -> None:
        """Add a round that was just played, as ``TokenManager.learn`` does."""
        for k, reached in accuracies.items():
            self.best[k] = max(self.best.get(k, 0.0), reached)
        columns = (seats[name].tolist() for name in ("client", "start", "tier", "worked"))
        known = dict(self.best)
        for client, start, tier, worked in zip(*columns, strict=True):
            self.best[tier] = max(self.best.get(tier, 0.0), known.get(start, 0.0))
            if worked:
                self.sat[client, tier] = self.sat.get((client, tier), 0) + 1
        self.seats = seats


def replay_tokens(
    folder: Path, history: Iterable[tuple[int, Transaction]], through: int | None = None, settled: bool = False
) -> tuple[int | None, str]:
    """Recompute every settlement of a run's token manager, and compare the ledger with it.

    Args:
        folder: the run directory. No file of its rounds is missing.
        history: the ledger's transactions, each with its round.
        through: rounds from this one on may be incomplete in the ledger. None: all rounds are complete.
        settled: whether the last round must be settled, too.

    Returns:
        The number of rounds recomputed, and the first posting that differs, or "". None: the run has no built-in token
        manager.

    Raises:
        UserError: a record is damaged.
    """
    rule = built_in_parts(read_toml(folder / "config.toml")).get("settle")
    if not isinstance(rule, TokenManager):
        return None, ""
    own = (one for one in history if one[1].kind != "grant" and one[1].kind not in BONDS)  # what the manager posts
    groups = ((round, [t for _, t in same]) for round, same in groupby(own, key=lambda one: one[0]))
    replay, count, last, ahead = _Replay(rule), 0, -1, next(groups, None)
    for line in json_lines(folder / METRICS, ("round",)):
        last, there = int(line["round"]), list[Transaction]()
        if ahead is not None and ahead[0] <= last:
            (dated, there), ahead = ahead, next(groups, None)
            if dated != last:
                return count, unlike(dated, (), there)
        if through is not None and last >= through:
            continue
        file = round_file(folder, last)
        record = read_arrays(file, _NAMES)
        try:
            due = _due(replay, record, line, there) if record else []
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as wrong:
            raise UserError(f"{file}: the record of the round cannot be read: {wrong}") from None
        if differs := unlike(last, due, there):
            return count, differs
        count += bool(record)
    if settled and ahead is None:
        return count, unlike(last + 1, replay.settled({}, ()), ())
    while ahead is not None:
        (dated, there), ahead = ahead, next(groups, None)
        if differs := unlike(dated, replay.settled({}, there) if dated == last + 1 else [], there):
            return count, differs
    return count, ""


def _due(replay: _Replay, record: Arrays, line: Mapping[str, Any], posted: Sequence[Transaction]) -> list[Transaction]:
    """Return the transactions of a round by its record, and add the round. Raises ValueError or KeyError for a record
    whose arrays do not fit each other.
    """
    seats, bids = {name: record[f"tokens_{name}"] for name in _SEATS}, record["bids"]
    for name, kinds in _SEATS.items():
        if seats[name].shape != seats["client"].shape or seats[name].ndim != 1 or seats[name].dtype.kind not in kinds:
            raise ValueError(f"tokens_{name} is {seats[name].dtype} {seats[name].shape}")
    if bids.ndim != 2 or bids.dtype.kind != "b":
        raise ValueError(f"bids is {bids.dtype} {bids.shape}")
    accuracies = {k: float(line[f"tokens/tier {k}/accuracy"]) for k in np.unique(replay.seats["tier"]).tolist()}
    settled = replay.settled(accuracies, posted)
    kept = np.zeros_like(bids)
    kept[seats["client"][seats["bidder"]], seats["tier"][seats["bidder"]]] = True
    units = replay.rule.units
    replay.played(seats, accuracies)
    return [*settled, *moved_bids(bids, units, "bid"), *moved_bids(bids & ~kept, units, "return")]


def unlike(round: int, due: Sequence[Transaction], posted: Sequence[Transaction]) -> str:
    """Return the first difference between a round's transactions in the ledger and those that are due, or ""."""
    for right, found in zip_longest(due, posted):
        if right == found:
            continue
        if found is None:
            return f"round {round}: '{right.step}' follows from the records, and the ledger does not have it"
        if right is None or right.step != found.step:
            return f"round {round}: the ledger has '{found.step}', which does not follow from the records"
        for (account, units), (name, amount) in _pairs(right, found):
            if (account, units) != (name, amount):
                said = f"'{found.step}' moves {name or 'nothing'} by {amount:+d} units"
                return f"round {round}: {said}; by the records {account or 'nothing'} by {units:+d}"
        return f"round {round}: '{found.step}' has another kind or memo than by the records"
    return ""


def _pairs(right: Transaction, found: Transaction) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """Yield the postings of two transactions side by side; a posting that one of them lacks is ("", 0)."""
    yield from zip_longest(right.postings, found.postings, fillvalue=("", 0))
