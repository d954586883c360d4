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
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from common import ROOT, checkout, sources

from hanse_papers.catalogue import PAPERS
from hanse_papers.claims.planner import PAUSE


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
    environment = os.environ | {"PYTHONPATH": sources(place), "OMP_NUM_THREADS": "1"}
    command = ["nice", "-n", "19", sys.executable, "-m", "hanse", "reproduce", "--decide"]
    command += [asked.paper, "--out", str(results / asked.paper)] if asked.paper else ["--out", str(results)]
    command += ["--hours", asked.hours] if asked.hours else []
    ended = subprocess.run(command, env=environment, cwd=place, check=False).returncode
    if ended < 0:
        print(f"decide: ended by {signal.Signals(-ended).name}; start it again to go on", file=sys.stderr)
    return ended


if __name__ == "__main__":
    sys.exit(main())
