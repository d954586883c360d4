"""What tests of this folder share."""

import subprocess
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
from rotation import HEAD


@pytest.fixture(autouse=True)
def _identity() -> None:
    """Flower sets these inside an app."""
    if find_spec("flwr"):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the process that aggregates again from one with the libraries loaded; at every eighth commit it is cold."""
    if HEAD % 8 and find_spec("flwr"):
        from warm_child import Warm

        from hanse.flower.valued import reaggregate

        stand_in = SimpleNamespace(Popen=Warm, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)
        monkeypatch.setattr(reaggregate, "subprocess", stand_in)
