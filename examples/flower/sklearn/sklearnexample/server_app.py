"""What runs at the server: federated averaging, and a test of each round's model on the server's own samples."""

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.metrics import log_loss

import hanse
from sklearnexample.task import create_model, get_parameters, load_server_data, set_parameters

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds and print the last model's accuracy."""
    config = context.run_config
    model = create_model(float(config["penalty-c"]), int(config["local-epochs"]))
    arrays, rounds = ArrayRecord(get_parameters(model)), int(config["num-server-rounds"])
    strategy = FedAvg()
    with hanse.valued(strategy, validation=lambda arrays: evaluate(0, arrays), out="runs/valued") as strategy:
        result = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)
    print("the last model:", dict(evaluate(-1, result.arrays)))


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test a model on the server's own samples."""
    model = set_parameters(create_model(1.0, 1), arrays.to_numpy_ndarrays())
    x, y = load_server_data()
    return MetricRecord({"loss": log_loss(y, model.predict_proba(x)), "accuracy": float(model.score(x, y))})
