"""Processes that play jobs: forked or started anew, with the same bits, ended with their parent."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from sweep_cases import dies_once, points_of

from hanse.lab import player
from hanse.lab.job import Job, play, play_kept
from hanse.lab.kept import Store
from hanse.lab.sweep import run_sweep

ANEW = (pytest.mark.slow, pytest.mark.by_turns(3, 2))  # a process that is started anew imports for seconds
FORKED = [True, pytest.param(False, marks=ANEW)]


def curves(jobs: list[Job], folder: Path, workers: int) -> list[object]:
    done = player.play_all(jobs, Store(folder / "jobs"), play, workers=workers, label="test")
    assert not done.failures
    return [(done.results[job.key]["curves"], done.results[job.key]["clients"]) for job in jobs]


@pytest.mark.parametrize("forked", FORKED)
def test_the_same_bits_in_other_processes(forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [point.job for point in points_of(tmp_path, "mechanism.name=fedavg,greedyfed", seeds=1)]
    here = curves(jobs, tmp_path / "here", 1)
    monkeypatch.setattr(player, "may_fork", lambda jobs: forked)
    assert curves(jobs, tmp_path / "there", 2) == here


@pytest.mark.parametrize("forked", FORKED)
def test_goes_on_after_a_process_died_with_the_same_bits(
    forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(player, "may_fork", lambda jobs: forked)
    points = points_of(tmp_path, "train.lr=0.5,0.25", more="checkpoint_every = 1")
    (tmp_path / "out" / "runs").mkdir(parents=True)
    work = partial(dies_once, runs=tmp_path / "out" / "runs")
    first = run_sweep(points, tmp_path / "out", workers=2, work=work)
    assert list(first.failures.values()) == ["its worker process ended with code 9"]
    again = run_sweep(points, tmp_path / "out", workers=2, work=work)
    assert (again.played, again.failures) == (1, {})
    for point in points:
        alone = play_kept(point.job, lambda rounds: None, runs=tmp_path / "alone")
        assert again.results[point.job.key]["curves"] == alone["curves"]


ORPHANS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from sweep_cases import made_up
from hanse.lab.player import _Worker
crew = []
for _ in range(3):
    crew.append(_Worker.start(made_up, crew, forked=True))
os._exit(0)  # as a kill would: nobody is told
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks on Linux alone")
def test_forked_processes_end_with_their_parent() -> None:
    # they hold the pipe's other end, so that this reads until the last of them is gone
    line = [sys.executable, "-c", ORPHANS, str(Path(__file__).parent)]
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120, check=True)
    assert done.stdout == b""
