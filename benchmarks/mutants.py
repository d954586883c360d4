"""Mutation testing: how many small faults in ``games/``, ``table.py`` and ``ledger/`` do the tests notice?

    python benchmarks/mutants.py games table.py ledger [--most 60] [--out mutants.jsonl] [--again mutants.jsonl]

Works on a copy of the tree. First every test says which lines of the code it runs; then each mutant (one comparison,
sum, number, truth value, condition, return value or call changed) meets the tests that run its line, the fastest
first, and is killed if one of them fails or hangs. A process that has the libraries loaded is forked for each, so that
a mutant costs little more than its tests. Texts are left alone: no test should depend on every word of a message.
With ``--again`` it meets only the changes that survived before, wherever they stand now.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

HERE = Path(__file__).parents[1]
TESTS = {"games": ["tests/games"], "table.py": ["tests/core/test_table.py"], "ledger": ["tests/ledger"]}
LIMIT_S = 60.0  # a mutant's tests may take this long, twice what they took before at the least

COMPARE = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
BINARY = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One changed place: where, what it says now, and what it said."""

    path: str  # below src/hanse
    line: int
    was: str
    now: str
    text: str  # the line as it was
    source: str  # the whole file, changed

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line}: {self.was} -> {self.now}"

    @property
    def change(self) -> tuple[str, str, str]:
        return self.path, self.text, self.name.split(": ", 1)[1]


def changes(node: ast.AST) -> Iterator[Callable[[Any], None]]:
    """Yield the ways to change one node in place."""
    match node:
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                if new := COMPARE.get(type(op)):
                    yield lambda n, i=place, new=new: n.ops.__setitem__(i, new())
        case ast.BinOp(op=op) | ast.AugAssign(op=op) if type(op) in BINARY:
            yield lambda n: setattr(n, "op", BINARY[type(n.op)]())
        case ast.BoolOp():
            yield lambda n: setattr(n, "op", ast.Or() if isinstance(n.op, ast.And) else ast.And())
        case ast.Constant(value=bool() as value):
            yield lambda n: setattr(n, "value", not value)
        case ast.Constant(value=int() | float() as value):
            yield lambda n: setattr(n, "value", value + 1)
        case ast.UnaryOp(op=ast.USub() | ast.Not() | ast.Invert()):
            yield lambda n: setattr(n, "op", ast.UAdd()) if not isinstance(n.op, ast.Not) else _twice(n)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if not isinstance(test, ast.Compare):
            yield lambda n: setattr(n, "test", ast.UnaryOp(ast.Not(), n.test))
        case ast.Return(value=value) if value is not None and not isinstance(value, ast.Constant):
            yield lambda n: setattr(n, "value", ast.Constant(None))
        case ast.Expr(value=ast.Call()):
            yield lambda n: setattr(n, "value", ast.Constant(None))


def _twice(node: ast.UnaryOp) -> None:
    node.operand = ast.UnaryOp(ast.Not(), node.operand)


def places(tree: ast.Module) -> list[ast.AST]:
    """Return the nodes that may be changed: no texts, types, ``__all__`` or ``strict=`` of a zip."""
    found: list[ast.AST] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.JoinedStr | ast.Import | ast.ImportFrom) or getattr(node, "skip", False):
            return
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return
        if isinstance(node, ast.Assign | ast.AnnAssign) and _is_type(node):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        found.append(node)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        visit(child)

    visit(tree)
    return found


def _is_type(node: ast.Assign | ast.AnnAssign) -> bool:
    names = node.targets if isinstance(node, ast.Assign) else [node.target]
    text = ast.unparse(node.value) if node.value else ""
    return any(isinstance(n, ast.Name) and n.id == "__all__" for n in names) or text.startswith(("NDArray", "Literal"))


def mutants(path: Path, root: Path) -> list[Mutant]:
    """Return every mutant of a file."""
    lines = path.read_text().splitlines()
    tree = ast.parse("\n".join(lines))
    found = []
    for number, node in enumerate(places(tree)):
        for way in range(len(list(changes(node)))):
            changed = copy.deepcopy(tree)
            there = places(changed)[number]
            was = ast.unparse(there).splitlines()[0]
            list(changes(there))[way](there)
            now = ast.unparse(ast.fix_missing_locations(there)).splitlines()[0]
            source = ast.unparse(ast.fix_missing_locations(changed))
            line = getattr(node, "lineno", 1)
            found.append(Mutant(str(path.relative_to(root)), line, was, now, lines[line - 1].strip(), source))
    return found


class Watch:
    """A pytest plugin: which lines of the files each test runs, and how long it takes."""

    def __init__(self, files: set[str]) -> None:
        self.files, self.seen = files, set[tuple[str, int]]()
        self.lines: dict[str, list[tuple[str, int]]] = {}
        self.seconds: dict[str, float] = {}
        self.codes: dict[CodeType, bool] = {}

    def trace(self, frame: FrameType, event: str, arg: object) -> Any:
        code = frame.f_code
        if code not in self.codes:
            self.codes[code] = code.co_filename in self.files
        if not self.codes[code]:
            return None
        self.seen.add((code.co_filename, frame.f_lineno))
        return self.trace

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.seen = set()
        threading.settrace(self.trace)
        sys.settrace(self.trace)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]
        self.lines[nodeid] = sorted(self.seen)


