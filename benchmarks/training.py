"""Who passes proofs of training: level and power of ``[evidence] training`` by kind of member.

    python benchmarks/training.py play CASE,CHEAT,FIRST,SEEDS ...      (writes FOLDER/*.npz; CHEAT "honest" for none)
    python benchmarks/training.py judge

Forty rounds of FedAvg, logistic, 20 steps of 16. Of every member and round, how much each sample's loss fell is kept;
the test's rules are then applied to draws of these. Kinds "rareonly", "tiny", "one", "noisy" and "two" are of client 7;
in the others every client counts.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import hanse
from hanse.data import Dataset
from hanse.data.samples import Samples
from hanse.runs.round import first_state, play_round
from hanse.runs.setup import build
from hanse.wings.evidence.training import ProofOfTraining, z_of

CLIENTS, ROUNDS, FOLDER = 8, 40, Path("training-proofs")
CHEATS: dict[str, dict[str, Any]] = {
    "flip": {"sends": "flip"},
    "once": {"sends": "nothing", "since": 1},
    "last": {"sends": "last"},
    "noise": {"sends": "gaussian"},
    "judge": {"trains_on": "judge"},
    "public": {"trains_on": "public"},
    "copy10": {"sends": "copied", "adds": {"noise": 0.1}},
    "d2e": {"adds": {"copied": 2.0}},
    "x10": {"scale": 10.0},
}


def digits(seed: int, case: str) -> Dataset:
    """Return digits of which client 7 is of some kind, and the others are alike."""
    draw = np.random.default_rng(seed)
    x, y = load_digits(return_X_y=True)
    order = draw.permutation(len(y))
    x, y = (x[order] / 16).astype(np.float32), y[order].astype(np.int64)
    told, owner = y[500:].copy(), draw.integers(0, CLIENTS, len(y) - 500)
    mine = owner == 7

    def leave(which: np.ndarray) -> None:
        owner[which] = draw.integers(0, 7, int(which.sum()))

    if case == "rareonly":
        leave(mine & (told != 9))
        owner[told == 9] = 7
    elif case == "tiny":
        leave(mine & (np.cumsum(mine) > 12))
    elif case == "one":
        leave(mine & (told != 1))
    elif case == "two":
        leave(mine & ~np.isin(told, (0, 6)))
    elif case == "noisy":
        wrong = mine & (draw.random(len(told)) < 0.3)
        told[wrong] = draw.integers(0, 10, int(wrong.sum()))
    return Dataset(case, Samples(x[500:], told), Samples(x[:500], y[:500]), 10, (64,), client_of=owner)


def rareonly(seed: int = 0) -> Dataset:
    return digits(seed, "rareonly")


def tiny(seed: int = 0) -> Dataset:
    return digits(seed, "tiny")


def one(seed: int = 0) -> Dataset:
    return digits(seed, "one")


def two(seed: int = 0) -> Dataset:
    return digits(seed, "two")


def noisy(seed: int = 0) -> Dataset:
    return digits(seed, "noisy")


def ordinary(seed: int = 0) -> Dataset:
    return digits(seed, "ordinary")


def mnist(seed: int = 0) -> Dataset:
    """Return eight times 800 samples of MNIST, all alike."""
    from hanse.data import DataSpec

    whole = build_mnist(DataSpec(source="mnist", clients=1, partition="pooled"))
    order = np.random.default_rng(seed).permutation(len(whole))[:7400]
    x, y = whole.x[order].flatten(1).numpy(), whole.y[order].numpy()
    owner = np.arange(6400) % CLIENTS
    return Dataset("mnist", Samples(x[:6400], y[:6400]), Samples(x[6400:], y[6400:]), 10, (784,), client_of=owner)


def build_mnist(spec: Any) -> Samples:
    from hanse.data import build as data_of

    return data_of(spec).pool([0])[0]


def experiment(case: str, cheat: str, seed: int) -> hanse.Experiment:
    """Return the experiment of a case: "alpha1", "hospitals", or a function of this file."""
    data: dict[str, Any] = {"source": f"{Path(__file__).stem}:{case}", "partition": "natural", "clients": CLIENTS}
    if case == "alpha1":
        data = {"source": "digits", "clients": CLIENTS, "partition": {"name": "dirichlet", "alpha": 1.0}}
    elif case == "hospitals":
        data = {"source": "hospitals"}
    who = 1 if case == "hospitals" else 7
    return hanse.Experiment(
        data={**data, "seed": seed},
        model="logistic",
        mechanism="fedavg",
        train={"steps": 20, "batch_size": 16, "lr": 0.1},
        behaviour={} if cheat == "honest" else {"deviant": {"clients": [who], **CHEATS[cheat]}},
        engine={"threads": 1},
        eval={"every": ROUNDS},
        run={"rounds": ROUNDS, "seed": seed},
    )


def play(case: str, cheat: str, seed: int) -> None:
    """Play a run, and keep by how much each sample's loss fell by each member's update, ``[rounds, N, samples]``."""
    session = build(experiment(case, cheat, seed))
    state, data, falls = first_state(session), session.data, []
    pool, lists = data.pool(list(range(data.num_clients)))
    owner = np.full(len(pool), -1)
    for client, places in enumerate(lists):
        owner[places.numpy()] = client
    server = data.server_validation
    assert server is not None
    x, y = torch.cat([pool.x.flatten(1), server.x.flatten(1)]), torch.cat([pool.y, server.y])
    classes, width = data.num_classes or 0, x.shape[1]

    def losses(rows: torch.Tensor) -> torch.Tensor:
        weight = rows[:, : classes * width].reshape(len(rows), classes, width)
        out = torch.einsum("nk,rck->rnc", x, weight) + rows[:, classes * width :][:, None]
        return out.logsumexp(2) - out.gather(2, y[None, :, None].expand(len(rows), -1, 1))[..., 0]

    for _ in range(ROUNDS):
        played = play_round(session, state)
        view, state = played.view, played.state
        order = np.argsort(view.trained.seats.client)
        falls.append((losses(view.table.rows[:1]) - losses(view.trained.rows[order])).numpy())
    owner = np.concatenate([owner, np.full(len(server), -2)])
    FOLDER.mkdir(exist_ok=True)
    np.savez(FOLDER / f"{case}-{cheat}-{seed}.npz", falls=np.array(falls, np.float32), owner=owner)


def judge() -> None:
    """Print, for each case and cheat, how many members' runs and what share of rounds are refused."""
    found = defaultdict[tuple[str, str], list[Path]](list)
    for file in sorted(FOLDER.glob("*.npz")):
        case, cheat, _ = re.fullmatch(r"(.*)-(.*)-(\d+)", file.stem).groups()  # type: ignore[union-attr]
        found[case, cheat].append(file)
    part = ProofOfTraining()
    for (case, cheat), files in found.items():
        credits, threes, idle = [], [], []
        for file in files:
            kept, draw = np.load(file), np.random.default_rng(int(file.stem.rpartition("-")[2]))
            falls, owner = kept["falls"].astype(float), kept["owner"]
            one_of_them = cheat != "honest" or case in ("rareonly", "tiny", "one", "two", "noisy")
            members = range(falls.shape[1]) if not one_of_them else [1 if case == "hospitals" else 7]
            server = np.flatnonzero(owner == -2)
            for i in members:
                own, credit, z3 = draw.permutation(np.flatnonzero(owner == i)), np.zeros(1), []
                credits.append([]), idle.append([not falls[r, i].any() for r in range(ROUNDS)])
                for r in range(ROUNDS):
                    mine = falls[r, i][draw.permutation(own[: part.of])[: part.samples]]
                    z = z_of((float(mine.mean()), float(mine.var(ddof=1)), len(mine)), falls[r, i][server])
                    credit = part.after(credit, np.array([z]))
                    credits[-1].append(credit[0])
                    few = falls[r, i][draw.permutation(own[:64])[:32]]
                    others = draw.permutation(np.flatnonzero((owner >= 0) & (owner != i)))[:64]
                    z3.append(z_of((float(few.mean()), float(few.var(ddof=1)), len(few)), falls[r, i][others]))
                threes.append(z3)
        refused = (np.array(credits) <= -part.slack) | np.array(idle)
        three = np.array(threes)
        sums = three[:, 2:] + three[:, 1:-1] + three[:, :-2] <= np.sqrt(3)
        print(
            f"{case:10s} {cheat:7s} {len(files):3d} seeds: runs {refused.any(1).sum()} of {len(refused)}, rounds 1 to 8 "
            f"{refused[:, :8].mean():.2f}, later {refused[:, 8:].mean():.2f}; three z of 32 at most sqrt 3: runs "
            f"{sums.any(1).sum()}, rounds {sums.mean():.2f}"
        )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    if sys.argv[1] == "judge":
        judge()
    for job in sys.argv[2:]:
        case_, cheat_, first, seeds = job.split(",")
        for seed_ in range(int(first), int(first) + int(seeds)):
            play(case_, cheat_, seed_)
