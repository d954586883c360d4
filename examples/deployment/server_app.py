"""The operator's side. Its own validation and test sets are the part of the digits that nobody got."""

import os
from pathlib import Path

from hanse.data import Samples, build
from hanse.flower import server_app
from hanse.runs.config import Experiment

HERE = Path(os.environ.get("FEDERATION_HOME", Path(__file__).parent))  # Flower runs a copy of this folder


def load_server_data() -> tuple[Samples | None, Samples | None]:
    """Return (validation, test)."""
    data = build(Experiment.read(HERE / "experiment.toml").data)
    return data.server_validation, data.server_test


app = server_app(HERE / "experiment.toml", out=HERE / "run", members=3, load_server_data=load_server_data)
