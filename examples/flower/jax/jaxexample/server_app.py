"""What runs at the server: FedAdam, and a test of each round's model on the server's own people."""

from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam

import hanse
from jaxexample.task import get_params, load_model, load_server_data, loss_fn, set_params

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds and print the last model's error."""
    arrays = ArrayRecord({name: Array(a) for name, a in get_params(load_model()).items()})
    rounds = int(context.run_config["num-server-rounds"])
    strategy = FedAdam(eta=0.1)
    with hanse.valued(strategy, validation=lambda arrays: evaluate(0, arrays), out="runs/valued") as strategy:
        result = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluate)
    print("the last model:", dict(evaluate(-1, result.arrays)))


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test a model on the server's own people."""
    params = set_params({name: array.numpy() for name, array in arrays.items()})
    return MetricRecord({"loss": float(loss_fn(params, *load_server_data()))})
