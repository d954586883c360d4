"""What a participant brings. Here: its part of the digits; the experiment's file travels with the app."""

from pathlib import Path

from flwr.app import Context

from hanse.data import build
from hanse.flower import ClientData, client_app
from hanse.runs.config import Experiment


def load_data(context: Context) -> ClientData:
    """Return this participant's samples."""
    experiment = Experiment.read(Path(__file__).parent / "experiment.toml")
    return ClientData.of(build(experiment.data), int(context.node_config["partition-id"]))


app = client_app(load_data)
