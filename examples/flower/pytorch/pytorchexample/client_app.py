"""What runs at each node: a model comes, is trained or tested on the node's own digits, and goes back."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from pytorchexample.task import Net, load_data
from pytorchexample.task import test as test_net
from pytorchexample.task import train as train_net

app = ClientApp()


def _data(context: Context):
    node = context.node_config
    return load_data(int(node["partition-id"]), int(node["num-partitions"]), int(context.run_config["batch-size"]))


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on the node's own digits."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    batches, _ = _data(context)
    loss = train_net(net, batches, int(context.run_config["local-epochs"]), float(msg.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(batches.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the model on the node's own digits."""
    net = Net()
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    _, batches = _data(context)
    loss, accuracy = test_net(net, batches)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(batches.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
