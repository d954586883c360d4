"""The runs in a folder, and a line about each.

:func:`find_runs` looks for run directories, and :func:`summary` says what the list of runs shows of one. Both only look
at the files, because the folder may hold runs of strangers.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import read_toml, table
from hanse.learning.metrics import main_of
from hanse.runs.line_tail import last_line
from hanse.runs.round_record import METRICS
from hanse.wings.operate.page.live_run import progress_of

DEPTH = 5  # folders below the root in which runs are looked for
MOST = 2000  # the most runs that are listed


@dataclass(frozen=True)
class ListedRun:
    """A run directory that was found.

    Attributes:
        id: the run's name in addresses. It is a hash of the run's path, so that no path from outside is ever opened.
        name: the run's path from the folder that is shown, for people.
        folder: the run directory.
    """

    id: str
    name: str
    folder: Path


def find_runs(root: Path) -> dict[str, ListedRun]:
    """Return the runs in a folder by their ids, in the order of their names.

    A folder with a ``config.toml`` is a run, unless the file is another program's, such as Flower's.
    Links are not followed, so what lies elsewhere is not shown.

    Args:
        root: the folder; it may be a run itself. Folders below it are searched five deep, up to 2,000 runs.
    """
    found: dict[str, ListedRun] = {}
    for here, folders, files in os.walk(root):
        place = Path(here)
        depth = len(place.relative_to(root).parts)
        if "config.toml" in files and (METRICS in files or _may_be_ours(place / "config.toml")):
            path = place.relative_to(root).as_posix()
            id_ = hashlib.blake2b(os.fsencode(path), digest_size=6).hexdigest()
            name = root.resolve().name if depth == 0 else path
            found[id_] = ListedRun(id_, name.encode(errors="replace").decode(), place)
            # hanse's own folders in a run hold no runs; others may
            folders[:] = [f for f in folders if f not in ("rounds", "checkpoints", "receipts", "figures")]
        # os.walk goes into what this list holds: emptied, it ends here
        if depth >= DEPTH or len(found) >= MOST:
            folders.clear()
        folders.sort()
    return dict(sorted(found.items(), key=lambda item: item[1].name))


def _may_be_ours(file: Path) -> bool:
    """Return whether a ``config.toml`` names a mechanism, as every experiment does, or is damaged."""
    try:
        return "mechanism" in read_toml(file)
    except UserError:
        return True


def summary(found: ListedRun, now: float) -> dict[str, Any]:
    """Return what the list of runs shows of a run at the time ``now`` (seconds since the epoch).

    This is the result of :func:`hanse.wings.operate.page.live_run.progress_of`, and the last main metric in words.
    """
    try:
        config = read_toml(found.folder / "config.toml")
    except UserError:
        config = {}
    line = last_line(found.folder / METRICS)
    main = main_of(table(config, "eval").get("metrics"))
    figure = line.get(f"test/{main.key}", line.get(f"client/test_{main.key}"))
    pace = line.get("time/round_s")
    return {
        "id": found.id,
        "name": found.name,
        "figure": f"{main.title[:80]} {main.show(figure)}" if isinstance(figure, float) else None,
        **progress_of(found.folder, config, line, pace if isinstance(pace, float) else None, now),
    }
