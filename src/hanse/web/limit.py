"""Bounds how often somebody may ask: a bucket of tokens for each address."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Limit"]


@dataclass
class Limit:
    """``burst`` requests at once, then ``per_second`` of them; of the ``most`` askers that were heard last.

    Forgetting the others bounds the memory; who is forgotten starts again with a full bucket, as after a pause.
    """

    burst: float
    per_second: float
    most: int = 4096
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # left, when

    def wait_s(self, asker: str) -> float:
        """Return how many seconds this asker would have to wait; 0 if it may ask now. Takes nothing."""
        return max(0.0, (1 - self._left(asker)) / self.per_second)

    def take(self, asker: str) -> float:
        """Take one request from the asker's bucket if there is one, and return 0; else the seconds until there is."""
        left = self._left(asker)
        if left < 1:
            return (1 - left) / self.per_second
        self._buckets[asker] = (left - 1, self.clock())
        self._buckets.move_to_end(asker)
        if len(self._buckets) > self.most:
            self._buckets.popitem(last=False)
        return 0.0

    def _left(self, asker: str) -> float:
        left, when = self._buckets.get(asker, (self.burst, self.clock()))
        return min(self.burst, left + (self.clock() - when) * self.per_second)
