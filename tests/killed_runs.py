"""Runs in processes that kill themselves in the middle: at a number of Python calls, by no clock."""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import hanse

# a process forks a child for each moment. The child counts the Python calls of all its threads, and kills itself at
# one: any moment, no clock
KILLED = """
import json, os, signal, sys, threading
from pathlib import Path
import hanse
from hanse.runs import experiment

source, folder = sys.argv[1], Path(sys.argv[2])
count = 0

def play(limit, out):
    def profile(frame, event, arg):
        global count
        count += 1
        if count == limit:
            os.kill(os.getpid(), signal.SIGKILL)

    class Heard:
        def on_round(self, metrics, played):
            with open(f"{out}.heard", "a") as file:
                print(metrics["round"], file=file)

    real = experiment.play_rounds

    def counted(*args):
        threading.setprofile(profile)
        sys.setprofile(profile)
        try:
            return real(*args)
        finally:
            sys.setprofile(None)

    experiment.play_rounds = counted
    hanse.run(source, out=out, observers=[Heard()])

for number, limit in enumerate(json.loads(sys.argv[3])):
    if not (child := os.fork()):
        play(limit, folder / f"killed{number}")
        Path(folder / "count").write_text(str(count))
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def kill(limits: list[int], source: Path, folder: Path) -> list[int]:
    """Play a run for each limit and kill it there; return how the children ended."""
    command = [sys.executable, "-c", KILLED, str(source), str(folder), json.dumps(limits)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [int(line) for line in done.stdout.split()]


def killed(moments: int, seed: int, experiment: hanse.Experiment, folder: Path) -> list[tuple[Path, int]]:
    """Play an experiment and kill it, at so many random moments; return each run's directory, and how it ended."""
    source = folder / "exp.toml"
    source.write_text(experiment.to_toml())
    (folder / "counted").mkdir()
    assert kill([-1], source, folder / "counted") == [0]
    draw, total = random.Random(seed), int((folder / "counted" / "count").read_text())
    ends = kill([draw.randrange(1, total) for _ in range(moments)], source, folder)
    assert len(ends) == moments
    assert set(ends) <= {0, signal.SIGKILL}
    return [(folder / f"killed{number}", end) for number, end in enumerate(ends)]
