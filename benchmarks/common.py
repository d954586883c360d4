"""What the scripts share: timing in turns, tables, runs kept one a line, kept checkouts, the kind of machine."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "papers/src")
NATIVE = Path("src/hanse/learning/native")


def written(out: Path) -> list[dict[str, Any]]:
    """Return the runs that are there."""
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def markdown(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Return a table in Markdown."""
    first, *lines = (list(map(str, row)) for row in (head, *rows))
    rule = f"|{'---|' * len(first)}"
    return "\n".join([f"| {' | '.join(first)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)])


def seconds(run: Callable[[], object]) -> float:
    """Return how long one call takes."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def interleaved(runs: dict[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Time every candidate in turn, ``repeats`` times round, so that a busy moment hits all alike; seconds."""
    for run in runs.values():
        run()  # warm up
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            times[name].append(seconds(run))
    return times


def print_times(title: str, times: dict[str, list[float]], baseline: Sequence[str]) -> dict[str, float]:
    """Print medians in ms and how many times faster than the best baseline; return the medians."""
    medians = {name: median(values) * 1e3 for name, values in times.items()}
    best = min(medians[name] for name in baseline)
    width = max(map(len, medians))
    print(f"\n{title}\n{'':{width}}  median ms   lowest  highest  times faster")
    for name, value in medians.items():
        low, high = min(times[name]) * 1e3, max(times[name]) * 1e3
        print(f"{name:{width}}  {value:9.1f}  {low:7.1f}  {high:7.1f}  {best / value:12.2f}")
    return medians


def cache() -> Path:
    """Return the user's cache folder of these scripts."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hanse" / "benchmarks"


def git(*words: str) -> str:
    """Return what git says in this checkout."""
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True).stdout.strip()


def has_engine(tree: Path) -> bool:
    """Return whether the compiled engine is in a tree."""
    return any((tree / NATIVE).glob("*.so"))


def checkout(commit: str) -> Path:
    """Return a checkout of a commit that is kept in the cache folder; it is made if it is not there.

    Its engine is compiled from its own source, if this tree has one. The program ends if there is no such commit.
    """
    try:
        full = git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
    except subprocess.CalledProcessError:
        raise SystemExit(f"{commit}: there is no such commit in this repository") from None
    place = cache() / "checkouts" / full[:12]
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # two that start together: one makes the checkout, the other waits
        if not (place / ".git").exists():
            git("worktree", "prune")
            git("worktree", "add", "--detach", "--force", str(place), full)
        if has_engine(ROOT) and not has_engine(place):
            line = [sys.executable, "-c", "import setuptools; setuptools.setup()", "--quiet", "build_ext", "--inplace"]
            subprocess.run(line, cwd=place, check=True, stdout=subprocess.DEVNULL)
    return place


def kind_of_machine(tree: Path) -> dict[str, str]:
    """Return what the bits of a run depend on beside its source: processor, libraries, threads, the compiled engine."""
    import torch

    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    return {
        "processor": f"{model}, {torch.backends.cpu.get_cpu_capability()}",
        "torch": f"{torch.__version__}, {os.environ.get('OMP_NUM_THREADS', torch.get_num_threads())} threads",
        "engine": "compiled" if has_engine(tree) else "not compiled",
    }


def sources(tree: Path) -> str:
    """Return what ``PYTHONPATH`` is for a checkout."""
    return os.pathsep.join(str(tree / part) for part in SOURCES)


def short(said: Any, size: int = 6) -> str:
    """Return a short hash of something that JSON can say."""
    return hashlib.blake2b(json.dumps(said, sort_keys=True).encode(), digest_size=size).hexdigest()


def hash_of(folder: Path) -> str:
    """Return a short hash of the files below a folder, bytecode left out."""
    files = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return short([(str(p.relative_to(folder)), hashlib.blake2b(p.read_bytes()).hexdigest()) for p in sorted(files)])
