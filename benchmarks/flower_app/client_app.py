"""One participant for both: Flower's handlers as its tutorial has them, and hanse's."""

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from setting import BATCH, LR, module, spec
from torch import nn

from hanse.data import build
from hanse.flower import ClientData, client_app


def load_data(context: Context) -> ClientData:
    nodes = int(context.run_config["nodes"])
    return ClientData.of(build(spec(nodes)), int(context.node_config["partition-id"]))


app = client_app(load_data)


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model, data = module(), load_data(context).train
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    for batch in torch.randperm(len(data.x)).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(data.x[batch]), data.y[batch]).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(data.x)})}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    model, data = module(), load_data(context).test
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    with torch.no_grad():
        loss = float(nn.functional.cross_entropy(model(data.x), data.y))
    metrics = MetricRecord({"num-examples": len(data.x), "loss": loss})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
