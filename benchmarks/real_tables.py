"""Real tables with a plain tool: scikit-learn's logistic regression of each client alone, and of everybody's rows.

No hanse but for the data: what federating can be worth at all, on the same rows as `examples/who_gains.py`.

Run: python benchmarks/real_tables.py [SOURCE ...]   (needs hanse[tables])
"""

from __future__ import annotations

import sys
from statistics import mean, stdev

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from hanse.data import load
from hanse.data.tables import TABLES

SEEDS = range(5)
MOST_ROUNDS = 500


def fitted(x: np.ndarray, y: np.ndarray) -> LogisticRegression:
    """Return scikit-learn's model with its own settings (C = 1)."""
    return LogisticRegression(max_iter=MOST_ROUNDS).fit(x, y)


def measures(model: LogisticRegression, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return AUC and loss."""
    positive = model.predict_proba(x)[:, 1]
    return float(roc_auc_score(y, positive)), float(log_loss(y, positive))


def split(source: str, seed: int) -> np.ndarray:
    """Return AUC and loss alone, then of the pooled model, ``[clients, 4]``; clients whose test rows are of one class
    have no AUC and are left out.
    """
    data = load(source, seed=seed)
    x, y, tx, ty = (part.numpy() for share in (data.train, data.test) for part in (share.x, share.y))
    pooled, found = fitted(x, y), []
    for client in range(len(data.client_names)):
        own, test = data.client_of == client, data.test_client_of == client
        if 0 < ty[test].sum() < test.sum() and 0 < y[own].sum() < own.sum():
            alone = measures(fitted(x[own], y[own]), tx[test], ty[test])
            found.append((*alone, *measures(pooled, tx[test], ty[test])))
    return np.array(found)


def main() -> None:
    print("| source | clients | AUC alone | pooled | better off | loss alone | pooled | better off |")
    print("|---|---|---|---|---|---|---|---|")
    for source in sys.argv[1:] or TABLES:
        runs = [split(source, seed) for seed in SEEDS]
        cells = [f"{mean(len(r) for r in runs):.0f}"]
        for k, sign in ((0, 1), (1, -1)):
            cells += [f"{mean(r[:, j].mean() for r in runs):.3f}" for j in (k, k + 2)]
            better = [float((sign * (r[:, k + 2] - r[:, k]) > 0).mean()) for r in runs]
            cells.append(f"{mean(better):.0%} ± {100 * stdev(better):.0f}")
        print(f"| {source} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
