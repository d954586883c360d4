"""The books of a run as arrays: what everyone held after each round, and who paid whom."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.reports.chart import Floats, Ints
from hanse.reports.load import Group, LoadedRun

if TYPE_CHECKING:
    from hanse.ledger.store import Ledger

__all__ = ["Books", "books_of", "read_books"]

_OWNER = re.compile(r"(?:client|escrow)/(\d+)")


@dataclass(frozen=True)
class Books:
    """``held [R, N]`` tokens, account and escrow together, after each of the ``rounds [R]`` (0-based) in which anything
    was posted; who has no account yet holds NaN. ``flow [m, m]`` tokens went from node to node over the run, grants
    left out: the nodes are ``clients`` (those that ever paid or were paid), then ``pools``. ``kinds`` of transactions,
    grants left out, with the tokens that they moved between accounts.
    """

    rounds: Ints
    held: Floats
    clients: tuple[int, ...]
    pools: tuple[str, ...]
    flow: Floats
    kinds: tuple[tuple[str, float], ...] = ()


def books_of(groups: Sequence[Group]) -> tuple[dict[str, Books], list[str]]:
    """Return the books of each group's first run, by the group's label, and why there are none where they should be."""
    found, notes = {}, []
    for group in groups:
        try:
            books = read_books(group.runs[0])
        except UserError as wrong:
            notes.append(f"The books of {group.runs[0].name} cannot be read, and their figures are left out: {wrong}")
            continue
        if books is not None:
            found[group.label] = books
    return found, notes


def read_books(run: LoadedRun) -> Books | None:
    """Return a run's books; None if nobody pays in it. Raises UserError if they cannot be read."""
    if not (run.path / "ledger.json").exists():
        return None
    from hanse.core.entry import TOKEN
    from hanse.ledger.place import reading

    with reading(run.path, run.ledger_url) as ledger:
        names, rows = _rows(ledger)
        kinds = _kinds(ledger)
    if not len(rows):
        return None
    # a client and its escrow are one place: a bid is not a payment
    owner = [int(m[1]) if (m := _OWNER.fullmatch(name)) else None for name in names]
    pools = tuple(name for name, who in zip(names, owner, strict=True) if who is None and name != "mint")
    n = run.num_clients
    place = np.array([who if who is not None else n + pools.index(name) if name != "mint" else -1
                      for name, who in zip(names, owner, strict=True)], np.int64)  # fmt: skip
    transaction, round_, account, units = rows.T
    where = place[account]
    rounds, held = _held(round_, where, units, n)
    size = n + len(pools)
    flow = _flow(transaction, where, units, size) / TOKEN
    used = np.flatnonzero(flow.any(axis=0) | flow.any(axis=1))
    return Books(
        rounds,
        held / TOKEN,
        tuple(int(i) for i in used if i < n),
        tuple(pools[i - n].removeprefix("pool/") for i in used if i >= n),
        flow[np.ix_(used, used)],
        tuple((kind, units / TOKEN) for kind, units in kinds),
    )


def _rows(ledger: Ledger) -> tuple[list[str], NDArray[np.int64]]:
    """Return the names of accounts, and for every posting its transaction's number and round, its account's place in
    the names, and its units, ``[P, 4]``.
    """
    from sqlalchemy import select

    from hanse.ledger.tables import accounts, postings, transactions

    a, t, p = accounts.c, transactions.c, postings.c
    with ledger.begin() as connection:
        named = connection.execute(select(a.id, a.name).where(a.book_id == ledger.id).order_by(a.id)).all()
        wanted = (
            select(t.number, t.round, p.account_id, p.amount)
            .join_from(postings, transactions, t.id == p.transaction_id)
            .where(t.book_id == ledger.id)
            .order_by(t.number)
        )
        flat = (number for row in connection.execute(wanted) for number in row)
        rows = np.fromiter(flat, np.int64).reshape(-1, 4)
    ids = np.array([id_ for id_, _ in named], np.int64)
    rows[:, 2] = np.searchsorted(ids, rows[:, 2])
    return [name for _, name in named], rows


def _kinds(ledger: Ledger) -> list[tuple[str, int]]:
    """Return the kinds of transactions in order of appearance, with the units that came to accounts by them; those in
    which the mint takes part are left out.
    """
    from sqlalchemy import func, select

    from hanse.core.entry import MINT
    from hanse.ledger.tables import accounts, postings, transactions

    a, t, p = accounts.c, transactions.c, postings.c
    wanted = (
        select(t.kind, func.sum(p.amount))
        .join_from(postings, transactions, t.id == p.transaction_id)
        .where(t.book_id == ledger.id, p.amount > 0)
        .group_by(t.kind)
        .order_by(func.min(t.number))
    )
    minted = (
        select(t.kind)
        .join_from(postings, transactions, t.id == p.transaction_id)
        .join(accounts, a.id == p.account_id)
        .where(t.book_id == ledger.id, a.name == MINT)
        .distinct()
    )
    with ledger.begin() as connection:
        grants = set(connection.execute(minted).scalars())
        return [(kind, int(units)) for kind, units in connection.execute(wanted) if kind not in grants]


def _held(round_: Ints, where: Ints, units: Ints, n: int) -> tuple[Ints, Floats]:
    rounds, at = np.unique(round_, return_inverse=True)
    moved = np.zeros((len(rounds), n))
    ours = (where >= 0) & (where < n)
    np.add.at(moved, (at[ours], where[ours]), units[ours])
    first = np.full(n, len(rounds))
    np.minimum.at(first, where[ours], at[ours])
    held: Floats = moved.cumsum(axis=0)
    held[np.arange(len(rounds))[:, None] < first] = np.nan
    return rounds.astype(np.int64), held


def _flow(transaction: Ints, where: Ints, units: Ints, size: int) -> Floats:
    """Return how many units went from place to place, ``[size, size]``; the mint's transactions are left out.

    In a transaction with one payer or one payee it is plain who paid whom; in one with several of both, each payee is
    taken to be paid by all payers in proportion.
    """
    minted = np.unique(transaction[where < 0])
    kept = ~np.isin(transaction, minted)
    key, at = np.unique(transaction[kept] * size + where[kept], return_inverse=True)
    net = np.zeros(len(key), np.int64)
    np.add.at(net, at, units[kept])
    key, net = key[net != 0], net[net != 0]
    number, node = key // size, key % size
    _, group = np.unique(number, return_inverse=True)
    flow = np.zeros((size, size))
    count = int(group.max(initial=-1)) + 1
    payers, payees = (np.bincount(group[sign], minlength=count) for sign in (net < 0, net > 0))
    for many, one in ((net > 0, payers == 1), (net < 0, (payees == 1) & (payers > 1))):
        simple = one[group]
        single = np.zeros(count, np.int64)
        lonely = simple & ~many
        single[group[lonely]] = node[lonely]
        rest = simple & many
        source, target = single[group[rest]], node[rest]
        pair = (source, target) if bool((net[rest] > 0).all()) else (target, source)
        np.add.at(flow, pair, np.abs(net[rest]))
    for g in np.flatnonzero((payers > 1) & (payees > 1)).tolist():
        here = group == g
        out, into = here & (net < 0), here & (net > 0)
        flow[np.ix_(node[out], node[into])] += np.outer(-net[out], net[into]) / net[into].sum()
    return flow
