"""A run whose model knows no more than a guess says so first, in the terminal, the statement and the report."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments import digits

import hanse
from hanse.data.samples import Samples
from hanse.reports.statement import statement
from hanse.reports.words import said
from hanse.runs.chance import Guess, doubts
from hanse.runs.run_record import load_run


def samples(*labels: int) -> Samples:
    return Samples(torch.zeros(len(labels), 1), torch.tensor(labels))


def test_a_guess_is_the_most_common_class_and_the_entropy_of_the_shares() -> None:
    guess = Guess.of(samples(0, 0, 0, 1))
    assert guess == Guess(4, 0.75, pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    assert guess.bar == pytest.approx(0.75 + 1.645 * math.sqrt(0.75 * 0.25 / 4))


@pytest.mark.parametrize(
    ("accuracy", "loss", "beaten"),
    [
        (0.100, 2.31, False),
        (0.131, 2.31, False),  # 0.1 + 1.645 sqrt(0.1 x 0.9 / 250) = 0.1312
        (0.132, 2.31, True),
        (0.100, 2.28, False),  # 1 % of ln 10 explained is 2.2796
        (0.100, 2.27, True),
        (0.100, None, False),
        (0.100, math.nan, False),
    ],
)
def test_a_model_is_better_by_accuracy_beyond_noise_or_by_what_its_loss_explains(
    accuracy: float, loss: float | None, beaten: bool
) -> None:
    assert Guess(samples=250, most=0.1, entropy=math.log(10)).beaten(accuracy, loss) is beaten


@pytest.mark.parametrize(
    ("main", "figure", "doubted"),
    [
        ("auc", 0.7, False), ("auc", 0.53, True), ("balanced_accuracy", 0.7, False),
        ("accuracy", 0.7, True), ("f1", 0.7, True),  # what a guess scores by it is not known
    ],
)  # fmt: skip
def test_a_run_of_rare_classes_is_judged_by_its_main_metric(main: str, figure: float, doubted: bool) -> None:
    rare = Guess(samples=1000, most=0.95, entropy=0.2)
    line = {"test/loss": 0.5, f"test/{main}": figure, f"test/{main}_error": 0.02, "test/accuracy": 0.8}
    found = doubts([line], rare, main=main, trained={"name": "bce", "weights": "balanced"})
    assert [code for code, _ in found] == ["chance_level"] * doubted
    assert all("balanced_accuracy" in said(code, **fields) for code, fields in found)


def test_a_client_that_sends_random_models_is_not_praised_in_silence(tmp_path: Path) -> None:
    sections: dict[str, Any] = {
        "data": {"partition": {"alpha": 0.3}, "client_test": 0.2, "seed": 1}, "run": {"seed": 1}, "model": "mlp",
        "train": {"epochs": 3, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
        "behaviour": {"attacker": {"clients": [1]}},
    }  # fmt: skip
    hanse.run(digits({"name": "greedyfed", "clients_per_round": 4}, 20, 25, **sections), out=tmp_path / "run")
    assert len(load_run(tmp_path / "run").coded_doubts) == 2
    found = statement(tmp_path / "run", 1)
    assert found.client.place == 1  # the attacker: which is why it must be said
    assert [note.code for note in found.notes if note.level == "doubt"] == ["chance_level", "loss_above_chance"]
    assert found.next.code == "mind_the_doubt"
