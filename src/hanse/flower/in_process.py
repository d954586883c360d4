"""Flower's grid with its nodes in this process, to try an app on: nothing listens on a port, no process is started.

:class:`InProcessGrid` replaces the ``Grid`` that Flower gives a server app. Messages go straight to the client apps
with which it was made.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

App = Callable[[Message, Context], Message]
Meddle = Callable[[int, Message, Message], Message | None]


class InProcessGrid(Grid):
    """Flower's grid with its nodes in this process. A node answers a message at once, when it is pushed; what its app
    raises is an error reply.

    Args:
        apps: the client app of each node, by node id. Its ``context.node_config`` has "partition-id" (from 0, in the
            order of the ids) and "num-partitions", as in Flower's simulation. Its ``run_config`` is empty.
        meddle: ``meddle(node, message, reply)`` may change a reply, or drop it by returning None.

    Attributes:
        online: the ids of the nodes that are online. A node whose id is removed does not answer.
        sent: ``(node, message)`` of all messages so far.

    Examples:
        Two nodes send back what they are sent:

        >>> from flwr.app import ConfigRecord
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp()
        >>> @app.query("echo")
        ... def echo(message, context):
        ...     return Message(message.content, reply_to=message)
        >>> grid = InProcessGrid({100: app, 101: app})
        >>> [node.node_id for node in grid.get_nodes()]
        [100, 101]
        >>> question = RecordDict({"asked": ConfigRecord({"number": 7})})
        >>> messages = [Message(question, dst_node_id=100, message_type="query.echo")]
        >>> [reply.content["asked"]["number"] for reply in grid.send_and_receive(messages)]
        [7]
    """

    def __init__(
        self, apps: Mapping[int, ClientApp | App], meddle: Meddle = lambda node, message, reply: reply
    ) -> None:
        try:
            _ = TaskIdentity.run_id
        except RuntimeError:  # Flower sets it inside an app, and no message can be made without
            TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self.apps, self.meddle, self.online = dict(apps), meddle, set(apps)
        self.replies: dict[str, Message] = {}
        self.sent: list[tuple[int, Message]] = []
        self._count = itertools.count()
        self._contexts = {
            node: Context(1, node, {"partition-id": i, "num-partitions": len(apps)}, RecordDict(), {})
            for i, node in enumerate(sorted(apps))
        }

    def set_run(self, run: Any) -> None:
        """Do nothing: there is one run."""

    @property
    def run(self) -> Any:
        """The run, with only its ``run_id``."""
        return SimpleNamespace(run_id=1)

    def create_message(self, *args: Any, **more: Any) -> Message:
        """Raise NotImplementedError: make a ``flwr.app.Message`` instead, as Flower itself recommends."""
        raise NotImplementedError("make a flwr.app.Message instead")

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the nodes that are online, ascending."""
        return sorted(self.online)

    def get_nodes(self) -> Iterable[Any]:
        """Return the nodes that are online, each with ``node_id``, ``public_key`` and ``name``."""
        return [
            SimpleNamespace(node_id=n, public_key=f"key {n}".encode(), name=f"site-{n}") for n in sorted(self.online)
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes answer messages, and return an id for each answer, for :meth:`pull_messages` to fetch it."""
        ids = []
        for message in messages:
            name, node = f"message {next(self._count)}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = name
            self.sent.append((node, message))
            ids.append(name)
            if node in self.online:
                try:
                    answer = self.apps[node](message, self._contexts[node])
                except Exception as wrong:  # as Flower has it: an error reply, and the node's log has the rest
                    logging.getLogger(__name__).exception("node %d", node)
                    reason = f"{type(wrong)}:<'{wrong}'>"
                    answer = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
                if (reply := self.meddle(node, message, answer)) is not None:
                    self.replies[name] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the available answers to messages of these ids, each once."""
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and return the answers. Nothing waits, so ``timeout`` is not used."""
        return self.pull_messages(self.push_messages(messages))
