"""Processes that play jobs: forked or started anew, with the same bits, ended with their parent."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from sweep_cases import dies_once, made_up, points_of

from hanse.data import sources
from hanse.lab import player
from hanse.lab.job import Job, Step, play, play_kept
from hanse.lab.kept import Store
from hanse.lab.player import _Worker, in_processes, may_fork, play_all
from hanse.lab.sweep import run_sweep


def curves(jobs: list[Job], folder: Path, workers: int) -> list[object]:
    done = play_all(jobs, Store(folder / "jobs"), play, workers=workers, label="test")
    assert not done.failures
    return [(done.results[job.key]["curves"], done.results[job.key]["clients"]) for job in jobs]


@pytest.mark.parametrize("forked", [True, False])
def test_the_same_bits_in_other_processes(forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [point.job for point in points_of(tmp_path, "mechanism.name=fedavg,greedyfed", seeds=1)]
    here = curves(jobs, tmp_path / "here", 1)
    monkeypatch.setattr(player, "may_fork", lambda jobs: forked)
    assert curves(jobs, tmp_path / "there", 2) == here


def test_a_bar_is_drawn_where_something_is_left_to_play(tmp_path: Path) -> None:
    jobs = [point.job for point in points_of(tmp_path, "train.lr=0.5,0.25", seeds=1)]
    drawn = []
    for _ in range(2):
        file = StringIO()
        console = Console(file=file, width=100)
        assert (
            len(play_all(jobs, Store(tmp_path / "jobs"), made_up, workers=1, label="test", console=console).results)
            == 2
        )
        drawn.append(file.getvalue())
    assert "2/2 runs" in drawn[0]
    assert drawn[1] == ""


def test_each_source_is_loaded_once_for_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_digits, log = sources.SOURCES["digits"], tmp_path / "log"

    def load(**options: object) -> object:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return load_digits(**options)  # type: ignore[arg-type]

    monkeypatch.setattr(sources, "SOURCES", {**sources.SOURCES, "digits": load})
    monkeypatch.setattr(player, "may_fork", lambda jobs: True)
    jobs = [point.job for point in points_of(tmp_path, "train.lr=0.5,0.25", seeds=2)]
    curves(jobs, tmp_path / "out", 2)
    assert log.read_text() == f"{os.getpid()}\n"


@pytest.mark.parametrize("forked", [True, False])
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


def test_forks_only_where_it_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # a test run may have a thread of its own
    monkeypatch.setattr(player.torch.cuda, "is_available", lambda: False)

    def jobs(*grid: str) -> list[Job]:
        return [point.job for point in points_of(tmp_path, *grid)]

    assert may_fork(jobs("train.lr=0.5")) is (sys.platform == "linux")
    assert not may_fork(jobs("engine.threads=1,2"))  # operators of the second have threads
    monkeypatch.setattr(player.torch.cuda, "is_available", lambda: True)
    assert not may_fork(jobs("train.lr=0.5"))
    monkeypatch.setattr(player.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    assert not may_fork(jobs("train.lr=0.5"))


def says_whether_forked(job: Job, step: Step) -> dict[str, Any]:
    return made_up(job, step) | {"forked": hasattr(sys, "hanse_test_parent")}


def test_the_place_of_a_process_that_died_is_taken_by_no_fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(player, "may_fork", lambda jobs: True)
    monkeypatch.setattr(sys, "hanse_test_parent", os.getpid(), raising=False)  # which only a fork of this one has
    jobs = [point.job for point in points_of(tmp_path, "train.lr=97.0,99.0,98.0")]
    found = list(in_processes(jobs, lambda job, rounds: None, work=says_whether_forked, workers=1))
    assert [(job.key, result["status"], result.get("forked")) for job, result in found] == [
        (jobs[0].key, "done", True),
        (jobs[1].key, "failed", None),
        (jobs[2].key, "done", False),  # by then the bar has its thread
    ]


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


def waits_with_a_folder(job: Job, step: Step) -> dict[str, Any]:
    """Says that it has begun, and waits in a temporary folder for its end."""
    with tempfile.TemporaryDirectory(dir=os.environ["HANSE_TEST_FOLDER"]):
        step(1)
        time.sleep(60)
    return {}


@pytest.mark.parametrize("forked", [True, False])
def test_a_busy_process_that_is_ended_leaves_no_temporary_folder(
    forked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANSE_TEST_FOLDER", str(tmp_path))
    worker = _Worker.start(waits_with_a_folder, [], forked)
    worker.give(Job("", "", {}))
    assert worker.hear() == 1
    assert len(list(tmp_path.iterdir())) == 1
    worker.end()
    assert list(tmp_path.iterdir()) == []


def test_a_training_loop_that_may_ask_for_threads_is_not_played_in_a_fork(tmp_path: Path) -> None:
    [point] = points_of(tmp_path, "train.lr=0.5", seeds=1, more='[train]\nloop = "tests.lab.test_workers:loop"\n')
    assert not may_fork([point.job])


def loop(model: object, data: object, round: object) -> None:
    """A training loop that does nothing."""
