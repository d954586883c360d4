"""What the register of members keeps of nodes with plain Flower apps.

:func:`introduced` asks the apps whether they answer hanse's questions. This is done only for mechanisms that ask some.
:func:`hello_of` turns an answer into an entry of the register.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from flwr.app import ConfigRecord
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from hanse.federation.check import one_line
from hanse.federation.codec import Message
from hanse.flower.existing_app.wrapped_app import SPEAKS
from hanse.flower.members import NAME, Hello
from hanse.flower.message import QUERY, to_records
from hanse.flower.nodes import answers
from hanse.flower.replies import content_of, guarded


def hello_of(node: Any, said: Mapping[str, Any]) -> Hello:
    """Return what the register keeps of a node.

    Args:
        node: the node, as Flower's grid describes it.
        said: what the node's app says of itself: ``name`` and ``profile``, both optional. It is untrusted input.

    Raises:
        ValueError: what the app says is out of bounds.
    """
    name = str(said.get("name") or getattr(node, "name", "") or f"node {node.node_id}")
    # a plain app says nothing of its samples; they play no role until it reports their number with its first update
    hello = {"num_samples": 0, "input_shape": [], "num_classes": None, "name": one_line(name)[:NAME]}
    return Hello.of(json.dumps({**hello, "profile": said.get("profile", {})}))


def introduced(grid: Grid, nodes: Mapping[str, Any], seconds: float) -> tuple[dict[str, Hello], list[str]]:
    """Ask apps whether they answer hanse's questions.

    Args:
        grid: Flower's connection to the nodes, or a :class:`hanse.flower.rehearsal.InProcessGrid`.
        nodes: the nodes, as ``grid.get_nodes()`` gives them, by names of your own.
        seconds: how long to wait.

    Returns:
        Two results, both by key: what those apps that answer questions say of themselves, and why each other app does
        not answer. A node that did not answer in time is in neither.
    """
    question = to_records(Message("null"), kind=SPEAKS)
    messages = [
        FlowerMessage(question, dst_node_id=int(node.node_id), message_type=QUERY, ttl=seconds)
        for node in nodes.values()
    ]
    waiting = {name: key for name, key in zip(grid.push_messages(messages), nodes, strict=False) if name}
    said, silent = dict[str, Hello](), list[str]()

    def heard(node: Any, answer: FlowerMessage | Exception) -> Hello:
        """Return what an answer says. The answer is untrusted."""
        config = content_of(answer, "its app").get(SPEAKS)
        return hello_of(node, json.loads(str(cast(ConfigRecord, config)["said"])))

    for key, answer in answers(grid, waiting, seconds):
        hello = guarded(heard, nodes[key], answer)
        if isinstance(hello, str):
            silent.append(hello)
        else:
            said[key] = hello
    return said, silent
