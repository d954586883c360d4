"""How often the interval of a value covers what the value is on a large validation set.

    python benchmarks/value_errors.py

A made-up table of eight hospitals (3,000 rows, about 26 % positive, one hospital with 40 % of its labels flipped): each
trains the same model once, from the same start, and that training stays fixed. Then 40 independent validation sets of
225 rows are drawn. On each the eight updates are valued (exact Shapley values of the loss), with the standard error of
the draw (a jackknife over 20 blocks). Counted is how often value +- 1.96 errors covers the value on 20,000 other rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from hanse.data.samples import Samples
from hanse.games import shapley
from hanse.games.jackknife import jackknife_errors
from hanse.learning.coalitions import Coalitions
from hanse.learning.models import build_problem

HOSPITALS, FEATURES, DRAWS, ROWS, LARGE = 8, 12, 40, 225, 20_000
SIZES = (700, 560, 450, 400, 330, 260, 180, 120)


def table(rows: int, draw: np.random.Generator, shift: float = 0.0, flipped: float = 0.0) -> Samples:
    """Return patients: a logistic outcome of 12 features, about 26 % positive; a share of the labels is flipped."""
    x = draw.normal(shift, 1.0, (rows, FEATURES))
    slopes = np.linspace(-1.2, 1.2, FEATURES)
    odds = -1.5 + (x - shift) @ slopes + 0.5 * x[:, 0] * x[:, 1]
    y = (draw.random(rows) < 1 / (1 + np.exp(-odds))).astype(np.int64)
    y = np.where(draw.random(rows) < flipped, 1 - y, y)
    return Samples(torch.tensor(x, dtype=torch.float32), torch.tensor(y))


def trained(module: nn.Module, samples: Samples, epochs: int = 10) -> Tensor:
    """Return the module's parameters ``[P]`` after training it in place."""
    step = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(epochs):
        for at in torch.randperm(len(samples)).split(32):
            step.zero_grad()
            nn.functional.cross_entropy(module(samples.x[at]), samples.y[at]).backward()
            step.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


def main() -> None:
    torch.manual_seed(0)
    draw = np.random.default_rng(0)
    problem, start = build_problem("mlp", (FEATURES,), 2, 0, hidden=[16])
    updates = []
    for h, size in enumerate(SIZES):
        nn.utils.vector_to_parameters(start.clone(), problem.module.parameters())
        hospital = table(size, draw, shift=0.1 * (h - 3.5), flipped=0.4 if h == 2 else 0.0)
        updates.append(trained(problem.module, hospital))
    rows = torch.stack(updates)

    def values(samples: Samples) -> tuple[np.ndarray, np.ndarray]:
        game = Coalitions(problem, rows, start, np.array(SIZES, float), samples)
        found = shapley.exact(game, HOSPITALS)
        without = np.stack([shapley.shapley_from_table(w) for w in game.without_block.T], axis=1)
        return found, jackknife_errors(without)

    truth, _ = values(table(LARGE, draw))
    drawn = [values(table(ROWS, draw)) for _ in range(DRAWS)]
    found, errors = (np.stack(part) for part in zip(*drawn, strict=True))  # [draws, hospitals] each
    covered = np.abs(found - truth) <= 1.96 * errors
    print("| hospital | rows | value on 20,000 rows | spread of the 40 values | mean error reported | covered |")
    print("|---|---|---|---|---|---|")
    for h, size in enumerate(SIZES):
        name = f"{h}{' (labels flipped)' if h == 2 else ''}"
        cells = (f"{truth[h]:+.4f}", f"{found[:, h].std(ddof=1):.4f}", f"{errors[:, h].mean():.4f}")
        print(f"| {name} | {size} | {' | '.join(cells)} | {covered[:, h].sum()} of {DRAWS} |")
    print(f"covered: {covered.sum()} of {covered.size} client-draws, {100 * covered.mean():.1f} %")


if __name__ == "__main__":
    main()
