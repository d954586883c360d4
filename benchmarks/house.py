"""How the house stands: lines, long files, repeats, and what the public docstrings say.

    python benchmarks/house.py [--missing]

Public is what is in ``__all__`` or has no underscore, with the public methods of public classes. A docstring *says
shapes or units* where the signature has arrays or amounts and it (or its class) names a shape such as ``[S, P]`` or
``[n]``, or units or tokens. Repeats are windows of six lines that stand in a folder more than once. With ``--missing``
the docstrings that say nothing are listed.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "hanse"
WINDOW = 6
ARRAYS = re.compile(r"\b(Tensor|NDArray|ndarray|ArrayLike|Floats|Ints|Graph)\b")
AMOUNTS = re.compile(r"\b(units|amounts?|balances?|price|prices|bill|grant|floor|paid|fee)\b")
SAYS = re.compile(r"\[[^\]`]*\]``|\[[A-Za-z0-9.*' ,+-]+\]|\b(units?|tokens?|scalars?|any shape|broadcast)\b")


@dataclass(frozen=True)
class Public:
    """A public function, class or method: where, its docstring, and whether arrays or amounts are in its signature."""

    name: str
    doc: str
    around: str  # the class's docstring
    measured: bool

    @property
    def says(self) -> bool:
        return bool(SAYS.search(self.doc) or SAYS.search(self.around))


def _signature(node: ast.AST) -> str:
    if isinstance(node, ast.ClassDef):
        return " ".join(ast.unparse(item) for item in node.body if isinstance(item, ast.AnnAssign))
    if isinstance(node, ast.FunctionDef):
        return f"{ast.unparse(node.args)} {ast.unparse(node.returns) if node.returns else ''}"
    return ""


def publics(tree: ast.Module, where: str) -> Iterator[Public]:
    """Yield what a module shows."""
    shown = {
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__"
        for name in ast.literal_eval(node.value)
    }
    yield Public(where, ast.get_docstring(tree) or "", "", False)
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef) or (
            node.name.startswith("_") and node.name not in shown
        ):
            continue
        yield from _of(node, where, "")


def _of(node: ast.ClassDef | ast.FunctionDef, where: str, around: str) -> Iterator[Public]:
    text, doc, name = _signature(node), ast.get_docstring(node) or "", f"{where}:{node.name}"
    yield Public(name, doc, around, bool(ARRAYS.search(text) or AMOUNTS.search(text)))
    if isinstance(node, ast.ClassDef):
        for item in node.body:
            if isinstance(item, ast.FunctionDef) and not item.name.startswith("_"):
                yield from _of(item, name, doc)


def repeated(folder: Path) -> tuple[int, int]:
    """Return how many lines stand in a window of six that occurs twice, and how many lines there are, blank and comment
    lines and imports left out.
    """
    files = []
    for path in sorted(folder.rglob("*.py")):
        lines = [line.strip() for line in path.read_text().splitlines()]
        files.append([x for x in lines if x and not x.startswith(("#", "import ", "from ")) and x not in ")]}"])
    windows = Counter(
        tuple(lines[i : i + WINDOW]) for lines in files for i in range(len(lines) - WINDOW + 1)
    )  # fmt: skip
    marked = 0
    for lines in files:
        twice = {
            j
            for i in range(len(lines) - WINDOW + 1)
            if windows[tuple(lines[i : i + WINDOW])] > 1
            for j in range(i, i + WINDOW)
        }
        marked += len(twice)
    return marked, sum(map(len, files))


def figures() -> dict[str, float]:
    """Return the figures by name."""
    paths = sorted(SOURCE.rglob("*.py"))
    lengths = [len(p.read_text().splitlines()) for p in paths]
    found = [f for p in paths for f in publics(ast.parse(p.read_text()), str(p.relative_to(SOURCE)))]
    measured = [f for f in found if f.measured]
    twice, whole = repeated(SOURCE / "mechanisms")
    everywhere, lines = repeated(SOURCE)
    return {
        "lines of src": sum(lengths),
        "files": len(paths),
        "median file": statistics.median(lengths),
        "longest file": max(lengths),
        "files under 30 lines (but __init__)": sum(
            n < 30 and p.name != "__init__.py" for n, p in zip(lengths, paths, strict=True)
        ),
        "repeated in mechanisms, %": 100 * twice / whole,
        "repeated everywhere, %": 100 * everywhere / lines,
        "public docstrings, %": 100 * sum(bool(f.doc) for f in found) / len(found),
        "of those with arrays or amounts: with shapes or units, %": 100 * sum(f.says for f in measured) / len(measured),
    }


def main() -> None:
    for name, value in figures().items():
        print(f"{name:60} {value:.10g}" if value == int(value) else f"{name:60} {value:.1f}")
    if "--missing" in sys.argv:
        for path in sorted(SOURCE.rglob("*.py")):
            for found in publics(ast.parse(path.read_text()), str(path.relative_to(SOURCE))):
                if not found.doc or (found.measured and not found.says):
                    print(found.name)


if __name__ == "__main__":
    main()
