"""What tests of this folder share."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

# without the extra 'flower' there is nothing to test here
collect_ignore_glob = [] if find_spec("flwr") else ["test_*.py"]


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here dies of a power cut, and waiting for the disk took a fifth of the time of a run."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def in_an_app() -> None:
    """Flower sets these inside an app; a test before may have had others."""
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture(autouse=True)
def _identity() -> None:
    in_an_app()


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run of three rounds with books that nothing disturbed, in a folder with its nodes' own. Where its books are
    does not change it. Whoever changes it takes a copy.
    """
    from inprocess import play
    from test_flower_in_process import grid_of
    from test_letters import books

    in_an_app()
    folder = tmp_path_factory.mktemp("whole")
    return play(grid_of(books(), folder), books(), folder / "run")


class Shared:
    """A process that aggregates again, for test after test: starting one, with PyTorch, takes seconds."""

    kept: list[object] = []  # noqa: RUF012

    def __init__(self, start: object) -> None:
        self._start = start

    def submit(self, what: object, given: object) -> object:
        if not self.kept:
            self.kept.append(self._start())
        return self.kept[0].submit(what, given)

    def shutdown(self, *, kill_workers: bool) -> None:
        """Leave it to the next test."""


@pytest.fixture
def join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """A participant's 'hanse network join' with further words, and its exit code and what it says; ``run`` is called in
    the place of Flower's node.
    """
    from commands import invoke

    from hanse.base.errors import UserError
    from hanse.flower.operator_key import PINNED
    from hanse.wings.operate import server_access
    from hanse.wings.operate.certificates import make_certificates, make_node_key

    make_certificates(tmp_path, "harvest")
    make_node_key(tmp_path / "clinic")
    monkeypatch.setattr(server_access, "is_free", lambda port: True)  # 9094 may be in use where this test runs
    monkeypatch.setenv("HANSE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(PINNED, "")

    def joined(*more: object, run: Callable[..., None] = lambda name, words: None) -> tuple[int, str]:
        monkeypatch.setattr(server_access, "run", run)
        before = os.umask(0o022)
        found = invoke("network", "join", "h:9092", "--ca", tmp_path / "ca.crt", "--key", tmp_path / "clinic", *more)
        os.umask(before)
        return (2, str(found.exception)) if isinstance(found.exception, UserError) else (found.exit_code, found.output)

    return joined


@pytest.fixture
def harvest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a new project with a key, beside which commands are given."""
    from hanse.flower.new import new
    from hanse.flower.operator_key import make_operator_key

    monkeypatch.chdir(tmp_path)
    new("harvest")
    make_operator_key(tmp_path / "harvest" / "certs")
    return tmp_path / "harvest"


@pytest.fixture
def unwarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that joins starts no warm process, which takes seconds."""
    from hanse.wings.operate import warm_process

    monkeypatch.setattr(warm_process, "warmed", lambda imports: nullcontext({}))


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    from hanse.flower.valued import reaggregate

    start = reaggregate.started
    monkeypatch.setattr(reaggregate, "started", lambda: Shared(start))
