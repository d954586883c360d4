"""The command line, end to end: files in, run directories and exit codes out."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from commands import hanse
from watching import untimed

from hanse.data.spec import PARTITIONS, SOURCE_KINDS
from hanse.federation.policy import POLICIES
from hanse.mechanisms.registry import PARTS

EXPERIMENT = """
data = { clients = 6, partition.alpha = 0.5 }
model.hidden = [8]
mechanism = { name = "greedyfed", clients_per_round = 2 }
train = { batch_size = 32, lr = 0.05 }
engine = { train = "stacked", threads = 1 }
run.rounds = 4
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    return tmp_path


def test_a_run_directory_that_exists_is_kept_unless_overwrite_is_said(folder: Path) -> None:
    assert hanse("run", "exp.toml", "--out", "a", cwd=folder).returncode == 0
    again = hanse("run", "exp.toml", "--out", "a", cwd=folder)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    assert hanse("run", "exp.toml", "--out", "a", "--overwrite", "--set", "run.rounds=1", cwd=folder).returncode == 0
    assert len(untimed(folder / "a/metrics.jsonl")) == 1


def test_a_runs_own_file_is_run_again_beside_it(folder: Path) -> None:
    assert hanse("run", "exp.toml", "--set", "run.rounds=1", cwd=folder).returncode == 0
    kept = (folder / "runs/exp/metrics.jsonl").read_bytes()
    for given, where in (("runs/exp/config.toml", folder), ("config.toml", folder / "runs/exp")):
        again = hanse("run", given, "--overwrite", "--set", "train.lr=0.1", cwd=where)
        assert (again.returncode, again.stderr) == (0, "")
    assert sorted(one.name for one in (folder / "runs").iterdir()) == ["exp", "exp-2"]
    assert (folder / "runs/exp/runs/exp/metrics.jsonl").exists()
    assert (folder / "runs/exp/metrics.jsonl").read_bytes() == kept


def test_ctrl_c_keeps_the_round_and_prints_how_to_go_on(folder: Path) -> None:
    script = (
        "import os, signal\n"
        "from hanse import cli\n"
        "from hanse.runs import experiment as loop\n"
        "real = loop.play_round\n"
        "def play(setup, state, port=None):\n"
        "    if state.round == 2: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return real(setup, state, port)\n"
        "loop.play_round = play\n"
        "before = signal.getsignal(signal.SIGINT)\n"
        "try: cli.main()\n"
        "finally: assert signal.getsignal(signal.SIGINT) is before, 'the handler is put back'\n"
    )
    command = [sys.executable, "-c", script, "run", "exp.toml", "--out", "a", "--set", "run.checkpoint_every=100"]
    stopped = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert stopped.returncode == 1, stopped.stderr
    assert "hanse resume a" in stopped.stdout
    assert len(untimed(folder / "a/metrics.jsonl")) == 3
    assert hanse("resume", "a", cwd=folder).returncode == 0
    assert hanse("run", "exp.toml", "--out", "b", cwd=folder).returncode == 0
    assert untimed(folder / "a/metrics.jsonl") == untimed(folder / "b/metrics.jsonl")
    assert "put back" not in stopped.stderr


def test_tensorboard_gets_the_same_names(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    done = hanse("run", "exp.toml", "--out", "a", "--track", "tensorboard", cwd=folder)
    assert done.returncode == 0, done.stderr
    events = EventAccumulator(str(folder / "a" / "tensorboard"))
    events.Reload()
    found = [e.value for e in events.Scalars("test/accuracy")]
    assert found == pytest.approx([m["test/accuracy"] for m in untimed(folder / "a/metrics.jsonl")])


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("attacker", ["behaviour", "scale", "1.0", "the first round of the attack", "what the attackers send"]),
        ("dirichlet", ["data.partition", "alpha", "sampler"]),
        ("partitions", PARTITIONS),
        ("data.source", SOURCE_KINDS),
        ("policies", POLICIES),
        ("select", PARTS["select"]),
        ("train", ["batch_size", "mechanism.train", "proximal"]),
        ("greedyfed", ["parts of greedyfed", "gtg", "max_permutations", "clients_per_round", "the paper's M"]),
    ],
)
def test_list_shows_the_options_of_what_has_a_name(name: str, shown: Iterable[str]) -> None:
    said = hanse("list", name).stdout
    assert all(word in said for word in shown)


def test_list_of_an_unknown_name_says_which_is_near() -> None:
    wrong = hanse("list", "atacker")
    assert (wrong.returncode, "NAME: 'atacker': " in wrong.stderr, "'attacker'" in wrong.stderr) == (2, True, True)
