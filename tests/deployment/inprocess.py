"""Flower grids in this process: hanse's own with client apps, and the base of those that tests make."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid

from hanse.deployment.rehearsal import InProcessGrid

__all__ = ["InProcessGrid", "StubGrid"]


class StubGrid(Grid):
    """What every grid of this process has alike; who makes one adds ``get_node_ids`` and ``send_and_receive``."""

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return SimpleNamespace(run_id=1)

    def create_message(self, *args: Any, **more: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError
