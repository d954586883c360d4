"""Losses by name: PyTorch's numbers, the same in every engine, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from hanse.base.errors import UserError
from hanse.core.recipe import Recipe
from hanse.data import Samples
from hanse.learning.coalitions import UpdateGame
from hanse.learning.job import Engine, SeatJob
from hanse.learning.losses import balanced, build_objective
from hanse.learning.models import build_problem
from hanse.learning.sequential import SequentialEngine
from hanse.learning.stacked import StackedEngine
from hanse.learning.vmapped import VmappedEngine

from .helpers import put_out

HERE = "tests.learning.test_losses:"
WEIGHTS = [0.5, 2.0, 1.0]
LOSSES: list[tuple[Any, int | None]] = [
    ({"name": "cross_entropy", "weights": WEIGHTS}, 3),
    ({"name": "focal", "gamma": 1.5, "weights": WEIGHTS}, 3),
    ("bce", 2),
    ({"name": "bce", "weights": [1.0, 3.0]}, 2),
    ("mae", None),
    ({"name": "huber", "delta": 0.3}, None),
    (HERE + "hinge", 3),
    ({"name": "torch.nn:CrossEntropyLoss", "reduction": "none", "label_smoothing": 0.1}, 3),
]


def hinge(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return one loss per sample."""
    return (1 - output.gather(1, y[:, None]).squeeze(1)).clamp(min=0)


def mean_hinge(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return one loss for the whole batch."""
    return F.multi_margin_loss(output, y)


def wrong_or_right(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return what has no gradient: whether the largest output is another class's."""
    return (output.argmax(1) != y).float()


def ranked(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return losses that depend on the others of the batch."""
    return (output[:, 0] - output[:, 0].mean()).square()


def by_torch(name: str, output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return what PyTorch and the papers have, each sample by itself."""
    weights = torch.tensor(WEIGHTS)
    match name:
        case "cross_entropy":
            return F.cross_entropy(output, y, weight=weights, reduction="none")
        case "focal":  # Lin et al. 2017, eq. 5
            p = output.softmax(1)[torch.arange(len(y)), y]
            return -weights[y] * (1 - p) ** 1.5 * p.log()
        case "bce":
            return F.binary_cross_entropy(output[:, 0].sigmoid(), y.float(), reduction="none")
        case "mae":
            return (output - y).abs().mean(1)
    return F.smooth_l1_loss(output, y, reduction="none", beta=0.3).mean(1) * 0.3


@pytest.mark.parametrize(
    ("given", "classes"), [LOSSES[0], LOSSES[1], LOSSES[2], LOSSES[4], LOSSES[5]], ids=lambda x: str(x)[:40]
)
def test_losses_are_pytorchs(given: Any, classes: int | None) -> None:
    draw = torch.Generator().manual_seed(1)
    output = torch.randn((20, {3: 3, 2: 1}.get(classes or 0, 2)), generator=draw)
    y = torch.randint(classes, (20,), generator=draw) if classes else torch.randn((20, 2), generator=draw)
    objective = build_objective(given, classes)
    name = given if isinstance(given, str) else given["name"]
    assert objective(output, y).numpy() == pytest.approx(by_torch(name, output, y).numpy(), rel=1e-5)
    both = torch.stack([output.t(), output.t() + 1])  # two models on the same samples, and each on its own
    each = torch.stack([objective(output, y), objective(output + 1, y)])
    assert torch.allclose(objective.of_models(both, y), each)
    assert torch.allclose(objective.of_models(both, torch.cat([y, y])), each)


@pytest.mark.parametrize(("given", "classes"), LOSSES, ids=lambda x: str(x)[:40])
def test_every_engine_trains_alike(given: Any, classes: int | None) -> None:
    objective = build_objective(given, classes)
    problem, row = build_problem("mlp", (4,), classes, 1, hidden=[5], objective=objective)
    draw = torch.Generator().manual_seed(2)
    x = torch.randn((30, 4), generator=draw)
    y = torch.randint(classes, (30,), generator=draw) if classes else torch.randn((30, 1), generator=draw)
    pool, recipe = Samples(x, y), Recipe(epochs=2, batch_size=4, lr=0.1, momentum=0.5, weight_decay=0.01)
    jobs = [
        SeatJob(torch.arange(0, 11), row, (0, 0, 0, 0), row * 0.5, 0.1),
        SeatJob(torch.arange(11, 30), row, (0, 0, 1, 0)),
    ]
    engines: list[Engine] = [SequentialEngine(problem), StackedEngine(problem), VmappedEngine(problem)]
    one, *others = [engine.train(pool, jobs, recipe, 0.1) for engine in engines]
    for other in others:
        assert torch.allclose(one.rows, other.rows, rtol=1e-4, atol=1e-5)
        assert one.loss == pytest.approx(other.loss, rel=1e-4)
    wanted = [float(objective(put_out(problem, trained, x), y).mean()) for trained in one.rows]  # type: ignore[misc]
    assert engines[1].score(one.rows, pool).loss == pytest.approx(wanted, rel=1e-5)
    assert engines[0].score(one.rows, pool).loss == pytest.approx(wanted, rel=1e-5)
    game = UpdateGame(problem, one.rows, row, [1.0, 1.0], pool)
    assert game.many([frozenset({0}), frozenset({1})]) == pytest.approx([-w for w in wanted], rel=1e-5)


def test_one_output_tells_two_classes_apart() -> None:
    problem, row = build_problem("logistic", (1,), 2, 0, objective=build_objective("bce", 2))
    assert row.shape == (2,)  # one weight, one bias
    pool = Samples(torch.tensor([[-2.0], [-1.0], [1.0], [3.0]]), torch.tensor([0, 1, 1, 1]))
    for engine in (SequentialEngine(problem), StackedEngine(problem)):
        assert engine.score(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), pool).accuracy.tolist() == [0.75, 0.25]


def test_balanced_weights_are_scikit_learns() -> None:
    from sklearn.utils.class_weight import compute_class_weight

    counts = np.array([[10, 0, 3], [5, 1, 6]])
    wanted = compute_class_weight("balanced", classes=np.arange(3), y=np.repeat([0, 1, 2], counts.sum(0)))
    assert balanced({"name": "focal", "weights": "balanced"}, 3, counts)["weights"] == pytest.approx(wanted.tolist())


@pytest.mark.parametrize(
    ("given", "classes", "line"),
    [
        ("cros_entropy", 3, "'cross_entropy'"), ("mae", 3, "train.loss: 'mae'"), ("bce", None, "are numbers"),
        ("bce", 3, "'cross_entropy'"), ({"name": "focal", "gama": 1}, 3, "train.loss.gama"),
        ({"name": "focal", "gamma": -1}, 3, "train.loss.gamma: -1"), (HERE + "mean_hinge", 3, "one number for 4"),
        ({"name": "focal", "weights": [1.0, 2.0]}, 3, "train.loss.weights"), (HERE + "wrong_or_right", 3, "gradient"),
        (HERE + "ranked", 3, "other samples"), ({"name": HERE + "hinge", "margin": 1}, 3, "options"),
        ({"name": HERE + "hinge", "outputs": 2}, 2, "train.loss.outputs"),
    ],
)  # fmt: skip
def test_what_does_not_go_is_one_line(given: Any, classes: int | None, line: str) -> None:
    with pytest.raises(UserError, match=line) as wrong:
        build_objective(given, classes)
    assert len(wrong.value.lines) == 1
