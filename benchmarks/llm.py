"""LoRA adapters in the market: does iPFL's graph find the pairs, and what do adapters cost in memory and on the wire?

``pairs``: the shipped instruction set, six clients in three pairs, ten rounds of iPFL as ``hanse reproduce ipfl table1
--scale small`` has it, five seeds; distances on the products B A or on the factors; controls: adapters drawn at random
in the place of trained ones, and answers permuted over all clients, which leaves no dialect to find. ``memory``: peak
memory of one round against the number of clients, each figure from a process of its own; bytes a round against sending
the whole model.
Run: ``OMP_NUM_THREADS=1 python benchmarks/llm.py pairs --out pairs.jsonl`` (goes on where it was stopped; ``--table``
prints it), ``python benchmarks/llm.py memory``. Needs ``hanse[llm]``.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch
from resumable import play_missing, written

import hanse
from hanse.base.streams import stream
from hanse.data import Dataset, load
from hanse.data.dataset import IGNORED
from hanse.data.samples import Samples
from hanse.lab.papers.catalogue import find_table
from hanse.learning.models import build_problem
from hanse.wings.language.records import PIECES, ByteTokenizer, Instruction, encode
from hanse.wings.language.sources import INSTRUCTION, PAIRS

SEEDS = (0, 1, 2, 3, 4)
PARTNER = np.array([1, 0, 3, 2, 5, 4])
KINDS: dict[str, dict[str, Any]] = {
    "trained, products": {"adapters": "products"},
    "trained, factors": {"adapters": "factors"},
    "random adapters": {
        "adapters": "products", "behaviour": {"attacker": {"clients": list(range(6)), "kind": "random"}}
    },
    "permuted answers": {"adapters": "products", "source": "llm:permuted"},
}  # fmt: skip


def permuted(*, root: Path | None, seed: int, download: bool) -> Dataset:
    """Return the shipped set with all answers dealt out anew among all clients' reports: no dialect is left."""
    found, tokens = load("instructions"), ByteTokenizer()
    wide = found.input_shape[0] + 6  # the longest report may get the longest answer

    def dealt(samples: Samples, share: str) -> Samples:
        texts = [tokens.decode(row.tolist()) for row in samples.x]
        answers = [tokens.decode([t for t in row.tolist() if t != IGNORED]) for row in samples.y]
        asked = [text.partition(PIECES[4])[0].partition(PIECES[3]) for text in texts]
        order = stream(seed, f"permuted {share}").permutation(len(answers)).tolist()
        items = [Instruction(INSTRUCTION, said, answers[i]) for (_, _, said), i in zip(asked, order, strict=True)]
        return encode(items, tokens, 512, wide).samples

    train, test = dealt(found.train, "train"), dealt(found.test, "test")
    return replace(found, name="permuted", train=train, test=test, input_shape=(wide,))


def sections_of(name: str, algorithm: str = "iPFL") -> dict[str, Any]:
    """Return the experiment of one kind: table 1 at its small scale, with what the kind changes."""
    kind = dict(KINDS[name])
    cell = next(c for c in find_table("ipfl", "table1", "small").cells if c.algorithm == algorithm)
    sections = {k: dict(v) for k, v in cell.variants[0].sections.items()}
    sections["mechanism"]["adapters"] = kind["adapters"]
    sections["data"]["source"] = kind.get("source", "instructions")
    if "behaviour" in kind:
        sections["behaviour"] = kind["behaviour"]
    return sections


