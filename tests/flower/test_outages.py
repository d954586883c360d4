"""A federation whose books are in a database goes on after the database was away, whatever the round was doing."""

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="needs the extra 'flower'")

from flwr.app import Message
from inprocess import play
from rotation import in_turn
from sqlalchemy import event
from sqlalchemy.engine import Engine
from test_flower_in_process import grid_of
from test_letters import After, DiesError, books, dies, kept

import hanse
from hanse.base.errors import MachineError, UserError
from hanse.federation import node
from hanse.flower.receipts import Letters
from hanse.ledger.index import difference, follow
from hanse.ledger.run_ledger import open_ledger
from hanse.ledger.store import Ledger
from hanse.runs import checkpoint
from hanse.runs.run_record import load_run
from hanse.runs.rundir import RunBooks

HERE = Path(__file__).parent
CI = HERE.parent.parent / ".ci" / "postgres"
BINARIES = Path("/usr/lib/postgresql")


@contextmanager
def stages(see: Callable[[str], None], patch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Call ``see`` with a word at each stage of a run: training, checkpoint, the ledger's statements and commits, and
    letters. Yields a meddler for the grid.
    """

    def before(owner: Any, name: str, word: str, after: str = "") -> None:
        real = getattr(owner, name)

        def call(*given: Any, **more: Any) -> Any:
            see(word)
            found = real(*given, **more)
            if after:
                see(after)
            return found

        patch.setattr(owner, name, call)

    def meddle(node: int, message: Message, reply: Message) -> Message:
        if node == 100:
            see("a letter" if "letter" in message.content["hanse"] else "a request")
        return reply

    def statement(*given: Any) -> None:
        see("a statement")

    def commit(*given: Any) -> None:
        see("a commit")

    with patch.context() as patch:
        before(checkpoint, "store", "before the checkpoint", "behind the checkpoint")
        before(RunBooks, "post", "before the books", "behind the books")
        before(RunBooks, "receipts", "before the last receipts", "behind the last receipts")
        before(Letters, "add", "before the letters", "behind the letters")
        event.listen(Engine, "before_cursor_execute", statement)
        event.listen(Engine, "commit", commit)
        try:
            yield meddle
        finally:
            event.remove(Engine, "before_cursor_execute", statement)
            event.remove(Engine, "commit", commit)


def same(run: hanse.Run, whole: hanse.Run, folder: Path, url: str | None = None) -> None:
    """Check that a run is the one that nothing disturbed: models, books and their index, receipts of the nodes in the
    folder.
    """
    assert run.path is not None
    assert torch.equal(run.table.rows, whole.table.rows)
    assert run.book == whole.book
    mine, theirs = kept(folder), kept(whole.path.parent)
    for c, receipts in theirs.items():
        assert [(r.round, r.root, r.balance, r.postings) for r in mine[c]] == [
            (r.round, r.root, r.balance, r.postings) for r in receipts
        ]
    with open_ledger(run.path) as ledger:
        assert difference(url or run.path / "ledger.db", ledger) is None
        assert ledger.head() == whole.book.head
        assert ledger.verify([r for receipts in mine.values() for r in receipts]).ok


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> hanse.Run:
    """A run that nothing disturbed; where its books are does not change it."""
    folder = tmp_path_factory.mktemp("whole")
    return play(grid_of(books(), folder), books(), folder / "run")


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 2])
def test_a_server_with_books_elsewhere_that_dies_between_checkpoint_and_letters_goes_on(
    rounds: int, whole: hanse.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path / 'books.db'}"
    exp, folder, add = books(ledger={"url": url}), tmp_path / "nodes", Letters.add

    def dies(self: Letters, lines: Any, told: int) -> None:
        if told == rounds:
            raise DiesError
        add(self, lines, told)

    monkeypatch.setattr(Letters, "add", dies)
    with pytest.raises(DiesError):
        play(grid_of(exp, folder), exp, folder / "run")
    monkeypatch.undo()
    again = play(grid_of(exp, folder), exp, folder / "run")
    same(again, whole, folder, url)


def test_receipts_of_the_last_settlement_survive_a_death_before_they_are_written(
    whole: hanse.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp, folder = books(), tmp_path / "nodes"
    monkeypatch.setattr(RunBooks, "receipts", lambda *_: dies())
    with pytest.raises(DiesError):
        play(grid_of(exp, folder), exp, folder / "run")
    monkeypatch.undo()
    same(play(grid_of(exp, folder), exp, folder / "run"), whole, folder)


def test_without_its_letters_a_federation_makes_all_receipts_again(tmp_path: Path) -> None:
    exp = books()
    run = play(grid_of(exp, tmp_path), exp, tmp_path / "run")
    before = kept(tmp_path)
    (tmp_path / "run" / "letters.json").unlink()
    for receipts in tmp_path.glob("node2/*/client-2/receipts/*"):
        receipts.unlink()
    play(grid_of(exp, tmp_path), exp, tmp_path / "run")
    assert kept(tmp_path) == before
    with open_ledger(tmp_path / "run") as ledger:
        assert ledger.verify(before[2]).ok
        assert ledger.head() == run.book.head


def test_a_participant_verifies_a_copy_of_the_run_and_does_not_play_it(whole: hanse.Run, tmp_path: Path) -> None:
    again = tmp_path / "again"
    shutil.copytree(whole.path, again)
    with open_ledger(again) as ledger:
        assert ledger.verify(kept(whole.path.parent)[2]).ok
    with pytest.raises(UserError, match="network run"):
        hanse.resume(again)


# ---- a full disk


def full(*_: Any, **__: Any) -> Any:
    raise OSError(errno.ENOSPC, "of Mr Smith", "file")


def test_a_node_whose_disk_is_full_says_so_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exp, real = books(), node.private_arrays
    monkeypatch.setattr(node, "private_arrays", lambda path, kept: full() if "node2" in str(path) else real(path, kept))
    watch = After(0, monkeypatch.undo)
    run = play(grid_of(exp, tmp_path), exp, tmp_path / "run", watch)
    said = {(client, why) for _, client, why in load_run(run.path).refusals()}
    assert said == {(2, f"its machine failed: {os.strerror(errno.ENOSPC)}")}
    assert (len(run.metrics), len(kept(tmp_path)[2])) == (3, 4)


def test_a_server_whose_disk_is_full_says_so_and_goes_on(
    whole: hanse.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = books()
    monkeypatch.setattr(Letters, "add", full)
    with pytest.raises(MachineError):
        play(grid_of(exp, tmp_path), exp, tmp_path / "run")
    monkeypatch.undo()
    same(play(grid_of(exp, tmp_path), exp, tmp_path / "run"), whole, tmp_path)


# ---- a real PostgreSQL that goes away


@dataclass
class Cluster:
    """A PostgreSQL of this module's own, which it may stop."""

    url: str
    folder: str
    here: bool = True

    def turn(self, here: bool) -> None:
        if here != self.here:
            subprocess.run([CI, "up" if here else "down", self.folder], check=True)
            self.here = here


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if not os.environ.get("HANSE_TEST_POSTGRES"):
        pytest.skip("HANSE_TEST_POSTGRES names no server")
    if not BINARIES.exists():  # the server is elsewhere, and none of ours can be started
        pytest.skip(f"{BINARIES}: there is no PostgreSQL on this machine that could be stopped")
    url, folder = subprocess.run([CI, "start"], check=True, capture_output=True, text=True).stdout.split()
    try:
        yield Cluster(url, folder)
    finally:
        subprocess.run([CI, "stop", folder], check=True)


def moments(seen: list[str]) -> list[int]:
    """Return ten moments of the second round, evenly from its first request to its letters' delivery, and four of the
    last settlement.
    """
    written = [i for i, word in enumerate(seen) if word == "behind the letters"]
    last = [i for i, word in enumerate(seen) if word == "before the last receipts"]
    assert len(written) == 4  # of three rounds, and of the last settlement
    delivered = next(i for i in range(written[1], len(seen)) if seen[i] == "a letter")
    asked = next(i for i in range(written[0], len(seen)) if seen[i] == "a request")
    second = [asked, *np.linspace(written[0] + 1, delivered, 10).round().astype(int).tolist()[1:]]
    end = [i for i in range(written[2], len(seen)) if seen[i] in ("behind the checkpoint", "a commit")]
    return [*second, *end[:2], last[0], written[3]]


@pytest.mark.parametrize(
    "part",
    [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.nightly)],
    ids=["in turn", "all"],
)
def test_a_federation_goes_on_after_postgresql_was_away_at_any_moment_of_a_round(
    part: int, cluster: Cluster, whole: hanse.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    subtests: pytest.Subtests,
) -> None:  # fmt: skip
    """It stops no round: the run goes on without its index, and the index is whole when the database is back."""
    exp, seen = books(ledger={"url": cluster.url}), list[str]()
    with Ledger.open(tmp_path / "none.jsonl") as none:
        follow(cluster.url, none)  # the tables are made once, and all runs then say the same to the database
    with stages(seen.append, monkeypatch) as meddle:
        play(grid_of(exp, tmp_path / "seen", meddle=meddle), exp, tmp_path / "seen" / "run")
    chosen = moments(seen)
    assert len(set(chosen)) == 14
    assert {seen[i] for i in chosen} >= {"a request", "a statement", "a commit", "a letter", "behind the checkpoint"}
    for moment in in_turn(chosen, part):
        with subtests.test(f"{moment}: {seen[moment]}"):
            folder, told = tmp_path / str(moment), list[str]()

            def goes(word: str, moment: int = moment, told: list[str] = told) -> None:
                told.append(word)
                if len(told) == moment + 1:
                    cluster.turn(here=False)

            with stages(goes, monkeypatch) as meddle:
                run = play(grid_of(exp, folder, meddle=meddle), exp, folder / "run")
            assert told[: moment + 1] == seen[: moment + 1]
            assert not cluster.here
            assert run.book == whole.book
            again = play(grid_of(exp, folder), exp, folder / "run")  # it is still away
            assert again.book == whole.book
            cluster.turn(here=True)
            again = play(grid_of(exp, folder), exp, folder / "run")
            same(again, whole, folder, cluster.url)
        cluster.turn(here=True)


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
def test_a_server_that_is_killed_between_checkpoint_and_letters_goes_on(
    cluster: Cluster, whole: hanse.Run, tmp_path: Path
) -> None:
    cluster.turn(here=True)
    exp, folder = books(ledger={"url": cluster.url}), tmp_path / "killed"
    words = [sys.executable, "-c", KILLED, str(HERE), str(HERE.parent), cluster.url, str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    again = play(grid_of(exp, folder), exp, folder / "run")
    same(again, whole, folder, cluster.url)


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
        for refused in (lambda: hanse.resume(run), lambda: hanse.resume(run, other_data=True)):
            with pytest.raises(UserError) as wrong:
                refused()
            assert str(wrong.value) == (
                f"{run}: is the run of a federation on a network, whose data are with its participants; "
                f"'hanse network run {project}' goes on with it"
            )
    with pytest.raises(UserError, match=f"{project}"):
        hanse.run(books(), out=run, overwrite=True)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file() and p.name != "lock"} == {
        p: b for p, b in before.items() if p.name != "members.json"
    }
