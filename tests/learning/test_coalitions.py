import itertools

import pytest
import torch
from rotation import rotating
from torch import nn

from hanse.base.errors import UserError
from hanse.core.table import Layout
from hanse.learning.coalitions import UpdateGame
from hanse.learning.job import Problem
from hanse.learning.models import build_problem

from .helpers import made, put_out, worth_of

MODELS = [
    ("logistic", {}, (3, 4), 5),
    ("mlp", {"hidden": [9, 7]}, (3, 4), 5),
    ("mlp", {"hidden": [9], "batch_norm": True, "activation": "tanh"}, (3, 4), 5),
    ("mlp", {"hidden": [9]}, (3, 4), None),
    ("cnn_greedyfed", {}, (3, 16, 16), 10),
    ("cnn_small", {}, (1, 16, 16), 10),
]


def updates_of(problem: Problem, row: torch.Tensor) -> torch.Tensor:
    """Four clients' updates, whose buffers are variances where there are any."""
    torch.manual_seed(0)
    updates = row + 0.2 * row.std() * torch.randn(4, len(row))
    updates[:, problem.layout.num_parameters :].abs_()
    return updates


@pytest.mark.parametrize(("name", "options", "shape", "classes"), MODELS)
@pytest.mark.parametrize("utility", rotating(["loss", "accuracy", "balanced"], 3))
def test_every_coalition_is_worth_what_its_average_is(name, options, shape, classes, utility) -> None:  # type: ignore[no-untyped-def]
    problem, row = build_problem(name, shape, classes, 1, **options)
    samples = made(shape, classes, 270)
    if classes is None and utility != "loss":
        with pytest.raises(UserError):
            UpdateGame(problem, torch.stack([row]), row, [1.0], samples, utility=utility)
        return
    updates = updates_of(problem, row)
    weights = [0.5, 0.2, 0.3, 0.0]
    game = UpdateGame(problem, updates, row, weights, samples, utility=utility)
    players = [frozenset(c) for r in range(5) for c in itertools.combinations(range(4), r)]
    for repeat in (players[::-1], players[:4]):
        for coalition, value in zip(repeat, game.many(repeat), strict=True):
            members = sorted(coalition)
            share = torch.tensor([weights[m] for m in members], dtype=torch.float64)
            share = share / share.sum() if share.sum() > 0 else torch.full_like(share, 1 / max(1, len(members)))
            mixed = (share @ updates[members].double()).float() if members else row
            expected = worth_of(problem, mixed, samples, utility)
            if utility == "accuracy":
                assert value == pytest.approx(expected, abs=1.01 / len(samples))
            else:
                assert value == pytest.approx(expected, abs=1e-5, rel=1e-5)
    assert game(frozenset({1})) == pytest.approx(game.many([frozenset({1})])[0])
    assert game.evaluated == 16 + 4 + 2


def test_mistakes_are_named() -> None:
    problem, row = build_problem("logistic", (4,), 3, 1)
    samples = made((4,), 3)
    with pytest.raises(UserError, match="'balanced'"):
        UpdateGame(problem, torch.stack([row]), row, [1.0], samples, utility="balance")
    with pytest.raises(UserError, match="no validation samples"):
        UpdateGame(problem, torch.stack([row]), row, [1.0], made((4,), 3, 0))
    game = UpdateGame(problem, torch.stack([row, row]), row, [1.0, 1.0], samples)
    with pytest.raises(ValueError, match="a player outside"):
        game(frozenset({0, 2}))
    assert game.many([]) == []
    assert game.players == 2


def test_a_model_that_is_not_finite_is_worth_little() -> None:
    problem, row = build_problem("logistic", (4,), 3, 1)
    game = UpdateGame(problem, torch.stack([row, row * float("nan")]), row, [1.0, 1.0], made((4,), 3))
    good, bad = game.many([frozenset({0}), frozenset({1})])
    assert bad < -1e6 < good


STACKS = [
    ([nn.Conv2d(3, 8, 4), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(8, 8, 4), nn.MaxPool2d(2)], (32, 32), 200),
    ([nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)], (9, 12), 96),
    ([nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(4, 5, 2)], (18, 19), 45),
    ([nn.Conv2d(3, 4, (2, 3), dilation=2), nn.MaxPool2d(3, stride=2, dilation=2)], (12, 15), 48),
    ([nn.Conv2d(3, 4, 2), nn.MaxPool2d(2, ceil_mode=True)], (10, 10), 100),
    ([nn.Conv2d(3, 4, 3, bias=False), nn.MaxPool2d(2)], (10, 11), 64),
]


@pytest.mark.parametrize(("layers", "size", "features"), STACKS)
def test_models_side_by_side_see_what_each_sees_alone(
    layers: list[nn.Module], size: tuple[int, int], features: int
) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 6), nn.ReLU(), nn.Linear(6, 3))
    problem = Problem(module, Layout.of(module))
    stack = problem.side_by_side
    row = problem.layout.flatten(module)
    rows = row + 0.1 * torch.randn(5, len(row))
    x = torch.randn(70, 3, *size)
    found = stack.forward(problem.layout.unflatten(rows), x)
    for c in range(5):
        torch.testing.assert_close(found[c].T, put_out(problem, rows[c], x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "options", "shape", "classes"), MODELS)
def test_gram_matrices_of_updates_and_of_single_players_outputs(name, options, shape, classes) -> None:  # type: ignore[no-untyped-def]
    problem, row = build_problem(name, shape, classes, 1, **options)
    samples, updates = made(shape, classes, 270), updates_of(problem, row)
    game = UpdateGame(problem, updates, row, [0.5, 0.2, 0.3, 0.1], samples, keep_outputs=True, workers=2)
    moves = (updates - row).double()
    assert game.update_gram() == pytest.approx((moves @ moves.T).numpy(), rel=1e-9)
    game.many([frozenset({0, 1}), frozenset({2})])
    assert game.output_gram() is None  # not all single players yet
    game.many([frozenset(), frozenset({3}), frozenset({0, 3}), frozenset({1}), frozenset({0})])
    outputs = []
    for model in (*updates, row):
        out = put_out(problem, model, samples.x).double().reshape(len(samples), -1)
        outputs.append(out - out.mean(1, keepdim=True) if classes else out)
    far = (torch.stack(outputs[:-1]) - outputs[-1]).flatten(1)
    found = game.output_gram()
    assert found == pytest.approx((far @ far.T).numpy(), rel=1e-3, abs=1e-4 * float((far @ far.T).abs().max()))
    without = UpdateGame(problem, updates, row, [1.0] * 4, samples)
    without.many([frozenset(), *(frozenset({i}) for i in range(4))])
    assert without.output_gram() is None
