"""TRAIN, with a model for each of several tiers; and what PI-FL's parts have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hanse.errors import UserError
from hanse.ledger.entry import escrow
from hanse.mechanisms.part import Context, Floats, Ints, State, TrainPart, View
from hanse.streams import stream
from hanse.table import SERVER, Seats, Table

__all__ = ["Bids", "TierModels", "held_bids", "tier_models", "tier_rows", "wanted_tiers", "widened"]

Bids = NDArray[np.bool_]


def wanted_tiers(view: View, client: int) -> list[Any]:
    """Return the tiers that a client bids for, its favourite first: untrusted, anything but a list is no bid."""
    wanted = (view.said(client, "bid") or {}).get("tiers")
    return list(wanted) if isinstance(wanted, list | tuple) else []


def tier_rows(table: Table) -> Ints:
    """Return the rows ``[K]`` that are tiers' models: those of the server."""
    return np.flatnonzero(table.owner == SERVER).astype(np.int64)


def tier_models(table: Table) -> Tensor:
    """Return the tiers' models ``[K, P]``; not a copy where the table holds nothing else, so that a client that was
    sent them needs nothing more to train one of them.
    """
    rows = tier_rows(table)
    return table.rows if len(rows) == table.size else table.rows[rows]


def held_bids(view: View) -> Bids:
    """Return which bids of this round are in escrow, ``[N, K]`` bool: by clients, for rows of the table."""
    bids = np.zeros((view.context.num_clients, view.table.size), bool)
    number = {escrow(c): c for c in range(len(bids))}
    for transaction in view.posted:
        if transaction.kind in ("bid", "return"):
            tier = int(transaction.step.partition("/")[2])
            clients = [number[name] for name, _ in transaction.postings if name in number]
            bids[clients, tier] = transaction.kind == "bid"
    return bids


def widened(array: Floats, columns: int) -> Floats:
    """Return ``array [N, k]`` with columns of zeros up to ``columns`` (a table may grow)."""
    missing = columns - array.shape[1]
    return np.pad(array, ((0, 0), (0, missing))) if missing > 0 else array


@dataclass(frozen=True)
class TierModels(TrainPart):
    """PI-FL: a model for each of ``tiers``, all from one initial model (or each from its own, with ``initial =
    "different"``); averages of models from different initial ones fit nothing, so personal models need the same.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"clients"})
    gives: ClassVar[frozenset[str]] = frozenset({"groups", "tiers"})
    tiers: Annotated[int, Field(ge=1)] = 2
    initial: Literal["same", "different"] = "same"

    def table(self, context: Context) -> tuple[Table, Ints]:
        """Return a server row a tier; homes are a random tier each. Raises UserError for more tiers than clients."""
        if self.tiers > context.num_clients:
            raise UserError(
                f"mechanism.tiers: {self.tiers}: more than the {context.num_clients} clients that there are"
            )
        rows = [context.initial(k if self.initial == "different" else 0) for k in range(self.tiers)]
        places = stream(context.seed, "first homes").permutation(context.num_clients)
        return Table.of(torch.stack(rows)), (places % self.tiers).astype(np.int64)

    def decide(self, view: View, state: State) -> Seats:
        """Seat each chosen client at the tier's model that was chosen for it (its home row if none was)."""
        if view.choice is None:
            raise RuntimeError("no choice yet: seats were asked for before SELECT")
        clients, start, target = view.choice.clients, view.choice.start, view.choice.target
        if start is None:
            start = view.home[clients]
        return Seats(np.asarray(clients, np.int64), start, start if target is None else target)
