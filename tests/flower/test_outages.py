"""A federation whose books are in a database goes on after the database was away, whatever the round was doing."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from inprocess import play
from mistaken import mistakes
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError
from test_flower_in_process import grid_of
from test_letters import After, DiesError, books, dies, kept

import hanse
from hanse.base.errors import MachineError, UserError
from hanse.federation import node
from hanse.flower.receipts import Letters
from hanse.ledger.index import difference
from hanse.ledger.run_ledger import open_ledger
from hanse.runs.run_record import load_run
from hanse.runs.rundir import RunBooks

HERE = Path(__file__).parent


def same(run: hanse.Run, whole: hanse.Run, folder: Path, url: str | None = None) -> None:
    """Check that a run is the one that nothing disturbed: models, books and their index, receipts of the nodes in the
    folder.
    """
    assert torch.equal(run.table.rows, whole.table.rows)
    assert run.book == whole.book
    mine, theirs = kept(folder), kept(whole.path.parent)
    for c, receipts in theirs.items():
        assert [(r.root, r.said) for r in mine[c]] == [(r.root, r.said) for r in receipts]
    ledger = open_ledger(run.path)
    assert difference(url or run.path / "ledger.db", ledger) is None
    assert ledger.as_book().head == whole.book.head
    assert ledger.verify([r for receipts in mine.values() for r in receipts]).ok


def test_without_its_letters_a_federation_makes_all_receipts_again(whole: hanse.Run, tmp_path: Path) -> None:
    shutil.copytree(whole.path.parent, tmp_path, dirs_exist_ok=True)
    exp, before = books(), kept(tmp_path)
    (tmp_path / "run" / "letters.json").unlink()
    for receipts in tmp_path.glob("node2/*/client-2/receipts/*"):
        receipts.unlink()
    play(grid_of(exp, tmp_path), exp, tmp_path / "run")
    assert kept(tmp_path) == before
    ledger = open_ledger(tmp_path / "run")
    assert ledger.verify(before[2]).ok
    assert ledger.as_book().head == whole.book.head


# ---- a full disk


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "of Mr Smith", "file")


def test_a_node_whose_disk_is_full_says_so_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exp, real = books(), node.private_arrays
    monkeypatch.setattr(node, "private_arrays", lambda path, kept: full() if "node2" in str(path) else real(path, kept))
    run = play(grid_of(exp, tmp_path), exp, tmp_path / "run", After(0, monkeypatch.undo))
    said = {(client, why) for _, client, why in load_run(run.path).refusals()}
    assert said == {(2, f"its machine failed: {os.strerror(errno.ENOSPC)}")}
    assert (len(run.metrics), len(kept(tmp_path)[2])) == (3, 4)


@pytest.mark.parametrize(("at", "ends", "error"), [
    ((RunBooks, "receipts"), dies, DiesError), ((Letters, "add"), full, MachineError),
], ids=["a death before the last receipts are written", "a full disk"])  # fmt: skip
def test_a_server_that_ends_before_its_letters_goes_on(
    at: Any, ends: Any, error: Any, whole: hanse.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp, folder = books(), tmp_path / "nodes"
    monkeypatch.setattr(*at, lambda *_: ends())
    with pytest.raises(error):
        play(grid_of(exp, folder), exp, folder / "run")
    monkeypatch.undo()
    same(play(grid_of(exp, folder), exp, folder / "run"), whole, folder)


# ---- a database that goes away


def test_a_federation_goes_on_without_its_index_while_the_database_is_away(whole: hanse.Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'books.db'}"
    exp, folder = books(ledger={"url": url}), tmp_path / "nodes"

    def away(*_: Any) -> None:
        raise OperationalError("", {}, Exception("away"))

    try:
        watch = After(0, lambda: event.listen(Engine, "before_cursor_execute", away))
        assert play(grid_of(exp, folder), exp, folder / "run", watch).book == whole.book
    finally:
        event.remove(Engine, "before_cursor_execute", away)
    same(play(grid_of(exp, folder), exp, folder / "run"), whole, folder, url)


# ---- what is advised


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose run was interrupted after its second round."""
    (tmp_path / "network.json").write_text("{}")

    with pytest.raises(DiesError):
        play(grid_of(books(), tmp_path), books(), tmp_path / "run", After(1, dies))
    return tmp_path


def test_a_networks_run_is_not_resumed_as_a_simulation(project: Path) -> None:
    run = project / "run"
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != "lock"}
    for lost in ("", "members.json"):
        (run / lost).unlink() if lost else None
        for more in ({}, {"other_data": True}):
            [wrong] = mistakes(hanse.resume, run, **more)
            assert wrong.startswith(f"{run}: is the run of a federation on a network")
            assert wrong.endswith(f"'hanse network run {project}' goes on with it")
    with pytest.raises(UserError, match=f"{project}"):
        hanse.run(books(), out=run, overwrite=True)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != "lock"} == {
        p: b for p, b in before.items() if p.name != "members.json"
    }


KILLED = """
import os, signal, sys
sys.path[:0] = sys.argv[1:3]
from pathlib import Path
from inprocess import play
from test_letters import books
from test_flower_in_process import grid_of
from hanse.flower.receipts import Letters
add = Letters.add
def dies(self, lines, told):
    if told == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    add(self, lines, told)
Letters.add = dies
exp, folder = books(ledger={"url": sys.argv[3]}), Path(sys.argv[4])
play(grid_of(exp, folder), exp, folder / "run")
"""


@pytest.mark.slow
def test_a_server_that_is_killed_between_checkpoint_and_letters_goes_on(whole: hanse.Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'books.db'}"
    exp, folder = books(ledger={"url": url}), tmp_path / "killed"
    words = [sys.executable, "-c", KILLED, str(HERE), str(HERE.parent), url, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    same(play(grid_of(exp, folder), exp, folder / "run"), whole, folder, url)
