"""Ends a process of Flower's that must not outlive its node or its SuperLink."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

PARENT = "--parent-pid"  # Flower's option that tells a process whose end is its own
LOOK_S = 1.0  # seconds between two looks whether the parent is there
GRACE_S = 5.0  # seconds that Flower has to end a process properly after that


def end_with_parent(words: Sequence[str], grace_s: float = GRACE_S) -> None:
    """End this process once the process that ``--parent-pid`` in its command line names is gone.

    Flower watches that process too, and sends itself an interrupt. But Python reacts to it only when the main thread is
    back in Python. A message that waits or computes for hours would therefore outlive its node by hours.

    Args:
        words: the command line. If it does not name a parent, nothing is done.
        grace_s: seconds from the parent's end until this process is killed.
    """
    if PARENT not in words:
        return
    parent = int(words[list(words).index(PARENT) + 1])

    def watch() -> None:
        """Wait for the parent's end."""
        while _is_there(parent):
            time.sleep(LOOK_S)
        time.sleep(grace_s)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _is_there(pid: int) -> bool:
    """Say whether there is a process with this pid."""
    try:
        os.kill(pid, 0)
    except OSError as wrong:
        return not isinstance(wrong, ProcessLookupError)  # it may be another user's
    return True
