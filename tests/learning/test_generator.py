"""The generator, its training and the client's half: formulas against plain autograd, Adam against torch's."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from hanse.base.streams import stream
from hanse.core.port import Payload
from hanse.core.recipe import Recipe
from hanse.core.table import Layout
from hanse.learning import generator
from hanse.learning.job import SeatJob, batch_plan
from hanse.learning.models import build_problem
from hanse.learning.sequential import SequentialEngine

from .helpers import made
from .randommodules import WIDTH, Backwards

SHAPE = generator.Generator(classes=3, latent=5, noise=4, hidden=7)


class AsModule(nn.Module):
    """The same generator as PyTorch layers, filled from a row in the row's order."""

    def __init__(self, row: Tensor) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(7, 7), nn.BatchNorm1d(7), nn.Linear(7, 5)
        with torch.no_grad():
            for tensor, value in zip(self.tensors(), SHAPE.parts(row.clone()), strict=True):
                tensor.copy_(value)

    def forward(self, noise: Tensor, y: Tensor) -> Tensor:
        out: Tensor = self.last(torch.relu(self.norm(self.first(torch.cat([noise, F.one_hot(y, 3).float()], 1)))))
        return out

    def tensors(self) -> list[Tensor]:
        return [*self.parameters(), self.norm.running_mean, self.norm.running_var]  # type: ignore[list-item]

    def row(self) -> Tensor:
        return torch.cat([tensor.detach().reshape(-1) for tensor in self.tensors()])


def a_row(seed: int = 0, shape: generator.Generator = SHAPE) -> Tensor:
    row = shape.initial(stream(seed, "test"))
    statistics = torch.from_numpy(stream(seed, "statistics").uniform(0.5, 2, 2 * shape.hidden).astype(np.float32))
    return torch.cat([row[: shape.num_parameters], statistics])


def tensor(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(stream(seed, "tensor").standard_normal(shape).astype(np.float32))


def test_latents_are_those_of_the_layers() -> None:
    row, noise, y = a_row(), tensor(6, 4), torch.tensor([0, 1, 2, 0, 1, 1])
    module = AsModule(row).eval()
    torch.testing.assert_close(SHAPE.latents(row, noise, y), module(noise, y))
    statistics = row[SHAPE.num_parameters :].view(2, 7).clone()
    torch.testing.assert_close(SHAPE.latents(row, noise, y, statistics), module.train()(noise, y))
    torch.testing.assert_close(statistics[0], module.norm.running_mean)
    torch.testing.assert_close(statistics[1], module.norm.running_var)
    assert torch.equal(row, a_row())


def an_ensemble(heads: int = 4) -> generator.Ensemble:
    counts = torch.from_numpy(stream(1, "counts").integers(0, 50, (heads, 3)))
    return generator.Ensemble.of(
        tensor(heads, 3, 5, seed=3), tensor(heads, 3, seed=4), counts, np.array([0.2, 0.5, 0.3])
    )


def test_trust_follows_the_counts_plus_one() -> None:
    ensemble = generator.Ensemble.of(
        tensor(2, 3, 5), tensor(2, 3), torch.tensor([[9, 0, 4], [29, 0, 0]]), np.ones(3) / 3
    )
    torch.testing.assert_close(ensemble.trust, torch.tensor([[10 / 40, 1 / 2, 5 / 6], [30 / 40, 1 / 2, 1 / 6]]))


def test_the_ensembles_loss_by_loops() -> None:
    ensemble, z, y = an_ensemble(), tensor(6, 5), torch.tensor([0, 1, 2, 2, 0, 1])
    want = 0.0
    for b in range(6):
        for s in range(4):
            logits = ensemble.weight[s] @ z[b] + ensemble.bias[s]
            want += float(ensemble.trust[s, y[b]] * -torch.log_softmax(logits, 0)[y[b]]) / 6
    assert float(generator.ensemble_loss(ensemble, z, y)) == pytest.approx(want, rel=1e-5)


def school(row: Tensor, moments: Tensor, before: int, steps: int, seed: int = 0, lr: float = 0.01) -> tuple:
    draw = stream(seed, "school", round=before)
    options = {"batch": 16, "lr": lr, "weight_decay": 0.01, "eta": 1.0}
    return generator.train_generator(SHAPE, row, moments, before, an_ensemble(), draw, steps=steps, **options)  # type: ignore[arg-type]


def test_training_is_adams() -> None:
    row, ensemble = a_row(), an_ensemble()
    module = AsModule(row).train()
    adam = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=0.01)
    losses = []
    for before in (0, 5):  # in two goes: the moments go on
        draw = stream(0, "school", round=before)
        for _ in range(5):
            y = torch.from_numpy(draw.choice(3, 16, p=ensemble.labels))
            noise = torch.from_numpy(draw.random((16, 4), dtype=np.float32))
            z = module(noise, y)
            loss = generator.ensemble_loss(ensemble, z, y) + generator.diversity(noise, z)
            adam.zero_grad()
            loss.backward()
            adam.step()
            losses.append(float(loss.detach()))
    moments = torch.zeros(2, SHAPE.num_parameters)
    first = school(row, moments, 0, 5)
    second = school(first.row, first.moments, first.steps, 5)
    torch.testing.assert_close(second.row, module.row(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose([*first.losses, *second.losses], losses, rtol=1e-4)
    assert second.steps == 10
    assert torch.equal(row, a_row())
    assert not moments.any()


@pytest.mark.parametrize(
    ("name", "shape", "latent"),
    [("logistic", (8,), 8), ("mlp", (8,), 25), ("cnn_small", (1, 28, 28), 512), ("cnn_fedgen", (1, 28, 28), 32)],
)
def test_the_head_is_the_last_linear_layer(name: str, shape: tuple[int, ...], latent: int) -> None:
    problem, row = build_problem(name, shape, 4, 0)
    head = generator.LastLayer.of(problem.layout)
    assert (head.classes, head.latent) == (4, latent)
    assert generator.why_no_head(problem.module, problem.layout, tensor(2, *shape)) is None
    weight, bias = head.tensors(problem.layout, torch.stack([row, 2 * row]))
    assert weight.shape == (2, 4, latent)
    assert torch.equal(bias[1], 2 * bias[0])


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(WIDTH, 2), nn.LogSoftmax(1)), "not the model's output"),
        (nn.Sequential(nn.Linear(WIDTH, 2), nn.BatchNorm1d(2)), "does not end in a linear layer"),
        (nn.Sequential(nn.Conv1d(WIDTH, 2, 1)), "does not end in a linear layer"),
        (nn.Sequential(nn.Bilinear(WIDTH, WIDTH, 2)), "does not end in a linear layer"),
        (Backwards(nn.Tanh()), "not the model's output"),  # the last that is registered is not the last that is run
    ],
)
def test_models_without_a_head_are_told_apart(module: nn.Module, reason: str) -> None:
    assert reason in generator.why_no_head(module, Layout.of(module), tensor(2, WIDTH))


