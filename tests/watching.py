"""What tests of whole runs share: an observer that keeps its rounds and may stop it, and lines without their times."""

import json
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.core.part import View
from hanse.runs.round import Played, first_state, play_round
from hanse.runs.setup import Session


class Killed(BaseException):
    """Ends a run in the middle, as a kill would: nothing between here and the end of the process is run."""


class Watch:
    """Keeps what each round was, and stops the run after round ``until``, as Ctrl-C or another ``error`` would."""

    def __init__(self, until: int | None = None, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.rounds: list[Played] = []
        self.until, self.error = until, error

    @property
    def views(self) -> list[View]:
        return [played.view for played in self.rounds]

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        self.rounds.append(played)
        if metrics["round"] == self.until:
            raise self.error


@dataclass
class After:
    """Does something after round ``number``, or after each; by default what Ctrl-C does."""

    number: int | None
    what: Callable[[], Any] = lambda: signal.raise_signal(signal.SIGINT)

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        if self.number in (None, metrics["round"]):
            self.what()


def untimed(lines: Iterable[Mapping[str, Any]] | Path) -> list[dict[str, Any]]:
    """Return lines, or those of a file, without what two runs of the same bits need not share: times and memory."""
    if isinstance(lines, Path):
        lines = [json.loads(line) for line in lines.read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(("time/", "memory/"))} for line in lines]


def rounds_of(setup: Session, rounds: int) -> Iterator[Played]:
    """Play so many rounds of a session from its first state."""
    state = first_state(setup)
    for _ in range(rounds):
        played = play_round(setup, state)
        yield played
        state = played.state
