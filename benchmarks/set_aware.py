"""Set-aware selection beside other selectors: clean clients, noise, stragglers, free riders; on digits (the demo's
setting), MNIST and Fashion-MNIST (Table I of GreedyFed: N=300, M=3, T=400), CIFAR-10 (N=200, M=20, T=100, values by the
stop rule of GreedyFed's authors). One JSON line a run goes to ``--out``; a run that is there is not run again.
Run: ``HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/set_aware.py --data digits --seeds 100 101 102 103 104``.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from resumable import play_missing
from scipy import stats

import hanse
from hanse.cli.demo import demo_experiments

COLUMNS: dict[str, dict[str, Any]] = {
    "clamped": {"alpha": 1e-4, "sampler": "float32-clamped"},
    "true": {"alpha": 1e-4},
    "0.1": {"alpha": 0.1},
    "0.3": {"alpha": 0.3},
    "100": {"alpha": 100.0},
}
OTHERS = ("greedyfed", "ucb", "s_fedavg", "power_of_choice", "oort", "fedavg")
VALUED = ("set_aware", "greedyfed", "ucb", "s_fedavg")
ENGINE = {"train": "stacked", "threads": 1, "workers": 1, "device": "cpu"}


def conduct(name: str, data: str) -> dict[str, Any]:
    """Return the clients' behaviour: noise as the demo has it on digits, elsewhere as GreedyFed's Table IV."""
    return {
        "clean": {},
        "noise": {"noisy": {"sigma": 0.3 if data == "digits" else 0.05}},
        "stragglers": {"straggler": {"fraction": 0.9}},
        "free_riders": {"free_rider": {"fraction": 0.3}},
    }[name]


def experiment(run: dict[str, Any]) -> hanse.Experiment:
    data, seed, rounds = run["data"], run["seed"], run["rounds"]
    mechanism = dict(run["mechanism"])
    if data == "cifar10" and mechanism["name"] in VALUED:
        mechanism.setdefault("value", {"stop": "mean"})
    sections: dict[str, Any] = {
        "data": {"source": {"name": data}, "partition": {"name": "dirichlet", **COLUMNS[run["column"]]}, "seed": seed},
        "behaviour": conduct(run["conduct"], data),
        "engine": ENGINE,
        "run": {"rounds": rounds, "seed": seed},
    }
    if data == "digits":
        demo = demo_experiments(seed)["set_aware"].sections()
        sections |= {"model": demo["model"], "train": demo["train"], "eval": {"every": 1}}
        sections["data"]["clients"] = demo["data"]["clients"]
        return hanse.Experiment(**sections, mechanism={"clients_per_round": 4, **mechanism})
    cifar = data == "cifar10"
    sections["data"] |= {"clients": 200 if cifar else 300, "source": {"name": data, "scale": "unit"}, "validation": 0.5}
    return hanse.Experiment(
        **sections,
        model={"name": "cnn_greedyfed"} if cifar else {"name": "mlp", "hidden": [50, 25]},
        mechanism={"clients_per_round": 20 if cifar else 3, **mechanism},
        train={"epochs": 5, "batches_per_epoch": 5, "lr": 0.01, "momentum": 0.5},
        eval={"every": 10},
    )


def play(run: dict[str, Any]) -> dict[str, Any]:
    begun = time.process_time()
    metrics = hanse.run(experiment(run)).metrics
    accuracy = [100 * m["test/accuracy"] for m in metrics if m.get("test/accuracy") is not None]
    distances = [m["select/distance"] for m in metrics if "select/distance" in m]
    return {
        **run, "accuracy": accuracy[-1], "curve": [round(a, 2) for a in accuracy],
        "distance": fmean(distances) if distances else None, "cpu_seconds": round(time.process_time() - begun, 1),
    }  # fmt: skip


def cell(ours: Sequence[float], first: Sequence[float]) -> str:
    """Return mean and deviation, and the paired difference to the first mechanism with its 95 % interval."""
    deviation = stats.tstd(ours) if len(ours) > 1 else 0.0
    text = f"{fmean(ours):.2f} ± {deviation:.2f}"
    behind = [a - b for a, b in zip(first, ours, strict=True)]
    if len(behind) < 2 or not any(behind):
        return text
    half = stats.t.ppf(0.975, len(behind) - 1) * stats.sem(behind)
    return f"{text} ({fmean(behind):+.1f} ± {half:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=["digits", "mnist", "fashion_mnist", "cifar10"], default="mnist")
    parser.add_argument("--conduct", choices=["clean", "noise", "stragglers", "free_riders"], nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--columns", nargs="+", choices=list(COLUMNS))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--mechanism", type=json.loads, nargs="+", help="JSON tables; by default all selectors")
    parser.add_argument("--out", type=Path, default=Path("set_aware.jsonl"))
    given = parser.parse_args()
    digits = given.data == "digits"
    columns = given.columns or (["0.3"] if digits else ["clamped"])
    conducts = given.conduct or ["clean", "noise", "stragglers", "free_riders"]
    mechanisms = given.mechanism or [{"name": name} for name in ("set_aware", *OTHERS)]
    rounds = given.rounds or {"digits": 60, "cifar10": 100}.get(given.data, 400)
    places = [{"data": given.data, "column": c, "conduct": b, "rounds": rounds} for c in columns for b in conducts]
    runs = [{**p, "mechanism": m, "seed": seed} for seed in given.seeds for p in places for m in mechanisms]
    done = play_missing(given.out, runs, lambda run: play(dict(run)))

    def numbers(place: dict[str, Any], mechanism: dict[str, Any]) -> list[float]:
        wanted = {**place, "mechanism": mechanism}
        found = {d["seed"]: d["accuracy"] for d in done if all(d[k] == v for k, v in wanted.items())}
        return [found[seed] for seed in given.seeds]

    print("accuracy %, mean ± deviation over seeds (how far the first is ahead, and the paired 95 % interval)")
    print(f"| {given.data} | " + " | ".join(f"{p['column']} {p['conduct']}" for p in places) + " |")
    print("|---|" + "---|" * len(places))
    for mechanism in mechanisms:
        cells = [cell(numbers(p, mechanism), numbers(p, mechanisms[0])) for p in places]
        print(f"| {json.dumps(mechanism)} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
