from __future__ import annotations

import pytest
import torch
from torch import nn

from hanse.base.errors import UserError
from hanse.core.recipe import Recipe
from hanse.data.samples import Samples
from hanse.learning.job import SeatJob
from hanse.learning.models import build_problem
from hanse.learning.resnet import Block
from hanse.learning.sequential import SequentialEngine

USER = "tests.learning.usermodels:"


@pytest.mark.parametrize(
    ("name", "shape", "size"),
    [
        ("logistic", (1, 28, 28), 7850),
        ("mlp", (1, 28, 28), 784 * 50 + 50 + 50 * 25 + 25 + 260),
        ("cnn", (3, 32, 32), 896 + 64 * 289 + 64 * 577 + 1025 * 128 + 1290),
        ("cnn_pifl", (3, 32, 32), 896 + 64 * 289 + 2 * 64 * 577 + 3137 * 128 + 1290),
        ("cnn_greedyfed", (3, 32, 32), 392 + 1032 + 2010),
        ("cnn_small", (1, 28, 28), 416 + 12832 + 5130),
        ("lenet", (3, 32, 32), 62_006),
        ("lenet", (1, 28, 28), 156 + 2416 + 257 * 120 + 121 * 84 + 850),
        ("cnn_femnist", (1, 28, 28), 320 + 64 * 289 + 9217 * 128 + 1290),
    ],
)
def test_built_in_models(name: str, shape: tuple[int, ...], size: int) -> None:
    state = torch.get_rng_state()
    problem, row = build_problem(name, shape, 10, 3)
    assert torch.equal(state, torch.get_rng_state())
    assert row.shape == (size,)
    assert problem.module(torch.zeros(2, *shape)).shape == (2, 10)
    assert torch.equal(row, build_problem(name, shape, 10, 3)[1])
    assert not torch.equal(row, build_problem(name, shape, 10, 4)[1])
    assert not torch.equal(row, build_problem(name, shape, 10, 3, number=1)[1])


