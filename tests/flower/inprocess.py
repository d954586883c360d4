"""Flower grids in this process: hanse's own with client apps, and the base of those that tests make."""

from collections.abc import Iterable
from functools import partial
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Message
from flwr.serverapp import Grid

from hanse import flower
from hanse.flower import server
from hanse.flower.rehearsal import InProcessGrid

__all__ = ["KEY", "PINNED", "InProcessGrid", "StubGrid", "client_app", "play"]

# the operator of all federations of tests, of child processes too; every message is signed, as on a network
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PINNED = KEY.public_key().public_bytes_raw()
play, client_app = partial(server.play, key=KEY), partial(flower.client_app, operator=PINNED)


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
