"""First-order values from the clients' own data, against autograd on the joined samples."""

from __future__ import annotations

import numpy as np
import torch
from torch.func import functional_call
from torch.nn import functional
from watching import Watch

import hanse
from hanse.data import DataSpec, build


def test_values_are_eq_2_with_the_gradient_on_the_group_s_own_samples() -> None:
    experiment = hanse.Experiment(
        data={"clients": 8, "partition": {"alpha": 0.5}},
        model={"name": "logistic"},
        mechanism={
            "name": "fedavg",
            "clients_per_round": 4,
            "value": {"name": "first_order_clients", "samples": None, "judges": "all"},
        },
        train={"lr": 0.05},
        engine={"train": "stacked", "threads": 1},
        run={"rounds": 2},
    )
    watch = Watch()
    run = hanse.run(experiment, observers=[watch])
    data = build(DataSpec(**experiment.data.model_dump()))
    for view in watch.views:
        trained = view.trained
        pool, index = data.pool(trained.seats.client.tolist())
        share = torch.tensor(trained.num_samples / trained.num_samples.sum())
        mean = (share[:, None] * trained.rows.double()).sum(0).float().requires_grad_()
        here = torch.cat(index)
        out = functional_call(run.problem.module, dict(run.problem.layout.unflatten(mean)), (pool.x[here],))
        [gradient] = torch.autograd.grad(functional.cross_entropy(out, pool.y[here]), mean)
        expected = -share * ((trained.rows - mean.detach()).double() @ gradient.double())
        np.testing.assert_allclose(view.values.per_seat, expected.numpy(), atol=1e-7)
        assert abs(view.values.per_seat.sum()) < 1e-7  # eq. (2) sums to 0
    assert run.metrics[-1]["value/gradients"] == 4
