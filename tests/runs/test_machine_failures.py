"""A full disk, a read-only folder, damaged lines: one line with the next command, exit code 1, and nothing is lost."""

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run_hanse
from watching import untimed

import hanse
from hanse.ledger.run_ledger import open_ledger
from hanse.runs import checkpoint
from hanse.runs.rehearsal import small_experiment
from hanse.runs.rundir import RunDir

HERE = Path(__file__).parents[1]  # where paying.py is
ROUNDS = 5


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def experiment(**run: Any) -> hanse.Experiment:
    given = {"data": {"clients": 30}, "clients": {"grant": 20.0}, "run": {"rounds": ROUNDS, "seed": 1, **run}}
    return small_experiment("paying:paying", **given)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        hanse.run(experiment(), out=folder)
    return folder


def assert_same(folder: Path, whole: Path) -> None:
    for name in ("metrics.jsonl", "clients.jsonl", "transactions.jsonl"):
        assert untimed(folder / name) == untimed(whole / name)
    for file in sorted((whole / "rounds").iterdir()):
        with np.load(file) as want, np.load(folder / "rounds" / file.name) as got:
            for name in want.files:
                np.testing.assert_array_equal(got[name], want[name])
    got = open_ledger(folder)
    want = open_ledger(whole)
    assert got.verify().ok
    assert list(got.history()) == list(want.history())


FULL = os.open("/dev/full", os.O_WRONLY) if Path("/dev/full").exists() else -1  # every write: no space left on device
At = Callable[..., Any]


def third_time(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fail: At) -> None:
    """Call ``fail(real, *args)`` instead of a method when it is called for the third time."""
    real, calls = getattr(owner, name), []

    def called(*args: Any) -> Any:
        calls.append(args)
        return fail(real, *args) if len(calls) == 3 else real(*args)

    monkeypatch.setattr(owner, name, called)


def no_room_for_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(real: At, folder: RunDir, *args: Any) -> None:
        os.dup2(FULL, folder._files["metrics.jsonl"].fileno())
        real(folder, *args)

    third_time(monkeypatch, RunDir, "append", fail)


def no_room_for_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(real: At, *args: Any) -> None:  # a real failure inside the write: the process may write no larger file
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        try:
            real(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    third_time(monkeypatch, checkpoint, "store", fail)


SPACE = "free some space, then 'hanse resume run'"


@pytest.mark.skipif(FULL < 0, reason="there is no /dev/full here")
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (no_room_for_lines, f"disk full: No space left on device; 2 rounds of the run are kept; {SPACE}"),
        (
            no_room_for_the_checkpoint,
            "File too large; 2 rounds of the run are kept; mend that, then 'hanse resume run'",
        ),
    ],
)
def test_a_full_disk_is_one_line_and_the_run_goes_on_to_the_same_bits(
    fault: Callable[[pytest.MonkeyPatch], None], said: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("exp.toml").write_text(experiment().to_toml())
    with monkeypatch.context() as faulty:
        fault(faulty)
        code, _, err = run_hanse("run", "exp.toml", "--out", "run")
    assert code == 1
    [line] = err.splitlines()
    assert line.startswith("hanse: ")
    assert line.endswith(said)
    assert not list(Path("run").rglob(".*.part"))
    hanse.resume("run")
    assert_same(Path("run"), whole)


# ---- what fails before a round is finished


class Fails:
    """An observer that fails at a moment."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def __getattr__(self, name: str) -> Any:
        def called(*_: object) -> None:
            if name == self.moment:
                raise hanse.UserError(f"--track x: fails at {name}")

        return called


def test_what_fails_before_a_round_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hanse.runs.experiment.play_round", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hanse.run(experiment(), out=tmp_path / "run")
    monkeypatch.undo()
    monkeypatch.syspath_prepend(str(HERE))
    with pytest.raises(hanse.UserError, match="on_start"):
        hanse.run(experiment(), out=tmp_path / "run", observers=[Fails("on_start")])
    url = {"url": f"sqlite:///{tmp_path / 'nowhere' / 'x.db'}"}
    nowhere = hanse.Experiment(**(experiment().sections() | {"ledger": url}))
    with pytest.raises(hanse.UserError, match=r"^ledger\.url: sqlite:.*nowhere$"):
        hanse.run(nowhere, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_what_fails_after_a_round_leaves_the_run(tmp_path: Path, whole: Path) -> None:
    with pytest.raises(hanse.UserError, match="on_round"):
        hanse.run(experiment(), out=tmp_path / "run", observers=[Fails("on_round")])
    hanse.resume(tmp_path / "run")
    assert_same(tmp_path / "run", whole)


def test_a_run_is_overwritten_only_once_the_new_one_is_ready(tmp_path: Path) -> None:
    hanse.run(experiment(rounds=1), out=tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    wrong = hanse.Experiment(**(experiment().sections() | {"model": {"name": "no_such_module:net"}}))
    with pytest.raises(hanse.UserError, match="no_such_module"):
        hanse.run(wrong, out=tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before
    hanse.run(experiment(rounds=2), out=tmp_path / "run", overwrite=True)
    assert len(untimed(tmp_path / "run" / "metrics.jsonl")) == 2


def test_a_start_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "rounds").mkdir(parents=True)
    (run / "environment.json").write_text("{")
    hanse.run(experiment(rounds=1), out=run)
    with pytest.raises(hanse.UserError) as taken:  # in the words of Python, not of the command line
        hanse.run(experiment(rounds=1), out=run)
    again = f"give another folder, overwrite=True, or hanse.resume('{run}')"
    assert str(taken.value) == f"out: {run}: exists already; {again}"
    assert len(untimed(run / "metrics.jsonl")) == 1
    (run / "config.toml").unlink()  # and a run without its file is not deleted
    for overwrite in (False, True):
        with pytest.raises(hanse.UserError, match=r"exists already|is not a run directory"):
            hanse.run(experiment(rounds=1), out=run, overwrite=overwrite)
    assert len(untimed(run / "metrics.jsonl")) == 1
