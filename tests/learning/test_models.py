import pytest
import torch

from hanse.base.errors import UserError
from hanse.learning.models import build_problem
from hanse.learning.modules import Residual

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
        ("cnn_gtflat", (3, 32, 32), 32 * 76 + 64 * 801 + 512 * 1601 + 10 * 513 + 4 * (32 + 64)),
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
    made = list(problem.module.modules())
    linear = [(layer.in_features, layer.out_features) for layer in made if isinstance(layer, torch.nn.Linear)]
    assert linear == [(features, 128), (128, 10)]
    filters = [layer.out_channels for layer in made if isinstance(layer, torch.nn.Conv2d)]
    assert filters == [32, 64, 64, 64][: options.get("convolutions", 4)]
    assert sum(isinstance(layer, torch.nn.Dropout) for layer in made) == 2 * options.get("dropout", True)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("mpl", {}, "'mlp'"), ("mlp", {"hiden": [5]}, "'hidden'"), ("mlp", {"hidden": [0]}, "model.hidden"),
        ("mlp", {"hidden": [5.5]}, "model.hidden"), ("mlp", {"activation": "rely"}, "'relu'"), ("cnn", {}, "images"),
        ("logistic", {"hidden": [5]}, "model.hidden"), ("no.such.module:thing", {}, "'no'"),
        (USER + "thing", {}, "has no 'thing'"), (USER + "nothing", {}, "returned a str"),
        (USER + "residual", {"widht": 3}, "widht"),
    ],
)  # fmt: skip
def test_mistakes(name: str, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_problem(name, (7,), 3, 0, **options)


def test_resnet20_is_that_of_the_paper() -> None:
    """269,722 parameters (He et al. 2016: 0.27M), and shortcuts that halve and pad without any."""
    problem, row = build_problem("resnet20", (3, 32, 32), 10, 3)
    assert problem.layout.num_parameters == 269_722
    assert torch.equal(row, build_problem("resnet20", (3, 32, 32), 10, 3)[1])
    assert problem.module(torch.zeros(2, 3, 64, 64)).shape == (2, 10)
    block = Residual(16, 32).eval()
    torch.nn.init.zeros_(block.norm2.weight)  # only the shortcut is left
    x = torch.rand(1, 16, 4, 4)
    found = block(x)
    assert found.shape == (1, 32, 2, 2)
    assert torch.equal(found[:, 8:24], x[:, :, ::2, ::2])
    assert not torch.cat([found[:, :8], found[:, 24:]]).any()
    first = next(problem.module.parameters())
    assert abs(float(first.std()) - (2 / 27) ** 0.5) < 0.02  # Kaiming-normal: 3 x 3 x 3 inputs
