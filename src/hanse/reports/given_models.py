"""Where a client's models went, and which models of others it got (:func:`models_of`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from hanse.reports.chart import Ints
from hanse.runs.run_record import RunRecord

_MARKET = ("market_client", "market_graph", "market_paid")
_NEEDED = ("client", "start", "answered", "home", "W_row", "W_column", "W_weight", "withheld", "bids", *_MARKET)
_MADE = ("made_row", "made_of", "made_at")  # rows that an aggregation rule made itself, without weights in W


@dataclass(frozen=True)
class GivenModels:
    """Where a client's models went, and which models of others it got.

    Another client is *given* a model with this client's work in four cases: it will start from that model next, it
    trains it in the next round, it may choose among several such models at an auction, or it has bought it in a market.

    Attributes:
        used: in how many rounds its update was mixed, with a nonzero weight, into a model that others also hold.
        reached: how many other clients were given such a model at least once.
        deliveries: how many times in all, counted once per client and round.
        names: who was given such models and how often, the most frequent first. None: the run does not allow names.
        imported: in a market, how many models of others were delivered to it. None elsewhere.
        withheld: in a market, in how many rounds its imports were withheld because it did not pay. None elsewhere.
    """

    used: int
    reached: int
    deliveries: int
    _: KW_ONLY
    names: tuple[tuple[str, int], ...] | None = None
    imported: int | None = None
    withheld: int | None = None


def models_of(run: RunRecord, client: int, *, names: bool = False) -> GivenModels:
    """Return where a client's models went, from the records of all rounds.

    Args:
        run: the run, as :func:`hanse.runs.run_record.load_run` reads it.
        client: the client's number.
        names: whether to name those who were given its models.
    """
    home: Ints = np.zeros(0, np.int64)
    used = 0
    got: Counter[int] = Counter()
    imported, withheld, traded = 0, 0, False
    waiting: Ints = np.zeros(0, np.int64)  # rows with its work, until the next round shows who trains on them
    before: set[int] = set()  # who was given a model in the round before, so nobody counts twice for one model
    for line in run.metrics:
        record = run.arrays(int(line["round"]), only=(*_NEEDED, *_MADE))
        if "answered" not in record:
            continue
        # who starts from such a row in this round was sent it, even if it is not the row that this client holds
        seated = set(record["client"][np.isin(record["start"], waiting)].tolist()) - before - {client}
        got.update(seated)
        home = record.get("home", home)[: run.num_clients]  # a network has seats for clients that never came
        mine = np.flatnonzero(record["answered"] == client)  # columns of W that are its updates
        rows = np.unique(record["W_row"][np.isin(record["W_column"], mine) & (record["W_weight"] != 0)])
        if "made_row" in record:
            rows = np.union1d(rows, record["made_row"][record["made_at"][np.isin(record["made_of"], mine)]])
        rows = rows[~np.isin(rows, [*_own(home, client), *record.get("withheld", ())])]
        receivers: Ints = np.flatnonzero(np.isin(home, rows)) if len(rows) else np.zeros(0, np.int64)
        if len(rows) and "bids" in record and line.get("present") == len(home):
            receivers = np.arange(len(home), dtype=np.int64)  # an auction shows all models to everyone who may bid
        if "market_graph" in record:
            traded = True
            importers, imports, unpaid = _market(record, client)
            # rows that a market makes are others' centres, which stay with them: only what was sold went anywhere
            receivers = rows = importers
            imported, withheld = imported + imports, withheld + unpaid
        elif traded:  # the last round of a market sells nothing: what it keeps for each client is that client's own
            receivers = rows = np.zeros(0, np.int64)
        used += bool(len(rows))
        before = set(receivers.tolist()) - {client}
        got.update(before)
        waiting = np.zeros(0, np.int64) if traded else rows.astype(np.int64)
    named = tuple((run.client_label(c), n) for c, n in sorted(got.items(), key=lambda item: (-item[1], item[0])))
    return GivenModels(
        used,
        len(got),
        got.total(),
        names=named if names else None,
        imported=imported if traded else None,
        withheld=withheld if traded else None,
    )


def _own(home: Ints, client: int) -> list[int]:
    """Return the row that only this client holds, if any; updates mixed into it reach nobody else."""
    row = int(home[client]) if client < len(home) else -1
    return [row] if row >= 0 and int((home == row).sum()) == 1 else []


def _market(record: dict[str, NDArray[np.generic]], client: int) -> tuple[Ints, int, bool]:
    """Return what a round's market did for a client.

    That is: who imported its model ``[n]``, how many models it imported, and whether its imports were withheld. Unpaid
    imports were not delivered and do not count.
    """
    clients, graph = record["market_client"], np.asarray(record["market_graph"]) != 0
    paid = np.asarray(record["market_paid"], bool) if "market_paid" in record else np.ones(len(clients), bool)
    at = np.flatnonzero(clients == client)
    if not len(at):
        return np.zeros(0, np.int64), 0, False
    i = int(at[0])
    delivered = graph & paid[:, None]
    importers = np.asarray(clients[delivered[:, i]], np.int64)
    return importers, int(delivered[i].sum()), not paid[i] and bool(graph[i].any())
