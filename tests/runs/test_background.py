"""Rounds are written beside the next one: nobody hears of a round that is not on the disk, wherever a run is killed and
whenever the disk is full."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killed_runs import COUNTED
from watching import untimed

import hanse
from hanse.base.errors import MachineError
from hanse.core.table import Block, Table
from hanse.ledger.run_ledger import open_ledger
from hanse.runs import experiment as play
from hanse.runs.checkpoint import LoopState, own_copy
from hanse.runs.rundir import RunDir
from tests.runs.test_machine_failures import ROUNDS, assert_same, experiment

HERE = Path(__file__).parents[1]  # where paying.py is


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanse.run(experiment(), out=tmp_path_factory.mktemp("whole") / "run").path


class Heard:
    """An observer that writes down what it is told, and does something at it."""

    def __init__(self, then: Callable[[int], object] = lambda round: None) -> None:
        self.rounds: list[int] = []
        self.then = then

    def on_round(self, metrics: dict[str, Any], played: Any) -> None:
        self.rounds.append(metrics["round"])
        self.then(metrics["round"])


def kept(folder: Path) -> int:
    """How many rounds the last checkpoint counts."""
    return max((int(file.stem) for file in (folder / "checkpoints").glob("*.safetensors")), default=0)


def assert_kept(folder: Path, round: int) -> None:
    """Everything of a round is on the disk."""
    assert kept(folder) > round
    assert (folder / "rounds" / f"{round:05d}.npz").exists()
    for file in ("metrics.jsonl", "clients.jsonl"):
        assert any(line["round"] == round for line in untimed(folder / file))
    assert any(record.round == round for record in open_ledger(folder).history())


# ---- what is told, and when


def test_a_round_is_written_while_the_next_is_played_and_told_from_the_disk(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = [threading.Event() for _ in range(ROUNDS + 1)]
    attempt, append = play.attempt, RunDir.append

    def played(session: Any, state: LoopState, *before: Any) -> Any:
        begun[state.round].set()
        return attempt(session, state, *before)

    def written(folder: RunDir, done: Any, state: LoopState | None) -> None:
        number = done.played.view.round
        if number < ROUNDS - 1:
            assert begun[number + 1].wait(100), "the next round waited for this one"
        append(folder, done, state)

    monkeypatch.setattr(play, "attempt", played)
    monkeypatch.setattr(RunDir, "append", written)
    monkeypatch.setattr(play, "LONG_S", 1e9)
    heard = Heard(lambda round: assert_kept(tmp_path / "run", round))
    result = hanse.run(experiment(), out=tmp_path / "run", observers=[heard])
    assert heard.rounds == [line["round"] for line in result.metrics] == list(range(ROUNDS))
    assert_same(tmp_path / "run", whole)


def test_a_long_round_is_told_before_the_next_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    attempt = play.attempt

    def played(session: Any, state: LoopState, *before: Any) -> Any:
        order.append(f"play {state.round}")
        return attempt(session, state, *before)

    monkeypatch.setattr(play, "attempt", played)
    monkeypatch.setattr(play, "LONG_S", 0.0)
    hanse.run(experiment(rounds=2), out=tmp_path / "run", observers=[Heard(lambda n: order.append(f"tell {n}"))])
    assert order == ["play 0", "tell 0", "play 1", "tell 1"]


@pytest.mark.parametrize("every", [1, 4])
def test_an_observer_that_ends_the_run_ends_it_at_the_round_that_it_was_told_between_checkpoints_too(
    every: int, whole: Path, tmp_path: Path
) -> None:
    heard = Heard(lambda round: signal.raise_signal(signal.SIGINT) if round == 1 else None)
    result = hanse.run(experiment(checkpoint_every=every), out=tmp_path / "run", observers=[heard])
    assert result.interrupted
    assert heard.rounds == [line["round"] for line in result.metrics] == [0, 1]
    assert kept(tmp_path / "run") == len(untimed(tmp_path / "run" / "metrics.jsonl")) == 2
    for round in heard.rounds:
        assert_kept(tmp_path / "run", round)
    again = Heard()
    hanse.resume(tmp_path / "run", observers=[again])
    assert [*heard.rounds, *again.rounds] == list(range(ROUNDS))
    assert_same(tmp_path / "run", whole)


def test_who_writes_into_what_it_kept_before_does_not_write_into_a_checkpoint() -> None:
    ids, rows = np.arange(3), torch.zeros(3, 2)
    table = Table(rows, ids, ids, (Block("a"), Block("b"), Block("c")))
    mine = {"counts": np.zeros(2), "model": torch.zeros(2), "name": "x", "none": None}
    state = LoopState(1, table, np.zeros(3, np.int64), {"select": mine}, memories={"echo": mine})
    copy = own_copy(state)
    mine["counts"] += 1
    mine["model"] += 1
    state.home[:] = 2
    for kept in (copy.states["select"], copy.memories["echo"]):
        assert kept["counts"].tolist() == kept["model"].tolist() == [0, 0]
    assert (copy.home.tolist(), copy.states["select"]["name"], copy.states["select"]["none"]) == ([0, 0, 0], "x", None)


# ---- killed


# a process forks a child for each moment. The child counts the Python calls of all its threads, and kills itself at
# one: any moment, no clock
KILLED = f"""{COUNTED}
import json, threading
from pathlib import Path
import hanse
from hanse.runs import experiment

