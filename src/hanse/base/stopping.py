"""Ctrl-C in a run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class Stop:
    """Whether the run was asked to end after its round."""

    asked: bool = False


@contextmanager
def interruptible(ours: bool) -> Iterator[Stop]:
    """Let the first Ctrl-C end the run after its round; a second one ends it at once. Only in the main thread."""
    stop = Stop()
    if not ours:  # Flower ends its server apps with the same signal, and must be able to
        yield stop
        return

    def ask(signum: int, frame: FrameType | None) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    try:
        old = signal.signal(signal.SIGINT, ask)
    except ValueError:  # not the main thread: signals stay with whoever owns them
        yield stop
        return
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, old)
