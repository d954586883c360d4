"""The notebooks of the documentation: run without Jupyter, and shown as pages of the site.

``python docs/hooks/notebooks.py`` runs all of them in a folder of their own and writes down what their cells print and
show. The tests run them, too. As a hook of MkDocs it makes a page of each.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "notebooks"
Cell = dict[str, Any]


def run(notebook: dict[str, Any]) -> None:
    """Run the code cells of a notebook one after another in the current folder, and keep what they print and show."""
    module = types.ModuleType("the_notebook")
    sys.modules[module.__name__] = module  # dataclasses look up the module that they are made in
    module.__dict__["__name__"] = module.__name__
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code, start=1):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            shown = _value("".join(cell["source"]), f"cell {number}", vars(module))
        cell["execution_count"], cell["outputs"] = number, []
        if printed.getvalue():
            text = printed.getvalue().splitlines(keepends=True)
            cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": text})
        if shown is not None:
            html = getattr(shown, "_repr_html_", None)
            data = {"text/plain": repr(shown).splitlines(keepends=True)}
            data |= {} if html is None else {"text/html": html().splitlines(keepends=True)}
            result = {"output_type": "execute_result", "execution_count": number, "data": data, "metadata": {}}
            cell["outputs"].append(result)


def _value(source: str, place: str, names: dict[str, Any]) -> Any:
    """Run a cell and return the value of its last line, if that is an expression."""
    tree = ast.parse(source, place)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, place, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), place, "eval"), names)


def to_markdown(notebook: dict[str, Any]) -> str:
    """Return a notebook as a page."""
    return "\n\n".join(part for cell in notebook["cells"] for part in _parts(cell)) + "\n"


def _parts(cell: Cell) -> list[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return [source]
    told = [f"```python\n{source}\n```"]
    for output in cell["outputs"]:
        data = output.get("data", {})
        text = "".join(output.get("text", data.get("text/plain", ())))
        if "text/html" in data:  # in one line, which markdown leaves as it is
            told.append('<div class="shown">' + "".join("".join(data["text/html"]).split("\n")) + "</div>")
        else:
            told.append(f"```text\n{text.rstrip()}\n```")
    return told


def on_files(files: Any, *, config: Any) -> Any:
    """Put a page in the place of each notebook."""
    from mkdocs.structure.files import File

    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.remove(file)
        page = to_markdown(json.loads(Path(file.abs_src_path).read_text()))
        files.append(File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=page))
    return files


def main() -> None:
    """Run every notebook, or those named, and write down what they show."""
    for path in map(Path, sys.argv[1:] or sorted(map(str, FOLDER.glob("*.ipynb")))):
        notebook, place = json.loads(path.read_text()), path.resolve()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            run(notebook)
        place.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")
        print(f"ran {path}")


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
