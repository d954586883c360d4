"""When a run ends before its last round: the limits of ``[run]`` on accuracy, time and traffic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hanse.runs.config import RunSection


@dataclass
class Budget:
    """Adds up the costs of rounds, and says when a limit is reached.

    Attributes:
        limits: the section ``[run]``: ``target_accuracy`` (a share of the server's test set), ``max_seconds`` (of all
            rounds, by the wall clock) and ``max_megabytes`` (10^6 bytes, up and down together). A limit may be None,
            which means no such limit.
        seconds: the seconds used so far.
        megabytes: the megabytes used so far.
        accuracy: the best test accuracy so far, 0 to 1.
        rounds: how many rounds were counted.
    """

    limits: RunSection
    seconds: float = 0.0
    megabytes: float = 0.0
    accuracy: float = 0.0
    rounds: int = 0

    def spend(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Count these rounds, given as their lines of ``metrics.jsonl``."""
        for line in lines:
            self.rounds += 1
            self.seconds += line["time/round_s"]
            self.megabytes += (line["bytes/down"] + line["bytes/up"]) / 1e6
            accuracy = line.get("test/accuracy")
            if accuracy is not None:
                self.accuracy = max(self.accuracy, accuracy)

    def over(self) -> str | None:
        """Return why the run ends, and after how many rounds, or None if it continues."""
        after = f"after {self.rounds} round{'s' if self.rounds != 1 else ''}"
        wanted, seconds, megabytes = self.limits.target_accuracy, self.limits.max_seconds, self.limits.max_megabytes
        if wanted is not None and self.accuracy >= wanted:
            return f"target accuracy {wanted:g} reached {after} ({self.accuracy:.4f})"
        if seconds is not None and self.seconds >= seconds:
            return f"max_seconds {seconds:g} used up {after} ({self.seconds:.1f} s)"
        if megabytes is not None and self.megabytes >= megabytes:
            return f"max_megabytes {megabytes:g} used up {after} ({self.megabytes:.1f} MB)"
        return None
