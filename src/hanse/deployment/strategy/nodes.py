"""The nodes that take part when a mechanism is started like a Flower strategy.

:func:`gathered` waits for them, as Flower's strategies do. :func:`introduced` asks their apps whether they answer
hanse's questions, which is only done for mechanisms that put some. :func:`hello_of` makes of both what the register of
members keeps.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from logging import INFO
from typing import Any, cast

from flwr.app import ConfigRecord
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid
from flwr.supercore import log

from hanse.deployment.link import key_of
from hanse.deployment.members import NAME, Hello
from hanse.deployment.message import QUERY, to_records
from hanse.deployment.newcomers import pulled
from hanse.deployment.strategy.speaks import SPEAKS
from hanse.federation.check import one_line
from hanse.federation.codec import Message


def gathered(grid: Grid, clients: int | None) -> dict[str, Any]:
    """Wait until enough nodes are online, without a time limit, and return those that take part.

    Args:
        grid: Flower's connection to the nodes, or a :class:`hanse.deployment.rehearsal.InProcessGrid`.
        clients: how many take part; None: all that are there once there are at least two.

    Returns:
        The nodes by key (:func:`hanse.deployment.link.key_of`), in ascending order of their ids in Flower.
    """
    told = -1
    while True:
        here = {key_of(node): node for node in grid.get_nodes()}
        if len(here) >= (clients or 2):
            ordered = sorted(here.items(), key=lambda item: (int(item[1].node_id), item[0]))
            return dict(ordered[:clients])
        if len(here) != told:
            log(INFO, "Waiting for nodes: %s of %s are here", len(here), clients or 2)
            told = len(here)
        time.sleep(0.5)


def hello_of(node: Any, said: Mapping[str, Any]) -> Hello:
    """Return what the register keeps of a node.

    Args:
        node: the node, as Flower's grid describes it.
        said: what its app says of itself: ``name`` and ``profile``, both optional; untrusted input.

    Raises:
        ValueError: what it says is out of bounds.
    """
    name = str(said.get("name") or getattr(node, "name", "") or f"node {node.node_id}")
    # a plain app says nothing of its samples; they play no role until it reports their number with its first update
    hello = {"num_samples": 0, "input_shape": [], "num_classes": None, "name": one_line(name)[:NAME]}
    return Hello.of(json.dumps({**hello, "profile": said.get("profile", {})}))


def introduced(grid: Grid, nodes: Mapping[str, Any], seconds: float) -> tuple[dict[str, Hello], list[str]]:
    """Ask apps whether they answer hanse's questions.

    Args:
        grid: Flower's connection to the nodes, or a :class:`hanse.deployment.rehearsal.InProcessGrid`.
        nodes: the nodes by key.
        seconds: how long to wait.

    Returns:
        What those that do say of themselves, by key; and a reason for each that does not. A node that did not answer in
        time is in neither.
    """
    question = to_records(Message("null"), kind=SPEAKS)
    messages = [
        FlowerMessage(question, dst_node_id=int(node.node_id), message_type=QUERY, ttl=seconds)
        for node in nodes.values()
    ]
    waiting = {name: key for name, key in zip(grid.push_messages(messages), nodes, strict=False) if name}
    said, silent, end = dict[str, Hello](), list[str](), time.monotonic() + seconds
    while waiting and time.monotonic() < end:
        for name, answer in pulled(grid, list(waiting)):
            key = waiting.pop(name, None)
            if key is None:
                continue
            try:
                if isinstance(answer, Exception):
                    raise answer
                if answer.has_error():
                    silent.append(one_line(str(answer.error.reason)))
                    continue
                config = answer.content.get(SPEAKS)
                said[key] = hello_of(nodes[key], json.loads(str(cast(ConfigRecord, config)["said"])))
            except Exception as wrong:  # whatever a client's bytes make it raise
                silent.append(one_line(f"{type(wrong).__name__}: {wrong}"))
        if waiting:
            time.sleep(0.05)
    return said, silent
