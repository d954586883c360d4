"""Finds the run directories below a folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import read_toml, table
from hanse.runs.record import METRICS, last_line
from hanse.web.live_run import state_of

__all__ = ["Found", "find_runs", "summary"]

DEPTH = 5
MOST = 2000


@dataclass(frozen=True)
class Found:
    """A run directory: ``id`` for addresses (a hash of its path from the folder that is shown), ``name`` for people."""

    id: str
    name: str
    folder: Path


def find_runs(root: Path) -> dict[str, Found]:
    """Return the runs in ``root``, itself or in folders below (five deep, 2,000 at most), by id; names in order.

    Links are not followed: what lies elsewhere is not shown.
    """
    found: dict[str, Found] = {}
    for here, folders, files in os.walk(root):
        place = Path(here)
        depth = len(place.relative_to(root).parts)
        if "config.toml" in files:
            path = place.relative_to(root).as_posix()
            id_ = hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()
            name = root.resolve().name if depth == 0 else path
            found[id_] = Found(id_, name.encode(errors="replace").decode(), place)
            folders[:] = [f for f in folders if f not in ("rounds", "checkpoints", "receipts", "figures")]
        if depth >= DEPTH or len(found) >= MOST:
            folders.clear()
        folders.sort()
    return dict(sorted(found.items(), key=lambda item: item[1].name))


def summary(found: Found, now: float) -> dict[str, Any]:
    """Return a run in a line: mechanism, rounds done and planned, clients, last accuracy, state, age in seconds."""
    try:
        config = read_toml(found.folder / "config.toml")
    except UserError:
        config = {}
    line = last_line(found.folder / METRICS)
    round = line.get("round")
    rounds = round + 1 if type(round) is int else 0
    try:
        age = max(0.0, now - (found.folder / METRICS).stat().st_mtime) if rounds else None
    except OSError:
        age = None
    accuracy = line.get("test/accuracy", line.get("client/test_accuracy"))
    planned = _at(config, "run", "rounds")
    planned = planned if type(planned) is int else None
    pooled = _at(config, "data", "partition") == "pooled"
    clients = 1 if pooled else _at(config, "data", "clients")
    pace = line.get("time/round_s")
    return {
        "id": found.id,
        "name": found.name,
        "mechanism": str(_at(config, "mechanism", "name") or "?").rpartition(":")[2][:80],
        "seed": _at(config, "run", "seed"),
        "clients": clients if type(clients) is int else None,
        "rounds": rounds,
        "planned": planned,
        "accuracy": accuracy if isinstance(accuracy, float) else None,
        "state": state_of(rounds, planned, age, pace if isinstance(pace, float) else None),
        "age_s": age,
    }


def _at(config: Mapping[str, Any], section: str, key: str) -> Any:
    return table(config, section).get(key)