def a_payload() -> Payload:
    labels = torch.tensor([0.1, 0.6, 0.3], dtype=torch.float64)
    return Payload(a_row(), labels, **vars(SHAPE), batch=6, alpha=2.0, beta=3.0)


def test_the_two_terms_and_their_gradients_by_hand() -> None:
    weight, bias, logits = (t.requires_grad_() for t in (tensor(3, 5, seed=1), tensor(3, seed=2), tensor(4, 3, seed=5)))
    payload, key, y = a_payload(), (9, 2, 7, 0), torch.tensor([2, 0, 1, 1])
    got = generator.guided(payload, key, weight, bias)(logits, y)
    got_gradients = torch.autograd.grad(got, [weight, bias, logits])

    draw = stream(9, "guide", round=2, client=7, start=0)
    drawn = torch.from_numpy(draw.choice(3, 6, p=payload.labels.numpy()))
    noise = torch.from_numpy(draw.random((10, 4), dtype=np.float32))
    module = AsModule(payload.row).eval()
    with torch.no_grad():
        same, other = module(noise[:4], y), module(noise[4:], drawn)
    answers = torch.log_softmax(other @ weight.t() + bias, 1)
    taught = -answers[torch.arange(6), drawn].mean()
    target = torch.softmax((same @ weight.t() + bias).detach(), 1)
    own = torch.log_softmax(logits, 1)
    pulled = (target * (target.log() - own)).sum() / 4
    want = 2.0 * taught + 3.0 * pulled
    torch.testing.assert_close(got, want)
    for a, b in zip(got_gradients, torch.autograd.grad(want, [weight, bias, logits]), strict=True):
        torch.testing.assert_close(a, b)
    torch.testing.assert_close(got_gradients[2], 3.0 * (own.exp() - target).detach() / 4)  # closed form


RECIPE = Recipe(steps=4, batch_size=16, lr=0.05)


def test_training_with_it_is_sgd_on_the_sum_and_reports_the_loss_on_samples() -> None:
    problem, row = build_problem("mlp", (6,), 3, 0, hidden=[5])
    pool, cuts = made((6,), 3, 100), [(0, 40), (40, 97)]
    jobs = [SeatJob(torch.arange(a, b), row, (3, 1, s, 0), payload=a_payload()) for s, (a, b) in enumerate(cuts)]
    got = SequentialEngine(problem, threads=1).train(pool, jobs, RECIPE, 0.05)
    for seat, job in enumerate(jobs):
        module = build_problem("mlp", (6,), 3, 0, hidden=[5])[0].module
        problem.layout.load(module, job.start)
        terms = generator.guided(a_payload(), job.key, module[-1].weight, module[-1].bias)  # type: ignore[index]
        optimiser = torch.optim.SGD(module.parameters(), lr=0.05)
        met = []
        for batch in batch_plan(len(job.index), RECIPE, job.key):
            taken = job.index[torch.from_numpy(batch[batch >= 0])]
            logits = module(pool.x[taken])
            met.append(F.cross_entropy(logits, pool.y[taken], reduction="none").detach())
            optimiser.zero_grad()
            (F.cross_entropy(logits, pool.y[taken]) + terms(logits, pool.y[taken])).backward()
            optimiser.step()
        torch.testing.assert_close(got.rows[seat], problem.layout.flatten(module))
        last = met[3:] if seat == 0 else met  # 40 samples are used up after three batches
        assert got.loss[seat] == pytest.approx(float(torch.cat(last).mean()), rel=1e-5)
