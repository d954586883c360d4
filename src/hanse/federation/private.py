"""Private rows on a network: their owner's update counts once the server says that it was accepted.

The owner keeps a :class:`PrivateRow` in its own file. Every request says which update of each row the server accepted
last (:class:`TellsOwners`), and :meth:`PrivateRow.told` moves the row accordingly. The owner's row and the server's
record therefore agree even after a crash on either side, or if the server returns to an earlier state.
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
from hanse.core.port import Federation, Request
from hanse.core.recipe import NEVER
from hanse.core.table import Ints
from hanse.federation.wrapped import Wrapped


def private_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays into an npz file, whole and durably, which only this user can read.

    Raises:
        OSError: the file cannot be written.
    """
    with whole_file(path, durable=True, private=True) as file:
        np.savez(file, **dict(arrays))  # type: ignore[arg-type]


@dataclass(frozen=True)
class PrivateRow:
    """A private row as its owner keeps it.

    Attributes:
        row: ``[P]``, the row that counts.
        before: ``[P]``, the row before the last accepted update.
        round: the round of that update, or NEVER for a row that was never trained.
        pending: ``[P]``, the owner's last update while the owner does not know yet whether it was accepted; else None.
        pending_round: the round in which ``pending`` was trained.

    Examples:
        >>> kept = PrivateRow.first(torch.zeros(2)).trained(torch.ones(2), 0)
        >>> kept.told(1, 0).row  # round 0 was accepted
        tensor([1., 1.])
        >>> kept.told(1, None).row
        tensor([0., 0.])
    """

    row: Tensor
    before: Tensor
    round: int = NEVER
    pending: Tensor | None = None
    pending_round: int = NEVER

    @staticmethod
    def first(row: Tensor) -> PrivateRow:
        """Return a row ``[P]`` that was never trained."""
        return PrivateRow(row, row)

    def trained(self, update: Tensor, round: int) -> PrivateRow:
        """Return the row with a new update ``[P]`` of a round, which waits for its acceptance."""
        return replace(self, pending=update, pending_round=round)

    def told(self, round: int, accepted: int | None) -> PrivateRow:
        """Return the row after a server's message about it.

        The pending update becomes the row if it is the accepted one. It is dropped if its round differs from the
        message's. If the row moved in a later round than the accepted one, it goes back: the server was reset to an
        earlier state, or has undone that round.

        Args:
            round: the round of the message.
            accepted: the round of the last update that the server accepted. NEVER: it accepted none. None: the server
                does not say.
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
        """Write the row into a file, whole and durably, which only this user can read.

        Raises:
            OSError: the file cannot be written.
        """
        kept = {"row": self.row.numpy(), "before": self.before.numpy(), "round": np.array(self.round)}
        if self.pending is not None:
            kept |= {"pending": self.pending.numpy(), "pending_round": np.array(self.pending_round)}
        private_arrays(path, kept)

    @staticmethod
    def read(path: Path) -> PrivateRow:
        """Return the row that was written into a file.

        Raises:
            OSError: the file cannot be read.
            ValueError, KeyError: the file is damaged.
        """
        with np.load(path, allow_pickle=False) as file:
            row, before = (torch.from_numpy(file[name]) for name in ("row", "before"))
            kept = PrivateRow(row, before, int(file["round"]))
            if "pending" not in file.files:
                return kept
            return kept.trained(torch.from_numpy(file["pending"]), int(file["pending_round"]))


@dataclass(frozen=True)
class TellsOwners(Wrapped):
    """A federation whose requests also say which updates of the client's private rows were accepted last.

    Attributes:
        told: ``(row, round)`` by client, for rows with an accepted update.
    """

    told: Mapping[int, tuple[tuple[int, int], ...]]

    @staticmethod
    def of(inner: Federation, owner: Ints, moved: Ints) -> TellsOwners:
        """Return the federation for a table whose private rows were updated in known rounds.

        Args:
            inner: the federation that is asked.
            owner: ``[K]``, the owner of each row of the table.
            moved: ``[K]``, the round of each private row's last accepted update, or NEVER if there is none.
        """
        told: dict[int, tuple[tuple[int, int], ...]] = {}
        for row in np.flatnonzero(moved != NEVER).tolist():
            told[int(owner[row])] = (*told.get(int(owner[row]), ()), (row, int(moved[row])))
        return TellsOwners(inner, told)

    def asked(self, requests: Sequence[Request]) -> list[Request]:
        """Return the requests with the state of the clients' private rows."""
        return [replace(r, accepted=self.told.get(r.client, ())) for r in requests]
