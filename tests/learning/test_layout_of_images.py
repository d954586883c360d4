"""Which networks have their images channels-last: it changes rounding and speed, nothing else."""

import pytest
import torch

from hanse.learning.local import Trainer
from hanse.learning.models import build_problem


@pytest.mark.parametrize(
    ("name", "shape", "last"),
    [
        ("cnn", (3, 32, 32), True),
        ("cnn_small", (1, 28, 28), True),
        ("cnn_greedyfed", (3, 32, 32), True),
        ("cnn_fedgen", (1, 28, 28), False),
        ("mlp", (1, 28, 28), False),
    ],
)
def test_pooled_or_wide_networks_are_channels_last(name: str, shape: tuple[int, int, int], last: bool) -> None:
    problem, row = build_problem(name, shape, 10, 0)
    trainer = Trainer(problem, torch.device("cpu"))
    assert trainer.images == last
    x = torch.rand((4, *shape), generator=torch.Generator().manual_seed(0))
    problem.layout.load(problem.module, row)
    with torch.no_grad():
        plain = problem.module.eval()(x)
    trainer.load(row)
    assert torch.allclose(trainer.outputs(x), plain, atol=1e-5)
