"""How the house stands: rooms and what they import, lines of code and of prose, repeats, public docstrings.

    python benchmarks/house.py [--base COMMIT] [--missing]
    python benchmarks/house.py --rooms | --lower      # lines of code beside the ceilings of house.toml; lower these

A *room* is a folder of ``src/hanse`` with its subfolders, or a module beside them. An *arrow* says that some module of
one room imports one of another, be it for typing alone. A *floor* is how many rooms stand one on the other;
an arrow is *upward* if it runs against the order of rooms that has the fewest such arrows (found greedily); a *circle*
is a set of modules that import each other. A line of *code* has something else than a comment or a docstring on it,
*prose* are the lines of docstrings and comments. With ``--base`` another commit's figures stand beside these.

Public is what is in ``__all__`` or has no underscore, with the public methods of public classes. A docstring *says
shapes or units* where the signature has arrays or amounts and it (or its class) names a shape such as ``[S, P]`` or
``[n]``, or units or tokens. Repeats are windows of six lines that stand in a folder more than once. With ``--missing``
the docstrings that say nothing are listed.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import statistics
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "hanse"
CEILINGS = ROOT / "house.toml"
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


def modules(source: Path) -> dict[str, Path]:
    """Return the package's modules by name, a package by that of its folder; the package itself is left out."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imports(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return which modules each one imports, wherever in its text, for typing alone too."""
    return {name: set(_imported(ast.parse(path.read_text()), known)) - {name} for name, path in known.items()}


