"""An auction for each tier: clients are told the price and bid; good bids go into escrow until they are settled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from hanse.federation.port import Ask, Request, Trained
from hanse.ledger.book import Book
from hanse.ledger.entry import Transaction, escrow
from hanse.ledger.entry import client as account
from hanse.mechanisms.part import Floats, View
from hanse.mechanisms.tiers import Bids, held_bids, tier_rows, wanted_tiers

__all__ = ["escrowed", "good_bids", "invitations", "num_wanted", "returned"]


def invitations(view: View, price: int, limit: int | None, models: Tensor, paid: Floats) -> list[Request]:
    """Return the question "bid" to everyone present: the ``price`` of a seat (units), the tiers' ``models [K, P]``
    (scored on at most ``limit`` own samples), and what each has ``paid [N, K]`` a client so far (net units a seat).
    """

    def told(c: int) -> Mapping[str, Any]:
        balance = view.book.balance(account(c)) - view.book.floor
        return {"tiers": len(models), "price": price, "balance": balance, "paid": paid[c].tolist()}

    return [Request(c, (Ask("bid", told(c), models, limit=limit),)) for c in view.present.tolist()]


def good_bids(view: View, book: Book, price: int) -> Bids:
    """Return the good bids ``[N, K]``: for a tier that there is, once, and paid for from the balances in ``book``.

    A client's bids are taken in its own order of preference until its account is at its floor (papers.md P10).
    """
    rows = tier_rows(view.table).tolist()
    bids = np.zeros((view.context.num_clients, view.table.size), bool)
    for c in view.present.tolist():
        wanted = dict.fromkeys(k for k in wanted_tiers(view, c) if type(k) is int and 0 <= k < len(rows))
        afford = max(0, (book.balance(account(c)) - book.floor) // price)
        bids[c, [rows[k] for k in list(wanted)[:afford]]] = True
    return bids


def num_wanted(view: View) -> int:
    """Return how many bids came, good or not."""
    return sum(len(wanted_tiers(view, c)) for c in view.present.tolist())


def escrowed(bids: Bids, price: int) -> list[Transaction]:
    """Return the movements of good bids ``[N, K]`` into escrow, ``price`` units each, a transaction a tier."""
    found = []
    for k in np.flatnonzero(bids.any(axis=0)).tolist():
        pairs = []
        for c in np.flatnonzero(bids[:, k]).tolist():
            pairs += [(account(c), -price), (escrow(c), price)]
        found.append(Transaction(f"bid/{k}", "bid", tuple(pairs), "bids, held until the round settles"))
    return found


def returned(view: View, price: int) -> list[Transaction]:
    """Return the movements out of escrow of bids that were not selected, and of those whose seat failed for the
    server's reasons (papers.md P9): the update was sound, but too few others were.
    """
    seats, mixed = view.seats, view.trained.seats
    assert seats is not None
    taken = np.zeros((view.context.num_clients, view.table.size), bool)
    for s, (c, k) in enumerate(zip(seats.client.tolist(), seats.target.tolist(), strict=True)):
        taken[c, k] = not isinstance(view.answers.get((c, f"seat {s}")), Trained)
    taken[mixed.client, mixed.target] = True
    back, found = held_bids(view) & ~taken, []
    for k in np.flatnonzero(back.any(axis=0)).tolist():
        pairs = []
        for c in np.flatnonzero(back[:, k]).tolist():
            pairs += [(escrow(c), -price), (account(c), price)]
        found.append(Transaction(f"return/{k}", "return", tuple(pairs), "bids that won no seat"))
    return found
