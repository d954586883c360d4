"""Plays Flower's FedAvg and hanse alternately and writes the seconds of each round."""

import hashlib
import itertools
import json
import os
import time
from pathlib import Path

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from setting import experiment, hanses, module, spec

from hanse.data import build
from hanse.flower import server_app
from hanse.flower.agreement import agree
from hanse.flower.operator_key import SIGNS_WITH, signing_key

app = ServerApp()


class Timed(FedAvg):
    """Flower's own FedAvg, which notes when each round begins."""

    def configure_train(self, *args, **more):
        self.began = [*getattr(self, "began", []), time.perf_counter()]
        return super().configure_train(*args, **more)


def flower(grid: Grid, nodes: int, rounds: int, evaluate: bool) -> list[float]:
    strategy = Timed(
        fraction_train=1.0, fraction_evaluate=float(evaluate), min_train_nodes=nodes,
        min_evaluate_nodes=nodes if evaluate else 0, min_available_nodes=nodes,
    )  # fmt: skip
    strategy.start(grid, ArrayRecord(module().state_dict()), num_rounds=rounds, timeout=300)
    stamps = [*strategy.began, time.perf_counter()]
    return [b - a for a, b in itertools.pairwise(stamps)]


def ours(grid: Grid, context: Context, nodes: int, rounds: int, mechanism: dict, out: Path) -> list[float]:
    data = build(spec(nodes))
    sets = (data.server_validation, data.server_test)
    exp = experiment(nodes, rounds, mechanism)
    key = Path(os.environ[SIGNS_WITH])  # the nodes of this trial agree to each run
    homes, file = sorted((key.parents[1] / "participants").glob("node*")), out.with_suffix(".txt")
    out.parent.mkdir(parents=True, exist_ok=True)
    run = hashlib.sha256(str(out).encode()).hexdigest()[:32]
    file.write_text(
        agree(exp, signing_key(key), run, "benchmark", homes, str(context.run_config["app"])).note(signing_key(key))
    )
    server_app(exp, out=out, members=nodes, load_server_data=lambda: sets, agreement=file)(grid, context)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert all(line["answered"] >= nodes for line in lines), [line["answered"] for line in lines]
    return [line["time/round_s"] for line in lines]


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    nodes, rounds, out = int(config["nodes"]), int(config["rounds"]), Path(str(config["out"]))
    log = out / "seconds.jsonl"
    for repeat in range(int(config["repeats"])):
        for name, evaluate in (("Flower, train", False), ("Flower, train and evaluate", True)):
            note(log, name, repeat, flower(grid, nodes, rounds, evaluate))
        for name, mechanism in hanses(nodes).items():
            note(log, f"hanse, {name}", repeat, ours(grid, context, nodes, rounds, mechanism, out / f"{name} {repeat}"))


def note(log: Path, name: str, repeat: int, seconds: list[float]) -> None:
    with log.open("a") as file:
        file.write(json.dumps({"name": name, "repeat": repeat, "seconds": seconds}) + "\n")
