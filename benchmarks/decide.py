"""Play the papers' claims on an idle core, from a checkout of one commit: ``make decide``.

    python benchmarks/decide.py [PAPER] [--commit C] [--hours H]
    python benchmarks/decide.py --pause | --resume

The commit (default: HEAD) is checked out into the user's cache folder, so that changes to this tree do not change the
bits of runs; every kept line names it. One process with the lowest priority works through the claims, those of all
papers by the claims that they decide an hour, with ``hanse reproduce --decide``, and adds to
``benchmarks/results/PAPER/kept.jsonl.gz`` here. It may be killed at any time and then goes on where it was; ``--pause``
lets it wait before its next round, ``--resume`` ends that.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hanse.data.sources import cache_dir
from hanse_papers.catalogue import PAPERS
from hanse_papers.claims.planner import PAUSE

ROOT = Path(__file__).parents[1]
NATIVE = Path("src/hanse/learning/native")


def git(*words: str, root: Path = ROOT) -> str:
    """Return what git says in a checkout."""
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout.strip()


def checkout(commit: str, root: Path = ROOT, cache: Path | None = None) -> Path:
    """Return a checkout of a commit in the cache folder, with this tree's compiled engine if its source is the same.

    It is made if it is not there. The program ends if there is no such commit.
    """
    try:
        full = git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", root=root)
    except subprocess.CalledProcessError:
        raise SystemExit(f"decide: --commit {commit}: there is no such commit") from None
    place = (cache or cache_dir()) / "decide" / full[:12]
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # two that start together: one makes the checkout, the other waits
        if not (place / ".git").exists():
            git("worktree", "prune", root=root)
            git("worktree", "add", "--detach", "--force", str(place), full, root=root)
        if not git("diff", "--name-only", full, "--", str(NATIVE), root=root):
            for built in (root / NATIVE).glob("*.so"):
                new = place / NATIVE / f"{built.name}.new"
                shutil.copy2(built, new)
                new.replace(place / NATIVE / built.name)  # written in place, it would crash a process that uses it
    return place


def pause(results: Path, *, on: bool) -> None:
    """Let the planner wait before its next round, or go on."""
    for paper in PAPERS:
        file = results / paper / PAUSE
        if on:
            file.touch()
        else:
            file.unlink(missing_ok=True)


def main(words: Sequence[str] | None = None) -> int:
    """Work through the plan; returns the exit code of ``hanse reproduce``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paper", nargs="?", choices=PAPERS, metavar="PAPER")
    parser.add_argument("--commit", default="HEAD")
    parser.add_argument("--hours")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--pause", action="store_true")
    what.add_argument("--resume", action="store_true")
    asked = parser.parse_args(words)
    results = ROOT / "benchmarks" / "results"
    if asked.pause or asked.resume:
        pause(results, on=asked.pause)
        return 0
    place = checkout(asked.commit)
    sources = os.pathsep.join(str(place / part) for part in ("src", "papers/src"))
    environment = os.environ | {"PYTHONPATH": sources, "OMP_NUM_THREADS": "1"}
    command = ["nice", "-n", "19", sys.executable, "-m", "hanse", "reproduce", "--decide"]
    command += [asked.paper, "--out", str(results / asked.paper)] if asked.paper else ["--out", str(results)]
    command += ["--hours", asked.hours] if asked.hours else []
    ended = subprocess.run(command, env=environment, cwd=place, check=False).returncode
    if ended < 0:
        print(f"decide: ended by {signal.Signals(-ended).name}; start it again to go on", file=sys.stderr)
    return ended


if __name__ == "__main__":
    sys.exit(main())
