"""Private rows on a network: what their owner trained counts when the server says that it was accepted.

The owner keeps a :class:`PrivateRow`; the server says with every request which update of each row was the last that it
accepted (:class:`TellsOwners`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hanse.base.files import whole_file
from hanse.core.history import NEVER
from hanse.core.port import Closing, Federation, Reply, Request, Roster
from hanse.core.table import Ints


def private_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays into an npz file, whole and durably, which only this user can read. Raises OSError."""
    with whole_file(path, durable=True, private=True) as file:
        np.savez(file, **dict(arrays))  # type: ignore[arg-type]


@dataclass(frozen=True)
class PrivateRow:
    """A private row ``row [P]`` as it counts, and the ``round`` of the update that it is (NEVER: it is the first one).

    ``before`` is the row that it was before. ``pending`` is what its owner trained in ``pending_round``: neither
    accepted nor refused as far as it knows.
    """

    row: Tensor
    before: Tensor
    round: int = NEVER
    pending: Tensor | None = None
    pending_round: int = NEVER

    @staticmethod
    def first(row: Tensor) -> PrivateRow:
        """Return a row that was never trained."""
        return PrivateRow(row, row)

    def trained(self, update: Tensor, round: int) -> PrivateRow:
        """Return the row with an update of a round that waits for its acceptance."""
        return replace(self, pending=update, pending_round=round)

    def told(self, round: int, accepted: int | None) -> PrivateRow:
        """Return the row after a message of a round, by whose word its last accepted update is that of the round
        ``accepted`` (NEVER: none was; None: nothing is said).

        The pending update becomes the row if it is that one, and is dropped if it is of another round than the
        message. A row that moved in a later round goes back: the server was set back, or has undone that round.
        """
        if self.pending is not None and self.pending_round == accepted:
            return PrivateRow(self.pending, self.row, accepted)
        kept = self
        if accepted is not None and self.round > accepted:
            kept = replace(self, row=self.before, round=accepted)
        if kept.pending is not None and kept.pending_round != round:
            kept = replace(kept, pending=None, pending_round=NEVER)
        return kept

    def write(self, path: Path) -> None:
        """Write it into a file, whole and durably. Raises OSError."""
        kept = {"row": self.row.numpy(), "before": self.before.numpy(), "round": np.array(self.round)}
        if self.pending is not None:
            kept |= {"pending": self.pending.numpy(), "pending_round": np.array(self.pending_round)}
        private_arrays(path, kept)

    @staticmethod
    def read(path: Path) -> PrivateRow:
        """Read what was written. Raises OSError, and ValueError or KeyError for a damaged file."""
        with np.load(path, allow_pickle=False) as file:
            row, before = (torch.from_numpy(file[name]) for name in ("row", "before"))
            kept = PrivateRow(row, before, int(file["round"]))
            if "pending" not in file.files:
                return kept
            return kept.trained(torch.from_numpy(file["pending"]), int(file["pending_round"]))


@dataclass(frozen=True)
class TellsOwners:
    """``inner``, with every request saying of the client's private rows which update was the last accepted.

    ``told`` are these (row, round) by client, of rows of which one was.
    """

    inner: Federation
    told: Mapping[int, tuple[tuple[int, int], ...]]

    @staticmethod
    def of(inner: Federation, owner: Ints, moved: Ints) -> TellsOwners:
        """Return the federation for a table with these owners ``[K]``, whose private rows took their last update in the
        rounds ``moved`` (NEVER: none, and so with rows that have no entry).
        """
        told: dict[int, tuple[tuple[int, int], ...]] = {}
        for row in np.flatnonzero(moved != NEVER).tolist():
            told[int(owner[row])] = (*told.get(int(owner[row]), ()), (row, int(moved[row])))
        return TellsOwners(inner, told)

    def present(self, round: int) -> Roster:
        """Return the clients that are here."""
        return self.inner.present(round)

    def exchange(
        self, round: int, requests: Sequence[Request], deadline_s: float | None, closing: Closing | None
    ) -> Sequence[Reply]:
        """Send the requests with what became of the clients' rows, and return the replies."""
        told = [replace(r, accepted=self.told.get(r.client, ())) for r in requests]
        return self.inner.exchange(round, told, deadline_s, closing)
