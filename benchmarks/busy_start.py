"""Does a busy neighbour at the start of a run leave its mark on the engine, and is that engine the best one?

mnist-mlp through ``hanse.run``, in turn: by the rule with the machine as it is; by the rule while a process for each
core spins from before the start until the first round is over; and with each engine and number of threads set by hand.
Prints what was chosen and the median of the rounds from the third on. Exit code 1 if the two by rule did not get the
same engine, or either takes more than 10 % longer than the best by hand (which only a quiet machine can tell).
Run: ``HANSE_DATA=folder python benchmarks/busy_start.py``.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

import torch
import whole_run

import hanse

MARGIN = 0.1


class Neighbours:
    """A spinning process for each core, until round 0 has been played."""

    def __init__(self, count: int) -> None:
        spin = [sys.executable, "-c", "while True: pass"]
        self.processes = [subprocess.Popen(spin) for _ in range(count)]

    def on_start(self, experiment: hanse.Experiment, first_round: int, said: Sequence[str]) -> None:
        """See nothing."""

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        """End the neighbours."""
        self.end()

    def on_end(self, result: hanse.Run) -> None:
        """See nothing."""

    def end(self) -> None:
        """End them, and wait until they have gone."""
        while self.processes:
            process = self.processes.pop()
            process.kill()
            process.wait()


def play(rounds: int, engine: Mapping[str, Any] | None = None, neighbours: int = 0) -> tuple[str, list[float]]:
    """Return the engine of a run, and the seconds of its rounds from the third on."""
    beside = Neighbours(neighbours)
    try:
        run = hanse.run(whole_run.experiment(engine, rounds), observers=[beside])
    finally:
        beside.end()
    found = run.experiment.engine
    name = f"{found.train}, threads {found.threads}, workers {found.workers}"
    return name, [m["time/round_s"] for m in run.metrics[2:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=whole_run.ROUNDS)
    parser.add_argument("--train", nargs="*", default=["stacked", "vmapped", "sequential"], help="set by hand")
    options = parser.parse_args()
    whole_run.samples()
    most = torch.get_num_threads()
    counts = sorted({1, min(2, most), min(4, most), most})
    hands = [{"train": train, "threads": t} for train in options.train for t in counts]
    hands += [{"train": train, "workers": w} for train in options.train if train != "vmapped" for w in counts[1:]]
    times: dict[str, list[float]] = {}
    chosen = set()
    for repeat in range(options.repeats):
        for label, neighbours in (("by the rule", 0), ("by the rule, neighbours at the start", os.cpu_count() or 1)):
            engine, found = play(options.rounds, None, neighbours)
            chosen.add(engine)
            times.setdefault(label, []).extend(found)
        best = min((median(found) for found in times.values()), default=0.0)
        for hand in hands:
            label = ", ".join(f"{key} {value}" for key, value in hand.items())
            if repeat == 0 or median(times[label]) <= 3 * best:  # the slow ones once only
                times.setdefault(label, []).extend(play(options.rounds, hand)[1])
    by_rule = [median(found) for label, found in times.items() if label.startswith("by the rule")]
    by_hand = min(median(found) for label, found in times.items() if not label.startswith("by the rule"))
    print(f"mnist-mlp, {most} threads, load {os.getloadavg()[0]:.1f}; by the rule: {'; '.join(sorted(chosen))}")
    print(f"{'':40} median ms   lowest   times the best by hand")
    for label, found in sorted(times.items(), key=lambda item: median(item[1])):
        print(f"{label:40} {1e3 * median(found):9.1f} {1e3 * min(found):8.1f} {median(found) / by_hand:9.2f}")
    right = len(chosen) == 1 and max(by_rule) <= (1 + MARGIN) * by_hand
    print("holds" if right else "DOES NOT HOLD")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
