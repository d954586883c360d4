"""A network without a network: Flower's grid, a federation and its nodes, all in this process, to try things on.

:class:`InProcessGrid` replaces the ``Grid`` that Flower gives a server app. Messages go straight to the client apps
with which it was made. :func:`rehearse_network` makes a :class:`NetworkRehearsal` of a whole small experiment. It has
four nodes, which answer as on a real network, and the :class:`hanse.flower.link.FlowerFederation` that asks them.
Nothing listens on a port and no process is started.

Use it for objects of Flower's side (``Grid``, ``FlowerFederation``, ``Members``, ``Letters``). For views, states and
setups, use :mod:`hanse.runs.rehearsal`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from hanse.core.part import Mechanism
from hanse.data.federated import FederatedData, RemoteData
from hanse.federation.node import ClientData
from hanse.flower.agreed import agree
from hanse.flower.client import client_app, paths_of
from hanse.flower.link import FlowerFederation
from hanse.flower.members import Members
from hanse.flower.server import assignments
from hanse.runs.config import Experiment
from hanse.runs.guards import completed
from hanse.runs.rehearsal import small_experiment
from hanse.runs.round import LoopState, Played, first_state, play_round
from hanse.runs.session import Session
from hanse.runs.setup import build, policy_of

App = Callable[[Message, Context], Message]
Meddle = Callable[[int, Message, Message], Message | None]


class InProcessGrid(Grid):
    """Flower's grid with its nodes in this process. A node answers a message at once, when it is pushed.

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
                reply = self.meddle(node, message, self.apps[node](message, self._contexts[node]))
                if reply is not None:
                    self.replies[name] = reply
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the available answers to messages of these ids, each once."""
        return [self.replies.pop(name) for name in list(message_ids) if name in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages and return the answers. Nothing waits, so ``timeout`` is not used."""
        return self.pull_messages(self.push_messages(messages))


@dataclass(frozen=True)
class NetworkRehearsal:
    """A small federation of nodes in this process. Make one with :func:`rehearse_network`.

    Attributes:
        experiment: the experiment that the setup plays.
        grid: the grid, with the nodes 100, 101, ...
        federation: the federation on it; its members are registered and online.
        setup: what rounds are played with.
        start: the state before round 0.
    """

    experiment: Experiment
    grid: InProcessGrid
    federation: FlowerFederation
    setup: Session
    start: LoopState

    def played(self) -> Played:
        """Play round 0 and return it.

        Examples:
            >>> small = rehearse_network("fedavg", "nodes")
            >>> len(small.played().view.trained), small.federation.asked
            (4, [0, 1, 2, 3])
        """
        return play_round(self.setup, self.start)


def rehearse_network(
    mechanism: str | Mechanism | Mapping[str, Any], folder: str | Path, **sections: Any
) -> NetworkRehearsal:
    """Make a small federation of four nodes in this process, whose messages are signed with a key of their own.

    Args:
        mechanism: as for :func:`hanse.runs.rehearsal.rehearse`.
        folder: the folder in which each node has a folder of its own, ``node0``, ``node1`` and so on. It is made.
        sections: further sections of the experiment, as for :func:`hanse.runs.rehearsal.rehearse`.

    Raises:
        UserError: the experiment does not fit together.

    Examples:
        >>> small = rehearse_network("greedyfed", "nodes")
        >>> small.federation.present(0).ids
        array([0, 1, 2, 3])
        >>> [member.name for member in small.federation.members.by_id().values()]
        ['client 0', 'client 1', 'client 2', 'client 3']
        >>> from hanse.flower.narrator import Narrator
        >>> Narrator(small.federation, Path("run")).who(2)[:19]
        "client 2 'client 2'"
    """
    experiment = small_experiment(mechanism, **sections)
    experiment = completed(experiment)
    here = build(experiment).data
    key = Ed25519PrivateKey.generate()
    pinned, own, policy = key.public_key().public_bytes_raw(), paths_of(experiment), policy_of(experiment)
    homes = [Path(folder) / f"node{i}" for i in range(here.num_clients)]
    agreement = agree(experiment, key, "rehearsal", "rehearsal", homes)
    grid = InProcessGrid(
        {
            100 + i: client_app(partial(_own, here, i), policy=policy, folder=home, own=own, operator=pinned)
            for i, home in enumerate(homes)
        }
    )
    job, capacity = assignments(experiment, agreement), here.num_clients
    federation = FlowerFederation(
        grid, Members(), job, key, deadline_s=60.0, capacity=capacity, agreement=agreement.hash
    )
    federation.present(0)
    sizes = [member.num_samples for member in federation.members.fitting()]
    sets = (here.server_validation, here.server_test)
    known = RemoteData.of(sizes, here.input_shape, here.num_classes, *sets)
    setup = build(experiment, known, federation=federation)
    return NetworkRehearsal(setup.experiment, grid, federation, setup, first_state(setup))


def _own(data: FederatedData, client: int, context: Context) -> ClientData:
    """Return what one participant holds."""
    return ClientData.of(data, client)
