"""Plays what the plan lists, one experiment after another, with the nodes that are there, whose owners agree to all."""

import hashlib
import json
import os
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from hanse.data import build
from hanse.flower import server_app
from hanse.flower.agreement import agree
from hanse.flower.operator_key import SIGNS_WITH, signing_key
from hanse.runs.config import Experiment

app = ServerApp()


class Lossy:
    """Flower's grid; each message, to a node or from it, is lost with a probability."""

    def __init__(self, grid: Grid, share: float) -> None:
        self.grid, self.share, self.draw, self.lost = grid, share, random.Random(67), set[str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.grid, name)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        gone = [(message, self.draw.random() < self.share) for message in messages]
        names = iter(self.grid.push_messages([message for message, lost in gone if not lost]))
        return [self._lose(f"lost {len(self.lost)}") if lost else next(names) for _, lost in gone]

    def pull_messages(self, names: Iterable[str]) -> list[Message]:
        found = list(self.grid.pull_messages([name for name in names if name not in self.lost]))
        gone = [one for one in found if self.draw.random() < self.share]
        for one in gone:
            self._lose(one.metadata.reply_to_message_id)
        return [one for one in found if one not in gone]

    def _lose(self, name: str) -> str:
        print(f"lost: {name}", flush=True)
        self.lost.add(name)
        return name


@app.main()
def main(grid: Grid, context: Context) -> None:
    for step in json.loads(Path(str(context.run_config["plan"])).read_text()):
        experiment = Experiment.read(step["experiment"])
        data = build(experiment.data)
        sets = (data.server_validation, data.server_test)
        options = {"members": experiment.data.clients, **step.get("options", {})}
        lost = options.pop("lost", 0.0)
        options["agreement"] = agreed(experiment, Path(step["out"]), step["app"])
        over = Lossy(grid, lost) if lost else grid
        server_app(experiment, out=step["out"], load_server_data=lambda sets=sets: sets, **options)(over, context)


def agreed(experiment: Experiment, out: Path, app: str) -> Path:
    """Return the file with a run's agreement, which all nodes of this network have signed."""
    key = Path(os.environ[SIGNS_WITH])
    homes, file = sorted((key.parents[1] / "participants").glob("node*")), out.with_name(f"{out.name}.agreement.txt")
    run = hashlib.sha256(str(out).encode()).hexdigest()[:32]
    out.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(agree(experiment, signing_key(key), run, "test", homes, app).note(signing_key(key)))
    return file
