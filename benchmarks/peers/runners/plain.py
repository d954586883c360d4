"""The loop that anybody would write well: one module, tensors in memory, foreach SGD, no DataLoader."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from common import accuracy, given_job
from job_files import Clock


def main() -> None:
    job, clock = given_job(), Clock()
    given = job.given
    (x, y), (x_test, y_test) = job.load("train"), job.load("test")
    clients = torch.from_numpy(job.clients)
    model = job.model()
    parameters = list(model.parameters())
    weights = [p.detach().clone() for p in parameters]
    clock.ready(1, torch.get_num_threads())
    for seats in job.seats:
        total = [torch.zeros_like(w) for w in weights]
        for seat in seats:
            with torch.no_grad():
                torch._foreach_copy_(parameters, weights)
            optimiser = torch.optim.SGD(parameters, lr=given.lr, momentum=given.momentum, foreach=True)
            index = clients[int(seat)]
            for _ in range(given.epochs):
                for taken in index[torch.randperm(len(index))].split(given.batch):
                    optimiser.zero_grad(set_to_none=True)
                    F.cross_entropy(model(x[taken]), y[taken]).backward()
                    optimiser.step()
            with torch.no_grad():
                torch._foreach_add_(total, [p.detach() for p in parameters], alpha=1 / len(seats))
        weights = total
        with torch.no_grad():
            torch._foreach_copy_(parameters, weights)
        clock.done(accuracy(model, x_test, y_test, 10_000))


if __name__ == "__main__":
    main()
