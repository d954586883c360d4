"""Games with one odd client for ``benchmarks/values.py intervals``: exact tables of label-skewed, long trained clients.

Each run trains 8, 10 or 12 clients by plain averaging, all of them in each round, and every coalition of a round's
updates is evaluated. The odd client is the last one: its labels are flipped, its features are noisy, its data are
another's, it alone holds a class, or it has four samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from value_games import Table

Floats = NDArray[np.float64]
SETS = {"cancer": (), "wine": (), "digits": (32,), "fmnist": (16,)}
"""The data sets, with the hidden layers of their models; none is logistic regression."""
ODD = ("flipped", "noisy", "duplicate", "maverick", "light")
PLAYERS = (8, 10, 12)
ALPHA = 0.3  # of the Dirichlet shares of each class
FEW = 4  # samples of a light client


class Training(NamedTuple):
    """How clients train, and the rounds whose games are kept."""

    epochs: int
    rate: float
    rounds: tuple[int, ...]


SHORT, LONG = Training(5, 0.1, (2, 20)), Training(20, 0.3, (2, 6))


class Data(NamedTuple):
    """Samples to train on and samples to score by, with the number of classes."""

    x: Tensor
    y: Tensor
    scored_x: Tensor
    scored_y: Tensor
    classes: int


@cache
def samples(name: str) -> Data:
    """Return a data set: at most 1,000 samples to train on, 60 to 300 to score by, features of deviation 1."""
    if name in ("cancer", "wine"):
        from sklearn import datasets

        x, y = getattr(datasets, "load_breast_cancer" if name == "cancer" else "load_wine")(return_X_y=True)
    else:
        from hanse.data import load

        some = load("digits" if name == "digits" else "fashion_mnist").train
        x, y = some.x.flatten(1).numpy()[:1400], some.y.numpy()[:1400]
    order = np.random.default_rng(0).permutation(len(x))
    x, y = torch.tensor(x[order], dtype=torch.float32), torch.tensor(y[order], dtype=torch.int64)
    x = (x - x.mean(dim=0)) / (x.std(dim=0) + 0.1 * x.std())
    scored = min(300, len(x) // 3)
    return Data(x[scored:][:1000], y[scored:][:1000], x[:scored], y[:scored], int(y.max()) + 1)


def outputs(rows: Tensor, x: Tensor, widths: Sequence[int]) -> Tensor:
    """Return the outputs ``[c, samples, classes]`` of models ``rows [c, P]``."""
    out, at = x.expand(len(rows), *x.shape), 0
    for layer, (i, o) in enumerate(pairwise(widths)):
        weight, bias = rows[:, at : at + i * o].view(-1, i, o), rows[:, at + i * o : at + i * o + o]
        out, at = torch.baddbmm(bias[:, None], out, weight), at + i * o + o
        out = torch.relu(out) if layer < len(widths) - 2 else out
    return out


def shared_out(data: Data, n: int, odd: str, draw: np.random.Generator) -> list[tuple[Tensor, Tensor]]:
    """Return each client's samples: Dirichlet shares (0.3) of each class, and the last client odd."""
    y, own = data.y.numpy(), [[] for _ in range(n)]
    for label in range(data.classes):
        these = draw.permutation(np.flatnonzero(y == label))
        if odd == "maverick" and label == 0:
            own[-1] = these.tolist()
            continue
        shares = draw.dirichlet(np.full(n, ALPHA))
        for mine, part in zip(own, np.split(these, (shares.cumsum()[:-1] * len(these)).astype(int)), strict=True):
            mine.extend(part.tolist())
    for mine in own:
        mine.extend(draw.integers(len(y), size=max(0, FEW - len(mine))).tolist())
    if odd == "light":
        own[-1] = own[-1][:FEW]
    if odd == "duplicate":
        own[-1] = own[0]
    clients = [(data.x[mine], data.y[mine]) for mine in own]
    x, labels = clients[-1]
    if odd == "flipped":
        clients[-1] = (x, (labels + 1) % data.classes)
    if odd == "noisy":
        clients[-1] = (x + 3 * torch.tensor(draw.normal(size=x.shape), dtype=torch.float32), labels)
    return clients


