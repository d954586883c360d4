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
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from hanse.base.errors import UserError, first_line
from hanse.flower.valued.child import IMPORTABLE

LOG = logging.getLogger("hanse.valued")
PROGRAM = Path(__file__).with_name("child.py")
START_S = 120.0  # seconds that the process may take to start and to import the strategy
LEAST_S = 30.0  # seconds that the aggregates of a round may take in all, however short the round was
SKIPPED = frozenset({"train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"})  # Flower's attributes that only make metrics


def no_metrics(contents: Any, key: str) -> MetricRecord:
    """Return no metrics, whatever the replies say."""
    return MetricRecord()


class _Pickler(pickle.Pickler):
    """Leaves out the functions that make metrics of replies: often lambdas, and no part of the aggregate."""

    def reducer_override(self, thing: Any) -> Any:
        """Return how a strategy is taken apart; everything else as ever."""
        parts = thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL) if isinstance(thing, Strategy) else NotImplemented
        if not isinstance(parts, tuple) or len(parts) < 3 or not isinstance(parts[2], dict):
            return parts
        state = {name: no_metrics if name in SKIPPED else value for name, value in parts[2].items()}
        return (*parts[:2], state, *parts[3:])


def pickled(strategy: Strategy) -> bytes:
    """Return a strategy as bytes, in memory, for the other process.

    Raises:
        UserError: the strategy cannot be pickled. The reason is logged, since it may contain secrets.
    """
    file = io.BytesIO()
    try:
        _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(strategy)
    except Exception as wrong:
        LOG.warning("hanse: the strategy cannot be pickled: %s", first_line(wrong))
        raise UserError(f"it cannot be pickled ({type(wrong).__name__}): {IMPORTABLE}") from None
    return file.getvalue()


class Reaggregation:
    """Makes a strategy's aggregates of some of a round's replies, in a process that is started when first needed.

    Examples:
        There are two replies to FedAvg, and only the second is aggregated:

        >>> from flwr.app import Array, RecordDict
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
        >>> _ = again.close()
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._line: Connection | None = None
        self._task: dict[str, Any] | None = None  # the round, until it is sent
        self._seconds = self._left = 0.0

    def begin(self, strategy: Strategy, number: int, replies: Mapping[int, Message], seconds: float) -> None:
        """Take a round, from just before the strategy aggregates it.

        Args:
            strategy: the strategy. It is pickled now.
            number: the round's number in Flower.
            replies: the replies by client, in the order in which they came.
            seconds: how long all aggregates of the round together may take.

        Raises:
            UserError: the strategy cannot be pickled (:func:`pickled`).
        """
        self._seconds = self._left = seconds
        self._task = {
            "strategy": pickled(strategy),
            "number": number,
            "replies": {client: pickle.dumps(reply) for client, reply in replies.items()},
            # so that all coalitions get the same noise
            "drawn": (random.getstate(), np.random.get_state(), torch.get_rng_state()),  # noqa: NPY002
        }

    def made(self, clients: Sequence[int]) -> ArrayRecord | None:
        """Return the aggregate of these clients' replies, in the order in which they came.

        None if the strategy makes no aggregate of them, for example because it needs more replies.

        Raises:
            UserError: the aggregate cannot be made again, the round's time is used up, or the strategy raises even for
                all replies together.
        """
        if self._task is not None:
            task, self._task = self._task, None
            self._ask(task, START_S, f"it takes more than {START_S:.0f} s to import it in a process of its own")
        begun, late = time.perf_counter(), f"its aggregates of some of the replies take more than {self._seconds:.0f} s"
        found: ArrayRecord | None = self._ask([*clients], max(self._left, 0.0), late)
        self._left -= time.perf_counter() - begun
        return found

    def _ask(self, question: Any, seconds: float, late: str) -> Any:
        """Send a task or clients and return the answer. Raises UserError: ``late`` if there is none in time."""
        if self._line is None:
            self._line, there = Pipe()
            self._process = subprocess.Popen(
                [sys.executable, "-BP", str(PROGRAM), str(there.fileno())], stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[there.fileno()], start_new_session=True,
            )  # fmt: skip
            there.close()
            self._line.send_bytes(pickle.dumps(sys.path))
        try:
            self._line.send_bytes(pickle.dumps(question, pickle.HIGHEST_PROTOCOL))
            answer = self._line.recv_bytes() if self._line.poll(seconds) else None
        except BaseException as wrong:  # half a question or answer is on the line
            code = self.close()
            if isinstance(wrong, EOFError | OSError):
                wrong = UserError(f"the process that aggregates some of the replies ended (code {code})")
            raise wrong from None
        if answer is None:
            self.close()
            raise UserError(late)
        arrays, why, more = pickle.loads(answer)
        if more:
            LOG.warning("hanse: the strategy in a process of its own: %s", more)
        if why:
            raise UserError(why)
        return arrays

    def close(self) -> int | None:
        """End the process, if there is one, and return its exit code."""
        process, self._process = self._process, None
        if self._line is not None:
            self._line.close()
            self._line = None
        if process is None:
            return None
        process.kill()
        assert process.stdin is not None
        process.stdin.close()
        return process.wait()
