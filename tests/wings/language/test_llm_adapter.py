"""The model "lora": what a row is, what is shared, that it computes W + alpha/r B A, and what is refused."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import hanse.wings.language.adapter as base_module
from hanse.base.errors import UserError
from hanse.core.port import Gradient
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.federation.answers import Share, gradient
from hanse.learning.job import Problem, SeatJob
from hanse.learning.local import Trainer
from hanse.learning.models import build_problem
from hanse.learning.sequential import SequentialEngine

OPTIONS = {"base": "tiny", "base_width": 16, "base_layers": 2, "rank": 3, "alpha": 6.0}
T, TOKENS = 9, 263


@pytest.fixture(scope="module")
def problem(llm: None) -> tuple[Problem, torch.Tensor]:
    return build_problem("lora", (T,), TOKENS, 0, **OPTIONS)


@pytest.fixture(scope="module")
def pool() -> Samples:
    texts = torch.randint(0, TOKENS, (8, T + 1), generator=torch.Generator().manual_seed(1))
    return Samples(texts[:, :-1].contiguous(), texts[:, 1:].contiguous())


def frozen(problem: Problem) -> list[torch.Tensor]:
    return [p for p in problem.module.body.parameters() if not p.requires_grad]


def test_a_row_is_the_adapter_alone(problem: tuple[Problem, torch.Tensor]) -> None:
    made, row = problem
    assert len(row) == 2 * 2 * (3 * 16 + 16 * 3)  # two layers, q and v, A and B
    assert made.layout.num_parameters == made.layout.size
    assert all(p.is_floating_point() and not p.requires_grad for p in frozen(made))
    assert sum(p.numel() for p in frozen(made)) > 8 * len(row)
    assert torch.equal(row, build_problem("lora", (T,), TOKENS, 0, **OPTIONS)[1])
    other, elsewhere = build_problem("lora", (T,), TOKENS, 1, **OPTIONS)
    assert not torch.equal(row, elsewhere)
    # the base is the same object's weights, whatever the seed
    assert all(a is b for a, b in zip(frozen(made), frozen(other), strict=True))


def test_copies_share_the_base_and_nothing_else(problem: tuple[Problem, torch.Tensor]) -> None:
    made, row = problem
    twin = copy.deepcopy(made.module)
    assert twin.body is not made.module.body
    assert all(a is b for a, b in zip(frozen(made), frozen(Problem(twin, made.layout)), strict=True))
    assert list(dict(made.module.named_parameters())) == list(dict(twin.named_parameters())) == list(made.layout.names)
    made.layout.load(twin, row + 1)
    assert torch.equal(made.layout.flatten(made.module), row)


def test_it_computes_the_base_plus_the_product(problem: tuple[Problem, torch.Tensor], pool: Samples) -> None:
    made, row = problem
    changed = row + 0.1 * torch.randn(len(row), generator=torch.Generator().manual_seed(2))
    module = Trainer(made, torch.device("cpu")).load(changed)
    with torch.no_grad():
        got = module(pool.x)
        plain = base_module.load_base("tiny", None, 0, 16, 2)
        merged = copy.deepcopy(plain)
        parts = made.layout.unflatten(changed)
        for layer, block in enumerate(merged.model.layers):
            for which in ("q_proj", "v_proj"):
                key = f"adapter.model/layers/{layer}/self_attn/{which}/lora_"
                weight = getattr(block.self_attn, which).weight
                weight += 6.0 / 3 * parts[f"{key}B"] @ parts[f"{key}A"]
        expected = merged(input_ids=pool.x).logits.transpose(1, 2)
        untouched = Trainer(made, torch.device("cpu")).load(row)(pool.x)
        assert torch.allclose(untouched, plain(input_ids=pool.x).logits.transpose(1, 2), atol=1e-5)  # B starts at 0
    assert got.shape == (8, TOKENS, T)
    assert torch.allclose(got, expected, atol=1e-4)
    assert not torch.allclose(got, untouched, atol=1e-2)


def test_training_moves_adapters_by_their_gradients_and_leaves_the_base(
    problem: tuple[Problem, torch.Tensor], pool: Samples
) -> None:
    made, row = problem
    before = [p.clone() for p in frozen(made)]
    start = row + 0.05
    [expected] = gradient(Gradient("g", start[None]), Share(pool, torch.arange(8)), made).gradients
    recipe = Recipe(epochs=1, batch_size=8, lr=0.5)
    jobs = [SeatJob(torch.arange(8), start, (0, 0, c, 0)) for c in range(3)]
    alone = SequentialEngine(made, threads=1).train(pool, jobs, recipe, 0.5)
    assert torch.allclose(alone.rows[0], start - 0.5 * expected, atol=1e-5)
    assert float(expected.abs().max()) > 1e-4
    # side by side on threads: each worker has modules of its own over the same base
    assert torch.equal(alone.rows, SequentialEngine(made, workers=2).train(pool, jobs, recipe, 0.5).rows)
    assert all(torch.equal(a, b) for a, b in zip(before, frozen(made), strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_classes": 300}, r"263 tokens.*300"),
        ({"input_shape": (1, 8, 8)}, r"model\.name"),
        ({"base": "some/model", "bits": 8}, r"model\.bits: 8"),
        ({"base": "some/model", "bits": 3}, r"model\.bits"),
        ({"rank": 0}, r"model\.rank"),
        ({"targets": ["nothing"]}, r"model\.targets.*'nothing'"),
        ({"rnak": 3}, "'rank'"),
    ],
)
def test_options_that_cannot_be(
    llm: None, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    shape, classes = options.pop("input_shape", (T,)), options.pop("num_classes", TOKENS)
    with pytest.raises(UserError, match=message):
        build_problem("lora", shape, classes, 0, **(OPTIONS | options))


def test_a_base_that_is_not_there(llm: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    missing = str(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"model nor.*'tiny'") as e:
        build_problem("lora", (T,), TOKENS, 0, base=missing)
    assert len(e.value.lines) == 1
    assert "\n" not in e.value.lines[0]
