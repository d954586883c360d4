"""Makes a strategy's aggregate of some of the replies in another process, for strategies that do not average.

To value a reply, hanse needs the models that the strategy would have made without it. For an average they follow from
the replies. For any other rule, the strategy is pickled before it aggregates a round (by cloudpickle, which joblib has:
classes of the program itself and lambdas are no hindrance), and sent to a process of its own, which aggregates subsets
of the replies. Nothing therefore changes in the app's process: not its generators, logging, warnings or functions.

:func:`quiet`, :func:`begin` and :func:`answered` run there. What the strategy prints there is dropped, and Python code
that would write a file, open a connection or start a program fails, because the strategy has already done all this in
its own process.

The process is one of loky's, joblib's own: a fresh interpreter that does not run the app's main program again. Each run
has one such process, started when first needed; it ends with the run, or with the app.
"""

from __future__ import annotations

import logging
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import TimeoutError as LateError
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import torch
from cloudpickle import dumps
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import Strategy
from joblib.externals.loky import ProcessPoolExecutor

from hanse.base.errors import UserError, first_line
from hanse.base.plain_text import quantity

LOG = logging.getLogger("hanse.valued")
START_S = 120.0  # seconds that the process may take to start and to import the strategy
LEAST_S = 30.0  # seconds that the aggregates of a round may take in all, however short the round was
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
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in (1, 2):
        os.dup2(nowhere, output)
    # torch.save writes a file and raises no audit event
    torch.serialization._open_zipfile_writer_file = refuse_file  # type: ignore[assignment,misc]
    sys.addaudithook(GUARD)


def begin(task: dict[str, Any]) -> None:
    """Take a round, and restore its strategy once, which imports what it needs.

    Args:
        task: a round, as :class:`Reaggregation` makes it.

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
    """Return the aggregate of some clients' replies, or None if the strategy makes none of so few (and says so by
    returning none, as Flower's own strategies do).

    Args:
        clients: the clients whose replies are aggregated, in the order in which they came.

    Raises:
        GapError: it cannot be made again: the strategy raised, or did what is not allowed here.
    """
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
        name, said = type(wrong).__name__, " ".join(str(wrong).split())[:200]
        of = f"{len(some)} of {quantity(len(_round['replies']), 'reply', 'replies')}"
        raise GapError(f"its aggregate_train raised {name} when it was called again with {of}", said) from None
    finally:
        GUARD.works = False


def started() -> Any:
    """Return an executor with one process, which starts at the first call."""
    return ProcessPoolExecutor(1, initializer=quiet)


class Reaggregation:
    """Makes a strategy's aggregates of some of a round's replies, in a process that is started when first needed.

    Examples:
        There are two replies to FedAvg, and only the second is aggregated:

        >>> from flwr.app import Array, MetricRecord, RecordDict
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from hanse.flower.in_process import InProcessGrid
        >>> def answer(message, context):
        ...     arrays = ArrayRecord({"w": Array(np.full(2, context.node_id, np.float32))})
        ...     metrics = MetricRecord({"num-examples": 10})
        ...     return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
        >>> grid = InProcessGrid({100: answer, 101: answer})
        >>> messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in (100, 101)]
        >>> again = Reaggregation()
        >>> again.begin(FedAvg(), 1, dict(enumerate(grid.send_and_receive(messages))), LEAST_S)
        >>> again.made([1])["w"].numpy()
        array([101., 101.], dtype=float32)
        >>> again.close()
    """

    def __init__(self) -> None:
        self._process: Any = None  # a loky executor
        self._task: dict[str, Any] | UserError | None = None  # the round, until it is sent, or why it cannot be
        self._seconds = self._left = 0.0

    def begin(self, strategy: Strategy, number: int, replies: Mapping[int, Message], seconds: float) -> None:
        """Take a round, from just before the strategy aggregates it.

        Args:
            strategy: the strategy. It is pickled now.
            number: the round's number in Flower.
            replies: the replies by client, in the order in which they came.
            seconds: how long all aggregates of the round together may take.
        """
        self._seconds = self._left = seconds
        try:
            held = dumps(strategy)
        except Exception as wrong:
            LOG.warning("hanse: the strategy cannot be pickled: %s", first_line(wrong))  # its text may have secrets
            self._task = UserError(f"it cannot be pickled ({type(wrong).__name__})")
            return
        self._task = {
            "path": list(sys.path),
            "strategy": held,
            "number": number,
            "replies": {client: pickle.dumps(reply) for client, reply in replies.items()},
            # so that all coalitions get the same noise
            "drawn": (random.getstate(), np.random.get_state(), torch.get_rng_state()),  # noqa: NPY002
        }

    def made(self, clients: Sequence[int]) -> ArrayRecord | None:
        """Return the aggregate of these clients' replies, in the order in which they came.

        None if the strategy makes no aggregate of them, for example because it needs more replies.

        Raises:
            UserError: the strategy cannot be pickled, the round's time is used up, or the strategy raised.
        """
        if isinstance(self._task, UserError):
            raise self._task
        if self._task is not None:
            task, self._task = self._task, None
            self._asked(begin, task, START_S)
        begun = time.perf_counter()
        found: ArrayRecord | None = self._asked(answered, [*clients], max(self._left, 0.0))
        self._left -= time.perf_counter() - begun
        return found

    def _asked(self, what: Callable[[Any], Any], given: Any, seconds: float) -> Any:
        """Call a function in the process and return its result. Raises UserError if it has none, or is late."""
        try:
            self._process = self._process or started()
            return self._process.submit(what, given).result(seconds)
        except GapError as gap:
            why, more = gap.args
            LOG.warning("hanse: the strategy in a process of its own: %s", more)
            raise UserError(why) from None
        except BaseException as wrong:  # it may still be at work on this
            self.close()
            if isinstance(wrong, LateError):
                limit = START_S if what is begin else self._seconds
                raise UserError(f"its aggregates of some of the replies take more than {limit:.0f} s") from None
            if isinstance(wrong, BrokenProcessPool):
                raise UserError("the process that aggregates some of the replies ended") from None
            raise

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.shutdown(kill_workers=True)
