"""Gradients by blocks: in one pass as one by one, and in all that a row holds."""

from typing import Any

import pytest
import torch
from torch import nn

from hanse.core.table import Layout
from hanse.data import Samples
from hanse.learning.job import Problem
from hanse.learning.slopes import Slopes


class Plainly(nn.Sequential):
    """The same layers, but of a class that is run as it is."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x)


def layers() -> list[nn.Module]:
    """Activations one after another, and at the inputs: scorers let them work in place."""
    found = [nn.Flatten(), nn.BatchNorm1d(6), nn.Tanh(), nn.ReLU(), nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh()]
    found[4].bias.requires_grad_(False)
    return [*found, nn.Linear(5, 3)]


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_gradients_of_all_blocks_in_one_pass_are_those_of_each(loss: Any) -> None:
    torch.manual_seed(0)
    x = torch.randn(3000, 2, 3)
    before = x.clone()
    y = torch.randn(3000, 3) if loss == "mse" else torch.randint(3, (3000,))
    # of different lengths, and so long that they do not go through at once
    blocks = torch.randperm(3000).split([1, 7, 1500, 1492])
    several, one_by_one = (
        Slopes(Problem(module, Layout.of(module), loss), Samples(x, y), blocks)
        for module in (nn.Sequential(*layers()), Plainly(*layers()))
    )
    assert several.problem.stack is not None
    assert one_by_one.problem.stack is None
    row = several.problem.layout.flatten(several.problem.module)
    row += 0.3 * torch.rand(len(row))
    with torch.no_grad():
        found = several(row)
    torch.testing.assert_close(found, one_by_one(row), rtol=1e-5, atol=1e-6)
    assert torch.equal(found, several(row))
    assert torch.equal(x, before)


@pytest.mark.parametrize("kind", [nn.Sequential, Plainly])
@pytest.mark.parametrize("affine", [True, False])
def test_a_frozen_parameter_and_a_batch_norms_statistics_have_the_slope_of_the_loss(kind: Any, affine: bool) -> None:
    """By central differences of PyTorch's own evaluation."""
    torch.manual_seed(1)
    made = layers()
    made[5] = nn.BatchNorm1d(5, affine=affine)
    module = kind(*made).double()
    x, y = torch.randn(40, 2, 3).double(), torch.randint(3, (40,))
    problem = Problem(module, Layout.of(module), "cross_entropy")
    row = problem.layout.flatten(module).double()
    row += 0.5 * torch.rand(len(row)).double()
    judge = kind(*made).double().eval()

    def loss(at: torch.Tensor) -> float:
        problem.layout.load(judge, at)
        with torch.no_grad():
            return float(nn.functional.cross_entropy(judge(x), y))

    want = torch.tensor([(loss(row + 1e-5 * e) - loss(row - 1e-5 * e)) / 2e-5 for e in torch.eye(len(row)).double()])
    found = Slopes(problem, Samples(x, y), torch.arange(40).split(20))(row).mean(0)
    torch.testing.assert_close(found, want.double(), rtol=1e-5, atol=1e-7)
    named = problem.layout.unflatten(found)
    assert all(named[name].abs().min() > 1e-5 for name in ("4.bias", "5.running_mean", "5.running_var"))