def _imported(node: ast.AST, known: Mapping[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hanse"):
        base = (node.module or "")[len("hanse.") :]
        for alias in node.names:
            full = f"{base}.{alias.name}".strip(".")
            yield from (name for name in ([full] if full in known else [base]) if name in known)
    for child in ast.iter_child_nodes(node):
        yield from _imported(child, known)


def rooms(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Return which rooms each one imports."""
    found: dict[str, set[str]] = {name.split(".")[0]: set() for name in known}
    for name, others in imports(known).items():
        room = name.split(".")[0]
        found[room] |= {other.split(".")[0] for other in others} - {room}
    return found


def ordered(graph: Mapping[str, set[str]]) -> list[str]:
    """Return the rooms, the lowest first, in an order with few upward arrows (Eades, Lin, Smyth 1993)."""
    left = {room: set(others) for room, others in graph.items()}
    low: list[str] = []
    high: list[str] = []
    while left:
        users = {room: sum(room in others for others in left.values()) for room in left}
        sinks = sorted(room for room, others in left.items() if not others)
        sources = sorted(room for room in left if users[room] == 0)
        if sinks:
            room = sinks[0]
            low.append(room)
        elif sources:
            room = sources[0]
            high.append(room)
        else:
            room = max(sorted(left), key=lambda r: users[r] - len(left[r]))
            low.append(room)
        del left[room]
        for others in left.values():
            others.discard(room)
    return low + high[::-1]


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Return the sets of modules that import each other."""
    reach = {name: _reachable(graph, name) for name in graph}
    found: list[set[str]] = []
    for name in graph:
        circle = {other for other in reach[name] if name in reach[other]}
        if circle and not any(name in one for one in found):
            found.append(circle | {name})
    return found


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    seen, waiting = set[str](), list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph[name]
    return seen


def map_figures(source: Path) -> dict[str, float]:
    """Return the figures of rooms and imports."""
    known = modules(source)
    graph = rooms(known)
    order = ordered(graph)
    place = {room: i for i, room in enumerate(order)}
    upward = [(a, b) for a, others in graph.items() for b in others if place[b] > place[a]]
    floor: dict[str, int] = {}
    for room in order:
        floor[room] = 1 + max((floor[other] for other in graph[room] if other in floor), default=0)
    return {
        "rooms": len(graph),
        "floors": max(floor.values()),
        "arrows between rooms": sum(map(len, graph.values())),
        "upward arrows": len(upward),
        "circles of modules": len(circles(imports(known))),
    }


def _docstrings(tree: ast.Module) -> tuple[set[int], int]:
    """Return the lines of all docstrings, and how many there are."""
    lines, number, waiting = set[int](), 0, list[ast.AST]([tree])
    while waiting:
        node = waiting.pop()
        body = getattr(node, "body", None)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and body:
            first = body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
                number += 1
        if isinstance(node, ast.Module | ast.stmt | ast.ExceptHandler | ast.match_case):
            waiting += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
    return lines, number


def _tokens(text: str) -> tuple[set[int], set[int]]:
    """Return the lines that have code or a docstring on them, and those that have a comment."""
    code, comments = set[int](), set[int]()
    skipped = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in skipped:
            code |= set(range(token.start[0], token.end[0] + 1))
    return code, comments


def lines_of_code(text: str) -> int:
    """Return how many lines of a module have something else on them than a comment or a docstring.

    What is inside a longer string counts, blank lines too. Only modules that have one are read token by token.
    """
    docs, number = _docstrings(ast.parse(text))
    if text.count('"""') == 2 * number and "'''" not in text:
        lines = enumerate(text.splitlines(), 1)
        return sum(1 for n, line in lines if n not in docs and line.strip() and not line.lstrip().startswith("#"))
    return len(_tokens(text)[0] - docs)


def code_and_prose(text: str) -> tuple[int, int]:
    """Return how many lines of a module have code on them, and how many are docstrings or comments."""
    return lines_of_code(text), len(_docstrings(ast.parse(text))[0] | _tokens(text)[1])


def lines_of_rooms(root: Path = ROOT) -> dict[str, int]:
    """Return the lines of code of each room: folders of the package (its wings each), what lies beside them, and
    ``papers``, ``tests`` (those of the papers too) and ``benchmarks``. A key is a path below ``root``, as in
    ``house.toml``.
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


def longest_function(tree: ast.Module) -> int:
    """Return how many lines the longest function of a module has, from its signature on, its docstring left out."""
    found = [0]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = node.body[0] if ast.get_docstring(node) is not None else None
            found.append(node.end_lineno - node.lineno + 1 - (doc.end_lineno - doc.lineno + 1 if doc else 0))
    return max(found)


def figures(source: Path = SOURCE) -> dict[str, float]:
    """Return the figures by name."""
    paths = sorted(source.rglob("*.py"))
    lengths = [len(p.read_text().splitlines()) for p in paths]
    found = [f for p in paths for f in publics(ast.parse(p.read_text()), str(p.relative_to(source)))]
    measured = [f for f in found if f.measured]
    twice, whole = repeated(source / "mechanisms")
    everywhere, lines = repeated(source)
    counted = [code_and_prose(p.read_text()) for p in paths]
    code, prose = sum(c for c, _ in counted), sum(p for _, p in counted)
    return {
        **map_figures(source),
        "files": len(paths),
        "median file": statistics.median(lengths),
        "median file, lines of code": statistics.median(c for c, _ in counted),
        "longest file": max(lengths),
        "longest function": max(longest_function(ast.parse(p.read_text())) for p in paths),
        "files under 30 lines (but __init__)": sum(
            n < 30 and p.name != "__init__.py" for n, p in zip(lengths, paths, strict=True)
        ),
        "lines": sum(lengths),
        "lines of code": code,
        "lines of prose": prose,
        "prose per line of code": prose / code,
        "repeated in mechanisms, %": 100 * twice / whole,
        "repeated everywhere, %": 100 * everywhere / lines,
        "public docstrings, %": 100 * sum(bool(f.doc) for f in found) / len(found),
        "of those with arrays or amounts: with shapes or units, %": 100 * sum(f.says for f in measured) / len(measured),
    }


def _written(value: float) -> str:
    return f"{value:.10g}" if value == int(value) else f"{value:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="COMMIT")
    parser.add_argument("--missing", action="store_true", help="list the docstrings that say nothing")
    parser.add_argument("--rooms", action="store_true", help="print the rooms' lines of code beside their ceilings")
    parser.add_argument("--lower", action="store_true", help="the same, and lower the ceilings in house.toml")
    given = parser.parse_args()
    if given.rooms or given.lower:
        print_rooms(tomllib.loads(CEILINGS.read_text()), lower=given.lower)
        return
    before: Mapping[str, float] = {}
    from regression import source_of  # here: a test loads this file without its folder

    if given.base:
        with source_of(given.base) as base:
            before = figures(base / "hanse")
    for name, value in figures().items():
        print(f"{name:60} {_written(before[name]) + ' -> ' if before else ''}{_written(value)}")
    if given.missing:
        for path in sorted(SOURCE.rglob("*.py")):
            for found in publics(ast.parse(path.read_text()), str(path.relative_to(SOURCE))):
                if not found.doc or (found.measured and not found.says):
                    print(found.name)


if __name__ == "__main__":
    main()
