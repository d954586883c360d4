"""Whatever odd thing a user gives: one line that says what and whose, or a run whose numbers are the model's own."""

from __future__ import annotations

import math
import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

import hanse
from hanse.base.errors import MachineError, UserError
from hanse.data import Dataset, Samples
from hanse.data.build import build

from .oddities import CLASSES, FEATURES, Odd, OddSet, an_error

DRAWS = [*range(20), *(pytest.param(n, marks=pytest.mark.nightly) for n in range(20, 220))]


def blobs(n: int = 96) -> Dataset:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, FEATURES, generator=draw), torch.arange(n) % CLASSES
    cut = n - 24
    return Dataset("blobs", Samples(x[:cut], y[:cut]), Samples(x[cut:], y[cut:]), CLASSES, (FEATURES,))


class Hides(nn.Module):
    """A layer, or a tensor, where PyTorch does not see it."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.seen = nn.Linear(FEATURES, CLASSES)
        layer = nn.Linear(FEATURES, FEATURES)
        kept = {"list": [layer], "dictionary": {"a": layer}, "tensor": torch.ones(FEATURES, requires_grad=True)}
        kept |= {"frozen": [layer.requires_grad_(False)] if how == "frozen" else None, "known": [self.seen]}
        self.kept, self.how = kept[how], how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how in ("list", "frozen"):
            x = self.kept[0](x)
        elif self.how != "known":
            x = self.kept["a"](x) if self.how == "dictionary" else x * self.kept
        return self.seen(x)


@pytest.mark.parametrize("how", ["list", "dictionary", "tensor", "frozen", "known"])
def test_weights_that_nothing_would_train_are_refused_by_the_attribute_that_keeps_them(how: str) -> None:
    experiment = hanse.Experiment(mechanism="fedavg", data={"clients": 3}, run={"rounds": 1})
    _, lines = lines_of(lambda: hanse.run(experiment, data=blobs(), model=Hides(how)))
    assert ["'kept'" in line and "nn.Parameter" in line for line in lines] == [True] * (how not in ("frozen", "known"))


def lines_of(play: Any) -> tuple[Any, list[str]]:
    """Return what a call gives, or the lines of the one kind of error that it may raise."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return play(), []
    except (UserError, MachineError) as wrong:
        lines = list(wrong.lines)
        assert lines
        assert all(line and line.isprintable() and len(line) < 12_000 for line in lines), lines
        return None, lines


@pytest.mark.parametrize("number", DRAWS)
def test_an_odd_module_is_refused_in_a_line_or_scored_as_it_is(number: int) -> None:
    draw, module, data = random.Random(number), Odd(number), blobs()
    engine, value = draw.choice(["auto", "sequential", "vmapped"]), draw.choice(["path", "exact"])
    print(module.habits, engine)
    run, lines = lines_of(
        lambda: hanse.run(
            hanse.Experiment(
                data={"clients": 3, "partition": "iid"},
                mechanism={
                    "name": "fedavg",
                    "select": "everyone",
                    "value": value,
                },
                train={"batch_size": 7, "lr": 0.05},
                engine={"train": engine},
                run={"rounds": 2},
            ),
            data=data,
            model=module,
        )
    )
    if lines:
        assert any("model" in line or "round" in line for line in lines), lines
        return
    assert not run.nothing
    model, test = run.model().eval(), build(run.experiment.data, data).server_test
    assert test is not None
    with torch.no_grad():
        loss = float(F.cross_entropy(model(test.x).float(), test.y))
    assert math.isfinite(loss)
    assert run.metrics[-1]["test/loss"] == pytest.approx(loss, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("number", DRAWS)
def test_an_odd_item_is_named_with_its_client(number: int) -> None:
    given = OddSet(number)
    data = {"a": OddSet(-1 - 7 * number), "b": given} if number % 2 else {"b": given}
    if number % 2:
        data["a"].habit = "fine"  # type: ignore[union-attr]
    experiment = hanse.Experiment(mechanism="fedavg", run={"rounds": 1})
    run, lines = lines_of(lambda: hanse.run(experiment, data=data))
    if given.habit == "fine":
        assert run is not None or len(data) == 1, lines
        return
    assert run is None, given.habit
    assert "'b'" in lines[0], lines
    if given.habit == "item":
        assert f"item {given.item}" in lines[0], lines


@pytest.mark.parametrize("number", DRAWS)
def test_an_odd_function_is_refused_in_a_line(number: int) -> None:
    draw = random.Random(number)
    wrong, limit, calls = an_error(draw), draw.randint(0, 30), [0]
    answer = draw.choice([None, "text", float("nan"), float("inf"), [1.0, 2.0], 1j, "raise", "raise", "raise"])

    def odd(*given: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] > limit:
            if answer == "raise":
                raise wrong
            return answer
        return float(calls[0] % 5)

    kind = draw.choice(["shapley", "value", "loop", "factory"])
    fine = hanse.Experiment(data={"clients": 3}, mechanism="fedavg", run={"rounds": 1})
    plays = {
        "shapley": lambda: hanse.shapley(odd, list("abcd")),
        "value": lambda: hanse.value([np.ones(3), np.zeros(3), -np.ones(3)], odd),
        "loop": lambda: hanse.run(
            fine.model_copy(update={"train": type(fine.train)(loop=lambda model, data, round: odd())}), data=blobs()
        ),
        "factory": lambda: hanse.run(fine, data=blobs(), model=lambda shape, classes: odd()),
    }
    found, lines = lines_of(plays[kind])
    print(kind, answer, limit, lines)
    if kind == "factory":
        assert lines
    if kind in ("shapley", "value") and not lines:
        assert np.isfinite(found.values).all()
    if kind == "loop" and not lines:
        assert found.nothing or not any(seat.get("steps") == 0 and seat.get("weight") for seat in found.clients)


@pytest.mark.parametrize("number", DRAWS)
def test_an_odd_path_is_refused_in_a_line(number: int, tmp_path: Path) -> None:
    draw = random.Random(number)
    (tmp_path / "file").write_text("no run")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    pieces = ["a" * 300, "b" * 5000, "nul\0", "\ud800", "new\nline", "file", "loop", "folder", ".", " ", "ü", "x" * 255]
    path: Any = tmp_path.joinpath(*(draw.choice(pieces) for _ in range(draw.randint(1, 3))))
    path = draw.choice([path, str(path), "/dev/null/x", "/proc/x", "/dev/full", "/sys/x", "", Path()])
    experiment = hanse.Experiment(data={"clients": 3}, mechanism="fedavg", run={"rounds": 1})
    plays = [
        lambda: hanse.run(experiment, data=blobs(), out=path),
        lambda: hanse.load(path),
        lambda: hanse.resume(path, data=blobs()),
        lambda: hanse.run(path),
    ]
    which = draw.randrange(4)
    if which == 0 and not Path(path).is_absolute():
        path = tmp_path / "folder"
    print(which, repr(path)[:200])
    run, lines = lines_of(plays[which])
    assert lines or run.path is not None
