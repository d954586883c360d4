"""What runs at each node: parameters come, are fitted or tested on the node's own samples, and go back."""

import warnings

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from sklearnexample.task import create_model, get_parameters, load_data, set_parameters

app = ClientApp()


def _model(msg: Message, context: Context) -> LogisticRegression:
    model = create_model(float(context.run_config["penalty-c"]), int(context.run_config["local-epochs"]))
    return set_parameters(model, msg.content["arrays"].to_numpy_ndarrays())


def _data(context: Context):
    return load_data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Fit the model to the node's own samples."""
    model, ((x, y), _) = _model(msg, context), _data(context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a few steps at a time are what is wanted
        model.fit(x, y)
    metrics = MetricRecord({"train_loss": log_loss(y, model.predict_proba(x), labels=[0, 1]), "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(get_parameters(model)), "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the model on the node's own samples."""
    model, (_, (x, y)) = _model(msg, context), _data(context)
    loss = log_loss(y, model.predict_proba(x), labels=[0, 1])
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": float(model.score(x, y)), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
