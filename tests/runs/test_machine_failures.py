"""A full disk, a read-only folder, damaged lines: one line with the next command, exit code 1, and nothing is lost."""

import resource
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

ROUNDS = 5


def experiment(**run: Any) -> hanse.Experiment:
    given = {"data": {"clients": 30}, "clients": {"grant": 20.0}, "run": {"rounds": ROUNDS, "seed": 1, **run}}
    return small_experiment("paying:paying", **given)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return hanse.run(experiment(), out=tmp_path_factory.mktemp("whole") / "run").path


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


def no_room_for_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the third checkpoint fail inside its write: the process may write no larger file."""
    real, calls = checkpoint.store, []

    def store(*args: Any) -> None:
        calls.append(args)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000 if len(calls) == 3 else soft, hard))
        try:
            real(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    monkeypatch.setattr(checkpoint, "store", store)


def test_a_full_disk_is_one_line_and_the_run_goes_on_to_the_same_bits(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that may grow no more; a disk that is full at any moment is in ``test_background.py``."""
    monkeypatch.chdir(tmp_path)
    Path("exp.toml").write_text(experiment().to_toml())
    with monkeypatch.context() as faulty:
        no_room_for_the_checkpoint(faulty)
        code, _, err = run_hanse("run", "exp.toml", "--out", "run")
    assert code == 1
    [line] = err.splitlines()
    assert line.startswith("hanse: ")
    assert line.endswith("File too large; 2 rounds of the run are kept; mend that, then 'hanse resume run'")
    assert not list(Path("run").rglob(".*.part"))
    hanse.resume("run")
    assert_same(Path("run"), whole)


# ---- what fails before a round is finished


class Fails:
    def on_start(self, *_: object) -> None:
        raise hanse.UserError("--track x: fails at on_start")


def test_what_fails_before_a_round_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hanse.runs.experiment.play_round", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        hanse.run(experiment(), out=tmp_path / "run")
    monkeypatch.undo()
    with pytest.raises(hanse.UserError, match="on_start"):
        hanse.run(experiment(), out=tmp_path / "run", observers=[Fails()])
    url = {"url": f"sqlite:///{tmp_path / 'nowhere' / 'x.db'}"}
    nowhere = hanse.Experiment(**(experiment().sections() | {"ledger": url}))
    with pytest.raises(hanse.UserError, match=r"^ledger\.url: sqlite:.*nowhere$"):
        hanse.run(nowhere, out=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


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
