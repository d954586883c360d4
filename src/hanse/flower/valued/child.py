"""What runs in the process in which a strategy aggregates some of a round's replies.

:mod:`hanse.flower.valued.reaggregate` calls :func:`quiet` once, :func:`begin` in each round and :func:`answered` for
each coalition there. Whatever the strategy does to its process (generators, logging, warnings, threads) happens there,
and what it prints is dropped. Python code that would write a file, open a connection or start a program fails, because
the strategy has already done all this in its own process.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
from typing import Any

REFUSED = "which is not allowed while the aggregate of some of the replies is made again"
# audit events that begin with one of these are refused, but for those that only look
_EVENTS = ("os.", "socket.", "subprocess.Popen", "sqlite3.connect")
_LOOKS = {"os.listdir", "os.scandir", "os.walk", "os.fwalk", "os.getxattr", "os.listxattr", "os.putenv", "os.unsetenv"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class GapError(Exception):
    """An aggregate cannot be made again: why, and what is for the log alone, since it may contain secrets, such as a
    path, a command, or the text of an error of the user's code.
    """


class EffectGuard:
    """An audit hook that refuses effects outside this process, while ``works`` is set.

    Imports are let through: an import that is interrupted would leave a broken module.
    """

    works = False

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        """Hear of an audit event, in whichever thread."""
        if not self.works or event in _LOOKS or not (event == "open" or event.startswith(_EVENTS)) or _importing():
            return
        if event != "open":
            raise GapError(f"its aggregate_train does {event}, {REFUSED}", str(given[0])[:200] if given else "")
        path, mode, flags = given
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)
        if writes and path != os.devnull:
            refuse_file(path)


def _importing() -> bool:
    """Say whether a module is being imported in this thread."""
    frame: Any = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def refuse_file(path: Any, *_: Any, **__: Any) -> Any:
    """Stand in for a function that makes a file. Always raises GapError."""
    raise GapError(f"its aggregate_train writes a file, {REFUSED}", str(path)[:200])


GUARD = EffectGuard()
_round: dict[str, Any] = {}  # the round whose replies are aggregated


def quiet() -> None:
    """Prepare this process: nothing that is printed leaves it, and :data:`GUARD` hears of its effects."""
    import torch

    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)
    # torch.save writes a file and raises no audit event
    torch.serialization._open_zipfile_writer_file = refuse_file  # type: ignore[assignment,misc]
    sys.addaudithook(GUARD)


def begin(task: dict[str, Any]) -> None:
    """Take a round, and restore its strategy once, which imports what it needs.

    Args:
        task: a round, as :class:`hanse.flower.valued.reaggregate.Reaggregation` makes it.

    Raises:
        GapError: the strategy cannot be imported here.
    """
    sys.path[:] = task["path"]
    _round.clear()
    _round.update(task)
    try:
        pickle.loads(task["strategy"])
    except Exception as wrong:
        name = type(wrong).__name__
        raise GapError(f"it cannot be imported in a process of its own ({name})", str(wrong)[:200]) from None


def answered(clients: list[int]) -> Any:
    """Return the aggregate of some clients' replies, or None if the strategy makes none of so few.

    Args:
        clients: the clients whose replies are aggregated, in the order in which they came.

    Raises:
        GapError: it cannot be made again.
    """
    import numpy as np
    import torch

    some = [client for client in _round["replies"] if client in clients]
    try:
        replies = [pickle.loads(_round["replies"][client]) for client in some]
        GUARD.works = True
        strategy = pickle.loads(_round["strategy"])
        pythons, numpys, torchs = _round["drawn"]
        random.setstate(pythons)
        np.random.set_state(numpys)  # noqa: NPY002
        torch.set_rng_state(torchs)
        return strategy.aggregate_train(_round["number"], replies)[0]
    except GapError:
        raise
    except BaseException as wrong:
        if len(some) < len(_round["replies"]):  # a rule that needs more replies, most likely
            return None
        name, said = type(wrong).__name__, " ".join(str(wrong).split())[:200]
        raise GapError(f"its aggregate_train raised {name} when it was called again", f"{name}: {said}") from None
    finally:
        GUARD.works = False
