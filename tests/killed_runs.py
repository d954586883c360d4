"""Runs in a process of their own that kills itself in the middle: at a number of Python calls, by no clock."""

import os
import subprocess
import sys
from pathlib import Path

# a process counts its Python calls while ``profile`` is set, and kills itself at the call ``limit``
COUNTED = """
import os, signal, sys
count = 0
def profile(frame, event, arg):
    global count
    count += 1
    if count == limit:
        os.kill(os.getpid(), signal.SIGKILL)
"""

# from the first round on
CHILD = f"""{COUNTED}
import hanse
from hanse.runs import experiment
from hanse.runs.config import Experiment

limit, source, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
real = experiment.play_rounds
def play(*args):
    sys.setprofile(profile)
    try:
        return real(*args)
    finally:
        sys.setprofile(None)
experiment.play_rounds = play
hanse.run(Experiment.read(source), out=out)
print(count)
"""


def child(limit: int, source: Path, out: Path, modules: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Play the experiment in ``source`` until the call ``limit`` (-1: to the end; then it prints how many there were).

    ``modules`` is a folder that its import paths are found in.
    """
    command = [sys.executable, "-c", CHILD, str(limit), str(source), str(out)]
    paths = [str(modules)] if modules is not None else []
    known = os.environ.get("PYTHONPATH")
    env = os.environ | {"PYTHONPATH": os.pathsep.join([*paths, *([known] if known else [])])}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)