def stepped(
    model: Tensor, x: Tensor, y: Tensor, widths: Sequence[int], how: Training, draw: np.random.Generator
) -> Tensor:
    """Return a model after epochs of gradient descent in batches of about 16."""
    row = model.clone().requires_grad_()
    for _ in range(how.epochs):
        for batch in np.array_split(draw.permutation(len(x)), max(1, len(x) // 16)):
            loss = functional.cross_entropy(outputs(row[None], x[batch], widths)[0], y[batch])
            (slope,) = torch.autograd.grad(loss, row)
            row = (row - how.rate * slope).detach().requires_grad_()
    return row.detach()


def run(name: str, n: int, odd: str, how: Training, seed: int = 0) -> Iterator[dict[str, Table]]:
    """Train and yield the games of the rounds that are kept, by utility."""
    data, draw = samples(name), np.random.default_rng([seed, n, sorted(SETS).index(name), ODD.index(odd)])
    widths = (data.x.shape[1], *SETS[name], data.classes)
    clients = shared_out(data, n, odd, draw)
    weights = np.array([len(x) for x, _ in clients], dtype=np.float64)
    layers = [
        torch.cat([torch.tensor(draw.normal(size=i * o) / np.sqrt(i)), torch.zeros(o)]) for i, o in pairwise(widths)
    ]
    model = torch.cat(layers).float() * (1.0 if SETS[name] else 0.0)
    for number in range(1, max(how.rounds) + 1):
        rows = torch.stack([stepped(model, x, y, widths, how, draw) for x, y in clients])
        if number in how.rounds:
            title = f"{name}_{odd}{'_long' if how is LONG else ''}_r{number}_n{n}_s{seed}"
            yield tables_of(title, rows, model, weights, data, widths)
        model = torch.tensor(weights / weights.sum(), dtype=torch.float32) @ rows


def tables_of(
    title: str, rows: Tensor, model: Tensor, weights: Floats, data: Data, widths: Sequence[int]
) -> dict[str, Table]:
    """Return the exact tables of a round with updates ``rows [n, P]`` and the model before, by utility."""
    n = len(rows)
    members = (np.arange(2**n)[:, None] >> np.arange(n) & 1) * weights
    members[1:] /= members[1:].sum(axis=1, keepdims=True)
    found: dict[str, list[float]] = {"loss": [], "accuracy": []}
    for part in torch.tensor(members, dtype=torch.float32).split(64):
        mixed = part @ rows
        mixed[part.sum(dim=1) == 0] = model
        out = outputs(mixed, data.scored_x, widths).double()
        right = (out.argmax(dim=2) == data.scored_y).double().mean(dim=1)
        wanted = data.scored_y.expand(len(out), -1)
        loss = functional.cross_entropy(out.flatten(0, 1), wanted.flatten(), reduction="none").view_as(wanted)
        found["loss"] += (-loss.mean(dim=1)).tolist()
        found["accuracy"] += right.tolist()
    moved = (rows - model).double().numpy()
    out = outputs(torch.cat([model[None], rows]), data.scored_x, widths).double()
    out = (out - out.mean(dim=2, keepdim=True)).flatten(1).numpy()  # the level of logits is arbitrary
    grams = (moved @ moved.T, (out[1:] - out[0]) @ (out[1:] - out[0]).T)
    return {utility: Table(f"{title}_{utility}", np.array(v), weights, grams) for utility, v in found.items()}


def games() -> Iterator[Table]:
    """Yield all games: losses, and after short training the accuracies of the last round."""
    for place, name in enumerate(SETS):
        for number, odd in enumerate(ODD):
            sizes = PLAYERS if odd == "flipped" else (PLAYERS[(place + number) % 3], 10)
            for n in dict.fromkeys(sizes):
                *first, last = run(name, n, odd, SHORT)
                yield from (game["loss"] for game in (*first, last))
                yield last["accuracy"]
            if odd == "flipped" or not SETS[name]:
                for n in PLAYERS if odd == "flipped" else (12,):
                    for seed in (0, 1) if (name, odd) == ("cancer", "flipped") else (0,):
                        yield from (game["loss"] for game in run(name, n, odd, LONG, seed))
