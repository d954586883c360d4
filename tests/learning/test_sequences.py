"""Texts: the LSTM, losses at every position, masked positions, perplexity, and which engines train them."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from hanse.base.errors import UserError
from hanse.core.port import Confusion, Gradient
from hanse.core.recipe import Recipe
from hanse.data.dataset import IGNORED
from hanse.data.samples import Samples
from hanse.federation.answers import Share, confusion, gradient
from hanse.learning.coalitions import UpdateGame
from hanse.learning.job import Problem, SeatJob
from hanse.learning.local import Trainer
from hanse.learning.models import build_problem
from hanse.learning.scoring import Scorer
from hanse.learning.sequences import perplexity, sequence_outcomes
from hanse.learning.sequential import SequentialEngine
from hanse.learning.vmapped import why_not_vmapped
from hanse.runs.server_judge import by_class

T, K = 6, 5


@pytest.fixture(scope="module")
def problem() -> tuple[Problem, torch.Tensor]:
    return build_problem("lstm", (T,), K, 3, embedding=4, hidden=7)


@pytest.fixture(scope="module")
def pool() -> Samples:
    texts = torch.randint(0, K, (12, T + 1), generator=torch.Generator().manual_seed(0))
    return Samples(texts[:, :-1].contiguous(), texts[:, 1:].contiguous())


@pytest.mark.parametrize("bad", [{"hidden": 0}, {"layers": 1.5}, {"embedding": True}])
def test_widths_are_whole_numbers_and_inputs_texts(bad: dict[str, object]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        build_problem("lstm", (80,), 65, 0, **bad)
    with pytest.raises(UserError, match="texts"):
        build_problem("lstm", (1, 8, 8), 10, 0)


def test_loss_is_the_mean_over_every_position() -> None:
    output = torch.zeros(1, 2, 4)
    output[0, 1] = torch.tensor([0.0, math.log(3), math.log(3), 0.0])
    loss, right = sequence_outcomes(output, torch.tensor([[0, 1, 0, IGNORED]]))
    assert float(loss) == pytest.approx((math.log(2) - math.log(3 / 4) - math.log(1 / 4)) / 3)
    assert float(right) == pytest.approx(2 / 3)  # a tie goes to the first class
    assert perplexity(float(loss)) == pytest.approx((2 * 4 / 3 * 4) ** (1 / 3))
    assert perplexity(1000.0) == math.inf
    assert [float(v) for v in sequence_outcomes(output, torch.full((1, 4), IGNORED))] == [0.0, 0.0]


def test_scores_are_by_sample(problem: tuple[Problem, torch.Tensor], pool: Samples) -> None:
    made, row = problem
    rows = torch.stack([row, row * 1.5])
    scorer = Scorer(made, torch.device("cpu"))
    found = scorer.score(rows, pool)
    each = scorer.score_each(rows, pool, [torch.tensor([0, 3]), torch.tensor([5])])
    for c in range(2):
        output = Trainer(made, torch.device("cpu")).load(rows[c])(pool.x)
        losses = F.cross_entropy(output, pool.y, reduction="none").mean(1)
        right = (output.argmax(1) == pool.y).float().mean(1)
        assert found.loss[c] == pytest.approx(float(losses.mean()), rel=1e-5)
        assert found.accuracy[c] == pytest.approx(float(right.mean()), rel=1e-5)
        assert each[0].loss[c] == pytest.approx(float(losses[[0, 3]].mean()), rel=1e-5)
        assert each[1].accuracy[c] == pytest.approx(float(right[5]), rel=1e-5)


def test_coalitions_of_text_models(problem: tuple[Problem, torch.Tensor], pool: Samples) -> None:
    made, row = problem
    updates = torch.stack([row, row * 2])
    game = UpdateGame(made, updates, row * 0, [1.0, 3.0], pool)
    mixed = Scorer(made, torch.device("cpu")).score((row * 1.75)[None], pool)
    assert game(frozenset({0, 1})) == pytest.approx(-mixed.loss[0], rel=1e-5)
    assert game(frozenset()) == pytest.approx(-math.log(K), rel=1e-5)
    with pytest.raises(UserError, match="many classes"):
        UpdateGame(made, updates, row, [1.0, 1.0], pool, utility="balanced")


def test_gradients_and_confusion_of_text_models(problem: tuple[Problem, torch.Tensor], pool: Samples) -> None:
    made, row = problem
    share = Share(pool, torch.arange(12))
    [found] = gradient(Gradient("g", row[None]), share, made).gradients
    step = Recipe(epochs=1, batch_size=12, lr=1.0)
    after, _, _ = Trainer(made, torch.device("cpu")).train(
        pool, SeatJob(torch.arange(12), row, (0, 0, 0, 0)), step, 1.0
    )
    assert torch.allclose(found, row - after, atol=1e-6)
    [counts] = confusion(Confusion("c", row[None]), share, made, K).counts
    assert int(counts.sum()) == 12 * T
    assert torch.equal(counts.sum(1), torch.bincount(pool.y.reshape(-1), minlength=K))
    assert [len(part) for part in by_class(made, pool)] == [2, 2] + [1] * 8


def test_masked_positions_change_nothing(problem: tuple[Problem, torch.Tensor], pool: Samples) -> None:
    made, row = problem
    y = pool.y.clone()
    y[:, 3:] = IGNORED
    engine = SequentialEngine(made)
    jobs = [SeatJob(torch.arange(12), row, (0, 0, 0, 0))]
    recipe = Recipe(steps=3, batch_size=4, lr=0.5)
    masked = engine.train(Samples(pool.x, y), jobs, recipe, 0.5)
    x = pool.x.clone()
    x[:, 3:] = 0  # the LSTM does not look ahead
    assert torch.equal(masked.rows, engine.train(Samples(x, y), jobs, recipe, 0.5).rows)
    assert "positions" in str(why_not_vmapped(made, row, Samples(pool.x, y)))
