"""What an experiment reaches that names a source and a mechanism and nothing else, and how the defaults were chosen.

    HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/defaults.py [--out FILE] [SOURCE ...]    # the table
    HANSE_DATA=folder OMP_NUM_THREADS=1 python benchmarks/defaults.py --choose [--out FILE] [SOURCE ...]

Both go on where they were stopped. The table tests on the server's test set, with seeds 0 to 2 of split and run.
``--choose`` plays the settings of ``GRID`` with seeds 10 to 12 and looks at the server's *validation* set alone:
docs/reference/experiment.md has the rule. ``shakespeare_next`` is left out: 140,000 windows take hours.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import torch
from common import play_missing

import hanse
from hanse.data import FederatedData, build
from hanse.data.samples import Samples
from hanse.runs.chance import Guess

SOURCES = (
    "digits", "mnist", "fashion_mnist", "cifar10", "synthetic", "loans", "lending_club", "schools", "flights",
    "shakespeare",
)  # fmt: skip
MECHANISMS, SEEDS, CHOOSING = ("fedavg", "greedyfed"), (0, 1, 2), (10, 11, 12)
GRID = tuple(product((10, 32), (0.03, 0.1, 0.3)))
"""Batch size and learning rate, with one epoch a round."""


def run_of(source: str, mechanism: str, seed: int, train: Mapping[str, Any]) -> tuple[hanse.Run, FederatedData]:
    """Return a finished run of the defaults, but for ``train``, and its data."""
    experiment = hanse.Experiment(
        data={"source": source, "seed": seed}, mechanism=mechanism, train=train, run={"seed": seed}
    )
    return hanse.run(experiment), build(experiment.data)


def tested(run: Mapping[str, Any]) -> dict[str, Any]:
    """Play a run of the table."""
    result, data = run_of(run["source"], run["mechanism"], run["seed"], {})
    guess, last = Guess.of(data.server_test), result.metrics[-1]
    assert guess is not None
    return {
        **run, "accuracy": last["test/accuracy"], "majority": guess.most, "loss": last["test/loss"],
        "entropy": guess.entropy, "at_chance": not guess.beaten(last["test/accuracy"], last["test/loss"]),
        "seconds": sum(line["time/round_s"] for line in result.metrics),
    }  # fmt: skip


def validated(run: Mapping[str, Any]) -> dict[str, Any]:
    """Play a run of the choice, and say how good its model is on the server's validation set."""
    result, data = run_of(run["source"], "fedavg", run["seed"], {"batch_size": run["batch"], "lr": run["lr"]})
    assert data.server_validation is not None
    return {**run, "validation": accuracy(result.model().eval(), data.server_validation)}


@torch.no_grad()
def accuracy(model: torch.nn.Module, samples: Samples) -> float:
    """Return the share of labels that a model gets right; of texts at every position."""
    right = [
        (model(samples.x[at]).argmax(1) == samples.y[at]).float().mean(dtype=torch.float64) * len(at)
        for at in torch.arange(len(samples)).split(512)
    ]
    return float(sum(right)) / len(samples)


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return accuracies in percent, mean and deviation over the seeds, with the most common class beside them."""
    rows = ["| source | " + " | ".join(MECHANISMS) + " | most common class |", "|---" * (len(MECHANISMS) + 2) + "|"]
    for source in SOURCES:
        cells = []
        for mechanism in MECHANISMS:
            own = [x for x in lines if (x["source"], x["mechanism"]) == (source, mechanism)]
            found = [100 * x["accuracy"] for x in own]
            spread = f" ± {stdev(found):.1f}" if len(found) > 1 else ""
            short = f" ({len(found)} seed{'s' * (len(found) > 1)})" if len(found) < len(SEEDS) else ""
            cells.append(f"{fmean(found):.1f}{spread}{short}" if found else "not run")
        most = [100 * x["majority"] for x in lines if x["source"] == source]
        if most:
            rows.append(f"| {source} | " + " | ".join(cells) + f" | {fmean(most):.1f} |")
    return "\n".join(rows)


def choice(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return each setting's shortfall: how far below the best of the grid its validation accuracy is, by source."""
    found: dict[tuple[int, float], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for x in lines:
        found[x["batch"], x["lr"]][x["source"]].append(x["validation"])
    sources = [s for s in SOURCES if all(s in found[setting] for setting in GRID)]
    means = {setting: {s: 100 * fmean(found[setting][s]) for s in sources} for setting in GRID}
    best = {s: max(of[s] for of in means.values()) for s in sources}
    rows = ["| batch | lr | " + " | ".join(sources) + " | largest shortfall |", "|---" * (len(sources) + 3) + "|"]
    for (batch, lr), of in means.items():
        worst = max((best[s] - of[s] for s in sources), default=float("nan"))
        rows.append(f"| {batch} | {lr} | " + " | ".join(f"{of[s]:.1f}" for s in sources) + f" | {worst:.1f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", default=SOURCES)
    parser.add_argument("--choose", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.choose:
        wanted = [
            {"source": source, "seed": seed, "batch": batch, "lr": lr}
            for source in given.sources if source != "shakespeare"  # whose network has a rate of its own
            for seed in CHOOSING for batch, lr in GRID
        ]  # fmt: skip
        return print(choice(play_missing(given.out or Path("defaults-choice.jsonl"), wanted, validated)))
    wanted = [
        {"source": source, "mechanism": mechanism, "seed": seed}
        for source in given.sources for mechanism in MECHANISMS for seed in SEEDS
    ]  # fmt: skip
    print(table(play_missing(given.out or Path("defaults.jsonl"), wanted, tested)))


if __name__ == "__main__":
    main()
