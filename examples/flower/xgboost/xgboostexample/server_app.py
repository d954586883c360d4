"""What runs at the server: the nodes' trees are put side by side, round after round."""

import math

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedXgbBagging

import hanse
from xgboostexample.task import load_booster, load_server_data, metrics_of

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds and keep the last model."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = arrays["0"].numpy().tobytes()
        if not model:  # no trees yet: even odds for everything
            return MetricRecord({"loss": math.log(2), "auc": 0.5})
        return MetricRecord(metrics_of(load_booster(model, context.run_config), load_server_data()))

    arrays, rounds = ArrayRecord([np.array([], dtype=np.uint8)]), int(context.run_config["num-server-rounds"])
    strategy = FedXgbBagging()
    with hanse.valued(strategy, validation=lambda arrays: evaluate(0, arrays), out="runs/valued") as strategy:
        result = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)
    load_booster(result.arrays["0"].numpy().tobytes(), context.run_config).save_model("final_model.json")
