"""PI-FL's tables as data, and one that is really run."""

from typing import Any

from torch import nn

from hanse.learning.models import build_module
from hanse_papers.catalogue import find_table
from hanse_papers.tables import Recipe, Scale


def _experiments(table: str, scale: Scale, recipe: Recipe = "paper") -> dict[tuple[str, str], dict[str, Any]]:
    cells = find_table("pifl", table, scale, recipe).cells
    return {(cell.group, cell.algorithm): dict(cell.variants[0].sections) for cell in cells}


def test_the_text_s_network_has_3136_features_at_full_scale() -> None:
    for name, shape in (("table2", (3, 32, 32)), ("table2-fmnist", (1, 28, 28))):
        for sections in _experiments(name, "paper").values():
            module = build_module(**sections["model"], input_shape=shape, num_classes=10, seed=0)
            assert [m.in_features for m in module.modules() if isinstance(m, nn.Linear)] == [3136, 128]
            assert sum(isinstance(m, nn.Conv2d) for m in module.modules()) == 3
            assert not any(isinstance(m, nn.Dropout) for m in module.modules())
