"""Before round 0 every engine is held against the module itself; what differs is trained and scored by the module."""

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hanse
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning import agreement, module_layers
from hanse.learning.agreement import disagreement, settle, the_module
from hanse.learning.engines import EngineChoice, make_engine
from hanse.learning.job import Engine, SeatJob, TrainedRows
from hanse.learning.models import build_problem

from .helpers import jobs_of, made, problem_of
from .usermodels import Residual

CPU = torch.device("cpu")
CHOICES = (("stacked", 1, 1), ("stacked", 1, 2), ("vmapped", 1, 1), ("sequential", 1, 2))
ENGINES = [EngineChoice(*choice) for choice in CHOICES]


def perceptron(act: nn.Module) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 9), act, nn.Linear(9, 9), act, nn.Linear(9, 5))


@pytest.mark.parametrize("name", ["mlp", "logistic", "cnn_small", "cnn_greedyfed", "cnn_fedgen"])
@pytest.mark.parametrize("choice", ENGINES, ids=lambda choice: choice.label)
def test_the_models_of_the_house_keep_the_engine_that_was_chosen(name: str, choice: EngineChoice) -> None:
    shape = (3, 20, 20) if name == "cnn_greedyfed" else (1, 16, 16)
    precision = "bf16" if choice.engine == "sequential" else "float32"
    problem, row = build_problem(name, shape, 10, 1)
    try:
        make_engine(choice, problem)
    except ValueError:
        return
    found, same, engine, said = settle(choice, problem, row, made(shape, 10, 64), CPU, precision)
    engine.close()
    assert (found, same.plain, said) == (choice, False, [])


@pytest.fixture(autouse=True)
def agreed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of comparisons without a difference, which is empty for each test."""
    monkeypatch.setattr(agreement, "cache_dir", lambda: tmp_path / "cache")
    return tmp_path / "cache" / "agreed.txt"


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engines that are compared, in their order."""
    met: list[str] = []

    def watched(engine: Engine, *given: Any) -> str | None:
        met.append(engine.name)
        return disagreement(engine, *given)

    monkeypatch.setattr(agreement, "disagreement", watched)
    return met


def settled(module: nn.Module, shape: tuple[int, ...] = (3, 4), engine: str = "stacked", label: int = 5) -> list[str]:
    """Settle on an engine for a module; return the warnings."""
    problem, row = problem_of(module)
    _, _, found, said = settle(EngineChoice(engine, 1, 1), problem, row, made(shape, label), CPU, "float32")
    found.close()
    return said


def test_the_same_layers_on_the_same_shapes_are_compared_once(compared: list[str], agreed: Path) -> None:
    for _ in range(2):
        assert settled(perceptron(nn.ReLU())) == []
    assert compared == ["stacked"]
    assert len(agreed.read_text().split()) == 1
    settled(perceptron(nn.Tanh()))
    settled(perceptron(nn.ReLU()), (12,))
    settled(perceptron(nn.ReLU()), engine="sequential")
    assert compared == ["stacked", "stacked", "stacked", "sequential"]
    settled(perceptron(nn.ReLU()))
    assert len(compared) == 4
    assert len(set(agreed.read_text().split())) == 4
    agreed.unlink()
    agreed.parent.rmdir()
    agreed.parent.touch()  # where nothing can be kept, all are compared
    assert [settled(perceptron(nn.ReLU())) for _ in range(2)] == [[], []]
    assert len(compared) == 6


