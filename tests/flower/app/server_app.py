"""Plays what the plan lists, one experiment after another, with the nodes that are there."""

import json
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hanse.data import build
from hanse.flower import server_app
from hanse.runs.config import Experiment

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    for step in json.loads(Path(str(context.run_config["plan"])).read_text()):
        experiment = Experiment.read(step["experiment"])
        data = build(experiment.data)
        sets = (data.server_validation, data.server_test)
        options = {"members": experiment.data.clients, **step.get("options", {})}
        server_app(experiment, out=step["out"], load_server_data=lambda sets=sets: sets, **options)(grid, context)