class Graphs:
    """Keeps each round's graph and distances."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.distances: list[Any] = []

    def on_start(self, *said: object) -> None:
        """Nothing has been traded."""

    def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
        """Keep what the market recorded."""
        arrays = played.view.settlement.arrays
        if "market_graph" in arrays:
            self.graphs.append(arrays["market_graph"])
            self.distances.append(arrays["market_distance"])

    def on_end(self, result: object) -> None:
        """Nothing is left to do."""


def play(name: str, seed: int) -> dict[str, Any]:
    sections, seen, begun, cpu = sections_of(name), Graphs(), time.perf_counter(), time.process_time()
    sections["run"]["seed"] = sections["data"]["seed"] = seed
    result = hanse.run(hanse.Experiment(**sections), observers=[seen])
    clients = np.arange(6)
    nearest = [float(((d + np.eye(6) * 9).argmin(1) == PARTNER).mean()) for d in seen.distances]
    edges = [float(g.sum()) for g in seen.graphs]
    right = [float(g[clients, PARTNER].sum()) for g in seen.graphs]
    accuracy = result.tested["test_accuracy"]
    last = result.metrics[-1]
    return {
        "kind": name, "seed": seed, "edges": edges, "to_partner": right, "nearest_is_partner": nearest,
        "distance": seen.distances[-1].round(4).tolist(), "graph": seen.graphs[-1].tolist(),
        "accuracy": accuracy.tolist(), "pairs": [float(accuracy[list(pair)].mean()) for pair in PAIRS],
        "perplexity": last["client/test_perplexity"], "utility": last["utility/mean"] / (len(seen.graphs) or 1),
        "wall_s": time.perf_counter() - begun, "cpu_s": time.process_time() - cpu,
    }  # fmt: skip


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the runs as a table; shares are of the last market, and by chance a fifth of imports meets the partner."""
    rows = [
        "| | seeds | nearest is the partner | imports | of them the partner's | partners found | accuracy % |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in KINDS:
        own = [line for line in lines if line["kind"] == name]
        if own:
            cells = [
                _cell([100 * line["nearest_is_partner"][-1] for line in own], "%"),
                _cell([line["edges"][-1] for line in own]),
                _cell([100 * line["to_partner"][-1] / max(1, line["edges"][-1]) for line in own], "%"),
                _cell([100 * line["to_partner"][-1] / 6 for line in own], "%"),
                _cell([100 * fmean(line["accuracy"]) for line in own]),
            ]
            rows.append(f"| {name} | {len(own)} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _cell(values: Sequence[float], unit: str = "") -> str:
    spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
    return f"{fmean(values):.1f}{spread}{' ' + unit if unit else ''}"


def many(*, root: Path | None, seed: int, download: bool) -> Dataset:
    """Return 960 of its samples, some often; partition "iid" deals them."""
    found = load("instructions")
    index = torch.arange(960) % 60
    return replace(found, train=found.train.take(index), client_of=None, test_client_of=None, client_names=())


def remember(clients: int) -> dict[str, float]:
    """Play one round of FedAvg over this many seats on a base of 15 million numbers; what it takes."""
    model = {"base": "tiny", "base_width": 512, "base_layers": 8, "rank": 4, "alpha": 8.0}
    sections = sections_of("trained, products", "FedAvg") | {
        "data": {
            "source": "llm:many",
            "partition": {"name": "iid", "min_samples": 4},
            "clients": clients,
            "client_test": 0.0,
            "validation": 0.0,
        },
        "model": {"name": "lora", **model},
        "mechanism": {"name": "fedavg", "select": "everyone", "settle": {"name": "utilities"}},
        "train": {"optimizer": "adamw", "batch_size": 1, "steps": 1, "lr": 1e-3},
        "eval": {"every": 1, "clients": 0},
        "run": {"rounds": 1},
    }
    sections["clients"]["profiles"] = {**sections["clients"]["profiles"], "eagerness": 1.0}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    problem, row = build_problem("lora", (76,), 263, 0, **model)
    base = sum(p.numel() for p in problem.module.body.parameters() if not p.requires_grad)
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = hanse.run(hanse.Experiment(**sections))
    line = result.metrics[-1]
    return {
        "clients": clients, "before_mb": before, "with_base_mb": loaded, "peak_mb": line["memory/peak_mb"],
        "adapter_numbers": len(row), "base_numbers": base, "down": line["bytes/down"], "up": line["bytes/up"],
        "whole_model_would_be": 2 * 4 * base * clients,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("pairs", "memory", "remember"))
    parser.add_argument("--out", type=Path, default=Path("llm-pairs.jsonl"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--clients", type=int, default=6)
    given = parser.parse_args()
    if given.what == "remember":
        print(json.dumps(remember(given.clients)))
        return
    if given.what == "memory":
        for clients in (4, 16, 64):
            command = [sys.executable, __file__, "remember", "--clients", str(clients)]
            print(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip(), flush=True)
        return
    if not given.table:
        play_missing(
            given.out,
            [{"kind": name, "seed": seed} for seed in SEEDS for name in KINDS],
            lambda run: play(run["kind"], run["seed"]),
        )
    print(table(written(given.out)))


if __name__ == "__main__":
    main()
