"""What runs at each node: parameters come, are trained or tested on the node's own people, and go back."""

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from jaxexample.task import Parameters, get_params, load_data, loss_fn, set_params
from jaxexample.task import train as train_params

app = ClientApp()


def _params(msg: Message) -> Parameters:
    return set_params({name: array.numpy() for name, array in msg.content["arrays"].items()})


def _data(context: Context):
    return load_data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the parameters on the node's own people."""
    samples, _ = _data(context)
    config = context.run_config
    params, loss = train_params(_params(msg), samples, int(config["local-epochs"]), float(config["learning-rate"]))
    arrays = ArrayRecord({name: Array(a) for name, a in get_params(params).items()})
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(samples[1])})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the parameters on the node's own people."""
    _, (x, y) = _data(context)
    metrics = MetricRecord({"eval_loss": float(loss_fn(_params(msg), x, y)), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
