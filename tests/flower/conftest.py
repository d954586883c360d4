"""What tests of this folder share."""

import os
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.util import find_spec

import pytest


@pytest.fixture(autouse=True)
def _unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here dies of a power cut, and waiting for the disk took a fifth of the time of a run."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def _identity() -> None:
    """Flower sets these inside an app."""
    if find_spec("flwr"):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


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
def unwarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that joins starts no warm process, which takes seconds."""
    from hanse.wings.operate import warm_process

    monkeypatch.setattr(warm_process, "warmed", lambda imports: nullcontext({}))


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not find_spec("flwr"):
        yield
        return
    from hanse.flower.valued import reaggregate

    start = reaggregate.started
    monkeypatch.setattr(reaggregate, "started", lambda: Shared(start))
    yield
