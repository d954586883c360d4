"""When a run ends before its last round: what rounds cost, held against the limits of ``[run]``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hanse.runs.config import RunSection


@dataclass
class Budget:
    """When a run ends before its last round: adds up what rounds cost; each limit may be absent.

    ``target_accuracy`` is a share of the server's test set, ``max_seconds`` the wall-clock of all rounds,
    ``max_megabytes`` all bytes up and down in units of 10^6.
    """

    limits: RunSection
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
        wanted, seconds, megabytes = self.limits.target_accuracy, self.limits.max_seconds, self.limits.max_megabytes
        if wanted is not None and self.accuracy >= wanted:
            return f"target accuracy {wanted:g} reached {after} ({self.accuracy:.4f})"
        if seconds is not None and self.seconds >= seconds:
            return f"max_seconds {seconds:g} used up {after} ({self.seconds:.1f} s)"
        if megabytes is not None and self.megabytes >= megabytes:
            return f"max_megabytes {megabytes:g} used up {after} ({self.megabytes:.1f} MB)"
        return None
