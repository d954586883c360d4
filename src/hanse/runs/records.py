"""What a round leaves behind: one dictionary of metrics, and one for each seat.

Names are paths. Everything under ``time/`` and ``memory/`` is wall clock and memory; all else is deterministic.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from hanse.core.part import Floats, View
from hanse.rounds.round import Played

__all__ = ["arrays_of", "environment", "figure_of", "metrics_of", "seats_of"]


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def metrics_of(played: Played, tested: Mapping[str, float | None], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return a round's line of ``metrics.jsonl``: counts, test figures, what the parts recorded, bytes, time,
    memory.
    """
    view = played.view
    updates = view.trained
    decisions = (view.choice, view.mix, view.values, view.settlement, view.deployment)
    recorded = {k: v for d in decisions if d is not None for k, v in d.metrics.items()}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1024)
    return {
        "round": view.round,
        "present": len(view.roster),
        "seats": 0 if view.seats is None else len(view.seats),
        "answered": len(updates),
        "refused": len(view.refusals),
        "samples": float(updates.num_samples.sum()),
        "train/loss": _mean(updates.loss),
        **tested,
        **recorded,
        "bytes/down": played.bytes_down,
        "bytes/up": played.bytes_up,
        **({"ledger/head": view.book.head} if view.book.count else {}),
        **{f"time/{name}_s": spent for name, spent in {**played.seconds, **seconds}.items()},
        "memory/peak_mb": round(peak, 1),
    }


def seats_of(played: Played) -> list[dict[str, Any]]:
    """Return a round's lines of ``clients.jsonl``: one for each seat, with its value or the reason of its refusal."""
    view = played.view
    if view.seats is None:
        return []
    figures = played.figures
    reasons = dict(view.refusals)
    answered = view.trained.seats
    place = {seat: s for s, seat in enumerate(zip(answered.client.tolist(), answered.start.tolist(), strict=True))}
    lines = []
    for client, start in zip(view.seats.client.tolist(), view.seats.start.tolist(), strict=True):
        line: dict[str, Any] = {"round": view.round, "client": client, "start": start}
        s = place.get((client, start))
        if s is None:
            line["refused"] = reasons.get(client, "no reply")
        else:
            line |= _seat(view, s)
        line |= {name: float(of_client[client]) for name, of_client in figures.items()}
        lines.append(line)
    return lines


def _seat(view: View, s: int) -> dict[str, Any]:
    updates = view.trained
    row = int(updates.seats.target[s])
    line: dict[str, Any] = {
        "samples": float(updates.num_samples[s]),
        "steps": int(updates.steps[s]),
        "loss": float(updates.loss[s]),
        "weight": float(view.mixed.W[row, s]),
    }
    if view.values is not None:
        line["value"] = float(view.values.per_seat[s])
        if view.values.exact is not None:
            line["value_exact"] = float(view.values.exact[s])
        if view.values.standard_errors is not None:
            error = float(view.values.standard_errors[s])
            line["value_error"] = None if np.isnan(error) else error
        if view.values.draw_errors is not None:
            drawn = float(view.values.draw_errors[s])
            line["value_draw_error"] = None if np.isnan(drawn) else drawn
    return line


def arrays_of(played: Played) -> dict[str, np.ndarray]:
    """Return what ``rounds/NNNNN.npz`` holds: seats, W in coordinates, home if it changed, values, refusals."""
    view = played.view
    seats, updates, mixed = view.seats, view.trained, view.mixed
    row, column = np.nonzero(mixed.W)
    arrays = {
        "client": np.zeros(0, np.int64) if seats is None else seats.client,
        "start": np.zeros(0, np.int64) if seats is None else seats.start,
        "answered": updates.seats.client,
        "num_samples": updates.num_samples,
        "loss": updates.loss,
        "steps": updates.steps,
        "W_row": row,
        "W_column": column,
        "W_weight": mixed.W[row, column],
        "W_shape": np.array(mixed.W.shape),
        "refused": np.array([c for c, _ in view.refusals], np.int64),
        "reason": np.array([r for _, r in view.refusals], np.str_),
    }
    if view.values is not None:
        arrays["value"] = view.values.per_seat
        if view.values.standard_errors is not None:
            arrays["value_error"] = view.values.standard_errors
        if view.values.without_block is not None:
            arrays["value_without_block"] = view.values.without_block
    if view.settlement is not None:
        arrays |= view.settlement.arrays
        arrays["withheld"] = np.array(sorted(view.settlement.withheld), np.int64)
    if not np.array_equal(mixed.home, view.home) or view.round == 0:
        arrays["home"] = mixed.home
    return arrays


def environment() -> dict[str, Any]:
    """Return what a run directory says of the machine and the packages that its run was played with."""
    packages = ("hanse", "torch", "numpy", "scipy", "scikit-learn", "pydantic", "sqlalchemy", "safetensors")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: version(name) for name in packages},
    }


def figure_of(metrics: Mapping[str, Any]) -> str:
    """Return the accuracy of a round in words, at the clients or else the server's; the loss if there is none, and
    nothing if nothing was tested.
    """
    own = metrics.get("client/test_accuracy")
    if own is not None:  # the clients' own data come first where they test: it is what they asked for
        return f"own accuracy {own:.3f}"
    if metrics.get("test/accuracy") is not None:
        return f"test accuracy {metrics['test/accuracy']:.3f}"
    return f"test loss {metrics['test/loss']:.4g}" if metrics.get("test/loss") is not None else ""
