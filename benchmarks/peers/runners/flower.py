"""Flower's simulation: FedAvg on Ray, an actor a core, each training one client at a time with one thread.

Seats come in the job's order: the strategy names each message's client, so that everybody trains the same ones. Samples
are kept in each actor once they were read.
"""

from __future__ import annotations

import os
from functools import cache

import torch
import torch.nn.functional as F  # noqa: N812
from common import Job, accuracy, given_job
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job_files import Clock

client, server = ClientApp(), ServerApp()


@cache
def the_job() -> Job:
    return Job(os.environ["PEER_JOB"])


@cache
def samples(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return the_job().client(number)


@client.train()
def train(message: Message, context: Context) -> Message:
    given = the_job().given
    model = the_job().model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = samples(int(message.content["config"]["client"]))
    optimiser = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=given.momentum)
    for _ in range(given.epochs):
        for taken in torch.randperm(len(y)).split(given.batch):
            optimiser.zero_grad(set_to_none=True)
            F.cross_entropy(model(x[taken]), y[taken]).backward()
            optimiser.step()
    content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(content=RecordDict(content), reply_to=message)


class Planned(FedAvg):
    """FedAvg that asks for the job's seats."""

    def configure_train(self, server_round, arrays, config, grid):  # type: ignore[no-untyped-def]
        nodes = sorted(grid.get_node_ids())
        messages = []
        for seat in the_job().seats[server_round - 1]:
            record = RecordDict({"arrays": arrays, "config": ConfigRecord({"client": int(seat)})})
            messages.append(Message(content=record, message_type="train", dst_node_id=nodes[int(seat)]))
        return messages


@server.main()
def main(grid: Grid, context: Context) -> None:
    job, clock = the_job(), Clock()
    x, y = job.load("test")
    model = job.model()
    while len(list(grid.get_node_ids())) < job.given.clients:
        pass

    def test(round: int, arrays: ArrayRecord) -> None:
        if not round:  # Flower tests the first weights, too: the others do not
            clock.ready(os.cpu_count() or 1, 1)  # Ray gives an actor of one core one thread
            return
        model.load_state_dict(arrays.to_torch_state_dict())
        clock.done(accuracy(model, x, y, 10_000))

    strategy = Planned(fraction_train=1.0, fraction_evaluate=0.0)
    strategy.start(grid, ArrayRecord(model.state_dict()), job.given.rounds, evaluate_fn=test)


def play() -> None:
    job = given_job()
    os.environ["PEER_JOB"] = str(job.folder)  # for the actors
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, job.given.clients, backend_config=resources)


if __name__ == "__main__":
    import flower  # by its name: Ray's actors look the apps up in an importable module

    flower.play()
