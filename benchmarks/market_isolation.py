"""Who buys from an attacker that asks nothing, over the rounds of iPFL's market, by what distances are taken of.

    python benchmarks/market_isolation.py

Eight honest clients ask 1 token for their models, the ninth asks nothing, buys nothing and sends something else
(digits, logistic regression, alpha 1, 8 rounds of 20 steps, lambda 2, seeds 0 to 4). "blend .4" is .4 of its update
plus .92 of it in a shuffled order that never changes. Prints Markdown: importers at the first and the last market, the
attacker's utility over all, and what the honest have on average without any attacker.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import hanse
from hanse.base.streams import stream
from hanse.core.port import Reply, Request, Train, Trained
from hanse.federation.behaviour import Behaviour, Me, with_updates
from hanse.runs.recorded_market import recorded_markets

RULES = {
    "travel": {"of": "travel"},
    "own gradients": {"of": "own"},
    "travel, related": {"of": "travel", "related": 3.0},
    "own gradients, related": {"of": "own", "related": 3.0},
}
MODEL = {"clients": [8], "of": "model"}
ATTACKS: dict[str, dict[str, Any]] = {
    "none": {},
    "shuffle": {"attacker": MODEL | {"kind": "shuffle"}},
    "gaussian": {"attacker": MODEL | {"kind": "gaussian"}},
    "same": {"attacker": MODEL | {"kind": "same"}},
    "blend .2": {f"{__name__}:Blended": {"share": 0.2}},
    "blend .4": {f"{__name__}:Blended": {"share": 0.4}},
}


@dataclass(frozen=True)
class Blended(Behaviour):
    """Client 8 sends a share of its update, plus its update in a shuffled order that never changes."""

    share: float = 0.4

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        """Return the reply with the blended update."""
        if me.id != 8:
            return reply

        def sent(task: Train, result: Trained) -> Trained:
            update = result.row - task.start
            order = torch.from_numpy(stream(me.seed, "blend", client=me.id).permutation(len(update)))
            return replace(result, row=task.start + self.share * update + (1 - self.share**2) ** 0.5 * update[order])

        return with_updates(request, reply, sent)


def played(rule: Mapping[str, Any], attack: Mapping[str, Any], seed: int) -> tuple[float, float, float, float]:
    """Return the importers at the first and the last market, and the utility of client 8 and of the others' mean."""
    free = 0.0 if attack else 1.0
    experiment = hanse.Experiment(
        data={"clients": 9, "partition": {"alpha": 1.0}, "seed": seed},
        model="logistic",
        mechanism={"name": "ipfl", **rule},
        train={"steps": 20, "batch_size": 16, "lr": 0.1},
        behaviour=attack,
        clients={
            "profiles": {
                "name": "listed",
                "eagerness": [5e4] * 8 + [5e4 * free],
                "cost": [1.0] * 8 + [free],
            }
        },
        engine={"threads": 1},
        run={"rounds": 8, "seed": seed},
        eval={"every": 8},
    )
    with tempfile.TemporaryDirectory() as folder:
        run = hanse.run(experiment, out=Path(folder) / "run")
        sold = [int(r.graph[:, 8].sum()) for r in recorded_markets(Path(folder) / "run")]
    utility = [run.metrics[-1][f"utility/client/{c}"] for c in range(9)]
    return sold[0], sold[-1], utility[8], float(np.mean(utility[:8]))


def main() -> None:
    """Print the table."""
    print("\n| attack | " + " | ".join(f"{name}: importers, utility" for name in RULES) + " |")
    print("|---" * (1 + len(RULES)) + "|")
    for name, attack in ATTACKS.items():
        cells = []
        for rule in RULES.values():
            first, last, attacker, honest = np.mean([played(rule, attack, seed) for seed in range(5)], axis=0)
            cells.append(f"{first:.1f} to {last:.1f}, {attacker:.1f} ({honest:.1f})")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