@pytest.mark.parametrize(
    ("shape", "options", "features"),
    [
        ((3, 32, 32), {}, 3136),
        ((1, 28, 28), {"padded": 1}, 2304),  # as the authors' code has it for letters
        ((3, 32, 32), {"convolutions": 3, "dropout": False}, 3136),  # the text's
        ((1, 28, 28), {"convolutions": 3, "dropout": False, "padded": 2}, 3136),
    ],
)
def test_pifl_s_network_has_the_printed_features(shape: tuple[int, ...], options: dict, features: int) -> None:
    problem, _ = build_problem("cnn_pifl", shape, 10, 0, **options)
    linear = [layer for layer in problem.module.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(features, 128), (128, 10)]
    convolutions = [layer for layer in problem.module.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [32, 64, 64, 64][: options.get("convolutions", 4)]
    assert sum(isinstance(layer, nn.Dropout) for layer in problem.module.modules()) == (
        2 if options.get("dropout", True) else 0
    )


def test_dropout_of_pifl_s_network_is_drawn_from_the_seat_s_key() -> None:
    problem, row = build_problem("cnn_pifl", (1, 12, 12), 10, 0, padded=2)
    pool = Samples(torch.rand(8, 1, 12, 12), torch.arange(8))
    engine = SequentialEngine(problem)

    def trained(key: tuple[int, int, int, int]) -> torch.Tensor:
        job = SeatJob(torch.arange(8), row, key)
        return engine.train(pool, [job], Recipe(batch_size=8, lr=1.0, optimizer="adadelta"), 1.0).rows[0]

    assert torch.equal(trained((0, 0, 3, 0)), trained((0, 0, 3, 0)))
    assert not torch.equal(trained((0, 0, 3, 0)), trained((0, 1, 3, 0)))


def test_the_authors_cnn_pads_its_images_to_392_features() -> None:
    problem, row = build_problem("cnn_greedyfed", (3, 32, 32), 10, 3, padding=1)
    assert row.shape == (392 + 1032 + 393 * 10,)
    assert problem.module(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    with pytest.raises(UserError, match=r"model\.padding: 4"):
        build_problem("cnn_greedyfed", (3, 32, 32), 10, 3, padding=4)


def test_regression_has_one_output() -> None:
    problem, _ = build_problem("mlp", (7,), None, 0, hidden=[])
    assert problem.loss == "mse"
    assert problem.module(torch.zeros(2, 7)).shape == (2, 1)


def test_batch_norm_adds_statistics() -> None:
    problem, row = build_problem("mlp", (7,), 3, 0, hidden=[5], batch_norm=True)
    assert problem.layout.size - problem.layout.num_parameters == 10
    assert len(row) == problem.layout.size


def test_user_modules() -> None:
    problem, row = build_problem(USER + "residual", (7,), 3, 0, width=4)
    assert isinstance(problem.module, nn.Module)
    assert len(row) == 28 + 4 + 16 + 4 + 12 + 3 + 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mpl", {}, "'mlp'"),
        ("mlp", {"hiden": [5]}, "'hidden'"),
        ("mlp", {"hidden": [0]}, "hidden layer"),
        ("mlp", {"hidden": [5.5]}, "hidden layer"),
        ("mlp", {"activation": "rely"}, "'relu'"),
        ("logistic", {"hidden": [5]}, "it has no options"),
        ("cnn", {}, "images"),
        ("no.such.module:thing", {}, "'no'"),
        ("tests.learning.usermodels:thing", {}, "has no 'thing'"),
        ("tests.learning.usermodels:prod", {}, "not a torch.nn.Module|could not be made|has no option"),
        (USER + "nothing", {}, "returned a str"),
        (USER + "residual", {"widht": 3}, "'width'"),
    ],
)
def test_mistakes(name: str, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_problem(name, (7,), 3, 0, **options)


def test_images_may_be_too_small() -> None:
    with pytest.raises(UserError, match="larger images"):
        build_problem("cnn", (3, 12, 12), 10, 0)


def test_resnet20_is_that_of_the_paper() -> None:
    """269,722 parameters (He et al. 2016: 0.27M), and shortcuts that halve and pad without any."""
    problem, row = build_problem("resnet20", (3, 32, 32), 10, 3)
    assert problem.layout.num_parameters == 269_722
    assert torch.equal(row, build_problem("resnet20", (3, 32, 32), 10, 3)[1])
    assert problem.module(torch.zeros(2, 3, 64, 64)).shape == (2, 10)
    block = Block(16, 32).eval()
    nn.init.zeros_(block.norm2.weight)  # only the shortcut is left
    x = torch.rand(1, 16, 4, 4)
    found = block(x)
    assert found.shape == (1, 32, 2, 2)
    assert torch.equal(found[:, 8:24], x[:, :, ::2, ::2])
    assert not torch.cat([found[:, :8], found[:, 24:]]).any()
    first = next(problem.module.parameters())
    assert abs(float(first.std()) - (2 / 27) ** 0.5) < 0.02  # Kaiming-normal: 3 x 3 x 3 inputs


def test_dropout_stands_where_the_authors_have_it() -> None:
    module = build_problem("cnn_femnist", (1, 28, 28), 62, 0)[0].module
    kinds = [type(layer).__name__ for layer in module.children()]
    assert kinds == [
        "Conv2d", "ReLU", "Conv2d", "MaxPool2d", "ReLU", "Dropout", "Flatten", "Linear", "ReLU", "Dropout", "Linear",
    ]  # fmt: skip
    assert [layer.p for layer in module.children() if isinstance(layer, nn.Dropout)] == [0.25, 0.5]
    assert next(layer for layer in module.children() if isinstance(layer, nn.Linear)).in_features == 9216


def test_an_lstm_of_the_last_position() -> None:
    module = build_problem("lstm", (5,), 7, 0, hidden=4, last=True, padding=True)[0].module
    every = build_problem("lstm", (5,), 7, 0, hidden=4, padding=True)[0].module
    tokens = torch.randint(0, 7, (3, 5), generator=torch.Generator().manual_seed(0))
    assert module(tokens).shape == (3, 7)
    # The same draw, the same weights; a product of another shape may add in another order.
    torch.testing.assert_close(module(tokens), every(tokens)[:, :, -1], rtol=0.0, atol=1e-6)
    zeros = module(torch.zeros(1, 5, dtype=torch.int64))
    zeros.sum().backward()
    assert float(module.embedding.weight[0].abs().sum()) == 0.0
    assert float(module.embedding.weight.grad[0].abs().sum()) == 0.0
    with pytest.raises(UserError, match=r"model.last: 1"):
        build_problem("lstm", (5,), 7, 0, last=1)


def test_gtflats_cnn_has_the_published_widths() -> None:
    problem, row = build_problem("cnn_gtflat", (3, 32, 32), 10, 0)
    shapes = [tuple(p.shape) for p in problem.module.parameters() if p.ndim > 1]
    assert shapes == [(32, 3, 5, 5), (64, 32, 5, 5), (512, 1600), (10, 512)]
    assert len(row) - problem.layout.num_parameters == 2 * (32 + 64)  # batch norm's means and variances
    with pytest.raises(UserError, match=r"'cnn_gtflat'.*16 x"):
        build_problem("cnn_gtflat", (1, 8, 8), 10, 0)
