"""A training loop of the user's own: what it is given, what is taken of it, and what its mistakes cost."""

import logging
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import user_loops
from rotation import rotating
from torch import Tensor, nn

import hanse
from hanse.base.streams import torch_seed
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.job import SeatJob
from hanse.learning.loop import Loop, LoopEngine, Penalty, TrainingData, TrainingRound
from hanse.learning.sequential import SequentialEngine
from hanse.runs.experiment import resume
from hanse.runs.rehearsal import small_experiment
from tests.learning.helpers import problem_of

CPU = torch.device("cpu")
SGD: dict[str, Any] = {"epochs": 3, "batch_size": 2000, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def experiment(loop: Any, mechanism: str = "fedavg", rounds: int = 2, **more: Any) -> hanse.Experiment:
    train = {"epochs": 1, "lr": 0.05, "loop": loop, **more.pop("train", {})}
    sections = {"data": {"clients": 5}, "model": {"name": "mlp", "hidden": [8]}, "run": {"rounds": rounds}, **more}
    return small_experiment(mechanism, train=train, **sections)


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def pool(n: int = 40) -> Samples:
    draw = torch.Generator().manual_seed(3)
    return Samples(torch.randn(n, 6, generator=draw), torch.randint(0, 3, (n,), generator=draw))


def engine_of(fit: Callable[..., Any], module: nn.Module | None = None, workers: int = 1) -> tuple[LoopEngine, Tensor]:
    problem, row = problem_of(module or net())
    return LoopEngine(SequentialEngine(problem, workers=workers), Loop.of(fit, "loop")), row


def jobs(row: Tensor, n: int = 6) -> list[SeatJob]:
    return [SeatJob(torch.arange(s, 40, 2 + s), row, (7, 3, s, 0), name=f"clinic {s}") for s in range(n)]


# ---- what it is given


def test_a_run_is_resumed_with_its_loop(tmp_path: Path) -> None:
    whole = hanse.run(experiment(user_loops.drawing, rounds=3))
    hanse.run(experiment(user_loops.drawing, rounds=2), out=tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2", "rounds = 3"))
    assert torch.equal(resume(tmp_path / "run").table.rows, whole.table.rows)


@pytest.mark.parametrize("mechanism", rotating(["fedavg", "fedprox", "scaffold", "ditto", "ipfl"], 2))
def test_sgd_with_the_penalty_is_what_hanse_itself_trains(mechanism: str) -> None:
    own = hanse.run(experiment("user_loops:pulled", mechanism, train=SGD))
    plain = hanse.run(experiment(None, mechanism, train=SGD))
    torch.testing.assert_close(own.table.rows, plain.table.rows, atol=2e-5, rtol=1e-4)
    assert [line["steps"] for line in own.clients] == [line["steps"] for line in plain.clients]
    assert [line["samples"] for line in own.clients] == [line["samples"] for line in plain.clients]


def test_the_penalty_is_half_mu_times_the_squared_distance_plus_the_tilt() -> None:
    problem, row = problem_of(net())
    centre, tilt = torch.full_like(row, 0.3), torch.linspace(-1, 1, len(row))
    job = SeatJob(torch.arange(4), row, (0, 0, 0, 0), centre, 0.5, tilt)
    model = net()
    found = Penalty.of(job, problem, CPU)(model)
    assert found.item() == pytest.approx(0.25 * float((row - 0.3).square().sum()) + float(row @ tilt), rel=1e-5)
    found.backward()
    slope = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(slope, 0.5 * (row - 0.3) + tilt)
    assert float(Penalty.of(replace(job, mu=0.0, tilt=None), problem, CPU)(model)) == 0.0
    with pytest.raises(ValueError, match="must be given the model"):
        Penalty.of(job, problem, CPU)(nn.Linear(2, 2))


def test_a_loop_is_told_of_its_seat() -> None:
    told: list[tuple[TrainingRound, int]] = []

    def fit(model: nn.Module, data: TrainingData, round: TrainingRound) -> None:
        told.append((round, len(data)))

    engine, row = engine_of(fit)
    engine.train(pool(), jobs(row, 2), Recipe(epochs=4, batch_size=8, momentum=0.9), 0.02)
    (first, n), (second, m) = told
    assert (first.number, first.client, first.name, first.device) == (3, 0, "clinic 0", CPU)
    assert (first.epochs, first.batch_size, first.steps, first.lr, first.momentum) == (4, 8, None, 0.02, 0.9)
    assert (n, m) == (20, 13)
    assert first.seed == torch_seed(7, "loop", round=3, client=0, start=0) != second.seed

    def of(recipe: Recipe, work: int | None = None) -> TrainingRound:
        return TrainingRound.of(replace(jobs(row)[0], work=work), recipe, 0.02, CPU)

    assert of(Recipe(epochs=4), work=2).epochs == 2  # a straggler's
    assert (of(Recipe(steps=9), work=5).steps, of(Recipe(steps=9)).steps) == (5, 9)
    assert of(Recipe(batch_size=None, batches_per_epoch=3)).batch_size == 7
    assert of(Recipe(batch_size=None, steps=3, batch_share=0.25)).batch_size == 5
    assert of(Recipe(batch_size=None)).batch_size == 20


# ---- bit by bit


def test_draws_are_each_seats_own_and_leave_the_generators_as_they_were() -> None:
    engine, row = engine_of(user_loops.drawing)
    random.seed(5), np.random.seed(5), torch.manual_seed(5)  # noqa: NPY002
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    three = engine.train(pool(), jobs(row), Recipe(), 0.1)
    assert (before[0], before[1]) == (random.getstate(), np.random.get_state()[1].tolist())  # noqa: NPY002
    assert torch.equal(before[2], torch.get_rng_state())
    alone = engine.train(pool(), jobs(row)[4:5], Recipe(), 0.1)
    assert torch.equal(three.rows[4], alone.rows[0])
    assert three.said[4] == alone.said[0]
    assert len({said.metrics["torch"] for said in three.said}) == len(three.said)


# ---- what is taken of it


def test_metrics_steps_and_samples_are_recorded() -> None:
    def fit(model: nn.Module, data: TrainingData, round: TrainingRound) -> Mapping[str, Any]:
        return {"loss": torch.tensor(2.5), "samples": 7, "steps": np.int64(11), "auc": np.float32(0.25), "late": True}

    run = hanse.run(experiment(fit, rounds=1))
    assert run.metrics[0]["train/loss"] == 2.5
    assert run.metrics[0]["samples"] == 35
    line = run.clients[0]
    assert (line["loss"], line["samples"], line["steps"], line["fit/auc"], line["fit/late"]) == (2.5, 7.0, 11, 0.25, 1)
    assert [row["weight"] for row in run.clients] == pytest.approx([0.2] * 5)


def shorter(model: nn.Module, data: TrainingData, round: TrainingRound) -> None:
    del model[2]  # type: ignore[attr-defined]


def diverged(model: nn.Module, data: TrainingData, round: TrainingRound) -> None:
    with torch.no_grad():
        model[2].bias[1] = math.nan  # type: ignore[index]


def returning(value: Any) -> Callable[..., Any]:
    return lambda model, data, round: value


@pytest.mark.parametrize(
    ("fit", "reason"),
    [
        (lambda model, data, round: model(torch.zeros(1, 5)), "raised RuntimeError: mat1 and mat2 shapes cannot be mu"),
        (shorter, "left a model without '2.weight': must keep the parameters that it was given"),
        (diverged, "left NaN or infinite numbers in the model"),
        (returning({"loss": math.nan}), "returned metrics.loss: nan"),
        (returning({"loss": 1e300}), "returned loss 1e+300: must be at most 3.40282e+38"),
        (returning({"samples": 21}), "returned samples 21: must be a whole number from 1 to 20"),
        (returning({"steps": 1.5}), "returned steps 1.5: must be a whole number from 0"),
        (returning({f"m{i}": i for i in range(33)}), "returned metrics"),
    ],
)
def test_what_a_loop_does_wrong_is_said_in_a_line(fit: Callable[..., Any], reason: str) -> None:
    engine, row = engine_of(fit)
    done = engine.train(pool(), jobs(row, 1), Recipe(), 0.1)
    assert (done.said[0].refused or "").startswith(f"its training loop {reason}")


def test_one_clients_mistake_costs_its_seat_and_the_round_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fit(model: nn.Module, data: TrainingData, round: TrainingRound) -> dict[str, float]:
        if round.client == 2:
            raise ZeroDivisionError("no batch of this client\nis large enough")
        return user_loops.fit(model, data, round)

    with caplog.at_level(logging.WARNING, "hanse.training"):
        run = hanse.run(experiment(fit))
    assert [m["answered"] for m in run.metrics] == [4, 4]
    reasons = [line.get("refused") for line in run.clients]
    said = "its training loop raised ZeroDivisionError: no batch of this client"
    assert reasons == [said if line["client"] == 2 else None for line in run.clients]
    [record] = caplog.records  # the traceback once
    assert record.getMessage() == "round 0: the training loop of client 2 raised"
    assert record.exc_info is not None


def test_what_a_loop_leaves_behind_reaches_no_other_seat() -> None:
    seen: list[int] = []

    def fit(model: nn.Module, data: TrainingData, round: TrainingRound) -> None:
        seen.append(len(model._forward_hooks) + sum(p.grad is not None for p in model.parameters()))
        model.register_forward_hook(lambda *given: None)
        F.cross_entropy(model(data.x), data.y).backward()
        torch.set_grad_enabled(False)

    engine, row = engine_of(fit)
    engine.train(pool(), jobs(row), Recipe(), 0.1)
    assert seen == [0] * 6
    assert torch.is_grad_enabled()


# ---- said before round 0


@pytest.mark.parametrize(
    ("loop", "more", "line"),
    [
        ("user_loops:nope", {}, "train.loop: 'user_loops:nope': "),
        ("fit", {}, "train.loop: 'fit': "),
        (3, {}, "train.loop: 3: "),
        (nn.Linear, {}, "train.loop: 'Linear': "),
        (lambda model, data: None, {}, "train.loop: '<lambda>': takes (model, data); "),
        ("user_loops:fit", {"mechanism": "fedprox"}, "train.loop: 'user_loops:fit': mechanism.train: 'proximal'"),
        ("user_loops:pulled", {"mechanism": "fedgen"}, "train.loop: 'user_loops:pulled': "),
        ("user_loops:fit", {"mechanism": "oort"}, "mechanism.select: 'oort'"),
        ("user_loops:fit", {"train": {"order": "by_class"}}, "train.order: 'by_class': "),
        ("user_loops:fit", {"data": {"clients": 5, "augment": "crop-flip"}}, "data.augment: 'crop-flip': "),
        ("user_loops:fit", {"engine": {"train": "stacked"}}, "engine.train is 'stacked'"),
    ],
)
def test_what_cannot_be_is_said_before_round_0(loop: Any, more: Any, line: str, tmp_path: Path) -> None:
    with pytest.raises(hanse.UserError) as wrong:
        hanse.run(experiment(loop, **more), out=tmp_path / "run")
    assert any(said.startswith(line) for said in str(wrong.value).splitlines()), str(wrong.value)
    assert not (tmp_path / "run").exists()
