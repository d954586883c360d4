"""Runs one system's runner and measures it from outside: events, the time of its process, the memory of its tree."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

__all__ = ["Measured", "measure"]

_EVERY_S = 0.25
_MARK = "HANSE_PEER_RUN"
# not the runners': every system is found where it is installed, and has its bytecode, as an installed package has
_OURS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")


@dataclass(frozen=True)
class Measured:
    """Seconds: ``round`` is the median of all rounds but the first; ``start`` from the process's start to the first
    round's; megabytes: ``pss`` is the peak of the proportional set size of all the run's processes together.
    ``workers`` processes or threads trained clients at the same time, with ``threads`` an operator, as the runner says.
    ``others`` is how many cores all other processes of the machine used meanwhile, on average.
    """

    start: float
    first: float
    round: float
    rounds: float
    process: float
    pss: float
    accuracy: float
    workers: int
    threads: int
    others: float


def measure(command: Sequence[str], *, folder: Path, extra: Mapping[str, str], limit_s: float) -> Measured:
    """Run a command and return what was measured. Raises RuntimeError with its last lines if it fails."""
    mark = uuid.uuid4().hex
    kept = {name: value for name, value in os.environ.items() if name not in _OURS}
    begun, busy = time.time(), _busy_s() - _own_s()
    process = subprocess.Popen(
        list(command), cwd=folder, env={**kept, **extra, _MARK: mark, "PYTHONUNBUFFERED": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    watch = _Memory(mark)
    watch.start()
    killer = threading.Timer(limit_s, lambda: os.killpg(process.pid, signal.SIGKILL))
    killer.start()
    ready, said, rounds, accuracies, tail = None, {}, [], [], []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            event = _event(line)
            if event is None:
                tail = [*tail[-20:], line]
            elif event["event"] == "ready":
                ready, said = time.time(), event
            else:
                rounds.append(float(event["seconds"]))
                accuracies.append(float(event["accuracy"]))
        code = process.wait()
    finally:
        killer.cancel()
        watch.stop()
    took = time.time() - begun
    others = (_busy_s() - _own_s() - busy - watch.alive_s) / took
    if code or ready is None or len(rounds) < 2:
        raise RuntimeError(f"{' '.join(command)} ended with {code} after {took:.0f} s:\n{''.join(tail)}")
    return Measured(
        start=ready - begun,
        first=rounds[0],
        round=median(rounds[1:]),
        rounds=sum(rounds),
        process=took,
        pss=watch.peak / 1e6,
        accuracy=accuracies[-1],
        workers=int(said["workers"]),
        threads=int(said["threads"]),
        others=max(0.0, others),
    )


def _busy_s() -> float:
    """Return the seconds that all cores of the machine have worked since it started, or were taken by its host."""
    # user, nice, system, idle, iowait, irq, softirq, steal
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Return the processor seconds of this process and of all those below it that have ended."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _event(line: str) -> dict[str, str] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and "event" in found else None


class _Memory(threading.Thread):
    """Adds up the proportional set sizes of all processes that carry the run's mark, four times a second.

    ``peak`` is the largest sum in bytes, ``alive_s`` the processor seconds of those that are not below this process
    any more: nobody counts them when they end.
    """

    def __init__(self, mark: str) -> None:
        super().__init__(daemon=True)
        self.needle = f"{_MARK}={mark}".encode()
        self.peak = 0
        self._orphans: dict[int, float] = {}
        self._ours: dict[int, bool] = {}
        self._ended = threading.Event()

    def run(self) -> None:
        while not self._ended.wait(_EVERY_S):
            ours = self._processes()
            self.peak = max(self.peak, sum(self._size(pid) for pid in ours))
            self._orphans |= {pid: used for pid in ours if (used := _orphan_s(pid)) is not None}

    @property
    def alive_s(self) -> float:
        return sum(self._orphans.values())

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def _processes(self) -> list[int]:
        there = [int(name) for name in os.listdir("/proc") if name.isdigit()]
        self._ours = {pid: self._ours[pid] for pid in there if pid in self._ours}
        for pid in there:
            if not self._ours.get(pid):  # a process that has just been forked gets its own environment later
                try:
                    self._ours[pid] = self.needle in Path(f"/proc/{pid}/environ").read_bytes()
                except OSError:
                    self._ours[pid] = False
        return [pid for pid, ours in self._ours.items() if ours]

    @staticmethod
    def _size(pid: int) -> int:
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    return int(line.split()[1]) * 1024
        except OSError:  # it has just ended
            pass
        return 0


def _orphan_s(pid: int) -> float | None:
    """Return the processor seconds of a process whose parent has ended; None if it has one, or has ended itself."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK") if words[1] == "1" else None
