"""Edits of the books of a network's run, and of their heads: ``hanse ledger verify`` finds each of them.

It does so with and without the index, the checkpoints and the participants' receipts: ``docs/check-the-operator.md``.
"""

import json
import shutil
from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest
from commands import run_hanse
from flwr.supercore.task_identity import TaskIdentity
from inprocess import play
from test_agreement import paying
from test_flower_in_process import grid_of

from hanse.core.entry import LOG

Lines = list[bytes]
N, HEAD = 5, 6  # clients; lines of a head: name, transactions, root, round, none, signature


def field(name: str, to: Callable[[object], object]) -> Callable[[Lines, int], Lines]:
    """Change a field of a line, and write the line as it was written."""

    def edit(lines: Lines, at: int) -> Lines:
        said = json.loads(lines[at])
        said[name] = to(said[name])
        return [*lines[:at], json.dumps(said, separators=(",", ":")).encode(), *lines[at + 1 :]]

    return edit


def moved(found: object) -> object:
    """Move a unit more than was moved; where nothing was, move one."""
    assert isinstance(found, list)
    if not found:
        return [["client/0", -1], ["client/1", 1]]
    return [*found[:-2], [found[-2][0], found[-2][1] - 1], [found[-1][0], found[-1][1] + 1]]


EDITS: dict[str, Callable[[Lines, int], Lines]] = {
    "a line is left out": lambda lines, at: lines[:at] + lines[at + 1 :],
    "a line stands twice": lambda lines, at: lines[: at + 1] + lines[at:],
    "two lines change places": lambda lines, at: [*lines[: at - 1], lines[at], lines[at - 1], *lines[at + 1 :]],
    "the end is cut off": lambda lines, at: lines[:at],
    "another amount": field("postings", moved),
    "another round": field("round", lambda found: int(str(found)) + 1),
    "another number": field("number", lambda found: int(str(found)) + 1),
    "another kind": field("kind", lambda found: f"{found}x"),
    "another step": field("step", lambda found: f"{found}x"),
    "another memo": field("memo", lambda found: f"{found} "),
    "a space": lambda lines, at: [*lines[:at], lines[at].replace(b",", b", ", 1), *lines[at + 1 :]],
    "an empty line": lambda lines, at: [*lines[:at], b"", *lines[at:]],
    "a bit": lambda lines, at: [
        *lines[:at],
        bytes([*lines[at][:9], lines[at][9] ^ 1, *lines[at][10:]]),
        *lines[at + 1 :],
    ],
}
PLACES = {"first": 1, "middle": 0, "last": -1}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run and its participants' folders."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    folder = tmp_path_factory.mktemp("played")
    exp = paying(3, clients=N, eval={})
    play(grid_of(exp, folder / "nodes"), exp, folder / "run")
    [receipts] = (folder / "nodes" / "node1").glob("*/client-1/receipts")
    shutil.copytree(receipts, folder / "receipts")
    return folder


def found(run: Path, *more: object) -> bool:
    """Return whether ``hanse ledger verify`` refuses a run."""
    return run_hanse("ledger", "verify", run, *more)[0] != 0


def refused_in_all_cases(played: Path, folder: Path, edit: Callable[[Path], None]) -> list[str]:
    """Return in which cases ``verify`` does not find an edit: what is left of the run, and whether it has receipts."""
    missed = []
    for whole in (True, False):
        run = shutil.copytree(played / "run", folder / f"{whole}")
        if not whole:
            (run / "ledger.db").unlink()
            shutil.rmtree(run / "checkpoints")
        shutil.rmtree(run / "receipts", ignore_errors=True)
        edit(run)
        for receipts in ((), ("--receipts", played / "receipts")):
            if not found(run, *receipts):
                missed.append(f"index and checkpoints {whole}, receipts {bool(receipts)}")
        shutil.rmtree(run)
    return missed


def test_the_books_hold_as_they_are(played: Path, tmp_path: Path) -> None:
    assert len(refused_in_all_cases(played, tmp_path, lambda run: None)) == 4


@pytest.mark.parametrize(("name", "place"), list(zip(EDITS, cycle(PLACES), strict=False)))
def test_edits_of_the_log_are_found(name: str, place: str, played: Path, tmp_path: Path) -> None:
    def edit(run: Path) -> None:
        lines = (run / LOG).read_bytes().splitlines()
        edited = EDITS[name](lines, (PLACES[place] or len(lines) // 2) % len(lines))
        assert edited != lines
        (run / LOG).write_bytes(b"".join(line + b"\n" for line in edited))

    assert refused_in_all_cases(played, tmp_path, edit) == []
