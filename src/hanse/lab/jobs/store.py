"""Finished jobs on disk: one small JSON file each, whole or not there at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hanse.base.files import write_whole
from hanse.base.toml import flat
from hanse.lab.jobs.job import Job

__all__ = ["Store"]


class Store:
    """The folder of results, ``<key>.json`` each; tables that share runs share the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, job: Job) -> Path:
        """Return where a job's result lies."""
        return self.folder / f"{job.key}.json"

    def read(self, job: Job) -> dict[str, Any] | None:
        """Return a job's finished result; None if there is none, or if it is of a different experiment.

        The key covers what the table says. Defaults that it does not mention are compared with those that the result
        was made with; keys that only one of the two knows are passed over, so that a new option with an old default
        does not throw away finished runs.
        """
        try:
            found = json.loads(self.path(job).read_text())
        except (OSError, ValueError):  # not there, or cut short by something that was not us
            return None
        if not isinstance(found, dict) or found.get("status") != "done" or "experiment" not in found:
            return None
        then = dict(flat(found["experiment"]))
        now = dict(flat(json.loads(json.dumps(job.experiment.sections()))))
        return found if all(then[name] == now[name] for name in then.keys() & now.keys()) else None

    def write(self, job: Job, result: Mapping[str, Any]) -> None:
        """Keep a result, finished or failed."""
        write_whole(self.path(job), json.dumps(result, indent=1, allow_nan=False) + "\n")
