"""A worker process of :mod:`hanse.learning.processes`: ``python -m hanse.learning.worker PARENT_PID``.

It reads length-prefixed pickled messages from its standard input and answers on its standard output; both are pipes of
the process that started it. Samples and rows travel through a memory-mapped arena, not through the pipes.
"""

from __future__ import annotations

import os
import pickle
import signal
import struct
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

from hanse.learning.guide import Guide

__all__ = ["Place", "SeatOrder", "receive", "send"]


@dataclass(frozen=True)
class Place:
    """Where a tensor lies in the arena."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    def view(self, arena: Tensor) -> Tensor:
        """Return the tensor as a view of the arena ``[bytes]`` (uint8)."""
        size = self.dtype.itemsize
        for length in self.shape:
            size *= length
        return arena[self.offset : self.offset + size].view(self.dtype).view(self.shape)


@dataclass(frozen=True)
class SeatOrder:
    """One seat to train: places of its samples, rows and result, and the rest of its job."""

    x: Place
    y: Place
    start: Place
    out: Place
    centre: Place | None
    tilt: Place | None
    key: tuple[int, int, int, int]
    mu: float
    work: int | None
    guide: Guide | None


def send(stream: BinaryIO, message: Any) -> None:
    """Write one message."""
    data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(struct.pack("<Q", len(data)))
    stream.write(data)
    stream.flush()


def receive(stream: BinaryIO) -> Any:
    """Read one message. Raises EOFError if the other side has gone."""
    head = stream.read(8)
    if len(head) < 8:
        raise EOFError
    (length,) = struct.unpack("<Q", head)
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    return pickle.loads(data)


def _leave_with(parent: int) -> None:
    """End this process once its parent is gone, even in the middle of a seat."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(0)


def main() -> None:
    """Serve until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    if hasattr(os, "getppid") and os.name == "posix":
        threading.Thread(target=_leave_with, args=(int(sys.argv[1]),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a user's module prints must not mix with the answers
    orders = sys.stdin.buffer
    from hanse.data.samples import Samples
    from hanse.learning.job import SeatJob
    from hanse.learning.local import Trainer

    trainer: Trainer | None = None
    arena = torch.empty(0, dtype=torch.uint8)
    while True:
        try:
            kind, content = receive(orders)
        except EOFError:
            return
        try:
            result: Any = None
            if kind == "problem":
                problem, precision, dtype = content
                trainer = Trainer(problem, torch.device("cpu"), dtype, precision)
            elif kind == "arena":
                path, size = content
                arena = torch.from_file(path, shared=True, size=size, dtype=torch.uint8)
            else:
                order, recipe, lr = content
                assert trainer is not None
                samples = Samples(order.x.view(arena), order.y.view(arena))
                job = SeatJob(
                    index=torch.arange(len(samples)),
                    start=order.start.view(arena),
                    key=order.key,
                    centre=order.centre.view(arena) if order.centre else None,
                    mu=order.mu,
                    tilt=order.tilt.view(arena) if order.tilt else None,
                    work=order.work,
                    guide=order.guide,
                )
                row, loss, steps = trainer.train(samples, job, recipe, lr)
                order.out.view(arena).copy_(row)
                result = (loss, steps)
            send(answers, ("done", result))
        except Exception:  # told to the parent, which raises it
            send(answers, ("failed", traceback.format_exc()))


if __name__ == "__main__":
    main()
