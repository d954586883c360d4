"""Finds the run directories below a folder."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import read_toml, table
from hanse.learning.metrics import ACCURACY, readings_of
from hanse.runs.record import METRICS, last_line
from hanse.web.live_run import progress_of

DEPTH = 5
MOST = 2000


@dataclass(frozen=True)
class ListedRun:
    """A run directory: ``id`` for addresses (a hash of its path from the folder that is shown), ``name`` for people."""

    id: str
    name: str
    folder: Path


def find_runs(root: Path) -> dict[str, ListedRun]:
    """Return the runs in ``root``, itself or in folders below (five deep, 2,000 at most), by id; names in order.

    Links are not followed: what lies elsewhere is not shown.
    """
    found: dict[str, ListedRun] = {}
    for here, folders, files in os.walk(root):
        place = Path(here)
        depth = len(place.relative_to(root).parts)
        if "config.toml" in files:
            path = place.relative_to(root).as_posix()
            id_ = hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()
            name = root.resolve().name if depth == 0 else path
            found[id_] = ListedRun(id_, name.encode(errors="replace").decode(), place)
            folders[:] = [f for f in folders if f not in ("rounds", "checkpoints", "receipts", "figures")]
        if depth >= DEPTH or len(found) >= MOST:
            folders.clear()
        folders.sort()
    return dict(sorted(found.items(), key=lambda item: item[1].name))


def summary(found: ListedRun, now: float) -> dict[str, Any]:
    """Return a run in a line: what :func:`hanse.web.live_run.progress_of` says, and the last main metric in words."""
    try:
        config = read_toml(found.folder / "config.toml")
    except UserError:
        config = {}
    line = last_line(found.folder / METRICS)
    main = next(iter(readings_of(table(config, "eval").get("metrics"))), ACCURACY)
    figure = line.get(f"test/{main.key}", line.get(f"client/test_{main.key}"))
    pace = line.get("time/round_s")
    return {
        "id": found.id,
        "name": found.name,
        "figure": f"{main.title[:80]} {main.show(figure)}" if isinstance(figure, float) else None,
        **progress_of(found.folder, config, line, pace if isinstance(pace, float) else None, now),
    }
