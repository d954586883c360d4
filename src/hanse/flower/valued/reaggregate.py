"""Makes a strategy's aggregate of some of the replies in another process, for strategies that do not average.

To value a reply, hanse needs the models that the strategy would have made without it. For an average they follow from
the replies. For any other rule, the strategy is pickled before it aggregates a round (by cloudpickle, which joblib has:
classes of the program itself and lambdas are no hindrance), and sent to a process of its own
(:mod:`hanse.flower.valued.child`), which aggregates subsets of the replies. Nothing therefore changes in the app's
process: not its generators, logging, warnings or functions.

The process is one of loky's, joblib's own: a fresh interpreter that does not run the app's main program again. Each run
has one such process, started when first needed; it ends with the run, or with the app.
"""

from __future__ import annotations

import logging
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
from hanse.flower.valued import child

LOG = logging.getLogger("hanse.valued")
START_S = 120.0  # seconds that the process may take to start and to import the strategy
LEAST_S = 30.0  # seconds that the aggregates of a round may take in all, however short the round was


def started() -> Any:
    """Return an executor with one process, which starts at the first call."""
    return ProcessPoolExecutor(1, initializer=child.quiet)


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
            UserError: the strategy cannot be pickled. The reason is logged, since it may contain secrets.
        """
        self._seconds = self._left = seconds
        try:
            held = dumps(strategy)
        except Exception as wrong:
            LOG.warning("hanse: the strategy cannot be pickled: %s", first_line(wrong))
            raise UserError(f"it cannot be pickled ({type(wrong).__name__})") from None
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
            UserError: the aggregate cannot be made again, the round's time is used up, or the strategy raises even for
                all replies together.
        """
        if self._task is not None:
            task, self._task = self._task, None
            self._asked(child.begin, task, START_S)
        begun = time.perf_counter()
        found: ArrayRecord | None = self._asked(child.answered, [*clients], max(self._left, 0.0))
        self._left -= time.perf_counter() - begun
        return found

    def _asked(self, what: Callable[[Any], Any], given: Any, seconds: float) -> Any:
        """Call a function in the process and return its result. Raises UserError if it has none, or is late."""
        try:
            self._process = self._process or started()
            return self._process.submit(what, given).result(seconds)
        except child.GapError as gap:
            why, more = gap.args
            LOG.warning("hanse: the strategy in a process of its own: %s", more)
            raise UserError(why) from None
        except BaseException as wrong:  # it may still be at work on this
            self.close()
            if isinstance(wrong, LateError):
                limit = START_S if what is child.begin else self._seconds
                raise UserError(f"its aggregates of some of the replies take more than {limit:.0f} s") from None
            if isinstance(wrong, BrokenProcessPool):
                raise UserError("the process that aggregates some of the replies ended") from None
            raise

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        if process is not None:
            process.shutdown(kill_workers=True)
