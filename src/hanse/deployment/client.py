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

from hanse.base.errors import UserError
from hanse.data.instructions.records import BYTES, build_tokenizer, encode, read_instructions
from hanse.deployment.members import NAME
from hanse.deployment.message import from_records, to_records
from hanse.federation.behaviour import Behaviour
from hanse.federation.codec import Message, MissingError, WireError
from hanse.federation.node import Assignment, ClientData, Node, hello
from hanse.learning.loop import Loop
from hanse.learning.threads import intra_op

LoadData = Callable[[Context], ClientData]


def client_app(
    load_data: LoadData,
    *,
    policy: Any = None,
    behaviours: Sequence[Behaviour] = (),
    folder: str | Path | None = None,
    train: str | Callable[..., Any] | None = None,
) -> ClientApp:
    """Return a Flower client app that trains and answers for one participant.

    ``load_data(context)`` returns its :class:`hanse.federation.node.ClientData`; Flower's ``context.node_config`` holds
    what the node was started with. ``policy`` decides what it bids, declares and pays (default: loyal). ``folder`` is
    where the participant keeps what is its own: private models and receipts, by run (default: ``HANSE_HOME``, else
    ``~/.hanse``). ``train`` is a training loop of the participant's own, ``fit(model, data, round)`` or its import path
    (:mod:`hanse.learning.loop`), in the place of the experiment's. Raises UserError for one that cannot be called so.
    """
    app, loop = ClientApp(), None if train is None else Loop.of(train, "client_app: train")
    home = Path(folder or os.environ.get("HANSE_HOME") or Path.home() / ".hanse").expanduser()
    loaded: dict[int, ClientData] = {}  # a process that is kept warm loads once

    def data_of(context: Context) -> ClientData:
        if context.node_id not in loaded:
            loaded[context.node_id] = load_data(context)
        return loaded[context.node_id]

    @app.query("hanse")
    def answer(message: FlowerMessage, context: Context) -> FlowerMessage:
        request, values = from_records(message.content)
        data, reply = data_of(context), Message("null")
        if values.get("kind") == "hello":
            said = hello(data, loop) | {"order": int(context.node_config.get("partition-id", 1 << 30))}
            said["name"] = said["name"][:NAME]
            return FlowerMessage(to_records(reply, hello=json.dumps(said)), reply_to=message)
        beside: dict[str, Any] = {"round": int(values["round"])}
        try:
            with intra_op(1):
                node = Node(data, Assignment.from_json(str(values["job"])), home, policy, behaviours, loop)
                if values.get("letter"):
                    node.keep_receipts(str(values["letter"]))
                if values.get("kind") != "letter":
                    reply = node.answer(beside["round"], request)
        except MissingError as lost:
            beside["missing"] = lost.hashes
        except WireError as wrong:
            beside["refused"] = str(wrong)
        return FlowerMessage(to_records(reply, **beside), reply_to=message)

    return app


def instructions(
    path: str | Path,
    *,
    tokenizer: str = BYTES,
    length: int = 512,
    test: float = 0.2,
    validation: float = 0.0,
    name: str = "",
) -> ClientData:
    """Return the instructions of a file (.json, .jsonl or .csv with instruction, input, output) as a participant's
    data.

    ``tokenizer`` ("bytes", or a model's) and ``length``, tokens of the window, are the experiment's ``data.tokenizer``
    and ``data.length``: the same for all participants. The last ``test`` of the file is its test share, the
    ``validation`` before it its validation share. Raises UserError for a file that cannot be read, or too short.
    """
    items, tokens = read_instructions(Path(path)), build_tokenizer(tokenizer)
    if not (test >= 0 and validation >= 0 and test + validation < 1):
        raise UserError(f"instructions: test {test} and validation {validation}: 0 or more, and below 1 together")
    tested, validated = int(test * len(items)), int(validation * len(items))
    first = len(items) - tested - validated
    shares = {
        "train": items[:first],
        "validation": items[first : first + validated],
        "test": items[first + validated :],
    }
    wide = encode(items, tokens, length).samples.x.shape[1]
    found = {share: encode(own, tokens, length, wide).samples for share, own in shares.items() if own}
    return ClientData(found["train"], found.get("test"), found.get("validation"), tokens.size, name or Path(path).stem)
