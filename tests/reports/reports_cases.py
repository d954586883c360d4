"""Run directories written by hand, in the format of hanse.runs.rundir, with numbers that a test can predict."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiments import digits, over
from forging import recorded, restamped
from telling_cases import built_in_words

import hanse
from hanse.base import toml
from hanse.core.telling import write_about
from hanse.federation.policy import TABLE_5

CONFIG: dict[str, dict[str, Any]] = {
    "data": {"source": "digits", "partition": {"name": "dirichlet", "alpha": 0.5}, "clients": 6, "seed": 0},
    "model": {"name": "mlp", "hidden": [16]},
    "mechanism": {"name": "greedyfed", "clients_per_round": 2},
    "train": {"epochs": 1, "batch_size": 32, "lr": 0.1},
    "run": {"rounds": 4, "seed": 0},
}


def write_run(
    path: Path,
    metrics: Sequence[Mapping[str, Any]],
    clients: Sequence[Mapping[str, Any]] = (),
    changes: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Write a run directory; refusals of the seat lines go into the rounds' arrays too."""
    (path / "rounds").mkdir(parents=True)
    (path / "checkpoints").mkdir()
    given = over(CONFIG, changes or {})
    (path / "config.toml").write_text(toml.dumps(given))
    write_about(path, built_in_words(given, given["data"]["clients"], given["run"]["seed"]))
    (path / "shape.json").write_text('{"input_shape": [1, 8, 8], "num_classes": 10}')
    for name, lines in (("metrics", metrics), ("clients", clients)):
        (path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for line in metrics:
        refused = [c for c in clients if c["round"] == line["round"] and "refused" in c]
        np.savez(
            path / "rounds" / f"{line['round']:05d}.npz",
            refused=np.array([c["client"] for c in refused], np.int64),
            reason=np.array([c["refused"] for c in refused], np.str_),
        )
    restamped(path)
    return path


def metric(round: int, accuracy: float | None = None, **more: Any) -> dict[str, Any]:
    """A line of metrics.jsonl."""
    tested = {} if accuracy is None else {"test/accuracy": accuracy, "test/loss": 1 - accuracy}
    return {
        "round": round, "refused": 0, "seats": 2, **tested, "bytes/down": 1_500_000, "bytes/up": 500_000,
        "time/train_s": 0.2, "time/test_s": 0.05, "time/play_s": 0.2, "time/round_s": 0.25, **more,
    }  # fmt: skip


def seat(round: int, client: int, value: float | None = None, **more: Any) -> dict[str, Any]:
    """A line of clients.jsonl."""
    given = {} if value is None else {"value": value}
    return {"round": round, "client": client, "start": 0, "samples": 10.0, "loss": 0.5, **given, **more}


def accuracies(path: Path, values: Sequence[float], changes: Mapping[str, Mapping[str, Any]] | None = None) -> Path:
    """A run with these test accuracies and no seats."""
    return write_run(path, [metric(r, a) for r, a in enumerate(values)], changes=changes)


def runs_of(path: Path, mechanism: str, *curves: Sequence[float]) -> list[Path]:
    """Runs of a mechanism, a seed for each list of test accuracies; they are called after the two."""
    changes = [{"run": {"seed": seed}, "mechanism": {"name": mechanism}} for seed in range(len(curves))]
    return [accuracies(path / f"{mechanism}{i}", curve, changes[i]) for i, curve in enumerate(curves)]


def large_run(
    path: Path, *, rounds: int, clients: int, per_round: int, mechanism: str = "greedyfed", seed: int = 0
) -> Path:
    """A run that looks like a real one: a rising curve, values that shrink (not of FedAvg), some refusals."""
    draw = np.random.default_rng(seed)
    worth, values = draw.gamma(2.0, 0.5, clients) - 0.3, mechanism == "greedyfed"
    metrics, seats = [], []
    for r in range(rounds):
        chosen = draw.permutation(clients)[:per_round]
        lost = draw.random(per_round) < 0.02
        for c, gone in zip(chosen.tolist(), lost.tolist(), strict=True):
            value = float(worth[c] * np.exp(-r / rounds * 4) * (1 + 0.2 * draw.normal()) / per_round)
            valued = seat(r, c, value, value_error=abs(value) * 0.2) if values else seat(r, c)
            seats.append(seat(r, c, refused="no reply") if gone else valued)
        accuracy = float(0.9 - 0.8 * np.exp(-6 * r / rounds))
        metrics.append(metric(r, accuracy, refused=int(lost.sum()), **{"train/loss": 2 * np.exp(-r / rounds)}))
    changes = {
        "data": {"clients": clients},
        "mechanism": {"name": mechanism, "clients_per_round": per_round},
        "run": {"rounds": rounds, "seed": seed},
    }
    return write_run(path, metrics, seats, changes)


def rated_run(
    path: Path,
    accuracy: Sequence[float],
    mechanism: str = "fedavg",
    samples: int = 400,
    *,
    worth: Sequence[float] = (),
    error: Sequence[float] = (),
    spread: float = 0.0,
) -> Path:
    """A run of two rounds after which every client has this accuracy on test samples of its own.

    With ``worth`` and ``error`` two updates of each client were valued; ``spread`` is how far the values of a round
    are from theirs without each block of validation samples.
    """
    seats = [seat(r, c, v / 2, value_error=error[c] / 2**0.5) for r in range(2) for c, v in enumerate(worth)]
    mean = {"client/test_loss": 1.0, "client/test_accuracy": float(np.mean(accuracy))}
    changes = {
        "mechanism": {"name": mechanism}, "data": {"client_test": 0.2, "clients": len(accuracy)}, "run": {"rounds": 2}
    }  # fmt: skip
    write_run(path, [metric(r, **mean) for r in range(2)], seats, changes)
    tests = {"test_accuracy": np.array(accuracy), "test_samples": np.full(len(accuracy), samples)}
    blocks = np.array(worth)[:, None] / 2 + spread * np.where(np.arange(20) % 2, 1.0, -1.0)
    drawn = {"answered": np.arange(len(worth)), "value_without_block": blocks} if spread else {}
    for r in range(2):
        recorded(path, r, **tests, test_loss=np.ones(len(accuracy)), **drawn)
    return path


def market_experiment(rounds: int, eagerness: Sequence[float] = (2e3, 4e3)) -> hanse.Experiment:
    """Twelve participants of the roles of iPFL's Table 5, of which eleven trade digits and one sells random models."""
    data = {"partition": "cluster", "client_test": 0.75, "client_validation": 0.1, "validation": 0.0}
    sections = {
        "data": data, "model": {"name": "mlp", "hidden": [50]}, "train": {"steps": 20, "batch_size": 16, "lr": 0.05},
        "clients": {"grant": 100.0, "profiles": {"name": "roles", "eagerness": list(eagerness)}},
        "behaviour": {"attacker": {"clients": [TABLE_5.index("attacker")], "kind": "random"}},
    }  # fmt: skip
    return digits("ipfl", len(TABLE_5), rounds, **sections, engine={"train": "stacked"})