def test_another_torch_or_another_engine_is_compared_anew(
    compared: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    settled(perceptron(nn.ReLU()))
    monkeypatch.setattr(agreement.torch, "__version__", "9.9")
    settled(perceptron(nn.ReLU()))
    assert len(compared) == 2
    (tmp_path / "engine.py").write_text("# another version of an engine")
    monkeypatch.setattr(agreement, "__file__", str(tmp_path / "agreement.py"))
    settled(perceptron(nn.ReLU()))
    settled(perceptron(nn.ReLU()))
    assert len(compared) == 3


def test_a_module_of_ones_own_is_compared_before_every_run(compared: list[str], agreed: Path) -> None:
    for _ in range(2):
        settled(Residual(12, 5), engine="sequential")
    assert compared == ["sequential"] * 2
    assert not agreed.exists()


def named_children(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return list(module.named_children())


@pytest.mark.parametrize("engine", ["stacked", "sequential"])
def test_layers_that_are_read_wrongly_are_found_and_the_module_itself_is_run(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, row = problem_of(perceptron(nn.ReLU()))
    assert [spec.kind for spec in problem.stack] == ["linear", "relu", "linear", "relu", "linear"]
    monkeypatch.setattr(module_layers, "layers_in_order", named_children)  # drops the second of two uses of one layer
    problem = replace(problem)  # its layers are read once
    pool = made((3, 4), 5)
    found, problem, made_engine, said = settle(EngineChoice(engine, 1, 1), problem, row, pool, CPU, "float32")
    assert (found.engine, problem.plain) == ("sequential", True)
    assert len(said) == 1
    assert said[0].startswith("warning: engine.train: ")
    with torch.no_grad():
        expected = nn.functional.cross_entropy(problem.module.eval()(pool.x), pool.y)
    assert made_engine.score(row[None], pool).loss[0] == pytest.approx(float(expected), rel=1e-6)


class Lying:
    """An engine that trains otherwise than it is asked to."""

    def __init__(self, engine: Engine, change: Callable[[SeatJob, Recipe], tuple[SeatJob, Recipe]]) -> None:
        self.engine, self.change, self.name = engine, change, engine.name
        self.score, self.score_each, self.close = engine.score, engine.score_each, engine.close

    def train(self, pool: Samples, jobs: Sequence[SeatJob], recipe: Recipe, lr: float) -> TrainedRows:
        changed = [self.change(job, recipe) for job in jobs]
        return self.engine.train(pool, [job for job, _ in changed], changed[0][1], lr)


@pytest.mark.parametrize(
    "change",
    [
        lambda job, recipe: (job, replace(recipe, momentum=0.0)),
        lambda job, recipe: (job, replace(recipe, weight_decay=0.0)),
        lambda job, recipe: (replace(job, mu=0.0), recipe),
        lambda job, recipe: (replace(job, centre=job.start), recipe),
        lambda job, recipe: (replace(job, tilt=None), recipe),
        lambda job, recipe: (job, replace(recipe, steps=1)),
        lambda job, recipe: (replace(job, index=job.index[:-1]), recipe),
    ],
    ids=["momentum", "decay", "mu", "centre", "tilt", "steps", "samples"],
)
def test_every_term_of_training_is_compared(change: Callable[[SeatJob, Recipe], tuple[SeatJob, Recipe]]) -> None:
    problem, row = build_problem("mlp", (3, 4), 5, 1, batch_norm=True)
    lying = Lying(make_engine(EngineChoice("stacked", 1, 1), problem), change)
    reason = disagreement(lying, problem, row, made((3, 4), 5), CPU)
    assert reason == "trains to other parameters than the module itself"


def test_statistics_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, row = build_problem("mlp", (3, 4), 5, 1, batch_norm=True)
    misread = replace(problem)
    vars(misread)["stack"] = [replace(spec, decay=0.2) for spec in problem.stack or []]
    reason = disagreement(make_engine(EngineChoice("stacked", 1, 1), misread), problem, row, made((3, 4), 5), CPU)
    assert reason == "trains to other statistics than the module itself"


class Wild(nn.Linear):
    """Draws from every generator there is, as it trains."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        if self.training:
            out = out + torch.rand(()) + random.random() * out + float(np.random.rand())  # noqa: NPY002
        return out


def test_the_comparison_leaves_generators_and_the_module_as_they_were() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 9), nn.BatchNorm1d(9), nn.ReLU(), Wild(9, 5), nn.Linear(5, 5))
    problem, row = problem_of(module)
    before = copy.deepcopy(module.state_dict())
    states = torch.get_rng_state(), random.getstate(), str(np.random.get_state())  # noqa: NPY002
    _, _, _, [said] = settle(EngineChoice("sequential", 1, 1), problem, row, made((3, 4), 5), CPU, "float32")
    assert said.startswith("warning: model.name: ")
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), str(np.random.get_state()))  # noqa: NPY002
    assert module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize("choice", ENGINES, ids=lambda choice: choice.label)
def test_frozen_parameters_stay_and_the_others_train_as_plain_pytorch_trains_them(choice: EngineChoice) -> None:
    module = perceptron(nn.Tanh())
    module[1].weight.requires_grad = module[3].bias.requires_grad = False
    problem, row = problem_of(module)
    assert problem.frozen_columns is not None
    pool, recipe = made((3, 4), 5), Recipe(epochs=2, batch_size=10, momentum=0.9, weight_decay=0.1)
    jobs = jobs_of(row, [20, 30], mu=0.5, tilt=0.1, same_start=False)
    for got, job in zip(make_engine(choice, problem).train(pool, jobs, recipe, 0.1).rows, jobs, strict=True):
        assert torch.equal(got[problem.frozen_columns], job.start[problem.frozen_columns])
        torch.testing.assert_close(got, the_module(problem, CPU).train(pool, job, recipe, 0.1)[0], rtol=0, atol=1e-5)
        assert bool((got != job.start)[~problem.frozen_columns].all())


def test_tied_weights_are_one_column_and_stay_tied_in_the_model_of_a_run() -> None:
    torch.manual_seed(1)
    outer = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 5))
    outer[2].weight = outer[0].weight
    problem, row = problem_of(outer)
    assert len(row) == 144 + 12 + 12 + 65
    pool, [job] = made((12,), 5), jobs_of(row, [30])
    rows = [
        make_engine(EngineChoice(name, 1, 1), problem).train(pool, [job], Recipe(momentum=0.5), 0.1).rows[0]
        for name in ("vmapped", "sequential")
    ]
    torch.testing.assert_close(rows[0], rows[1], rtol=0, atol=1e-6)
    model = hanse.Run(hanse.Experiment(mechanism={"name": "fedavg"}), problem).model_of(rows[0])
    assert model[2].weight is model[0].weight  # type: ignore[index]
    assert all(p.requires_grad and p.grad_fn is None for p in outer.parameters())
