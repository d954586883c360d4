"""Adapters' distances: the factors are not unique, the products are; Gram products without forming them."""

import numpy as np
import pytest
import torch
from experiments import digits
from torch import Tensor, nn

import hanse
from hanse.core.table import Layout
from hanse.games.market_models import distances, gram_distances
from hanse.learning.adapters import has_adapters, product_gram, travel_gram

SHAPES = {"q/lora_A": (2, 5), "q/lora_B": (4, 2), "v/lora_A": (2, 3), "v/lora_B": (6, 2)}


def layout() -> Layout:
    return Layout.of(nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()}))


def rows(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, layout().size, generator=torch.Generator().manual_seed(seed))


def products(row: Tensor) -> Tensor:
    """What an adapter changes, formed."""
    part = layout().unflatten(row)
    return torch.cat([(part[f"{w}/lora_B"] @ part[f"{w}/lora_A"]).reshape(-1) for w in "qv"]).double()


def refactored(row: Tensor, seed: int) -> Tensor:
    """The same change by other factors: (B R, R^-1 A)."""
    part, draw = layout().unflatten(row.double()), torch.Generator().manual_seed(seed)
    found = []
    for name in layout().names:
        R = torch.linalg.qr(torch.randn(2, 2, generator=draw, dtype=torch.float64))[0] * 3
        if name.endswith("lora_A"):
            inverse, keep = torch.linalg.inv(R), R
            found.append((inverse @ part[name]).reshape(-1))
        else:
            found.append((part[name] @ keep).reshape(-1))
    return torch.cat(found).float()


def test_gram_is_that_of_the_formed_products() -> None:
    models = rows(4)
    formed = torch.stack([products(row) for row in models])
    assert np.allclose(product_gram(layout(), models), (formed @ formed.T).numpy(), rtol=1e-5)
    start = rows(1, 7)[0]
    moved = formed - products(start)
    assert np.allclose(travel_gram(layout(), models, start), (moved @ moved.T).numpy(), rtol=1e-5)
    starts = rows(4, 8)
    each = formed - torch.stack([products(row) for row in starts])
    assert np.allclose(travel_gram(layout(), models, starts), (each @ each.T).numpy(), rtol=1e-5, atol=1e-5)
    assert np.array_equal(travel_gram(layout(), models, None), product_gram(layout(), models))


@pytest.mark.parametrize("kind", ["cosine", "squared_l2"])
def test_factors_are_not_unique_and_products_are(kind: str) -> None:
    model = rows(1)[0]
    same = torch.stack([model, refactored(model, 1), refactored(model, 2)])
    assert torch.allclose(products(same[0]), products(same[1]), atol=1e-4)
    assert distances(same, kind)[0, 1] > 0.1  # as far apart as other models are
    gram = product_gram(layout(), same)
    assert gram_distances(gram, kind).max() < 1e-4 * (1 if kind == "cosine" else gram[0, 0])


def test_only_adapters_have_products() -> None:
    other = Layout.of(nn.Linear(2, 3))
    assert has_adapters(layout())
    assert not has_adapters(other)
    with pytest.raises(ValueError, match="not factors of an adapter"):
        product_gram(other, torch.zeros(2, 9))
    with pytest.raises(ValueError, match="not finite"):
        product_gram(layout(), rows(2) * float("nan"))
    with pytest.raises(hanse.UserError, match=r"mechanism\.weigh\.adapters: 'products'"):
        hanse.run(digits({"name": "ipfl", "adapters": "products"}, 3, 1, engine={"train": "sequential", "workers": 1}))