source, folder = sys.argv[1], Path(sys.argv[2])

def play(out):
    class Heard:
        def on_round(self, metrics, played):
            with open(f"{{out}}.heard", "a") as file:
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
        play(folder / f"killed{{number}}")
        Path(folder / "count").write_text(str(count))
        os._exit(0)
    print(os.waitpid(child, 0)[1], flush=True)
"""


def kill(limits: list[int], source: Path, folder: Path) -> list[int]:
    """Play a run for each limit and kill it there; return how the children ended."""
    command = [sys.executable, "-c", KILLED, str(source), str(folder), json.dumps(limits)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [int(line) for line in done.stdout.split()]


def kill_and_resume(moments: int, seed: int, whole: Path, tmp_path: Path, every: int = 1) -> None:
    source = tmp_path / "exp.toml"
    source.write_text(experiment(checkpoint_every=every).to_toml())
    (tmp_path / "counted").mkdir()
    assert kill([-1], source, tmp_path / "counted") == [0]
    total = int((tmp_path / "counted" / "count").read_text())
    draw = random.Random(seed)
    ends = kill([draw.randrange(1, total) for _ in range(moments)], source, tmp_path)
    assert len(ends) == moments
    finished = 0  # threads that wait for each other make some calls more or fewer, so the last moments may never come
    for number, end in enumerate(ends):
        out = tmp_path / f"killed{number}"
        assert end in (0, signal.SIGKILL)
        finished += end == 0
        said = tmp_path / f"killed{number}.heard"
        heard = said.read_text().split() if said.exists() else []
        assert [int(line) for line in heard] == list(range(len(heard)))
        assert kept(out) >= len(heard) // every * every
        posted = []
        if (out / "transactions.jsonl").exists() and kept(out):
            posted = [record.round for record in open_ledger(out).history()]
        assert max(posted, default=-1) < max(kept(out), 1) or kept(out) == ROUNDS
        assert every > 1 or set(range(len(heard))) <= set(posted)
        hanse.resume(out)
        assert_same(out, whole)
    assert finished <= moments // 20 + 1


@pytest.mark.parametrize(
    ("moments", "seed", "every"),
    [
        pytest.param(4, 3, 1, marks=pytest.mark.slow),
        pytest.param(6, 4, 3, marks=pytest.mark.slow),
        *(pytest.param(20, seed, 1, marks=pytest.mark.soak) for seed in range(10)),
    ],
)
def test_killed_anywhere_nothing_is_lost_that_was_told(
    moments: int, seed: int, every: int, whole: Path, tmp_path: Path
) -> None:
    kill_and_resume(moments, seed, whole, tmp_path, every)


# ---- no space

STORING = {"open", "write", "flush", "fsync", "replace", "execute", "executemany", "commit"}


def play_until_full(moment: int, out: Path, heard: Heard) -> int:
    """Play a run whose disk is full at this call of the operating system or the database in the thread that writes;
    return how many such calls there were.
    """
    count = 0

    def profile(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        if event == "c_call" and getattr(arg, "__name__", "") in STORING:
            count += 1
            if count == moment:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    threading.setprofile(profile)
    try:
        hanse.run(experiment(), out=out, observers=[heard])
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
    return count


@pytest.mark.parametrize(("moments", "seed"), [(3, 5), pytest.param(10, 26, marks=pytest.mark.nightly)])
def test_a_disk_that_is_full_at_any_moment_loses_nothing_that_was_told(
    moments: int, seed: int, whole: Path, tmp_path: Path
) -> None:
    total = play_until_full(-1, tmp_path / "counted", Heard())
    draw = random.Random(seed)
    for number in range(moments):
        out, heard = tmp_path / f"full{number}", Heard()
        full = r"disk full: No space left on device; \d rounds? of the run (is|are) kept; free some space, then 'hanse"
        with pytest.raises(MachineError, match=full) as said:
            play_until_full(draw.randrange(1, total), out, heard)
        assert len(said.value.lines) == 1
        assert heard.rounds == list(range(len(heard.rounds)))
        assert kept(out) >= len(heard.rounds)
        for round in heard.rounds:
            assert_kept(out, round)
        hanse.resume(out)
        assert_same(out, whole)
