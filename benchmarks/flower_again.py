"""What a round of ``hanse.valued`` takes where the strategy aggregates again, and whether another thread notices.

OMP_NUM_THREADS=1 python benchmarks/flower_again.py
"""

from __future__ import annotations

import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedMedian, Strategy

import hanse

sys.path += [str(Path(__file__).parents[1] / "tests" / "deployment"), str(Path(__file__).parents[1] / "tests")]

import recorded
from strategies import Slow

SMALL, LARGE = {"w": (4, 1), "b": (3,)}, {"w": (1_000_000, 1), "b": (3,)}


def loss(arrays: ArrayRecord) -> dict[str, float]:
    return {"loss": float(np.square(arrays["w"].numpy()[:1000] - 0.2).sum())}


def seconds(make: Callable[[], Strategy], nodes: int, out: Path | None) -> float:
    """Return the wall seconds of the third round."""
    strategy, ends = make(), list[float]()
    grid, arrays = recorded.RecordedGrid(nodes), recorded.first_arrays()

    def start() -> None:
        strategy.start(grid, arrays, num_rounds=3, evaluate_fn=lambda number, arrays: ends.append(time.perf_counter()))

    if out is None:
        start()
    else:
        with hanse.valued(strategy, out=out, validation=loss):
            start()
    return ends[-1] - ends[-2]


def bystander(out: Path) -> str:
    """Return what a thread that draws and logs has seen while rounds were valued."""
    drawn, lines, stop = list[float](), list[Any](), threading.Event()
    log, handler = logging.getLogger("bystander"), logging.Handler()
    handler.emit = lines.append  # type: ignore[method-assign]
    log.addHandler(handler)
    log.propagate = False

    def work() -> None:
        while not stop.wait(0.001):
            drawn.append(float(np.random.standard_normal()))  # noqa: NPY002
            log.critical("line")

    thread = threading.Thread(target=work)
    thread.start()
    with hanse.valued(FedMedian(), out=out, validation=loss) as strategy:
        strategy.start(recorded.RecordedGrid(6), recorded.first_arrays(), num_rounds=5)
    stop.set()
    thread.join()
    return f"another thread: {len(set(drawn))} distinct of {len(drawn)} draws, {len(lines)} of {len(drawn)} lines"


def main() -> None:
    torch.set_num_threads(1)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    cases = [(kind, shapes, 4) for kind in (FedAvg, FedMedian, FedAdam) for shapes in (SMALL, LARGE)]
    with tempfile.TemporaryDirectory() as folder:
        for i, (kind, shapes, nodes) in enumerate([*cases, (Slow, SMALL, 6), (Slow, SMALL, 8)]):
            recorded.SHAPES = shapes
            plain, valued = seconds(kind, nodes, None), seconds(kind, nodes, Path(folder, str(i)))
            large = "1,000,003" if shapes is LARGE else "7"
            print(f"{kind.__name__}, {nodes} replies, {large} numbers: plain {plain:.3f} s, valued {valued:.3f} s")
        recorded.SHAPES = SMALL
        print(bystander(Path(folder, "thread")))


if __name__ == "__main__":
    main()
