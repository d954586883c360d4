"""What a round leaves behind: one dictionary of metrics, and one for each seat.

Names are paths. Everything under ``time/`` and ``memory/`` is wall clock and memory; all else is deterministic.
"""

from __future__ import annotations

import os
import platform
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hanse.data.federated import FederatedData
from hanse.held import by_distribution, personal_fit
from hanse.learning.job import Engine
from hanse.learning.sequences import is_text, perplexity
from hanse.mechanisms.part import Floats, View
from hanse.rounds import Played
from hanse.table import Table, mix

__all__ = ["Tested", "arrays_of", "environment", "evaluate", "figure_of", "metrics_of", "seats_of"]


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


@dataclass(frozen=True)
class Tested:
    """A round's test: figures by name, and the losses and accuracies ``[n]`` of clients on their own shares."""

    metrics: Mapping[str, float | None] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    personal: Floats | None = None  # weights [N, K] of the personal models that were tested


def evaluate(
    engine: Engine,
    data: FederatedData,
    table: Table,
    rows: np.ndarray,
    clients: np.ndarray,
    weights: Floats | None = None,
) -> Tested:
    """Test what clients hold, ``rows [N]``: on the server's test set (a mean over clients), and on the own test share
    of ``clients [n]`` (plain mean, mean weighted by samples, and the worst).

    With ``weights [N, K]`` the clients test their personal models ``weights[c] @ M``; the server has only the rows.
    """
    found: dict[str, float | None] = {}
    arrays: dict[str, np.ndarray] = {}
    if data.server_test is not None:
        held, count = np.unique(rows, return_counts=True)
        scores = engine.score(table.rows[held], data.server_test)
        found["test/loss"] = loss = float(np.average(scores.loss, weights=count))
        if is_text(data.server_test):
            found["test/perplexity"] = perplexity(loss)
        if not np.isnan(scores.accuracy).any():
            found["test/accuracy"] = float(np.average(scores.accuracy, weights=count))
    if len(clients):
        pool, index = data.pool(clients.tolist(), "test")
        scores = engine.score(_held(table, rows, clients, weights), pool, index)
        arrays = {"tested": clients, "test_loss": scores.loss, "test_accuracy": scores.accuracy}
        arrays["test_samples"] = np.asarray(scores.count, np.int64)
        if scores.loss_error is not None:
            arrays["test_loss_error"] = scores.loss_error
        some = scores.count > 0
        found["client/test_loss"] = _mean(scores.loss[some])
        if is_text(pool) and some.any():
            arrays["test_perplexity"] = np.array([perplexity(loss) for loss in scores.loss.tolist()])
            found["client/test_perplexity"] = perplexity(np.average(scores.loss[some], weights=scores.count[some]))
        if not np.isnan(scores.accuracy[some]).any() and some.any():
            found["client/test_accuracy"] = _mean(scores.accuracy[some])
            weighted = np.average(scores.accuracy[some], weights=scores.count[some])
            found["client/test_accuracy_weighted"] = float(weighted)
            found["client/test_accuracy_min"] = float(scores.accuracy[some].min())
        found.update(personal_fit(scores))
        if weights is not None:
            tier = engine.score(table.rows[rows[clients]], pool, index)
            if not np.isnan(tier.accuracy[some]).any() and some.any():
                found["client/test_accuracy_of_row"] = _mean(tier.accuracy[some])
    found.update(by_distribution(engine, data, table))
    return Tested(found, arrays, weights)


def _held(table: Table, rows: np.ndarray, clients: np.ndarray, weights: Floats | None) -> Tensor:
    """Return the model that each of ``clients [n]`` holds, ``[n, P]``."""
    held = table.rows[rows[clients]]
    if weights is None:
        return held
    personal = weights[clients].any(axis=1)
    if personal.any():
        held[personal] = mix(weights[clients[personal]], table.rows[:0], table.rows)
    return held


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
