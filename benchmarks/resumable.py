"""Runs that are written down one a line, as they end: the same command goes on with what is left."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any


def written(out: Path) -> list[dict[str, Any]]:
    """Return the runs that are there."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def play_missing(
    out: Path, runs: Iterable[Mapping[str, Any]], play: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Play each run that no line of ``out`` has the columns of, add its line, and return all lines."""
    done = written(out)
    for run in runs:
        if any(all(line[key] == value for key, value in run.items()) for line in done):
            continue
        done.append(play(run))
        with out.open("a") as file:
            file.write(json.dumps(done[-1]) + "\n")
        print(json.dumps(done[-1]), file=sys.stderr, flush=True)
    return done
