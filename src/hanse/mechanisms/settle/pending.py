"""A round that is still to be settled: its accuracies arrive with the next bids (PI-FL eq. 8).

The state of the token manager: the seats of that round (``client``, ``tier``, ``bidder``: it bid and paid, ``worked``:
its update was mixed, ``worth``, each ``[S]``); how often each client ``sat [N, K]`` and what each tier has ``paid [N,
K]`` it so far (net units); each tier's ``best [K]`` accuracy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hanse.games import tokens
from hanse.ledger.entry import Transaction, escrow, pool
from hanse.ledger.entry import client as account
from hanse.mechanisms.part import Context, Floats, Ints, State, View
from hanse.mechanisms.tiers import held_bids, tier_rows, widened
from hanse.table import Seats

__all__ = ["first_state", "next_state", "paid_now", "settle"]

_STEPS = {
    "6": ("pay", "PI-FL eqs (6), (7): selected bidders pay"),
    "11": ("reimburse", "PI-FL eqs (8)-(11): reimbursement"),
    "14": ("reward", "PI-FL eqs (12)-(14): rewards by rank"),
}


def first_state(context: Context) -> State:
    """Return the state before round 0: nothing to settle, nobody has taken part."""
    n, none = context.num_clients, np.zeros(0, np.int64)
    return {
        "client": none,
        "tier": none,
        "bidder": np.zeros(0, bool),
        "worked": np.zeros(0, bool),
        "worth": np.zeros(0),
        "sat": np.zeros((n, 0)),
        "paid": np.zeros((n, 0)),
        "best": np.zeros(0),
    }


def settle(
    view: View, state: State, price: int, eta: float, gamma: float, accuracies: Mapping[int, float]
) -> list[Transaction]:
    """Return the settlement of the round before: each tier by PI-FL eqs (6)-(14), from escrow through the tier's pool
    to the clients. ``accuracies``: of each tier's model now, by row.
    """
    transactions: list[Transaction] = []
    for k in np.unique(state["tier"]).tolist():
        here = state["tier"] == k
        clients, worked = state["client"][here].tolist(), state["worked"][here]
        providers = [c for c, did in zip(clients, worked, strict=True) if did]
        moved = tokens.settle_tier(
            payers=[c for c, bid in zip(clients, state["bidder"][here], strict=True) if bid],
            providers=providers,
            price=price,
            accuracy=accuracies[k],
            best_accuracy=float(state["best"][k]),
            eta=eta,
            gamma=gamma,
            contributions=dict(zip(clients, state["worth"][here].tolist(), strict=True)),
            participations={c: float(state["sat"][c, k]) for c in providers},
            pool=view.book.balance(pool(f"tier {k}")),
        )
        transactions += _transactions(k, moved)
    return transactions


def _transactions(tier: int, moved: Sequence[tokens.Movement]) -> list[Transaction]:
    """Return one transaction for each equation that moved anything."""
    found, purse = [], pool(f"tier {tier}")
    for equation, (kind, memo) in _STEPS.items():
        here = [(source, target, units) for eq, source, target, units in moved if eq == equation]
        total = sum(units for _, _, units in here)
        if equation == "6":
            pairs = [(escrow(int(source)), -units) for source, _, units in here]
            pairs.append((purse, total))
        else:
            pairs = [(account(int(target)), units) for _, target, units in here]
            pairs.append((purse, -total))
        if here:
            found.append(Transaction(f"{kind}/{tier}", kind, tuple(pairs), memo))
    return found


def paid_now(view: View, state: State, price: int) -> Ints:
    """Return what the settlement that this round posted paid each client net, ``[N, K]`` units."""
    paid = np.zeros((view.context.num_clients, view.table.size), np.int64)
    payers = state["bidder"]
    paid[state["client"][payers], state["tier"][payers]] -= price
    number = {account(c): c for c in range(view.context.num_clients)}
    for transaction in view.posted:
        if transaction.kind in ("reimburse", "reward"):
            tier = int(transaction.step.partition("/")[2])
            for name, units in transaction.postings:
                if name in number:
                    paid[number[name], tier] += units
    return paid


def next_state(outcome: View, state: State, accuracies: Mapping[int, float], price: int) -> State:
    """Return the state after a round: the round before is settled, and this one's seats are to be."""
    seats, size = outcome.seats, outcome.table.size
    assert seats is not None
    sat = widened(state["sat"], size).copy()
    best = np.pad(state["best"], (0, max(0, size - len(state["best"]))))
    for k, reached in accuracies.items():
        best[k] = max(best[k], reached)
    # a tier that starts from another one's model has been as good as it (papers.md P12: Acc_max from pre-training)
    np.maximum.at(best, seats.target, best[seats.start])
    worked, worth = _work(outcome, seats)
    np.add.at(sat, (seats.client[worked], seats.target[worked]), 1)
    tier = np.isin(seats.target, tier_rows(outcome.table))  # private rows have no pool
    return {
        "client": seats.client[tier],
        "tier": seats.target[tier],
        "bidder": held_bids(outcome)[seats.client, seats.target][tier],
        "worked": worked[tier],
        "worth": worth[tier],
        "sat": sat,
        "paid": widened(state["paid"], size) + paid_now(outcome, state, price),
        "best": best,
    }


def _work(outcome: View, seats: Seats) -> tuple[np.ndarray, Floats]:
    """Return which seats' updates were mixed, ``[S]``, and what they were worth (0 where nothing is known)."""
    place = {pair: s for s, pair in enumerate(_pairs(outcome.trained.seats))}
    at = np.array([place.get(pair, -1) for pair in _pairs(seats)], np.int64)
    worth = np.zeros(len(seats))
    if outcome.values is not None:
        # what is not finite ranks last, and does not stop the settlement
        worth[at >= 0] = np.nan_to_num(outcome.values.per_seat[at[at >= 0]], nan=-np.finfo(np.float64).max)
    return at >= 0, worth


def _pairs(seats: Seats) -> list[tuple[int, int]]:
    return list(zip(seats.client.tolist(), seats.target.tolist(), strict=True))
