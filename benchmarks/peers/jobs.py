"""The jobs that all systems do, written out once as files: samples, split, seats, and the first weights.

Every runner reads the same file, so that nobody trains on other data, with other clients, or from other weights. The
order of a client's batches is each system's own.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from runners.models import first_model

__all__ = ["JOBS", "PeerJob", "write_job"]


@dataclass(frozen=True)
class PeerJob:
    """``clients`` of ``samples`` each, ``seats`` a round; ``tested`` images after every round."""

    name: str
    source: str
    model: str
    clients: int
    samples: int
    seats: int
    epochs: int
    batch: int
    lr: float
    momentum: float
    rounds: int
    tested: int


JOBS = {
    job.name: job
    for job in (
        PeerJob("mnist-mlp", "mnist", "mlp", 100, 600, 10, 5, 50, 0.01, 0.5, 20, 10_000),
        PeerJob("cifar-cnn", "cifar10", "cnn", 50, 200, 5, 2, 50, 0.01, 0.5, 5, 1_000),
        PeerJob("thousand", "mnist", "mlp", 1_000, 60, 10, 5, 10, 0.01, 0.5, 20, 10_000),
        PeerJob("resnet-18", "cifar10", "resnet18", 50, 20, 10, 1, 20, 0.01, 0.5, 3, 100),
    )
}


def write_job(job: PeerJob, data: Path, folder: Path) -> Path:
    """Write a job's folder from ``data/<source>.npz`` (raw images) and return it; one that is there is kept."""
    place = folder / f"{job.name}-{job.rounds}"
    if (place / "weights.npz").exists():
        return place
    place.mkdir(parents=True, exist_ok=True)
    with np.load(data / f"{job.source}.npz", allow_pickle=False) as raw:
        for part in ("train", "test"):
            x = (raw[f"x_{part}"].astype(np.float32) / 255 - 0.5) / 0.5
            x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
            y = raw[f"y_{part}"].astype(np.int64)
            if part == "test":
                x, y = x[: job.tested], y[: job.tested]
            np.save(place / f"x_{part}.npy", np.ascontiguousarray(x))
            np.save(place / f"y_{part}.npy", y)
    draw = np.random.default_rng(0)
    order = draw.permutation(len(np.load(place / "y_train.npy", mmap_mode="r")))
    np.save(place / "clients.npy", order[: job.clients * job.samples].reshape(job.clients, job.samples))
    seats = [draw.choice(job.clients, job.seats, replace=False) for _ in range(job.rounds)]
    np.save(place / "seats.npy", np.stack(seats))
    (place / "job.json").write_text(json.dumps(asdict(job)) + "\n")
    np.savez(place / "weights.npz", *(p.detach().numpy() for p in first_model(job.model).parameters()))
    return place
