"""Makes a strategy's aggregate of some of the replies in another process, for strategies that do not average.

To value a reply, hanse needs the models that the strategy would have made without it. For an average they follow from
the replies. For any other rule, the strategy is pickled before it aggregates a round, and sent to a separate process
(:mod:`hanse.flower.valued.child`). This process aggregates subsets of the replies. Nothing therefore changes in the
app's process: not its generators, logging, warnings, threads or functions.

The process is a fresh interpreter. It is not a fork, because an app has threads, and gRPC's do not survive a fork. It
is not ``multiprocessing``'s spawn either, because that would run the app's main program again. It gets the app's
``sys.path``, so it can import the strategy's class. Each run has one such process, started when first needed.
"""

from __future__ import annotations

import io
import logging
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from hanse.base.errors import first_line
from hanse.flower.valued.child import IMPORTABLE
from hanse.flower.valued.states import settings

LOG = logging.getLogger("hanse.valued")
PROGRAM = Path(__file__).with_name("child.py")
START_S = 60.0  # seconds that the process may take to start and to import the strategy
PICKLE_S = 10.0  # seconds that the strategy may take to be pickled, in the app's own process
LEAST_S = 30.0  # seconds that the aggregates of a round may take in all, however short the round was
SKIPPED = frozenset({"train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"})  # Flower's attributes that only make metrics


class NotAgain(Exception):  # noqa: N818 (a reason, told as such)
    """Why a strategy's aggregate cannot be made again, in one line."""


class _Late(Exception):  # noqa: N818 (not a fault)
    """The process gave no answer in time, and was ended."""


def no_metrics(contents: Any, key: str) -> MetricRecord:
    """Return no metrics, whatever the replies say."""
    return MetricRecord()


