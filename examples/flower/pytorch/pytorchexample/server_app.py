"""What runs at the server: federated averaging, and a test of each round's model on the server's own digits."""

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from pytorchexample.task import Net, load_server_data, test

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Play the rounds and keep the last model."""
    config = context.run_config
    strategy = FedAvg()
    result = strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=evaluate,
    )
    torch.save(result.arrays.to_torch_state_dict(), "final_model.pt")


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Test a model on the server's own digits."""
    net = Net()
    net.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(net, load_server_data())
    return MetricRecord({"loss": loss, "accuracy": accuracy})
