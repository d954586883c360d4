"""What runs at the server: federated averaging, and a test of each round's model on the server's own digits."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import hanse
from pytorchexample.task import Net, load_server_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds and keep the last model."""
    config = context.run_config
    arrays, rounds = ArrayRecord(Net().state_dict()), int(config["num-server-rounds"])
    lr = ConfigRecord({"lr": config["learning-rate"]})
    strategy = FedAvg()
    with hanse.valued(strategy, validation=lambda arrays: evaluate(0, arrays), out="runs/valued") as strategy:
        result = strategy.start(grid, arrays, num_rounds=rounds, train_config=lr, evaluate_fn=evaluate)
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test a model on the server's own digits."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_server_data())
    return MetricRecord({"loss": loss, "accuracy": accuracy})
