"""Selection by value where some clients ride: accuracy, riders' seats and the cost of values, by selector and game.

    OMP_NUM_THREADS=1 python benchmarks/riders.py [--seeds 0 1 ...] [--out FILE]

Digits, 20 clients (Dirichlet 0.1), 5 seats, 60 rounds of 2 epochs. Selectors: greedy, UCB, S-FedAvg (temperature 0.01),
each with GTG, the surrogate (``mixture``) on the average and on the increment game, path values, and path values of
what is orthogonal to the round before (``novel``); and random selection. Clean; with noise (sigma 0.3, spread); with 20
or 30 % riders, who send nothing (``zero``), the last global step again (``step``), noise of the length of the last
update seen (``noise``), or a copy of an update that an honest client sent in the last round (``copy``). One JSON line a
run; a run that is there is not played again. "Rider seats" are counted after the rounds in which everyone sits once.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Literal

import torch
from resumable import play_missing
from torch import Tensor

import hanse
from hanse.base.streams import stream
from hanse.core.port import Reply, Request, Train, Trained
from hanse.federation.behaviour import Behaviour, Fraction, Me, first_places, place, with_updates

CLIENTS, SEATS, ROUNDS = 20, 5, 60
SELECTORS = {
    "greedy": {"name": "greedyfed"},
    "ucb": {"name": "ucb"},
    "s_fedavg": {"name": "s_fedavg", "select": {"temperature": 0.01, "start": 0.03, "averages": "mean"}},
}
VALUES: dict[str, Any] = {
    "gtg": "gtg",
    "mixture": "mixture",
    "mixture, increment": {"name": "mixture", "game": "increment"},
    "path": "path",
    "path, novel": {"name": "path", "novel": True},
}
KINDS = ("zero", "step", "noise", "copy")
SETTINGS = ("clean", "noise", *(f"{share} % {kind}" for share in (20, 30) for kind in KINDS))


@dataclass(frozen=True)
class Rider(Behaviour):
    """Some clients send what they did not train. They know the models and updates of earlier rounds, as if all riders
    and whoever runs the server told each other: the strongest of their kind.
    """

    kind: Literal["zero", "step", "noise", "copy"] = "zero"
    fraction: Fraction = 0.2
    seen: dict[int, tuple[Tensor, list[Tensor]]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        rides = place(me, "free riders") < self.fraction * me.num_clients

        def change(task: Train, sent: Trained) -> Trained:
            _, updates = self.seen.setdefault(round, (task.start.clone(), []))
            if not rides:
                updates.append(sent.row - task.start)
                return sent
            return replace(sent, row=task.start + self.step(me, round, task.start))

        return with_updates(request, reply, change)

    def step(self, me: Me, round: int, start: Tensor) -> Tensor:
        """Return what a rider adds to the model: nothing before it has seen a round."""
        draw = stream(me.seed, "rider", round=round, client=me.id)
        last, updates = self.seen.get(round - 1, (start, []))
        if self.kind == "zero" or not updates:
            return torch.zeros_like(start)
        if self.kind == "step":
            return start - last
        update = updates[int(draw.integers(len(updates)))]
        if self.kind == "copy":
            return update
        noise = torch.from_numpy(draw.standard_normal(len(start), dtype="float32"))
        return noise * (update.norm() / noise.norm())


def experiment(selector: str, value: str, setting: str, seed: int) -> hanse.Experiment:
    share, _, kind = setting.partition(" % ")
    behaviour: dict[str, Any] = {"noisy": {"sigma": 0.3}} if setting == "noise" else {}
    if kind:
        behaviour = {"riders:Rider": {"kind": kind, "fraction": int(share) / 100}}
    mechanism: dict[str, Any] = {"name": "fedavg"}
    if selector != "random":
        mechanism = {**SELECTORS[selector], "value": VALUES[value]}
    return hanse.Experiment(
        data={"source": "digits", "clients": CLIENTS, "partition": {"alpha": 0.1}, "seed": seed},
        mechanism={"clients_per_round": SEATS, **mechanism},
        train={"lr": 0.1, "epochs": 2},
        behaviour=behaviour,
        engine={"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"},
        eval={"every": ROUNDS},
        run={"rounds": ROUNDS, "seed": seed},
    )


def play(run: Mapping[str, Any]) -> dict[str, Any]:
    done = hanse.run(experiment(run["selector"], run["value"], run["setting"], run["seed"]))
    share, _, kind = run["setting"].partition(" % ")
    riders = first_places(run["seed"], "free riders", CLIENTS, int(share) / 100 * CLIENTS) if kind else ()
    seats = [line["client"] for line in done.clients if line["round"] >= CLIENTS // SEATS]
    return {
        **run,
        "accuracy": 100 * float(done.metrics[-1]["test/accuracy"]),
        "rider_seats": 100 * sum(c in riders for c in seats) / len(seats),
        "value_ms": 1000 * median(line.get("time/value_s", 0.0) for line in done.metrics),
    }


def cell(rows: list[dict[str, Any]], rides: bool) -> str:
    found = [row["accuracy"] for row in rows]
    if not found:
        return "–"
    spread = stdev(found) if len(found) > 1 else 0.0
    return f"{fmean(found):.0f} ± {spread:.0f}" + (f", {fmean(r['rider_seats'] for r in rows):.0f}" if rides else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--settings", nargs="+", default=SETTINGS)
    parser.add_argument("--out", type=Path, default=Path("riders.jsonl"))
    given = parser.parse_args()
    ways = [("random", "none"), *((s, v) for s in SELECTORS for v in VALUES)]
    wanted = [
        {"setting": setting, "selector": selector, "value": value, "seed": seed}
        for seed in given.seeds for setting in given.settings for selector, value in ways
    ]  # fmt: skip
    done = play_missing(given.out, wanted, play)
    print("| selector, value | " + " | ".join(SETTINGS) + " | ms a round |\n" + "|---" * (len(SETTINGS) + 2) + "|")
    for selector, value in ways:
        own = [row for row in done if (row["selector"], row["value"]) == (selector, value)]
        cells = [cell([row for row in own if row["setting"] == s], "%" in s) for s in SETTINGS]
        print(f"| {selector}, {value} | {' | '.join(cells)} | {median(r['value_ms'] for r in own):.1f} |")


if __name__ == "__main__":
    main()
