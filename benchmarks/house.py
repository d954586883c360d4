"""Lines of code of each room beside the ceilings of ``house.toml``, and what public names say of themselves.

    python benchmarks/house.py             # each room beside its ceiling
    python benchmarks/house.py --lower     # the same, and lower the ceilings of rooms that are below theirs
    python benchmarks/house.py --missing   # public names without a docstring, or with arrays and no shapes or units

A *room* is a folder of ``src/hanse``, a wing, the modules beside these, ``papers``, ``tests`` or ``benchmarks``. A line
of *code* is neither blank nor a comment nor in a docstring.

Public is what is in ``__all__`` or has no underscore, with the public methods of public classes. A docstring *says
shapes or units* where the signature has arrays or amounts and it (or its class) names a shape such as ``[S, P]`` or
``[n]``, or units or tokens.
"""

from __future__ import annotations

import argparse
import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CEILINGS = ROOT / "house.toml"
ARRAYS = re.compile(r"\b(Tensor|NDArray|ndarray|ArrayLike|Floats|Ints|Graph)\b")
AMOUNTS = re.compile(r"\b(units|amounts?|balances?|price|prices|bill|grant|floor|paid|fee)\b")
SAYS = re.compile(r"\[[^\]`]*\]``|\[[A-Za-z0-9.*' ,+-]+\]|\b(units?|tokens?|scalars?|any shape|broadcast)\b")


Documented = ast.Module | ast.ClassDef | ast.FunctionDef


def lines_of_code(text: str) -> int:
    """Return how many lines of a module are neither blank nor a comment nor in a docstring."""
    docs = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Documented | ast.AsyncFunctionDef) and ast.get_docstring(node, clean=False) is not None:
            docs |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") and n not in docs for n, line in lines)


def lines_of_rooms(root: Path = ROOT) -> dict[str, int]:
    """Return the lines of code of each room by its path below ``root``, as in ``house.toml``; the tests of the papers
    are in ``tests``.
    """
    found = Counter[str]()
    tops = {"papers/src": "papers", "papers/tests": "tests", "tests": "tests", "benchmarks": "benchmarks"}
    for top in ("src/hanse", *tops):
        for path in (root / top).rglob("*.py"):
            inner = path.relative_to(root / top).parts
            depth = 2 if inner[0] == "wings" else 1
            room = "/".join((top, *inner[:depth])) if len(inner) > depth else f"{top}/*.py"
            found[tops.get(top, room)] += lines_of_code(path.read_text())
    return dict(found)


def above(lines: Mapping[str, int], house: Mapping[str, Any]) -> dict[str, int]:
    """Return by how many lines each room is above its ceiling: ``now``, or ``end`` where that is more."""
    over = {room: n - max(house["rooms"].get(room, {"now": 0, "end": 0}).values()) for room, n in lines.items()}
    return {room: n for room, n in over.items() if n > 0}


def print_rooms(house: Mapping[str, Any], *, lower: bool) -> None:
    """Print each room beside its ceiling; with ``lower`` write the lines of rooms below theirs into the file."""
    lines, text = lines_of_rooms(), CEILINGS.read_text()
    for room in dict.fromkeys([*house["rooms"], *lines]):
        n, ceiling = lines.get(room, 0), house["rooms"].get(room, {"now": 0, "end": 0})
        said = f"{n - ceiling['now']:+}" if n != ceiling["now"] else ""
        print(f"{room:28} {n:7,} lines; now {ceiling['now']:7,} {said:>7}; end {ceiling['end']:7,}")
        if n < ceiling["now"]:
            text = text.replace(f'"{room}" = {{ now = {ceiling["now"]},', f'"{room}" = {{ now = {n},')
    source = sum(n for room, n in lines.items() if room.startswith("src/"))
    over = sum(n for room, n in above(lines, house).items() if room.startswith("src/"))
    print(f"src/: {source:,} lines, {over:,} of the reserve of {house['reserve']['lines']:,} used")
    if lower:
        CEILINGS.write_text(text)


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


def publics(node: Documented, where: str, around: str = "") -> Iterator[Public]:
    """Yield what a module, class or function shows, itself first."""
    text = ""
    if isinstance(node, ast.ClassDef):
        text = " ".join(ast.unparse(item) for item in node.body if isinstance(item, ast.AnnAssign))
    elif isinstance(node, ast.FunctionDef):
        text = f"{ast.unparse(node.args)} {ast.unparse(node.returns) if node.returns else ''}"
    doc = ast.get_docstring(node) or ""
    yield Public(where, doc, around, bool(ARRAYS.search(text) or AMOUNTS.search(text)))
    if isinstance(node, ast.FunctionDef):
        return
    shown = {
        name
        for item in node.body
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name) and item.targets[0].id == "__all__"
        for name in ast.literal_eval(item.value)
    }
    for item in node.body:
        if isinstance(node, ast.ClassDef) and isinstance(item, ast.ClassDef):
            continue
        if isinstance(item, ast.ClassDef | ast.FunctionDef) and (not item.name.startswith("_") or item.name in shown):
            yield from publics(item, f"{where}:{item.name}", "" if isinstance(node, ast.Module) else doc)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", action="store_true", help="list the public names that say nothing")
    parser.add_argument("--lower", action="store_true", help="lower the ceilings in house.toml")
    given = parser.parse_args()
    if not given.missing:
        print_rooms(tomllib.loads(CEILINGS.read_text()), lower=given.lower)
        return
    for path in sorted((ROOT / "src" / "hanse").rglob("*.py")):
        for found in publics(ast.parse(path.read_text()), str(path.relative_to(ROOT / "src" / "hanse"))):
            if not found.doc or (found.measured and not found.says):
                print(found.name)


if __name__ == "__main__":
    main()
