"""PFLlib's method, in our words and our code: its FedAvg as its papers and documentation describe it.

An object a client, each with a deep copy of the model that is kept between rounds, an SGD optimiser without momentum
that is kept, too, and a DataLoader made anew whenever samples are needed; parameters are copied one by one. The server
sums clones. Before each round the server's model is sent to all clients and every client's test *and* training samples
go through it, a DataLoader each, which is how PFLlib reports; a client's test share is a quarter of its samples there,
here the job's common test set is scored as well, once a round, for the comparison of accuracies.
"""

from __future__ import annotations

import copy

import torch
from common import accuracy, given_job
from job_files import Clock
from torch import nn
from torch.utils.data import DataLoader


class Client:
    def __init__(self, samples: list[tuple[torch.Tensor, torch.Tensor]], model: nn.Module, given: object) -> None:
        self.samples, self.given = samples, given
        self.model = copy.deepcopy(model)
        self.loss = nn.CrossEntropyLoss()
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=given.lr)  # type: ignore[attr-defined]

    def receive(self, model: nn.Module) -> None:
        for new, old in zip(model.parameters(), self.model.parameters(), strict=True):
            old.data = new.data.clone()

    def train(self) -> None:
        self.model.train()
        loader = DataLoader(self.samples, self.given.batch, drop_last=True, shuffle=True)
        for _ in range(self.given.epochs):
            for x, y in loader:
                self.optimiser.zero_grad()
                self.loss(self.model(x), y).backward()
                self.optimiser.step()

    def measure(self) -> tuple[float, int]:
        """Return the summed training loss and the number of right answers."""
        self.model.eval()
        total, right = 0.0, 0
        with torch.no_grad():
            for x, y in DataLoader(self.samples, self.given.batch, drop_last=False, shuffle=False):
                output = self.model(x)
                right += int((output.argmax(1) == y).sum())
                total += float(self.loss(output, y)) * len(y)
        return total, right


def main() -> None:
    job, clock = given_job(), Clock()
    (x, y), (x_test, y_test) = job.load("train"), job.load("test")
    model = job.model()
    clients = [Client([(x[i], y[i]) for i in taken], model, job.given) for taken in job.clients]
    clock.ready(1, torch.get_num_threads())
    for seats in job.seats:
        for client in clients:
            client.receive(model)
        for client in clients:
            client.measure()
        for seat in seats:
            clients[int(seat)].train()
        share = 1 / len(seats)
        mean = copy.deepcopy(model)
        for parameter in mean.parameters():
            parameter.data.zero_()
        for seat in seats:
            for ours, theirs in zip(mean.parameters(), clients[int(seat)].model.parameters(), strict=True):
                ours.data += theirs.data.clone() * share
        model = mean
        clock.done(accuracy(model, x_test, y_test))


if __name__ == "__main__":
    main()
