"""One process a run directory: who comes second is refused, and a killed process leaves no lock behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import run_hanse

import hanse
from hanse.base.lock import LOCK, Hold, flock, locked


def test_the_second_is_told_who_holds_a_directory_and_since_when(tmp_path: Path) -> None:
    with Hold(tmp_path) as first:
        first.take()
        said = json.loads((tmp_path / LOCK).read_text())
        with pytest.raises(hanse.UserError) as refused:
            Hold(tmp_path).take()
    assert said["pid"] == os.getpid()
    assert str(refused.value) == (
        f"{tmp_path}: is in use by process {os.getpid()} on '{said['host']}' since {said['since']}; "
        "one process at a time"
    )
    with Hold(tmp_path) as second:
        second.take()
    assert (tmp_path / LOCK).read_text() == ""  # nobody


def test_who_changes_a_file_is_alone(tmp_path: Path) -> None:
    path, code = tmp_path / "state.lock", "import sys; from hanse.base.lock import locked, Path\n"
    code += "with locked(Path(sys.argv[1])): print(Path(sys.argv[1]).with_suffix('.json').read_text())"
    with locked(path), path.open() as other:
        second = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
        with pytest.raises(BlockingIOError):
            flock(other, wait=False)
        path.with_suffix(".json").write_text("whole")
    assert second.communicate()[0].strip() == "whole"


@pytest.mark.parametrize("how", ["removed", "replaced", "renamed"])
def test_a_lock_file_that_is_removed_lets_nobody_in(how: str, tmp_path: Path) -> None:
    with Hold(tmp_path) as first:
        first.take()
        if how == "replaced":
            (tmp_path / "other").write_text("{}")
            (tmp_path / "other").replace(tmp_path / LOCK)
        elif how == "renamed":
            (tmp_path / LOCK).rename(tmp_path / "old")
        else:
            (tmp_path / LOCK).unlink()
        for _ in range(2):  # also with the file that the first try has made
            with pytest.raises(hanse.UserError, match="in use"):
                Hold(tmp_path).take()
    with Hold(tmp_path) as second:
        second.take()


PARENT = """
import os, subprocess, sys
from pathlib import Path
from hanse.base.lock import Hold
Hold.take(hold := Hold(Path(sys.argv[1])))
if sys.argv[2] == "forked":
    child = os.fork()
    if child == 0:
        print(os.getpid(), flush=True)
        sys.stdin.read()  # until the test lets it end
        os._exit(0)
else:
    code = "import os, sys; print(os.getpid(), flush=True); sys.stdin.read()"
    subprocess.Popen([sys.executable, "-c", code], close_fds=False)
sys.stdin.read() if sys.argv[2] == "nothing" else os.waitpid(-1, 0)
"""


@pytest.mark.parametrize("child", ["forked", "spawned"])
def test_a_killed_process_leaves_no_lock_while_its_children_live(child: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path), child]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        worker = int(parent.stdout.readline())
        with pytest.raises(hanse.UserError, match=f"{parent.pid}"):
            Hold(tmp_path).take()
        parent.kill()
        parent.wait()
        os.kill(worker, 0)  # it lives
        with Hold(tmp_path) as next_:
            next_.take()
        os.kill(worker, 0)


NOWHERE = """
import sys
sys.modules["fcntl"] = sys.modules["resource"] = None  # as on Windows
import torch, hanse
assert len(hanse.value([torch.ones(2), torch.zeros(2)], lambda m: float(m.sum())).values) == 2
experiment = hanse.Experiment(data={"clients": 3}, mechanism="fedavg", run={"rounds": 1})
assert hanse.run(experiment).metrics[0]["memory/peak_mb"] is None
try:
    hanse.run(experiment, out=sys.argv[1])
except RuntimeError as wrong:
    assert "flock" in str(wrong)
else:
    raise AssertionError("ran without a lock")
"""


def test_on_windows_models_are_valued_and_runs_are_played_but_not_written(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", NOWHERE, str(tmp_path / "run")], check=True, timeout=300)


def test_a_refused_process_touches_nothing(here: Path) -> None:
    (here / "exp.toml").write_text('mechanism = "fedavg"\nmodel = "logistic"\nrun.rounds = 4\n')
    hanse.run(here / "exp.toml", out="run")

    def contents() -> dict[str, bytes]:
        return {str(p): p.read_bytes() for p in sorted(Path("run").rglob("*")) if p.is_file()}

    with Hold(Path("run")) as other:
        other.take()
        before = contents()
        assert run_hanse("resume", "run")[0] == 2
        assert run_hanse("run", "exp.toml", "--out", "run", "--overwrite")[0] == 2
        assert run_hanse("run", "exp.toml", "--out", "run")[0] == 2
        assert contents() == before
