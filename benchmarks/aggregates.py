"""What rules are good for: accuracy under attack, the values of attackers, and what an aggregate takes.

``table``: MNIST, 20 clients of 200 samples at Dirichlet(1), 10 a round, 30 rounds, an MLP. In four settings a fifth of
the clients (4) attacks from the start: they turn the sign of their updates, train on flipped labels (9 - y), send
noise, or collude (all four move every number the same way). "skewed" is Dirichlet(0.1) and nobody attacks. Values are
Shapley values of validation loss, from 10 permutations a round (GreedyFed has its own) and 1,000 samples at the server:
the attackers' mean is beside the others', in thousandths of a nat a round, and how many attackers' means are among the
four lowest.

``speed``: an aggregate of 10 rows of 1e6 numbers, each rule in a process of its own: processor seconds beside the
mean's, and memory beside the table and the updates.

Run: ``HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/aggregates.py table --out aggregates.jsonl``, ``python
benchmarks/aggregates.py speed``; ``table --smoke`` plays 2 rounds of seed 0 on digits.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from resumable import play_missing
from torch import Tensor

import hanse
from hanse.core.part import Group
from hanse.federation.behaviour import Me, OfSome
from hanse.mechanisms.registry import build_mechanism

RAN_AWAY = 1e4  # values of a model whose loss has no bounds any more
CLIENTS, SEATS, BAD = 20, 10, (3, 8, 12, 17)
# each rule may have to withstand two of a round's ten; the most that four of twenty come to in most rounds
RULES: dict[str, Any] = {
    "samples (FedAvg)": "samples",
    "gtflat": "gtflat",
    "GreedyFed": None,
    "median": "median",
    "trimmed_mean": {"name": "trimmed_mean", "share": 0.2},
    "geometric_median": "geometric_median",
    "clipped": "clipped",
    "krum": {"name": "krum", "f": 2},
    "multi_krum": {"name": "multi_krum", "f": 2},
    "fltrust": "fltrust",
    "fedavgm": "fedavgm",
    "fedadam": "fedadam",
    "fedyogi": "fedyogi",
    "fedadagrad": "fedadagrad",
    "fednova": "fednova",
    "q_fedavg": "q_fedavg",
    "fedadam of clipped": {"name": "fedadam", "of": "clipped"},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "nobody": {},
    "sign flip": {"attacker": {"clients": list(BAD), "kind": "flip", "scale": 2.0}},
    "label flip": {"aggregates:FlipsLabels": {"clients": list(BAD)}},
    "noise": {"attacker": {"clients": list(BAD), "kind": "gaussian", "scale": 5.0}},
    "colluding": {"attacker": {"clients": list(BAD), "kind": "same", "scale": 2.0}},
    "skewed": {},
}


@dataclass(frozen=True)
class FlipsLabels(OfSome):
    """The ``clients`` train on labels counted from the other end: 9 for 0, 8 for 1, and so on."""

    def sees(self, me: Me, round: int, targets: Tensor) -> Tensor:
        """Return the flipped labels."""
        return 9 - targets if me.id in self.clients else targets


def experiment(rule: str, setting: str, seed: int, rounds: int, source: str) -> hanse.Experiment:
    mechanism: dict[str, Any] = {"name": "greedyfed", "clients_per_round": SEATS}
    if RULES[rule] is not None:
        value = {"name": "monte_carlo", "permutations": 10}
        mechanism = {"name": "fedavg", "clients_per_round": SEATS, "weigh": RULES[rule], "value": value}
    return hanse.Experiment(
        data={
            "source": source, "clients": CLIENTS, "seed": seed, "validation": 0.1, "root": 0.02,
            "partition": {
                "alpha": 0.1 if setting == "skewed" else 1.0,
                **({"samples_per_client": 200} if source == "mnist" else {}),
            },
        },
        model={"name": "mlp", "hidden": [50, 25]},
        mechanism=mechanism,
        behaviour=SETTINGS[setting],
        train={"epochs": 2, "batch_size": 20, "lr": 0.05},
        engine={"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"},
        run={"rounds": rounds, "seed": seed},
    )  # fmt: skip


def play(rule: str, setting: str, seed: int, rounds: int, source: str) -> dict[str, Any]:
    total, sat = np.zeros(CLIENTS), np.zeros(CLIENTS)

    class Watch:
        def on_start(self, *_: Any) -> None: ...

        def on_round(self, metrics: dict[str, Any], played: Any) -> None:
            if played.view.values is None:  # the model has run away: no update is sound any more
                return
            clients, values = played.view.values.by_client(played.view)
            total[clients] += values
            sat[clients] += 1

        def on_end(self, *_: Any) -> None: ...

    begun = time.process_time()
    metrics = hanse.run(experiment(rule, setting, seed, rounds, source), observers=[Watch()]).metrics
    bad = np.isin(np.arange(CLIENTS), BAD)
    worth = 1000 * total / np.maximum(sat, 1)
    lowest = np.argsort(np.where(sat > 0, worth, np.inf), kind="stable")[: len(BAD)]
    return {
        "rule": rule, "setting": setting, "seed": seed, "rounds": rounds, "source": source,
        "accuracy": 100 * metrics[-1]["test/accuracy"], "bad": float(worth[bad & (sat > 0)].mean()),
        "good": float(worth[~bad & (sat > 0)].mean()), "found": int(bad[lowest].sum()),
        "seconds": time.process_time() - begun,
    }  # fmt: skip


def cell(rows: list[dict[str, Any]], name: str) -> str:
    numbers = [row[name] for row in rows]
    if len(numbers) < 2:
        return "".join(f"{n:.1f}" for n in numbers)
    if max(map(abs, numbers)) > RAN_AWAY:
        return "ran away"
    return f"{fmean(numbers):.1f} ± {stdev(numbers):.1f}"


def table(given: argparse.Namespace) -> None:
    seeds, rounds, source = ([0], 2, "digits") if given.smoke else (given.seeds, given.rounds, "mnist")
    runs = [
        {"rule": rule, "setting": setting, "seed": seed, "rounds": rounds, "source": source}
        for seed in seeds
        for setting in given.settings
        for rule in given.rules
    ]
    done = play_missing(given.out, runs, lambda run: play(**run))
    done = [row for row in done if (row["rounds"], row["source"]) == (rounds, source) and row["seed"] in seeds]
    attacked = [setting for setting in given.settings if SETTINGS[setting]]
    print(f"Accuracy %, {len(seeds)} seeds\n\n| rule | {' | '.join(given.settings)} |")
    print("|---" * (len(given.settings) + 1) + "|")
    by_rule = {rule: [row for row in done if row["rule"] == rule] for rule in given.rules}
    for rule, own in by_rule.items():
        here = [[row for row in own if row["setting"] == setting] for setting in given.settings]
        print(f"| {rule} | {' | '.join(cell(rows, 'accuracy') for rows in here)} |")
    print(f"\nMean value of attackers / others, attackers among the lowest {len(BAD)}\n")
    print(f"| rule | {' | '.join(attacked)} |\n" + "|---" * (len(attacked) + 1) + "|")
    for rule, own in by_rule.items():
        here = [[row for row in own if row["setting"] == setting] for setting in attacked]
        cells = [f"{cell(rows, 'bad')} / {cell(rows, 'good')}, {cell(rows, 'found')}" for rows in here]
        print(f"| {rule} | {' | '.join(cells)} |")


def group_of(rows: int, size: int) -> Group:
    """Return a group of so many random updates of one row, as a round shows them."""
    drawn = torch.Generator().manual_seed(0)
    at = np.arange(rows)
    updates = SimpleNamespace(
        rows=torch.randn(rows, size, generator=drawn), num_samples=1.0 + at, steps=1 + at, loss=np.ones(rows),
        seats=SimpleNamespace(start=0 * at, client=at),
    )  # fmt: skip
    layout = SimpleNamespace(size=size, num_parameters=size, offsets=(0, size))
    context = SimpleNamespace(layout=layout, recipe=SimpleNamespace(momentum=0.0, lr_at=lambda _: 0.1))
    held = SimpleNamespace(rows=torch.randn(1, size, generator=drawn))
    judge = SimpleNamespace(trained=lambda row, *_: row + 0.1)
    view: Any = SimpleNamespace(trained=updates, context=context, table=held, round=0, answers={}, judge=judge)
    return Group(0, at, view)


def one(rule: str) -> dict[str, float]:
    """Return the processor seconds (the least of three) and MB of an aggregate of 10 rows of 1e6, once in a process."""
    torch.set_num_threads(1)
    part: Any = build_mechanism({"name": "fedavg", "weigh": json.loads(rule)}).weigh
    small = group_of(10, 1000)
    small.made(part.aggregate(small, part.init(small.view.context)))  # libraries are loaded
    group = group_of(10, 1_000_000)
    before, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(3):
        begun = time.process_time()
        group.made(part.aggregate(group, part.init(group.view.context)))
        seconds.append(time.process_time() - begun)
    return {"seconds": min(seconds), "mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024}


def speed() -> None:
    rules = {name: rule for name, rule in RULES.items() if rule is not None} | {
        "clipped of median": {"name": "clipped", "of": "median"},
        "clipped of gtflat": {"name": "clipped", "of": "gtflat"},
    }
    print("| rule | seconds | MB beside the table | as glibc keeps them |\n|---|---|---|---|")
    for name, rule in rules.items():
        command = [sys.executable, __file__, "one", json.dumps(rule)]
        fast, lean = (
            json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout)
            # the second gives back at once what is freed, so that the peak is what was there at a time
            for env in (dict(os.environ), {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"})
        )
        print(f"| {name} | {fast['seconds']:.3f} | {lean['mb']:.0f} | {fast['mb']:.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["table", "speed", "one"])
    parser.add_argument("rule", nargs="?", default="")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("aggregates.jsonl"))
    given = parser.parse_args()
    if given.what == "table":
        table(given)
    elif given.what == "speed":
        speed()
    else:
        print(json.dumps(one(given.rule)))


if __name__ == "__main__":
    main()
