"""Counts what somebody opens to read a system, side by side with another commit.

    python benchmarks/reading.py --base COMMIT

For each system: the files of ``hanse.mechanisms`` that its file needs, itself included, and their lines: what it
imports from there, and what these import, without the protocol that all share. And for one update on its way: the files
of the package of which a line runs in one round of FedAvg in a simulation, from the call of ``play_round`` to its end.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from regression import ROOT, source_of

SYSTEMS = ("greedyfed", "gtfedavg", "scaffold", "ditto", "fedamp", "pfedgraph", "fedfomo", "cfl", "ifca", "fedsoft",
           "fedgen", "pifl", "ipfl")  # fmt: skip
SHARED = {"__init__", "part", "calling", "registry"}

CHILD = """
import json, sys
from pathlib import Path
import hanse
from hanse.mechanisms.registry import MECHANISMS
ran, src = set(), str(Path(hanse.__file__).parent)
def trace(frame, event, argument):
    name = frame.f_code.co_filename
    if name.startswith(src):
        ran.add(name[len(src) + 1:])
    return None
attempt = __import__("importlib").import_module(sys.argv[1])
play = attempt.play_round
def traced(*given):
    sys.setprofile(trace)
    try:
        return play(*given)
    finally:
        sys.setprofile(None)
attempt.play_round = traced
job = {"data": {"clients": 4}, "model": {"name": "mlp"}, "mechanism": {"name": "fedavg"}, "run": {"rounds": 1},
       "engine": {"train": "stacked", "threads": 1}}
hanse.run(hanse.Experiment(**job))
where = {name: make.__module__ for name, make in MECHANISMS.items()}
made = {name: sorted({type(part).__module__ for part in make().parts().values()}) for name, make in MECHANISMS.items()}
print(json.dumps({"ran": sorted(ran), "where": where, "made": made}))
"""


def _imports(file: Path) -> set[str]:
    """Return the modules that a file imports from anywhere."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    return found


def _needed(source: Path, starts: Sequence[str]) -> set[Path]:
    """Return the files of ``hanse.mechanisms`` that these modules need, by what their parts' files import."""
    waiting, seen = list(starts), set[Path]()
    while waiting:
        path = source / (waiting.pop().replace(".", "/") + ".py")
        if path in seen or not path.exists() or path.stem in SHARED:
            continue
        seen.add(path)
        waiting += [module for module in _imports(path) if module.startswith("hanse.mechanisms.")]
    return seen


def counts(source: Path) -> Mapping[str, tuple[int, int]]:
    """Return files and lines by system, and of one update on its way."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    moved = (source / "hanse" / "runs").exists()
    line = [sys.executable, "-c", CHILD, "hanse.runs.attempt" if moved else "hanse.attempt"]
    said = json.loads(subprocess.run(line, capture_output=True, text=True, check=True, env=environment).stdout)
    found = {}
    for name in SYSTEMS:
        files = _needed(source, [said["where"][name], *said["made"][name]])
        found[name] = len(files), sum(len(file.read_text().splitlines()) for file in files)
    ran = [source / "hanse" / name for name in said["ran"]]
    found["one update"] = len(ran), sum(len(file.read_text().splitlines()) for file in ran)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, metavar="COMMIT")
    given = parser.parse_args(arguments)
    with source_of(given.base) as base:
        before, after = counts(base), counts(ROOT / "src")
    for name, (files, lines) in before.items():
        print(f"{name}: before {files} files, {lines} lines; now {after[name][0]} files, {after[name][1]} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
