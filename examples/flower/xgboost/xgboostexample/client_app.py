"""What runs at each node: the trees so far come, the node's own new ones go back."""

import numpy as np
import xgboost as xgb
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from xgboostexample.task import load_booster, load_data, metrics_of, params

app = ClientApp()


def _data(context: Context) -> tuple[xgb.DMatrix, xgb.DMatrix]:
    return load_data(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Grow trees on the node's own samples; return the new ones alone."""
    samples, _ = _data(context)
    rounds, model = int(context.run_config["local-rounds"]), msg.content["arrays"]["0"].numpy().tobytes()
    if not model:  # the first round
        booster = xgb.train(params(context.run_config), samples, num_boost_round=rounds)
    else:
        booster = load_booster(model, context.run_config)
        for _ in range(rounds):
            booster.update(samples, booster.num_boosted_rounds())
        booster = booster[booster.num_boosted_rounds() - rounds : booster.num_boosted_rounds()]
    arrays = ArrayRecord([np.frombuffer(booster.save_raw("json"), dtype=np.uint8)])
    metrics = MetricRecord({"num-examples": samples.num_row()})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Test the trees on the node's own samples."""
    _, samples = _data(context)
    booster = load_booster(msg.content["arrays"]["0"].numpy().tobytes(), context.run_config)
    metrics = MetricRecord({**metrics_of(booster, samples), "num-examples": samples.num_row()})
    return Message(RecordDict({"metrics": metrics}), reply_to=msg)
