"""When a run ends before its last round: a target is reached, or time or traffic is used up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Budget"]


@dataclass
class Budget:
    """Adds up what rounds cost; each limit may be absent.

    ``target_accuracy`` is a share of the server's test set, ``max_seconds`` the wall-clock of all rounds,
    ``max_megabytes`` all bytes up and down in units of 10^6.
    """

    target_accuracy: float | None = None
    max_seconds: float | None = None
    max_megabytes: float | None = None
    seconds: float = 0.0
    megabytes: float = 0.0
    accuracy: float = 0.0
    rounds: int = 0

    def spend(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Count these rounds' metrics."""
        for line in lines:
            self.rounds += 1
            self.seconds += line["time/round_s"]
            self.megabytes += (line["bytes/down"] + line["bytes/up"]) / 1e6
            accuracy = line.get("test/accuracy")
            if accuracy is not None:
                self.accuracy = max(self.accuracy, accuracy)

    def over(self) -> str | None:
        """Return why the run is over, with the number of rounds it took, or None."""
        after = f"after {self.rounds} round{'s' if self.rounds != 1 else ''}"
        if self.target_accuracy is not None and self.accuracy >= self.target_accuracy:
            return f"target accuracy {self.target_accuracy:g} reached {after} ({self.accuracy:.4f})"
        if self.max_seconds is not None and self.seconds >= self.max_seconds:
            return f"max_seconds {self.max_seconds:g} used up {after} ({self.seconds:.1f} s)"
        if self.max_megabytes is not None and self.megabytes >= self.max_megabytes:
            return f"max_megabytes {self.max_megabytes:g} used up {after} ({self.megabytes:.1f} MB)"
        return None
