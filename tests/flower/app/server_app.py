"""Plays what the plan lists, one experiment after another, with the nodes that are there, whose owners agree to all."""

import hashlib
import json
import os
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from hanse.data import build
from hanse.flower import server_app
from hanse.flower.agreement import agree
from hanse.flower.operator_key import SIGNS_WITH, signing_key
from hanse.runs.config import Experiment

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    for step in json.loads(Path(str(context.run_config["plan"])).read_text()):
        experiment = Experiment.read(step["experiment"])
        data = build(experiment.data)
        sets = (data.server_validation, data.server_test)
        options = {"members": experiment.data.clients, **step.get("options", {})}
        options["agreement"] = agreed(experiment, Path(step["out"]), step["app"])
        server_app(experiment, out=step["out"], load_server_data=lambda sets=sets: sets, **options)(grid, context)


def agreed(experiment: Experiment, out: Path, app: str) -> Path:
    """Return the file with a run's agreement, which all nodes of this network have signed."""
    key = Path(os.environ[SIGNS_WITH])
    homes, file = sorted((key.parents[1] / "participants").glob("node*")), out.with_name(f"{out.name}.agreement.txt")
    run = hashlib.sha256(str(out).encode()).hexdigest()[:32]
    out.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(agree(experiment, signing_key(key), run, "test", homes, app).note(signing_key(key)))
    return file
