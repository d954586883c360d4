"""A run whose model knows no more than a guess says so first, in the terminal, the statement and the report."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import hanse
from hanse.data.samples import Samples
from hanse.learning.coalitions import UpdateGame
from hanse.learning.metrics import WORSE
from hanse.learning.models import build_problem
from hanse.reports.statement import statement
from hanse.runs.chance import Guess, doubts, nothing_left
from hanse.runs.run_record import load_run, read_said

TEN = Guess(samples=250, most=0.1, entropy=math.log(10))


def samples(*labels: int) -> Samples:
    return Samples(torch.zeros(len(labels), 1), torch.tensor(labels))


def test_a_guess_is_the_most_common_class_and_the_entropy_of_the_shares() -> None:
    guess = Guess.of(samples(0, 0, 0, 1))
    assert guess == Guess(4, 0.75, pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)))
    assert guess.bar == pytest.approx(0.75 + 1.645 * math.sqrt(0.75 * 0.25 / 4))


def test_texts_count_their_positions_without_the_padding() -> None:
    texts = Samples(torch.zeros(2, 3), torch.tensor([[1, 1, -100], [2, -100, -100]]))
    assert Guess.of(texts) == Guess(3, pytest.approx(2 / 3), pytest.approx(math.log(3) - 2 / 3 * math.log(2)))


def test_there_is_no_guess_without_samples_or_classes() -> None:
    assert Guess.of(None) is None
    assert Guess.of(Samples(torch.zeros(2, 1), torch.zeros(2, 1))) is None


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
    assert TEN.beaten(accuracy, loss) is beaten


def test_a_sound_model_of_rare_events_is_not_at_chance() -> None:
    rare = Guess(samples=2000, most=0.95, entropy=0.199)
    assert rare.beaten(0.95, 0.17)
    assert not rare.beaten(0.95, 0.25)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        (None, "guess: None"),
        ([], "guess: list"),
        ({}, "guess.samples: dict: field required"),
        ({"samples": 0, "most": 0.1, "entropy": 1.0}, "guess.samples: 0: must be at least 1"),
        ({"samples": True, "most": 0.1, "entropy": 1.0}, "guess.samples: True"),
        ({"samples": 5, "most": 2.0, "entropy": 1.0}, "guess.most: 2.0: must be at most 1"),
        ({"samples": 5, "most": 0.5, "entropy": "x"}, "guess.entropy: 'x'"),
    ],
)
def test_a_strangers_guess_is_not_believed(said: Any, wrong: str, tmp_path: Path) -> None:
    file = tmp_path / "shape.json"
    file.write_text(json.dumps({"input_shape": [4], "num_classes": 2, "guess": said}))
    with pytest.raises(hanse.UserError, match=re.escape(f"Shape.{wrong}")):
        read_said(file)


@pytest.mark.parametrize(
    ("own", "several", "many"), [(0.43, True, 0), (0.43, False, 1), (0.12, True, 1), (None, True, 1)]
)
def test_several_models_that_are_good_at_home_are_not_at_chance(own: float | None, several: bool, many: int) -> None:
    """Clients with labels the wrong way round and models of their own: on common data these are a guess."""
    line = {"test/accuracy": 0.1, "test/loss": 2.9, "client/test_accuracy": own}
    assert len(doubts([line], TEN, several=several)) == many


def test_a_run_knows_how_many_models_it_has(tmp_path: Path) -> None:
    for name, many in (("fedavg", 1), ("local", 3)):
        sections: dict[str, Any] = {"data": {"clients": 3}, "mechanism": name, "run": {"rounds": 1}}
        played = hanse.run(hanse.Experiment(**sections), out=tmp_path / name)
        assert load_run(tmp_path / name).models == hanse.run(hanse.Experiment(**sections)).record.models == many
        assert played.record.models == many


def test_values_are_doubted_if_coalitions_are_worse_than_guessing_in_most_of_the_late_rounds() -> None:
    early = [{WORSE: 9.0}] * 4
    assert doubts([*early, *[{WORSE: 0.0}] * 4], TEN) == []
    assert doubts([*early, {WORSE: 2.0}, {WORSE: 2.0}, {WORSE: 0.0}, {WORSE: 0.0}], TEN) == []
    [line] = doubts([*early, {WORSE: 2.0}, {WORSE: 1.0}, {WORSE: 1.0}, {WORSE: 0.0}], TEN)
    assert line.startswith("Values by the loss mean little here: in 3 of the last 4 valued rounds")


def test_a_game_counts_the_models_that_are_worse_than_its_floor() -> None:
    problem, base = build_problem("logistic", (1,), 2, seed=0)
    zero = torch.zeros_like(base)
    wrong = zero.clone()
    wrong[-2:] = torch.tensor([5.0, 0.0])  # says class 0
    game = UpdateGame(problem, torch.stack([wrong, -wrong]), zero, [1.0, 1.0], samples(1, 1), floor=-math.log(2) - 1e-6)
    game.many([frozenset(), frozenset({0}), frozenset({1}), frozenset({0, 1})])
    assert game.below_floor == 1  # that of player 0; nobody's and both together's are guesses


def experiment(**more: Any) -> hanse.Experiment:
    sections: dict[str, Any] = {
        "data": {"partition": {"alpha": 0.3}, "clients": 20, "client_test": 0.2, "seed": 1},
        "mechanism": {"name": "greedyfed", "clients_per_round": 4},
        "train": {"epochs": 3, "batch_size": 16, "lr": 0.05, "momentum": 0.5},
        "run": {"rounds": 25, "seed": 1},
    }
    return hanse.Experiment(**{**sections, **more})


def test_a_client_that_sends_random_models_is_not_praised_in_silence(tmp_path: Path) -> None:
    hanse.run(experiment(behaviour={"attacker": {"clients": [1]}}), out=tmp_path / "run")
    assert len(load_run(tmp_path / "run").doubts) == 2
    found = statement(tmp_path / "run", 1)
    assert found.client.place == 1  # the attacker: which is why it must be said
    assert [note.code for note in found.notes if note.level == "doubt"] == ["chance_level", "loss_above_chance"]
    assert found.next.code == "mind_the_doubt"


def test_a_run_that_learns_is_not_doubted(tmp_path: Path) -> None:
    hanse.run(experiment(), out=tmp_path / "run")
    assert load_run(tmp_path / "run").doubts == []
    assert statement(tmp_path / "run", 1).doubts == []
    shape = json.loads((tmp_path / "run" / "shape.json").read_text())
    assert shape["guess"]["samples"] == 250
    (tmp_path / "run" / "shape.json").unlink()
    with pytest.raises(hanse.UserError, match=r"shape\.json"):
        _ = load_run(tmp_path / "run").doubts


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ([{"test/accuracy": 0.99}, {"test/accuracy": 1.0}], "The model got 99.0 % right at the first test"),
        ([{"client/test_accuracy": 0.985}, {"client/test_accuracy": 0.9}], "The model got 98.5 % right"),
        ([{"test/accuracy": 0.5}, {"test/accuracy": 1.0}], ""),
        ([{"test/accuracy": 1.0}], ""),
        ([{"round": 0}, {}], ""),
    ],
)
def test_that_nothing_was_left_to_gain_is_said(figures: list[dict[str, float]], said: str) -> None:
    assert nothing_left(figures).startswith(said)
    assert bool(nothing_left(figures)) == bool(said)
