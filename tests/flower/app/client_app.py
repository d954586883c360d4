"""A participant with one client's share of the experiment's data; with ``FAULT_PID`` its node dies in round 1."""
# ruff: noqa: E402 (what is imported before comes first)

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

ROOMS = ("hanse.flower.", "hanse.federation.", "hanse.core.", "hanse.ledger.", "hanse.wings.private.")
WARM = {name for name in sys.modules if name.startswith(ROOMS)}  # what the warm process has imported for all messages

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from hanse.data import build
from hanse.federation.policy import build_profiles
from hanse.flower import ClientData, client_app
from hanse.runs.config import Experiment


def load_data(context: Context) -> ClientData:
    [first, *_] = json.loads(Path(str(context.run_config["plan"])).read_text())
    experiment, me = Experiment.read(first["experiment"]), int(context.node_config["partition-id"])
    profiles = build_profiles(experiment.clients.profiles, experiment.data.clients, experiment.run.seed)
    return replace(ClientData.of(build(experiment.data), me), profile=profiles[me])


honest = client_app(load_data)
app = ClientApp()  # by this form Flower finds it


@app.query("hanse")
def answer(message: Message, context: Context) -> Message:
    asked, node = message.content["hanse"], os.environ.get("FAULT_PID")
    if node and asked.get("kind") == "request" and int(asked["round"]) >= 1:
        os.kill(int(Path(node).read_text().split()[0]), 9)  # the node, and we with it
        os._exit(1)
    reply = honest(message, context)
    if late := [name for name in sys.modules if name.startswith(ROOMS) and name not in WARM]:
        raise ImportError(f"imported for each message anew: {late}")
    return reply
