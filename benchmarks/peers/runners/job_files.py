"""A job's files as arrays, and the events that a runner prints; NumPy only, for systems without PyTorch."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np


class JobFiles:
    """A job's settings as attributes (``given``), and its ``folder``."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.given = SimpleNamespace(**json.loads((self.folder / "job.json").read_text()))
        self.clients = np.load(self.folder / "clients.npy")
        self.seats = np.load(self.folder / "seats.npy")

    def arrays(self, part: str, mapped: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Return all samples of a part, images ``[n, c, h, w]``; ``mapped``: read from the file where they are used."""
        mode = "r" if mapped else None
        return np.load(self.folder / f"x_{part}.npy", mmap_mode=mode), np.load(self.folder / f"y_{part}.npy")

    def weights(self) -> list[np.ndarray]:
        """Return the first weights, in the order and the shapes of the PyTorch model's parameters."""
        with np.load(self.folder / "weights.npz") as kept:
            return [kept[name] for name in kept.files]


class Clock:
    """Prints an event a line: ``ready`` when the first round begins, ``round`` with its seconds when one is tested."""

    def __init__(self) -> None:
        self.round = 0
        self.last = 0.0

    def ready(self, workers: int, threads: int) -> None:
        """Say that the first round begins; ``workers`` processes or threads train clients at the same time, each
        operator of theirs runs on ``threads``.
        """
        self.last = time.perf_counter()
        _say({"event": "ready", "workers": workers, "threads": threads})

    def done(self, accuracy: float) -> None:
        """Say that a round was trained and tested."""
        now = time.perf_counter()
        _say({"event": "round", "round": self.round, "seconds": now - self.last, "accuracy": accuracy})
        self.round, self.last = self.round + 1, now


def _say(event: dict[str, object]) -> None:
    sys.stdout.write("\n" + json.dumps(event) + "\n")  # some systems leave the cursor within a line
    sys.stdout.flush()


def given_folder() -> Path:
    """Return the job's folder: the command line's last argument."""
    return Path(sys.argv[-1])
