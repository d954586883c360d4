"""The books of a run as arrays: what everyone held after each round, and who paid whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from hanse.base.errors import UserError
from hanse.reports.chart import Floats, Ints
from hanse.reports.groups import Group
from hanse.runs.record import RunRecord

__all__ = ["Books", "books_of", "read_books"]


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


def read_books(run: RunRecord) -> Books | None:
    """Return a run's books; None if nobody pays in it. Raises UserError if they cannot be read."""
    if not (run.path / "ledger.json").exists():
        return None
    from hanse.core.entry import TOKEN
    from hanse.ledger.place import reading
    from hanse.ledger.totals import Totals

    totals, rounds, rows = Totals(), list[int](), list[Floats]()
    row = np.full(run.num_clients, np.nan)
    with reading(run.path, run.ledger_url) as ledger:
        for round, records in groupby(ledger.history(), key=lambda record: record.round):
            for record in records:
                totals.add(record)
            for account in totals.moved:
                kind, _, number = account.partition("/")
                if kind in ("client", "escrow") and int(number) < len(row):
                    row[int(number)] = sum(totals.balances.get(f"{of}/{number}", 0) for of in ("client", "escrow"))
            totals.moved.clear()
            rounds.append(round)
            rows.append(row.copy())
        opened = list(ledger.balances())
    if not rounds:
        return None
    used = {name for pair in totals.flows for name in pair}
    clients = sorted(int(name.removeprefix("client/")) for name in used if name.startswith("client/"))
    pools = [name for name in opened if name in used and name.startswith("pool/")]
    places = {name: i for i, name in enumerate([*(f"client/{c}" for c in clients), *pools])}
    flow = np.zeros((len(places), len(places)))
    for (source, target), units in totals.flows.items():
        flow[places[source], places[target]] = units
    return Books(
        np.array(rounds, np.int64),
        np.stack(rows) / TOKEN,
        tuple(clients),
        tuple(name.removeprefix("pool/") for name in pools),
        flow / TOKEN,
        tuple((kind, units / TOKEN) for kind, units in totals.kinds.items()),
    )