def in_child(work: Callable[[], int], limit_s: float | None = None) -> int:
    """Run ``work`` in a forked process of its own group; return its answer, or 99 if it took too long."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        code = 98
        try:
            code = work()
        finally:
            os._exit(code)
    end = time.monotonic() + (limit_s or 1e9)
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 99


def run_tests(arguments: list[str], *plugins: Any) -> int:
    import pytest

    options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return int(pytest.main([*options, *arguments], plugins=list(plugins)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=list(TESTS), help=f"of {', '.join(TESTS)}; or games/gtg.py")
    parser.add_argument("--most", type=int, help="mutants a file, drawn by chance (the same ones each time)")
    parser.add_argument("--again", type=Path, help="a file of before: only what survived")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    options = parser.parse_args()
    survivors = None if options.again is None else survived(options.again)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        root = Path(folder).resolve()
        for name in ("src", "tests", "examples", "pyproject.toml"):
            place = HERE / name
            (shutil.copytree if place.is_dir() else shutil.copy2)(place, root / name)
        os.chdir(root)
        os.environ |= {"PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1", "HYPOTHESIS_STORAGE_DIRECTORY": folder}
        sys.path.insert(0, str(root / "src"))
        for library in ("pytest", "hypothesis", "torch", "scipy.stats", "sqlalchemy", "pydantic"):
            __import__(library)
        with options.out.open("a") as out:
            for what in options.what:
                group = what.split("/")[0]
                base = root / "src/hanse"
                files = [base / what] if what.endswith(".py") else sorted((base / what).glob("*.py"))
                hunt(base, files, TESTS[group], options.most, survivors, out)


def survived(path: Path) -> set[tuple[str, str, str]]:
    """Return the changes that survived in a file of results: the module, the line's text, and what became of it."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    parts = [(*line["mutant"].split(":", 1), line["text"]) for line in lines if not line["killed"]]
    return {(module, text, rest.split(": ", 1)[1]) for module, rest, text in parts}


def hunt(
    base: Path, files: list[Path], where: list[str], most: int | None, only: set[tuple[str, str, str]] | None, out: Any
) -> None:
    """Meet every mutant of the files with its tests and write a line for each."""
    sys.dont_write_bytecode = False
    started = time.monotonic()
    assert in_child(lambda: run_tests(where)) == 0, f"{where} do not pass as they are"
    whole_s = time.monotonic() - started

    def look() -> int:
        watch = Watch({str(f) for f in files})
        code = run_tests(where, watch)
        Path("watched.json").write_text(json.dumps({"lines": watch.lines, "seconds": watch.seconds}))
        return code

    assert in_child(look) == 0
    watched = json.loads(Path("watched.json").read_text())
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    seconds, touched = watched["seconds"], {t: {(f, n) for f, n in seen} for t, seen in watched["lines"].items()}
    for file in files:
        text, stat = file.read_text(), file.stat()
        inside = ranges(ast.parse(text))
        found = [m for m in mutants(file, base) if only is None or m.change in only]
        if most is not None and len(found) > most:
            found = sorted(random.Random(0).sample(found, most), key=lambda m: m.line)
        of_file = [t for t, seen in touched.items() if any(f == str(file) for f, _ in seen)]
        killed = 0
        for mutant in found:
            lines = inside.get(mutant.line)
            meets = of_file
            if lines is not None:  # inside a function: who runs this statement
                meets = [t for t in of_file if any((str(file), n) in touched[t] for n in lines)]
            meets = sorted(meets, key=lambda t: seconds[t])
            file.write_text(mutant.source)
            limit = LIMIT_S + 2 * min(whole_s, sum(seconds[t] for t in meets))
            code = in_child(lambda these=meets: run_tests(these), limit) if meets else 0
            file.write_text(text)
            os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
            assert code not in (5, 98), f"{mutant.name}: pytest could not run its tests: {code}"
            killed += code != 0
            line = {
                "mutant": mutant.name, "text": mutant.text, "killed": code != 0, "code": code, "tests": len(meets),
            }  # fmt: skip
            out.write(json.dumps(line) + "\n")
            out.flush()
        print(f"{file.relative_to(base)}: {killed} of {len(found)} killed", flush=True)


def ranges(tree: ast.Module) -> dict[int, range]:
    """Return, for each line inside a function, the lines of the innermost simple statement (or condition) there."""
    found: dict[int, range] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for node in ast.walk(function):
                if isinstance(node, ast.stmt) and not isinstance(node, ast.FunctionDef):
                    end = node.body[0].lineno - 1 if hasattr(node, "body") else node.end_lineno
                    span = range(node.lineno, max(node.lineno, end or node.lineno) + 1)
                    found |= dict.fromkeys(span, span)
            if not isinstance(function, ast.Lambda):  # defaults are made when the file is imported
                for line in range(function.lineno, function.body[0].lineno):
                    found.pop(line, None)
    return found


if __name__ == "__main__":
    main()
