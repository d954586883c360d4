"""How well losses tell sizes in real runs, what a cap by them costs the honest, and what copies with noise gain.

    HANSE_DATA=folder python benchmarks/market_evidence.py [SOURCE...]    # default digits, fashion_mnist
    HANSE_DATA=folder python benchmarks/market_evidence.py played         # what client 0 and the others have at the end

Logistic regression, 8 and 20 clients of unlike sizes (log-normal, a factor of about 3 between them), alpha 1 and 100,
a first round of 20 and 200 steps, seeds 0 to 4. "error" is the root mean square of ln(evidence / size), "known" the
mean of the error that the fit itself reports; "kept" the share of honest clients whose cap is not below their size, at
z = 1.64 and 3; "copies" for what part of its claim a client counts that has made 3 and 10 times its samples by copies
with noise (standard deviation .3 of the features'), at z = 3: 1 says that the cap does nothing, .33 and .1 are its true
size. Prints Markdown.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hanse
from hanse.base.streams import stream
from hanse.core.entry import TOKEN
from hanse.data.sources import load
from hanse.games.market_evidence import evidence, size_caps

Floats = NDArray[np.float64]
MEAN = {"digits": 120, "fashion_mnist": 500}  # samples a client
COPIES = (1, 3, 10)


def dealt(source: str, clients: int, alpha: float, mean: int, seed: int, copies: int) -> dict[int, Any]:
    """Return each client's samples ``(x, y)``; client 0 adds noisy copies until it has ``copies`` times its own."""
    train = load(source).train
    x, y = train.x.numpy().astype(np.float32), train.y.numpy()
    draw = stream(seed, "evidence")
    sizes = np.exp(draw.normal(0, 0.5, clients))
    sizes = np.maximum(20, sizes * mean / sizes.mean()).astype(int)
    sizes[0] = mean  # who cheats is of the usual size
    left = draw.permutation(len(y))
    found = {}
    for client, n in enumerate(sizes.tolist()):
        mix = draw.dirichlet(np.full(int(y.max()) + 1, alpha))
        weight = mix[y[left]] / np.bincount(y[left], minlength=len(mix))[y[left]]
        own = draw.choice(len(left), n, replace=False, p=weight / weight.sum())
        found[client] = x[left[own]], y[left[own]]
        left = np.delete(left, own)
    x, y = (np.concatenate([part] * copies) for part in found[0])
    x[len(x) // copies :] += draw.normal(0, 0.3 * x.std(), x[len(x) // copies :].shape).astype(np.float32)
    return {**found, 0: (x, y)}


def first_losses(data: Mapping[int, Any], steps: int, seed: int) -> tuple[Floats, Floats]:
    """Return the evidence of a run's first round: losses ``[N, N]``, and claimed sizes ``[N]``."""
    run = hanse.Experiment(
        data={"clients": len(data), "client_validation": 0.2},
        model="logistic",
        mechanism={"name": "ipfl_posted", "evidence": 3.0},
        train={"steps": steps, "batch_size": 16, "lr": 0.1},
        engine={"threads": 1},
        eval={"every": 2},
        run={"rounds": 2, "seed": seed},
    )
    with tempfile.TemporaryDirectory() as folder:
        hanse.run(run, data=data, out=Path(folder) / "run")
        with np.load(min((Path(folder) / "run" / "rounds").glob("*.npz"))) as record:
            return record["evidence_loss"], record["evidence_size"]


def row(source: str, clients: int, alpha: float, steps: int) -> str:
    """Return a row of the table."""
    errors, known, kept, left = [], [], [], []
    for seed in range(5):
        for copies in COPIES:
            losses, sizes = first_losses(dealt(source, clients, alpha, MEAN[source], seed, copies), steps, seed)
            if copies > 1:
                left.append(min(1.0, float(size_caps(losses, sizes, 3.0)[0] / sizes[0])))
                continue
            found, error = evidence(losses, sizes)
            errors += np.log(found / sizes).tolist()
            known += error.tolist()
            kept.append([(size_caps(losses, sizes, z) >= sizes).mean() for z in (1.64, 3.0)])
    rms, usual = float(np.sqrt(np.nanmean(np.square(errors)))), float(np.nanmean(known))
    honest = ", ".join(f"{100 * k:.0f}" for k in np.mean(kept, axis=0))
    claims = ", ".join(f"{one:.2f}" for one in np.mean(np.reshape(left, (5, len(COPIES) - 1)), axis=0))
    return f"| {source}, {clients}, {alpha:g}, {steps} | {rms:.2f} | {usual:.2f} | {honest} % | {claims} |"


def balances(copies: int, option: Mapping[str, Any], seed: int) -> Floats:
    """Return what clients have after 8 rounds of 20 steps on digits (alpha 1) with proved sizes, ``[N]`` in tokens."""
    run = hanse.Experiment(
        data={"clients": 8, "client_validation": 0.2},
        model="logistic",
        mechanism={"name": "ipfl_posted", "per_thousand": 1.0, **option},
        train={"steps": 20, "batch_size": 16, "lr": 0.1},
        clients={"grant": 100.0, "profiles": {"name": "listed", "eagerness": [5e4] * 8, "cost": [0.3] * 8}},
        sizes={"proved": True},
        engine={"threads": 1},
        eval={"every": 8},
        run={"rounds": 8, "seed": seed},
    )
    book = hanse.run(run, data=dealt("digits", 8, 1.0, MEAN["digits"], seed, copies)).book
    return np.array([book.balance(f"client/{c}") for c in range(8)]) / TOKEN


def played() -> None:
    """Print what client 0 has and what the others have on average, by its copies, without and with evidence."""
    print("\n| client 0 counts | without evidence: it, others | z = 3 | z = 1.64 |")
    print("|---|---|---|---|")
    for copies in COPIES:
        cells = []
        for option in ({}, {"evidence": 3.0}, {"evidence": 1.64}):
            found = np.array([balances(copies, option, seed) for seed in range(5)])
            cells.append(f"{found[:, 0].mean():.1f}, {found[:, 1:].mean():.1f}")
        print(f"| {copies} times its samples | {' | '.join(cells)} |", flush=True)


def main(sources: list[str]) -> None:
    """Print the table."""
    print("\n| data, clients, alpha, steps | error | known | kept | copies |")
    print("|---|---|---|---|---|")
    for source in sources or list(MEAN):
        for clients in (8, 20) if source != "digits" else (8,):  # 20 clients would leave nothing of it
            for alpha in (100.0, 1.0):
                for steps in (20, 200):
                    print(row(source, clients, alpha, steps), flush=True)


if __name__ == "__main__":
    if sys.argv[1:] == ["played"]:
        played()
    else:
        main(sys.argv[1:])
