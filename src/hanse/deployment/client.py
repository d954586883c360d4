"""The client app: a participant's data, policy and folder behind Flower's node.

A node runs whatever app the SuperLink sends it, as its own user; this is the app that hanse's projects send.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.app import Message as FlowerMessage
from flwr.clientapp import ClientApp

from hanse.deployment.members import NAME
from hanse.deployment.message import from_records, to_records
from hanse.federation.behaviour import Behaviour
from hanse.federation.codec import Message, MissingError, WireError
from hanse.federation.node import ClientData, Job, Node, hello
from hanse.learning.threads import intra_op

__all__ = ["client_app"]

LoadData = Callable[[Context], ClientData]


def client_app(
    load_data: LoadData,
    *,
    policy: Any = None,
    behaviours: Sequence[Behaviour] = (),
    folder: str | Path | None = None,
) -> ClientApp:
    """Return a Flower client app that trains and answers for one participant.

    ``load_data(context)`` returns its :class:`hanse.federation.node.ClientData`; Flower's ``context.node_config`` holds
    what the node was started with. ``policy`` decides what it bids, declares and pays (default: loyal). ``folder`` is
    where the participant keeps what is its own: private models and receipts, by run (default: ``HANSE_HOME``, else
    ``~/.hanse``).
    """
    app = ClientApp()
    home = Path(folder or os.environ.get("HANSE_HOME") or Path.home() / ".hanse").expanduser()
    loaded: dict[int, ClientData] = {}  # a process that is kept warm loads once

    def data_of(context: Context) -> ClientData:
        if context.node_id not in loaded:
            loaded[context.node_id] = load_data(context)
        return loaded[context.node_id]

    @app.query("hanse")
    def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
        request, values = from_records(message.content)
        data = data_of(context)
        if values.get("kind") == "hello":
            said = hello(data) | {"order": int(context.node_config.get("partition-id", 1 << 30))}
            said["name"] = said["name"][:NAME]
            return FlowerMessage(to_records(Message("null"), hello=json.dumps(said)), reply_to=message)
        round = int(values["round"])
        try:
            with intra_op(1):
                node = Node(data, Job.from_json(str(values["job"])), home, policy, behaviours)
                if values.get("letter"):
                    node.keep_receipts(str(values["letter"]))
                reply = Message("null") if values.get("kind") == "letter" else node.answer(round, request)
        except MissingError as lost:
            return FlowerMessage(to_records(Message("null"), round=round, missing=lost.hashes), reply_to=message)
        except WireError as wrong:
            return FlowerMessage(to_records(Message("null"), round=round, refused=str(wrong)), reply_to=message)
        return FlowerMessage(to_records(reply, round=round), reply_to=message)

    return app
