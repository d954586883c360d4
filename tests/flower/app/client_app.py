"""A participant with one client's share of the experiment's data."""

import json
from dataclasses import replace
from pathlib import Path

from flwr.app import Context

from hanse.data import build
from hanse.federation.policy import build_profiles
from hanse.flower import ClientData, client_app
from hanse.runs.config import Experiment


def load_data(context: Context) -> ClientData:
    [first, *_] = json.loads(Path(str(context.run_config["plan"])).read_text())
    experiment, me = Experiment.read(first["experiment"]), int(context.node_config["partition-id"])
    profiles = build_profiles(experiment.clients.profiles, experiment.data.clients, experiment.run.seed)
    return replace(ClientData.of(build(experiment.data), me), profile=profiles[me])


app = client_app(load_data)
