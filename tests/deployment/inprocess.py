"""A Flower grid in this process: messages go straight to the client app of the node, through Flower's own records."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid


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


class InProcessGrid(StubGrid):
    """Nodes ``{node id: client app}``; ``meddle(node, message, reply)`` may change or drop (None) a reply."""

    def __init__(
        self,
        apps: Mapping[int, ClientApp],
        meddle: Callable[[int, Message, Message], Message | None] = lambda node, message, reply: reply,
    ) -> None:
        self.apps, self.meddle, self.online = dict(apps), meddle, set(apps)
        self.replies: dict[str, Message] = {}
        self.sent: list[tuple[int, Message]] = []
        self._count = itertools.count()
        self._contexts = {
            node: Context(1, node, {"partition-id": i}, RecordDict(), {}) for i, node in enumerate(sorted(apps))
        }

    def get_node_ids(self) -> Iterable[int]:
        return sorted(self.online)

    def get_nodes(self) -> Iterable[Any]:
        return [
            SimpleNamespace(node_id=n, public_key=f"key {n}".encode(), name=f"site-{n}") for n in sorted(self.online)
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            name, node = f"message {next(self._count)}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = name
            self.sent.append((node, message))
            ids.append(name)
            if node in self.online:
                reply = self.meddle(node, message, self.apps[node](message, self._contexts[node]))
                if reply is not None:
                    self.replies[name] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self.pull_messages(self.push_messages(messages))