class _Pickler(pickle.Pickler):
    """Leaves out the functions that make metrics of replies: often lambdas, and no part of the aggregate. It gives up
    at a limit, looked at before each object: a single object's own way of being pickled is not interrupted.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._end = time.perf_counter() + PICKLE_S

    def reducer_override(self, thing: Any) -> Any:
        """Return how a strategy is taken apart; everything else as ever."""
        if time.perf_counter() > self._end:
            raise _Late
        if not isinstance(thing, Strategy):
            return NotImplemented
        parts = thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        if not isinstance(parts, tuple) or len(parts) < 3 or not isinstance(parts[2], dict):
            return parts
        state = {name: no_metrics if name in SKIPPED else value for name, value in parts[2].items()}
        return (*parts[:2], state, *parts[3:])


def pickled(strategy: Strategy) -> bytes:
    """Return a strategy as bytes, in memory, for the other process.

    Raises:
        NotAgain: the strategy cannot be pickled, or something of which it is made cannot be imported. The message names
            the attribute.
    """
    if type(strategy).__module__ == "__main__":
        raise NotAgain(f"its class {type(strategy).__name__} cannot be imported: {IMPORTABLE}")
    begun = time.perf_counter()
    try:
        found = _dumped(strategy)
        if time.perf_counter() - begun > PICKLE_S:
            raise _Late
        return found
    except _Late:
        raise NotAgain(f"it takes more than {PICKLE_S:g} s to be pickled") from None
    except Exception as wrong:
        LOG.warning("hanse: the strategy cannot be pickled: %s", first_line(wrong))
        raise NotAgain(f"{_culprit(strategy)} cannot be pickled ({type(wrong).__name__}): {IMPORTABLE}") from None


def _dumped(thing: Any) -> bytes:
    """Return something pickled."""
    file = io.BytesIO()
    _Pickler(file).dump(thing)
    return file.getvalue()


def _culprit(strategy: Strategy) -> str:
    """Return which attribute of a strategy cannot be pickled, in words."""
    for name, value in vars(strategy).items():
        try:
            _dumped(None if name in SKIPPED else value)
        except Exception:
            return f"its attribute {name!r}"
    return "it"


class Child:
    """The process in which a run's strategy aggregates again.

    The first question starts the process, which is closed at the end.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, question: Any, seconds: float) -> Any:
        """Send a question and return the answer.

        Args:
            question: a task (a dictionary), or clients.
            seconds: the longest time that the answer may take.

        Raises:
            NotAgain: the process ended, or the answer is a reason.
            _Late: there is no answer in time.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-BP", str(PROGRAM)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
            question = (sys.path, (seconds, question))
        else:
            question = ((seconds, question),)
        process, late = self._process, threading.Event()
        assert process.stdin is not None
        assert process.stdout is not None

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            for part in question:
                pickle.dump(part, process.stdin, pickle.HIGHEST_PROTOCOL)
            process.stdin.flush()
            arrays, why, more = pickle.load(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError) as wrong:
            self.close()
            if late.is_set():
                raise _Late from None
            ended = f"the process that aggregates some of the replies ended (code {process.returncode})"
            raise NotAgain(ended) from wrong
        except BaseException:  # half a question or answer is in the pipes
            self.close()
            raise
        finally:
            timer.cancel()
        if more:
            LOG.warning("hanse: the strategy in a process of its own: %s", more)
        if why:
            raise NotAgain(why)
        return arrays

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        process.wait()


@dataclass
class Again:
    """A strategy's aggregate of some of a round's replies.

    Attributes:
        child: the process in which the aggregate is made.
        strategy: the strategy from just before it aggregated, pickled.
        number: the round's number in Flower.
        replies: the replies by client, in the order in which they came.
        states: the states of the random generators at that time, so all coalitions get the same noise.
        seconds: how long all aggregates of the round together may take.

    Examples:
        There are two replies to FedAvg, and only the second is aggregated:

        >>> import numpy as np
        >>> from flwr.app import Array, RecordDict
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from hanse.flower.rehearsal import InProcessGrid
        >>> from hanse.flower.valued.states import states
        >>> def answer(message, context):
        ...     arrays = ArrayRecord({"w": Array(np.full(2, context.node_id, np.float32))})
        ...     metrics = MetricRecord({"num-examples": 10})
        ...     return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
        >>> grid = InProcessGrid({100: answer, 101: answer})
        >>> messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in (100, 101)]
        >>> replies, child = dict(enumerate(grid.send_and_receive(messages))), Child()
        >>> Again(child, pickled(FedAvg()), 1, replies, states()).made([1])["w"].numpy()
        array([101., 101.], dtype=float32)
        >>> child.close()
    """

    child: Child
    strategy: bytes
    number: int
    replies: Mapping[int, Message]
    states: Mapping[str, Any]
    seconds: float = LEAST_S
    _took: float = field(default=0.0, init=False)
    _sent: bool = field(default=False, init=False)

    def made(self, clients: Sequence[int]) -> ArrayRecord | None:
        """Return the aggregate of these clients' replies, in the order in which they came.

        None if the strategy makes no aggregate of them, for example because it needs more replies.

        Raises:
            NotAgain: the aggregate cannot be made again, the round's time is used up, or the strategy raises even for
                all replies together.
        """
        if not self._sent:
            self._send()
        begun, left = time.perf_counter(), self.seconds - self._took
        try:
            found: ArrayRecord | None = self.child.ask([*clients], max(left, 0.0))
        except _Late:
            raise NotAgain(f"its aggregates of some of the replies take more than {self.seconds:.0f} s") from None
        self._took += time.perf_counter() - begun
        return found

    def _send(self) -> None:
        """Send the round to the process."""
        task = {
            "strategy": self.strategy,
            "number": self.number,
            "replies": {client: pickle.dumps(reply) for client, reply in self.replies.items()},
            "states": self.states,
            "settings": settings(),
        }
        try:
            self.child.ask(task, START_S)
        except _Late:
            raise NotAgain(f"it takes more than {START_S:.0f} s to import it in a process of its own") from None
        self._sent = True
