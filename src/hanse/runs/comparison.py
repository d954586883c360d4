"""Compares what follows from a run's records with what they say: numbers, texts, arrays and payments.

An audit (:mod:`hanse.runs.replay`) and a recomputation (:mod:`hanse.runs.recompute`) play parts of a run again, and
stop at the first difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from types import MappingProxyType
from typing import Any

import numpy as np

from hanse.core.entry import Transaction

Scale = float | np.ndarray  # for all numbers, or for each


class UnlikeError(Exception):
    """A result that was made again, or was kept, differs from the record. The text says where."""


@dataclass
class Comparison:
    """How numbers may differ, and how much they did.

    Attributes:
        floor: the allowed difference, as a share of the largest number of the same kind. 0: no difference is allowed.
        exact: whether payments and their memos must be equal whatever the floor is.
        least: if it is above 0, the allowed difference is a share of each number itself, not of the largest, and this
            much more: what rounding leaves of a sum of 0 is otherwise on another processor.
        deviation: the largest difference found, as the same share.

    Examples:
        >>> Comparison(floor=1e-4).same("{}", {"loss": np.array([1.0, 2.0])}, {"loss": np.array([1.0, 2.0001])})
        >>> Comparison().same("'{}'", {"loss": 1.0, "units": 2**60}, {"loss": 1.0, "units": 2**60 + 1})
        Traceback (most recent call last):
        hanse.runs.comparison.UnlikeError: 'units' is 1152921504606846976, and 1152921504606846977 was recorded
    """

    floor: float = 0.0
    exact: bool = True
    least: float = 0.0
    deviation: float = 0.0

    def same(
        self,
        said: str,
        made: Mapping[str, Any],
        recorded: Mapping[str, Any],
        unmade: tuple[str, ...] = (),
        scales: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Compare numbers, texts or arrays by name. Raises UnlikeError.

        Args:
            said: how a difference names what it is found in, with braces for the name.
            made: what comes out here.
            recorded: what was recorded.
            unmade: how names begin of what is not compared.
            scales: the largest number of a kind, by name, where it is not the largest of ``made`` under this name.
        """
        for name in dict.fromkeys((*made, *recorded)):
            mine, theirs = (_array(one.get(name)) for one in (made, recorded))
            if name.startswith(unmade) or (mine is None and theirs is None):
                continue
            if mine is None or theirs is None or mine.shape != theirs.shape:
                forms = ("nothing" if one is None else f"a form {list(one.shape)}" for one in (theirs, mine))
                raise UnlikeError("{} was recorded with {}, and comes out with {}".format(said.format(name), *forms))
            money = name.endswith(("units", "money")) and not self.exact  # whole units, which may be one apart
            if mine.dtype.kind in ("fiu" if money else "f") and theirs.dtype.kind in "fiu":
                scale: Scale = scales.get(name) or float(np.abs(mine[np.isfinite(mine)]).max(initial=0.0))
                if self.least:
                    scale = np.abs(mine) + self.least / self.floor
                alike = self.close(mine, theirs, np.maximum(scale, 1 / self.floor) if money else scale)
            else:
                alike = np.asarray(mine == theirs)
            for at in np.flatnonzero(~alike.reshape(-1))[:1].tolist():
                place, (due, there) = f"[{at}]" * bool(mine.ndim), (x.reshape(-1)[at] for x in (mine, theirs))
                raise UnlikeError(f"{said.format(name)}{place} is {due!s}, and {there!s} was recorded")

    def same_payments(self, made: Sequence[Transaction], posted: Sequence[Transaction]) -> None:
        """Compare transactions with those of the ledger. Raises UnlikeError."""
        for mine, theirs in zip_longest(made, posted):
            if mine is None or theirs is None or (mine.step, mine.kind) != (theirs.step, theirs.kind):
                raise UnlikeError(f"the ledger has {_step(theirs)}, and the round posts {_step(mine)}")
            due, found = ({f"{account} units": units for account, units in one.postings} for one in (mine, theirs))
            self.same(f"what '{mine.step}' moves, {{}},", due, found)
            if self.exact and mine != theirs:
                raise UnlikeError(f"'{mine.step}' was to be {mine.postings} ({mine.memo!r}), and is otherwise recorded")

    def close(self, mine: np.ndarray, theirs: np.ndarray, scale: Scale) -> np.ndarray:
        """Say for each number whether both are alike, as a share of ``scale`` (for all or each), and record the
        difference.
        """
        same = (mine == theirs) | (np.isnan(mine) & np.isnan(theirs))
        with np.errstate(invalid="ignore"):
            share = np.where(same, 0.0, np.abs(mine - theirs) / np.where(scale, scale, 1.0))
        near = share <= self.floor
        self.deviation = max(self.deviation, float(share[near].max(initial=0.0)))
        return np.asarray(same | near)


def _array(value: Any) -> np.ndarray | None:
    """Return a value of a line as an array, which is whole where the value is; None for nothing."""
    return None if value is None else np.asarray(value)


def _step(transaction: Transaction | None) -> str:
    """Return how a difference names a transaction."""
    return "nothing" if transaction is None else f"'{transaction.step}' ({transaction.kind})"
