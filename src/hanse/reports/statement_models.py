"""Where a participant's models went, and what it got of others, round by round from the records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hanse.reports.chart import Ints
from hanse.runs.record import RunRecord

__all__ = ["Models", "models_of"]

_MARKET = ("market_client", "market_graph", "market_paid", "market_utility")
_NEEDED = ("client", "start", "answered", "home", "W_row", "W_column", "W_weight", "withheld", "bids", *_MARKET)


@dataclass(frozen=True)
class Models:
    """``asked`` rounds in which the client was to train, ``answered`` of them with an update that was accepted, and
    ``used`` of those with one that was mixed, with a weight other than 0, into a model that is not its own alone.
    ``reached`` other clients were given such a model at least once, ``deliveries`` times in all (a client and a round
    each): to start from next, to train on in the next round, to choose among at an auction, or sold by the market.
    ``names`` of those, with how often, most often first; None unless the run allows names.

    In a market: ``imported`` models of others that were delivered to it, and in how many rounds what it wanted was
    ``withheld`` because it did not pay; ``utility`` in tokens over the run. None elsewhere.
    """

    asked: int
    answered: int
    used: int
    reached: int
    deliveries: int
    names: tuple[tuple[str, int], ...] | None = None
    imported: int | None = None
    withheld: int | None = None
    utility: float | None = None


def models_of(run: RunRecord, client: int, *, names: bool = False) -> Models:
    """Return what the rounds' records say of a client's models."""
    home: Ints = np.zeros(0, np.int64)
    answered, used = 0, 0
    got: Counter[int] = Counter()
    imported, withheld, utility, traded = 0, 0, 0.0, False
    waiting: Ints = np.zeros(0, np.int64)  # rows with its work, until the next seats show who trains on
    before: set[int] = set()
    for line in run.metrics:
        record = run.arrays(int(line["round"]), only=_NEEDED)
        if "answered" not in record:
            continue
        # who is seated at such a row next was sent it, though it is not the row that it holds
        seated = set(record["client"][np.isin(record["start"], waiting)].tolist()) - before - {client}
        got.update(seated)
        home = record.get("home", home)
        mine = np.flatnonzero(record["answered"] == client)
        answered += bool(len(mine))
        rows = np.unique(record["W_row"][np.isin(record["W_column"], mine) & (record["W_weight"] != 0)])
        rows = rows[~np.isin(rows, [*_own(home, client), *record.get("withheld", ())])]
        receivers: Ints = np.flatnonzero(np.isin(home, rows)) if len(rows) else np.zeros(0, np.int64)
        if len(rows) and "bids" in record and line.get("present") == len(home):
            receivers = np.arange(len(home), dtype=np.int64)  # an auction shows all models to everyone who may bid
        if "market_graph" in record:
            traded = True
            importers, imports, unpaid, worth = _market(record, client)
            receivers = rows = importers  # rows of a market are others' centres: what was sold says it all
            imported, withheld, utility = imported + imports, withheld + unpaid, utility + worth
        used += bool(len(rows))
        before = set(receivers.tolist()) - {client}
        got.update(before)
        waiting = np.zeros(0, np.int64) if "market_graph" in record else rows.astype(np.int64)
    named = tuple((run.client_label(c), n) for c, n in sorted(got.items(), key=lambda item: (-item[1], item[0])))
    asked = len({seat.round for seat in run.clients if seat.client == client})
    return Models(
        asked,
        answered,
        used,
        len(got),
        got.total(),
        named if names else None,
        imported if traded else None,
        withheld if traded else None,
        utility if traded else None,
    )


def _own(home: Ints, client: int) -> list[int]:
    """Return the client's own row, if it holds one that nobody else does: what goes there stays with it."""
    row = int(home[client]) if client < len(home) else -1
    return [row] if row >= 0 and int((home == row).sum()) == 1 else []


def _market(record: dict[str, NDArray[np.generic]], client: int) -> tuple[Ints, int, bool, float]:
    """Return what a round's market did for a client: who imported its model ``[n]``, how many it imported, whether
    what it wanted was withheld, and its utility. An import that was not paid for was not delivered.
    """
    clients, graph = record["market_client"], np.asarray(record["market_graph"]) != 0
    paid = np.asarray(record["market_paid"], bool) if "market_paid" in record else np.ones(len(clients), bool)
    at = np.flatnonzero(clients == client)
    if not len(at):
        return np.zeros(0, np.int64), 0, False, 0.0
    i = int(at[0])
    delivered = graph & paid[:, None]
    importers = np.asarray(clients[delivered[:, i]], np.int64)
    worth = float(np.asarray(record["market_utility"], np.float64)[i])
    return importers, int(delivered[i].sum()), not paid[i] and bool(graph[i].any()), worth
