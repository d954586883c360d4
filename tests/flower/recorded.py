"""A Flower grid whose replies are fixed: a function of the node, the round, and what the node was sent."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from hanse.core.entry import MINT, TOKEN, Transaction, client
from hanse.core.part import Settlement, SettlePart, State, View
from hanse.ledger.split import split

SHAPES = {"w": (4, 3), "b": (3,)}


def first_arrays() -> ArrayRecord:
    return ArrayRecord({name: Array(np.full(shape, 0.5, np.float32)) for name, shape in SHAPES.items()})


def trained(node: int, round: int, arrays: ArrayRecord) -> RecordDict:
    """Node n pulls the model its own way; it has 10 n samples."""
    draw = np.random.default_rng([node, round])
    new = {
        name: Array((array.numpy() + 0.3 * draw.standard_normal(array.shape) - 0.05 * node).astype(np.float32))
        for name, array in arrays.items()
    }
    metrics = MetricRecord({"num-examples": 10 * node, "train_loss": 1.0 / (round + node)})
    return RecordDict({"arrays": ArrayRecord(new), "metrics": metrics})


def evaluated(node: int, round: int, arrays: ArrayRecord) -> RecordDict:
    loss = float(sum(np.square(a.numpy() - 0.01 * node).sum() for a in arrays.values()))
    return RecordDict({"metrics": MetricRecord({"num-examples": node, "eval_loss": loss, "eval_acc": 1 / (1 + loss)})})


class RecordedGrid:
    """As much of a grid as Flower's strategies use: nodes 1 to ``nodes``. ``meddle(node, round, reply)`` may change a
    reply to a training message, or drop it.
    """

    def __init__(self, nodes: int = 4, meddle: Callable[[int, int, Message], Message | None] | None = None) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # Flower sets these inside an app
        self.nodes, self._meddle, self._count = nodes, meddle, itertools.count()
        self.sent: list[tuple[str, int]] = []

    def get_node_ids(self) -> Iterable[int]:
        return list(range(1, self.nodes + 1))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        found = []
        for message in sorted(messages, key=lambda m: m.metadata.dst_node_id):
            node, kind = message.metadata.dst_node_id, message.metadata.message_type
            self.sent.append((kind, node))
            message.metadata.__dict__["_message_id"] = f"message {next(self._count)}"
            arrays, round = message.content["arrays"], int(message.content["config"]["server-round"])
            answer = trained if kind == "train" else evaluated
            reply: Message | None = Message(answer(node, round, arrays), reply_to=message)
            if kind == "train" and self._meddle is not None:
                reply = self._meddle(node, round, reply)
            found += [] if reply is None else [reply]
        return found


def failed(reply: Message) -> Message:
    """Return the same reply as an error of the client's."""
    found = Message(Error(2, "out of memory"), reply_to=reply)
    found.metadata.__dict__["_src_node_id"] = reply.metadata.src_node_id
    return found


@dataclass(frozen=True)
class Wages(SettlePart):
    """At the end of a round ``pot`` tokens are minted for those who were worth something, in proportion."""

    needs = frozenset({"values"})
    pot: int = 10

    def settle(self, view: View, state: State) -> tuple[Settlement, State]:
        if view.stage != "close" or view.values is None:
            return Settlement(), state
        clients, values = view.values.by_client(view)
        worth = np.maximum(values, 0)
        if not worth.any():
            return Settlement(), state
        to = [(client(c), u) for c, u in zip(clients.tolist(), split(self.pot * TOKEN, worth.tolist()), strict=True)]
        paid = Transaction("wages", "wages", ((MINT, -self.pot * TOKEN), *((c, u) for c, u in to if u)))
        return Settlement(transactions=(paid,)), state
