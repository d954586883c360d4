"""Roles of Shakespeare's plays as a federation: local training, FedAvg, GTFLAT, PI-FL and iPFL side by side.

The ten roles with most text, a two-layer LSTM (embedding 8, 128 units), 20 rounds of 20 steps of batch 16, accuracy and
perplexity on each role's own last fifth, and the utility of iPFL's eq. (1). These settings were fixed before the run.
iPFL: lambda and eta of its Table 2; eagerness 5e5 in proportion to the samples here against the paper's 38,682.
Run: ``HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/shakespeare.py --out shakespeare.jsonl`` (it goes on where
it was stopped), and ``--table shakespeare.jsonl`` for the table.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from resumable import play_missing, written

import hanse
from hanse.games.market import utilities_of
from hanse.mechanisms.ipfl import Trade, graph_of

ROUNDS, STEPS, BATCH, LR, MOMENTUM, ROLES, SEEDS = 20, 20, 16, 2.0, 0.9, 10, (0, 1, 2)
PAPER_SAMPLES, MEAN_SAMPLES, COST = 38_682, 243, 1.0
EAGERNESS = 5e5 * MEAN_SAMPLES / PAPER_SAMPLES
PROFILE = {"name": "uniform", "cost": COST, "eagerness": EAGERNESS}
MECHANISMS: dict[str, dict[str, Any]] = {
    "local": {"name": "local"},
    "FedAvg": {"name": "fedavg", "select": "everyone"},
    "GTFLAT": {"name": "gtfedavg", "select": "everyone"},
    "PI-FL": {"name": "pifl", "tiers": 2, "by_contribution": 4, "at_random": 1, "value": {"judges": "all"}},
    "iPFL": {"name": "ipfl", "lam": 2.0, "eta": 5000.0, "keep_best": False},
}
PAPER = {"rounds": 50, "steps": 200, "batch": 64, "hidden": 256}
"""The paper's scale; its LSTM's width is not printed, LEAF's is 256."""


def experiment(mechanism: Mapping[str, Any], seed: int, rounds: int = ROUNDS, hidden: int = 128) -> hanse.Experiment:
    """Return one run."""
    return hanse.Experiment(
        data={
            "source": "shakespeare", "partition": {"name": "natural", "choose": "largest"}, "clients": ROLES,
            "seed": seed, "client_test": 0.2, "client_test_from": "server", "client_validation": 0.1, "validation": 0.0,
        },
        model={"name": "lstm", "embedding": 8, "hidden": hidden, "layers": 2},
        mechanism=dict(mechanism),
        train={"steps": STEPS, "batch_size": BATCH, "lr": LR, "momentum": MOMENTUM},
        clients={"grant": 1e6, "profiles": PROFILE},
        engine={"train": "sequential", "threads": 1, "workers": 1, "device": "cpu"},
        eval={"every": rounds},
        run={"rounds": rounds, "seed": seed},
    )  # fmt: skip


class Accounts:
    """Adds up iPFL's utility, eq. (1) without payments: they cancel in the mean over clients."""

    def __init__(self) -> None:
        self.utility = np.zeros(ROLES)

    def on_start(self, *said: object) -> None:
        """Nothing has been gained."""

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        """Account for who got whose update; nothing is trained after the last round."""
        view = played.view
        if view.round == view.context.rounds - 1 or not len(view.trained):
            return
        clients = np.unique(view.trained.seats.client)
        trade = view.get(Trade)
        graph = graph_of(view, clients) if trade is None else trade.graph
        sizes = np.array([float(c.num_samples) for c in view.roster])[clients]
        m = len(clients)
        self.utility[clients] += utilities_of(graph, np.zeros((m, m)), sizes, np.full(m, COST), np.full(m, EAGERNESS))

    def on_end(self, result: object) -> None:
        """Nothing is left to do."""


def play(name: str, seed: int) -> dict[str, Any]:
    accounts, begun, cpu = Accounts(), time.perf_counter(), time.process_time()
    result = hanse.run(experiment(MECHANISMS[name], seed), observers=[accounts])
    last = result.metrics[-1]
    return {
        "mechanism": name, "seed": seed,
        "accuracy": last["client/test_accuracy"], "accuracy_min": last["client/test_accuracy_min"],
        "perplexity": last["client/test_perplexity"],
        "accuracies": result.tested["test_accuracy"].tolist(),
        "perplexities": result.tested["test_perplexity"].tolist(),
        "utility": float(accounts.utility.mean()) / (ROUNDS - 1),
        "utility_min": float(accounts.utility.min()) / (ROUNDS - 1),
        "edges": fmean([m.get("market/edges", float("nan")) for m in result.metrics[:-1]]),
        "wall_s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu,
        "train_s": sum(m["time/train_s"] for m in result.metrics),
    }  # fmt: skip


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the runs as a table: mean and deviation over seeds."""
    rows = ["| | seeds | accuracy % | worst role % | perplexity | utility | lowest | CPU min |", "|---" * 8 + "|"]
    for name in MECHANISMS:
        own = [line for line in lines if line["mechanism"] == name]
        if not own:
            continue
        cells = [
            _cell([100 * line["accuracy"] for line in own], 2), _cell([100 * line["accuracy_min"] for line in own], 2),
            _cell([line["perplexity"] for line in own], 2), _cell([line["utility"] for line in own], 2),
            _cell([line["utility_min"] for line in own], 2), f"{fmean([line['cpu_s'] for line in own]) / 60:.1f}",
        ]  # fmt: skip
        rows.append(f"| {name} | {len(own)} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _cell(values: Sequence[float], digits: int) -> str:
    spread = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("shakespeare.jsonl"))
    parser.add_argument("--table", type=Path)
    given = parser.parse_args()
    if given.table is None:
        play_missing(
            given.out,
            [{"mechanism": name, "seed": seed} for seed in SEEDS for name in MECHANISMS],
            lambda run: play(run["mechanism"], run["seed"]),
        )
    print(table(written(given.table or given.out)))


if __name__ == "__main__":
    main()
