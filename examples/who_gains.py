"""Whom does joining pay? Plays the experiments in a folder, and asks each client for the difference to training alone.

    python examples/who_gains.py examples/loans --seeds 5

Every client is asked on its own test rows, of models at the end of the run. A seed draws the split, the batches and who
is chosen; all experiments of a seed have the same rows.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import torch
from sklearn.metrics import roc_auc_score

import hanse
from hanse.data import FederatedData, build

ORDER = ("alone", "fedavg", "greedyfed", "ditto", "market", "pooled")
MEASURES = {"auc": 1, "loss": -1, "accuracy": 1}
"""What is measured, and whether more of it is better (1) or worse (-1)."""


class Held:
    """Watches a run for which row of its table each client holds."""

    def on_round(self, metrics, played):  # noqa: D102
        self.rows = played.view.deployment.rows


def measure(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, ...]:
    """Return AUC (NaN where all rows are of one class), loss and accuracy of a model on rows ``x, y``."""
    with torch.no_grad():
        logits = model(x)
    positive = (logits[:, 1] - logits[:, 0]).numpy()
    auc = roc_auc_score(y.numpy(), positive) if 0 < y.sum() < len(y) else np.nan
    loss = torch.nn.functional.cross_entropy(logits, y).item()
    return auc, loss, (logits.argmax(1) == y).float().mean().item()


def play(file: Path, seed: int, data: FederatedData, changes: Sequence[str] = ()) -> np.ndarray:
    """Play an experiment with these changes; return what each client has of it, ``[clients, measures]``."""
    held = Held()
    changes = [*changes, f"data.seed={seed}", f"run.seed={seed}", "engine.threads=1"]
    run = hanse.run(hanse.Experiment.read(file, changes), observers=[held])
    samples, index = data.pool(range(data.num_clients), "test")
    rows = held.rows if len(held.rows) == data.num_clients else np.repeat(held.rows, data.num_clients)  # pooled
    models = {row: run.model_of(run.table.rows[row]).eval() for row in set(rows.tolist())}
    return np.array([measure(models[row], samples.x[i], samples.y[i]) for row, i in zip(rows, index, strict=True)])


def main() -> None:
    """Print a table: how much better than alone on the mean, and for how many, by mechanism and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], dest="changes", help="such as run.rounds=5, in all files")
    given = parser.parse_args()
    found: dict[str, list[np.ndarray]] = {name: [] for name in ORDER}
    for seed in range(given.seeds):
        data = build(hanse.Experiment.read(given.folder / "alone.toml", [f"data.seed={seed}"]).data)
        for name in ORDER:
            found[name].append(play(given.folder / f"{name}.toml", seed, data, given.changes))
            print(f"seed {seed}, {name}: " + ", ".join(
                f"{m} {v:.4f}" for m, v in zip(MEASURES, np.nanmean(found[name][-1], axis=0), strict=True)
            ), flush=True)  # fmt: skip
    print("| | " + " | ".join(f"{m}: mean | gain over alone | better off" for m in MEASURES) + " |")
    print("|---" * (1 + 3 * len(MEASURES)) + "|")
    for name in ORDER:
        cells = []
        for k, sign in enumerate(MEASURES.values()):
            level = mean(np.nanmean(one[:, k]) for one in found[name])
            gains = [sign * (one - alone)[:, k] for one, alone in zip(found[name], found["alone"], strict=True)]
            known = [g[np.isfinite(g)] for g in gains]
            spread = f" ± {stdev([g.mean() for g in known]):.4f}" if given.seeds > 1 else ""
            gain = f"{mean(g.mean() for g in known):+.4f}{spread}"
            better = f"{mean((g > 0).mean() for g in known):.0%}"
            cells += [f"{level:.4f}", *(("", "") if name == "alone" else (gain, better))]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
