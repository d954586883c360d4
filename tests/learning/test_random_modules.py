"""Whatever network a user brings: what a run reports is what its model does when plain PyTorch runs it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from rotation import rotating
from watching import Watch

import hanse
from hanse.data.build import build
from hanse.learning.models import build_problem

from .randommodules import run

MECHANISMS = {
    "stacked": {"name": "greedyfed", "clients_per_round": 2},
    "vmapped": {"name": "fedprox", "mu": 0.1},
    "sequential": {"name": "fedavg"},
}


@pytest.mark.parametrize("number", rotating(range(300), 15))
def test_the_reported_test_loss_is_that_of_the_model_or_the_run_is_refused(number: int) -> None:
    print(f"module {number}")
    for engine, mechanism in MECHANISMS.items():
        watch, refused = Watch(), ""
        try:
            check(run(number, engine, mechanism, observers=[watch]))
        except hanse.UserError as wrong:
            refused = str(wrong)
        may_be = [f"engine.train is '{engine}', but it cannot train this model", "but cannot train on them"]
        assert not refused or any(reason in refused for reason in may_be[engine == "sequential" :])
        assert len(watch.rounds) == (0 if refused else 2)


def check(found: hanse.Run) -> None:
    test = build(found.experiment.data).server_test
    model = found.model().eval()
    with torch.no_grad():
        loss = float(F.cross_entropy(model(test.x), test.y))
        right = float((model(test.x).argmax(1) == test.y).float().mean())
    assert found.metrics[-1]["test/loss"] == pytest.approx(loss, rel=1e-5, abs=1e-6)
    assert found.metrics[-1]["test/accuracy"] == pytest.approx(right, abs=1e-6)
    section = found.experiment.model
    _, first = build_problem(section.name, (1, 8, 8), 4, found.experiment.run.seed, **section.options)
    held = found.problem.frozen_columns
    row, width = found.problem.layout.flatten(model), found.problem.layout.num_parameters
    if held is not None:
        assert torch.equal(row[held], first[held])
    moving = torch.ones(width, dtype=torch.bool) if held is None else ~held[:width]
    assert bool((row[:width] != first[:width])[moving].any())
    assert np.isfinite(loss)
