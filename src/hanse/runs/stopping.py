"""Lets Ctrl-C end a run after its current round, so no work is lost.

The loop runs inside :func:`interruptible` and checks :attr:`Stop.asked` after each round.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import current_thread, main_thread
from types import FrameType


@dataclass
class Stop:
    """Whether the user asked the run to end.

    Attributes:
        asked: True from the first Ctrl-C on. The run ends once its current round is finished.
    """

    asked: bool = False


@contextmanager
def interruptible(ours: bool) -> Iterator[Stop]:
    """Handle Ctrl-C inside this block: the first sets ``asked``, and the second raises KeyboardInterrupt at once.

    Outside the main thread signals cannot be handled, and the block changes nothing.

    Args:
        ours: whether this process may handle the signal. It is False in Flower's server apps, because Flower ends them
            with that signal.

    Yields:
        The :class:`Stop` to look at.
    """
    stop = Stop()
    # Flower ends its server apps with the same signal, and must be able to; only the main thread can handle signals
    if not ours or current_thread() is not main_thread():
        yield stop
        return

    def ask(signum: int, frame: FrameType | None) -> None:
        """Note the first signal; a user who repeats it does not want to wait for the round."""
        if stop.asked:
            raise KeyboardInterrupt
        stop.asked = True

    old = signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, old)
