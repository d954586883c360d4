"""Virtual time to the same accuracy with clients whose speeds lie tenfold apart: rounds that wait for all, and rounds
that end with a few updates and mix the late ones later, weighed as in FedBuff.

Settings (written down before the runs; the first try, two runs, had a target of 90 %, which lock-step did not
reach in 600 s): digits, 20 clients, Dirichlet 0.5, an MLP of 50-25, one epoch of batches
of 16 at 0.05 with momentum 0.5; a round of training takes client i ``10^(i / 19)`` seconds, in an order drawn by the
seed; the target is 80 % test accuracy, 5 seeds (of the run and of the split), at most 600 s of virtual time. A run that
does not reach the target counts as 600 s.

    python benchmarks/late.py [--seeds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

import hanse

CLIENTS, TARGET, HORIZON = 20, 0.8, 600.0
SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "lock-step, all 20": {"mechanism": {"clients_per_round": 20}},
    "lock-step, 5 drawn": {"mechanism": {"clients_per_round": 5}},
    "the first 5 of 20, late dropped": {"mechanism": {"clients_per_round": 20}, "federation": {"enough": 5}},
    "the first 5 of 20, late next, by samples": {
        "mechanism": {"clients_per_round": 20},
        "federation": {"enough": 5, "late": "next"},
    },
    "the first 5 of 20, late next, FedBuff's weights": {
        "mechanism": {"clients_per_round": 20, "weigh": "by_staleness"},
        "federation": {"enough": 5, "late": "next"},
    },
}


def speeds(seed: int) -> list[float]:
    """Return each client's seconds a round: the same 20 times for every seed, in another order."""
    times = 10.0 ** (np.arange(CLIENTS) / (CLIENTS - 1))
    return np.random.default_rng(seed).permutation(times).round(6).tolist()


class EnoughError(Exception):
    """The run need not go on."""


class Stops:
    """Keeps what rounds were, and ends a run that is over its time or at its target."""

    def __init__(self) -> None:
        self.metrics: list[Mapping[str, Any]] = []

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        self.metrics.append(metrics)
        if metrics["test/accuracy"] >= TARGET or metrics["clock_s"] >= HORIZON:
            raise EnoughError


def play(name: str, seed: int) -> dict[str, Any]:
    """Run one setting with one seed; return its virtual seconds, rounds and updates until the target, and its best."""
    given, watch = SETTINGS[name], Stops()
    experiment = hanse.Experiment(
        data={"source": "digits", "partition": {"name": "dirichlet", "alpha": 0.5}, "clients": CLIENTS, "seed": seed},
        model={"name": "mlp", "hidden": [50, 25]},
        mechanism={"name": "fedavg", **given["mechanism"]},
        train={"epochs": 1, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
        behaviour={"speed": {"seconds": speeds(seed)}},
        federation=dict(given.get("federation", {})),
        engine={"train": "stacked", "threads": 1, "workers": 1},
        eval={"clients": 0},
        run={"rounds": 5000, "seed": seed},
    )
    begun = time.perf_counter()
    with suppress(EnoughError):
        hanse.run(experiment, observers=[watch])
    last = watch.metrics[-1]
    reached = last["test/accuracy"] >= TARGET
    return {
        "setting": name,
        "seed": seed,
        "virtual_s": last["clock_s"] if reached else HORIZON,
        "reached": reached,
        "rounds": len(watch.metrics),
        "updates": sum(m["answered"] for m in watch.metrics),
        "latest": max(m.get("late/staleness", 0) for m in watch.metrics),
        "best": max(m["test/accuracy"] for m in watch.metrics),
        "seconds": time.perf_counter() - begun,
    }


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the figures as a table in Markdown: means and standard deviations over seeds."""
    lines = [
        "| rounds | virtual seconds to 80 % | reached | rounds | updates mixed | latest update |",
        "|---|---|---|---|---|---|",
    ]
    for name in SETTINGS:
        rows = [row for row in found if row["setting"] == name]
        if not rows:
            continue
        times = np.array([row["virtual_s"] for row in rows])
        spread = f" ± {times.std(ddof=1):.0f}" if len(rows) > 1 else ""
        mean = {key: np.mean([row[key] for row in rows]) for key in ("rounds", "updates")}
        latest = max(row["latest"] for row in rows)
        reached = sum(row["reached"] for row in rows)
        lines.append(
            f"| {name} | {times.mean():.0f}{spread} | {reached} of {len(rows)} | {mean['rounds']:.0f} | "
            f"{mean['updates']:.0f} | {latest} rounds |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = []
    for seed in range(options.seeds):
        for name in SETTINGS:
            found.append(play(name, seed))
            print(json.dumps(found[-1]), flush=True)
    if options.json:
        options.json.write_text("".join(json.dumps(row) + "\n" for row in found))
    print(table(found))


if __name__ == "__main__":
    main()
