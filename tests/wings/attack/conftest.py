"""A table of owners with so many rows each, as an experiment names it by its import path."""

import sys
from pathlib import Path

import pytest

MODULE = """
import json
from pathlib import Path
import numpy as np
import pandas as pd

def frame():
    sizes = json.loads(Path(__file__).with_name("sizes.json").read_text())
    draw, n = np.random.default_rng(len(sizes)), sum(sizes)
    x = draw.normal(size=(n, 2))
    owner = [f"owner {i:02}" for i, size in enumerate(sizes) for _ in range(size)]
    return pd.DataFrame(x, columns=["a", "b"]).assign(owner=owner, y=(x.sum(1) > 0).astype(int))
"""


@pytest.fixture
def owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that says how many rows each owner of the table has."""
    (tmp_path / "owners_of_a_table.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "owners_of_a_table", raising=False)
    return tmp_path / "sizes.json"
