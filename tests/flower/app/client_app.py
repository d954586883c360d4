"""A participant with one client's share of the experiment's data; ``FAULT`` makes it misbehave ("plain": it is an app
of Flower's that knows nothing of hanse; "stranger": it says that its samples are others; "inflates": it claims twice
its samples). ``AUDITOR`` is the key of an auditor on its premises."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from hanse.base.errors import UserError
from hanse.data import build
from hanse.data.commitment import commit
from hanse.federation.behaviour import Behaviour, Liar
from hanse.federation.node import own_secret
from hanse.federation.policy import build_profiles
from hanse.flower import ClientData, client_app
from hanse.ledger.note import load_key
from hanse.runs.config import Experiment

SEEN: dict[str, ClientData] = {}


def load_data(context: Context) -> ClientData:
    [first, *_] = json.loads(Path(str(context.run_config["plan"])).read_text())
    experiment, me = Experiment.read(first["experiment"]), int(context.node_config["partition-id"])
    profiles = build_profiles(experiment.clients.profiles, experiment.data.clients, experiment.run.seed)
    SEEN["data"] = replace(ClientData.of(build(experiment.data), me), profile=profiles[me])
    return SEEN["data"]


class Auditor(Behaviour):
    """Looks at what the node trains on, and signs what was asked in an earlier request, if all is well."""

    def on_request(self, me, round, request):
        from hanse.wings.evidence.audits import AuditFolder, tag_key

        home = Path(os.environ["HANSE_HOME"])
        for asked in home.glob(f"*/client-{me.id}/audit.json"):
            tags = tag_key(own_secret(home), asked.parent.parent.name, me.id)
            try:
                AuditFolder(asked.parent).sign(
                    commit(SEEN["data"].train, tags), tags, load_key(Path(os.environ["AUDITOR"]))
                )
            except UserError as wrong:
                print(wrong)
        return request


def arrays(reply: Message, change) -> RecordDict:
    changed = {name: Array(change(a.numpy())) for name, a in reply.content["arrays"].items()}
    return RecordDict({"hanse": reply.content["hanse"], "arrays": ArrayRecord(changed)})


def other_round(reply: Message) -> RecordDict:
    config = {**dict(reply.content["hanse"]), "round": 99}
    return RecordDict({"hanse": ConfigRecord(config), "arrays": reply.content["arrays"]})


FAULTS = {
    "nan": lambda reply: arrays(reply, lambda a: np.full_like(a, np.nan)),
    "shape": lambda reply: arrays(reply, lambda a: a[: len(a) // 2]),
    "huge": lambda reply: arrays(reply, lambda a: np.zeros(3_000_000, np.float32)),
    "round": other_round,
}


def next_worst(reply: Message) -> RecordDict:
    sys.path.append(str(Path(os.environ["FEDERATION_HOME"]).parent))
    from hostile import worst

    sent = Path(os.environ["FAULT_COUNT"])
    number = len(sent.read_text()) if sent.exists() else 0
    sent.write_text("x" * (number + 1))
    return worst(number, reply.content)


lies = [Liar(range(100), size=2.0)] if os.environ.get("FAULT") == "inflates" else []
honest = client_app(load_data, behaviours=[*([Auditor()] if "AUDITOR" in os.environ else []), *lies])
app = ClientApp()


@app.query("hanse")
def answer(message: Message, context: Context) -> Message:
    fault, asked = os.environ.get("FAULT"), message.content["hanse"]
    if fault == "dies" and asked.get("kind") == "request" and int(asked["round"]) >= 1:
        os.kill(int(Path(os.environ["FAULT_PID"]).read_text().split()[0]), 9)  # the node, and we with it
        os._exit(1)
    reply = honest(message, context)
    if fault == "stranger" and asked.get("kind") == "hello":
        hello = json.loads(reply.content["hanse"]["hello"]) | {"input_shape": [9], "order": 0}
        config = ConfigRecord({**dict(reply.content["hanse"]), "hello": json.dumps(hello)})
        return Message(RecordDict({"hanse": config, "arrays": reply.content["arrays"]}), reply_to=message)
    if fault == "worst" and asked.get("kind") == "request" and "missing" not in reply.content["hanse"]:
        return Message(next_worst(reply), reply_to=message)
    if fault not in FAULTS or len(reply.content["arrays"]) == 0:  # an update is what goes wrong
        return reply
    return Message(FAULTS[fault](reply), reply_to=message)


plain = ClientApp()


@plain.train()
def train(message: Message, context: Context) -> Message:
    return message


if os.environ.get("FAULT") == "plain":
    app = plain
