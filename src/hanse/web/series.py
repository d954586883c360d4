"""A figure over any number of rounds in bounded memory."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MOST", "Series"]

MOST = 1024  # points; more than a screen can show


@dataclass
class Series:
    """At most ``most`` of the observations, evenly spread, and the last one.

    Every ``stride``-th observation is kept; when they become too many, every second is dropped and the stride doubles.
    So what is shown are observations as they were made, never averages. The page's script does the same.
    """

    most: int = MOST
    stride: int = 1
    seen: int = 0
    last: tuple[int, float] | None = None
    _x: array[int] = field(default_factory=lambda: array("q"))
    _y: array[float] = field(default_factory=lambda: array("d"))

    def add(self, x: int, y: float) -> None:
        """Add the observation ``y`` of round ``x``."""
        if self.seen % self.stride == 0:
            if len(self._x) == self.most:
                self._x, self._y = self._x[::2], self._y[::2]
                self.stride *= 2
            if self.seen % self.stride == 0:
                self._x.append(x)
                self._y.append(y)
        self.seen += 1
        self.last = (x, y)

    def points(self) -> list[tuple[int, float]]:
        """Return what is kept, in order, the last observation included."""
        found = list(zip(self._x, self._y, strict=True))
        return found if self.last is None or found[-1] == self.last else [*found, self.last]

    def as_json(self) -> dict[str, Any]:
        """Return the state as the page's script takes it up."""
        return {
            "x": self._x.tolist(), "y": self._y.tolist(), "stride": self.stride, "seen": self.seen, "last": self.last,
        }  # fmt: skip
