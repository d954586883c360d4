"""Mutation testing: which small faults do the tests notice, and which did those of an earlier commit notice?

    python benchmarks/mutants.py [--base COMMIT] [--seed 7] [--count 150] [--rooms core games ...]
                                 [--shard 1/2] [--out mutants.jsonl]

A mutant is one comparison, sum, number, truth value, condition, return value or call of ``src/hanse`` changed; texts
are left alone, since no test should depend on every word of a message. As many are drawn from each room (of those that
stand in both trees), the same ones with the same seed. Each meets its room's tests (``tests/ROOM``, without the slow
ones), those files first that import the changed module, until one fails or hangs; if none does, all other test files
that import that module, the fastest first. With ``--base`` those that are alive meet the tests of that commit too
(first, if it is known already what these say), and after the table by room those are named that were killed then and
are alive now; more than two: exit code 1. The rooms take turns, so that whatever is done says something of each.

All works on copies. A process that has the libraries loaded is forked for each mutant; a test file that fails without
any change is left out and named. Each result is a line of ``--out``: the same command goes on with what is left, and
several ``--shard i/n`` may write to the same file at once. 150 mutants and two trees take some two hours of an idle
core.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from common import NATIVE, ROOT, checkout, hash_of, markdown, written

ROOMS = ("core", "games", "ledger", "mechanisms", "rounds", "federation", "runs")
LIMIT_S = 60.0  # processor seconds that tests may take beside three times what they take without a change

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
    def room(self) -> str:
        return self.path.split("/")[0]

    @property
    def change(self) -> tuple[str, str, str]:
        """What it is whatever lines stand before it."""
        return self.text, self.was, self.now


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


def ways(tree: ast.Module) -> list[tuple[int, int]]:
    """Return all changes that can be made to a module: the number of a node among its places, and of a way there."""
    return [(number, way) for number, node in enumerate(places(tree)) for way in range(len(list(changes(node))))]


def mutant(path: Path, source: Path, at: tuple[int, int]) -> Mutant:
    """Return one change of a file below ``source``, a folder ``src/hanse``."""
    lines = path.read_text().splitlines()
    tree = ast.parse("\n".join(lines))
    node = places(tree)[at[0]]
    was, line = ast.unparse(node).splitlines()[0], getattr(node, "lineno", 1)
    list(changes(node))[at[1]](node)
    now = ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]
    return Mutant(str(path.relative_to(source)), line, was, now, lines[line - 1].strip(), ast.unparse(tree))


def twin(one: Mutant, source: Path) -> Mutant | None:
    """Return the same change in another tree, where its file may have another path; None if it does not stand there
    in one place that can only be it.
    """
    path = source / one.path
    if not path.exists() or one.text not in path.read_text():
        having = [x for x in source.rglob("*.py") if one.text in map(str.strip, x.read_text().splitlines())]
        if len(having) != 1:
            return None
        path = having[0]
    tree = ast.parse(path.read_text())
    nodes, lines = places(tree), path.read_text().splitlines()
    near = [at for at in ways(tree) if lines[getattr(nodes[at[0]], "lineno", 1) - 1].strip() == one.text]
    found = [other for other in (mutant(path, source, at) for at in near) if other.change == one.change]
    return min(found, key=lambda other: abs(other.line - one.line), default=None)


def drawn(sources: Sequence[Path], rooms: Sequence[str], count: int, seed: int) -> list[tuple[Mutant, ...]]:
    """Return ``count`` mutants, as many of each room, the rooms in turns, each with its twin in the other trees."""
    found: list[list[tuple[Mutant, ...]]] = []
    for number, room in enumerate(rooms):
        wanted = count // len(rooms) + (number < count % len(rooms))
        files = sorted((sources[0] / room).rglob("*.py"))  # a room that a tree lacks gives none
        all_ways = [(path, at) for path in files for at in ways(ast.parse(path.read_text()))]
        random.Random(f"{seed} {room}").shuffle(all_ways)
        of_room: list[tuple[Mutant, ...]] = []
        for path, at in all_ways:
            if len(of_room) == wanted:
                break
            one = mutant(path, sources[0], at)
            twins = [twin(one, source) for source in sources[1:]]
            if None not in twins:
                of_room.append((one, *(other for other in twins if other is not None)))
        found.append(of_room)
    return [ones for turn in zip_longest(*found) for ones in turn if ones is not None]


def in_child(work: Callable[[], int], limit_s: float) -> int:
    """Run ``work`` in a forked process of its own group; return its answer, or 99 if it took more processor time than
    the limit. Who waits for ever without using any is ended by pytest's ``faulthandler_timeout``.
    """
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit_s) + 1, int(limit_s) + 2))
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        code = 98
        try:
            code = work()
        finally:
            os._exit(code)
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what its tests may have left running, or all of it after Ctrl-C
    return 99 if code in (-signal.SIGXCPU, -signal.SIGKILL) else code


@dataclass(frozen=True)
class Tree:
    """A copy of a source tree with its tests; ``name`` changes with what is in it."""

    name: str
    folder: Path

    @property
    def source(self) -> Path:
        return self.folder / "src" / "hanse"

    def tests_of(self, path: str) -> dict[str, list[str]]:
        """Return the test files that a module's mutants meet, in this order: those of its room that import it, the
        others of its room, and those elsewhere that import it.
        """
        parts = path.removesuffix(".py").removesuffix("/__init__").split("/")
        module, parent = ".".join(("hanse", *parts)), ".".join(("hanse", *parts[:-1]))
        names = rf"from {re.escape(module)} |import {re.escape(module)}\b"
        imports = re.compile(rf"{names}|from {re.escape(parent)} import .*\b{re.escape(parts[-1])}\b")
        files = sorted((self.folder / "tests").rglob("test_*.py"))
        having = {file for file in files if imports.search(file.read_text())}
        room = {file for file in files if file.is_relative_to(self.folder / "tests" / parts[0])}
        stages = {"room, importing": room & having, "room": room - having, "elsewhere": having - room}
        return {name: sorted(str(file.relative_to(self.folder)) for file in some) for name, some in stages.items()}

    def run(self, files: Sequence[str], limit_s: float, *, turn: str = "0", keep: bool = False) -> int:
        """Run test files until one fails; return pytest's code, or 99. ``keep``: compiled files are written."""

        def work() -> int:
            os.chdir(self.folder)
            away = {str(ROOT / part) for part in ("src", "papers/src", "benchmarks")}
            sources = [str(self.folder / part) for part in ("src", "papers/src")]
            sys.path[:] = [*sources, *(p for p in sys.path if p not in away)]
            os.environ |= {"PYTHONPATH": os.pathsep.join(sources), "HANSE_TEST_HEAD": turn}
            os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = tempfile.mkdtemp(dir=self.folder)
            sys.dont_write_bytecode = not keep
            if not keep:
                os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            import pytest

            return int(pytest.main(["-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-seed=0", *files]))

        return in_child(work, limit_s)


class Results:
    """The lines of ``--out``."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def find(self, **keys: Any) -> Mapping[str, Any] | None:
        return next((line for line in written(self.out) if all(line.get(k) == v for k, v in keys.items())), None)

    def add(self, **line: Any) -> Mapping[str, Any]:
        with self.out.open("a") as file:
            file.write(json.dumps(line) + "\n")
        return line

    def seconds(self, tree: Tree, files: Sequence[str]) -> dict[str, float]:
        """Return the processor seconds of those test files that pass without any change."""
        found = {}
        for file in files:
            line = self.find(tree=tree.name, file=file)
            if line is None:
                before = resource.getrusage(resource.RUSAGE_CHILDREN)
                code = tree.run([file], 3600, keep=True)
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                line = self.add(tree=tree.name, file=file, code=code, seconds=round(spent, 1))
                if code not in (0, 5):  # 5: none of its tests is among those that are run
                    print(f"    {tree.name}: {file} fails without any change ({code}): left out", flush=True)
            if line["code"] == 0:
                found[file] = line["seconds"]
        return found


def meet(tree: Tree, one: Mutant, results: Results) -> Mapping[str, Any]:
    """Let a mutant meet the tests of a tree; return its line."""
    if line := results.find(tree=tree.name, mutant=one.name):
        return line
    path = tree.source / one.path
    text, stat = path.read_text(), path.stat()
    begun, code, by = time.monotonic(), 0, ""
    # "012": heads for tests that take turns; a mutant is alive that lives under each of them
    for turn, (stage, files) in product("012", tree.tests_of(one.path).items()):
        seconds = results.seconds(tree, files)
        if not seconds:
            continue
        path.write_text(one.source)
        try:
            code = tree.run(sorted(seconds, key=seconds.__getitem__), LIMIT_S + 3 * sum(seconds.values()), turn=turn)
        finally:
            path.write_text(text)
            os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
        if code in (98, -signal.SIGTERM):
            raise RuntimeError(f"{tree.name}, {one.name}: pytest could not be run, or somebody ended it")
        if code:
            by = stage
            break
    return results.add(
        tree=tree.name, mutant=one.name, text=one.text, room=one.room, killed=code != 0, code=code,
        by=by, seconds=round(time.monotonic() - begun, 1),
    )  # fmt: skip


def copied(name: str, tree: Path, folder: Path) -> Tree:
    """Return a copy of a checkout: the files that git knows or would add, and the compiled engine."""
    line = ["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(line, check=True, capture_output=True, text=True).stdout.split("\0")
    built = [str(path.relative_to(tree)) for path in (tree / NATIVE).glob("*.so")]
    for file in (*listed, *built):
        if (tree / file).is_file():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(tree / file, folder / file)
    return Tree(f"{name} {hash_of(folder / 'src')[:6]} {hash_of(folder / 'tests')[:6]}", folder)


def report(trees: Sequence[Tree], results: Results, names: Sequence[tuple[Mutant, ...]]) -> int:
    """Print the table by room and the mutants that are alive now and were killed before; return how many these are."""
    lines, lost = [], []
    for room in dict.fromkeys(ones[0].room for ones in names):
        found = [
            [results.find(tree=tree.name, mutant=one.name) for tree, one in zip(trees, ones, strict=True)]
            for ones in names
            if ones[0].room == room
        ]
        lost += [pair[-1]["mutant"] for pair in found if None not in pair and pair[0]["killed"] > pair[-1]["killed"]]
        ends = [[line["killed"] for line in column if line] for column in zip(*found, strict=True)]
        lines.append((room, len(found), *(f"{sum(end)} and {end.count(False)}" for end in ends)))
    print(markdown(("room", "drawn", *(f"killed and alive, {tree.name}" for tree in trees)), lines))
    print(*(f"killed before, alive now: {name}" for name in lost), sep="\n")
    return len(lost)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", metavar="COMMIT")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--rooms", nargs="+", default=list(ROOMS), choices=ROOMS, metavar="ROOM")
    parser.add_argument("--shard", default="1/1", help="i/n: every n-th mutant, beginning with the i-th")
    parser.add_argument("--out", type=Path, default=Path("mutants.jsonl"))
    given = parser.parse_args()
    results = Results(given.out.absolute())
    part, parts = map(int, given.shard.split("/"))
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name).resolve()
        trees = [copied("now", ROOT, folder / "now")]
        if given.base:
            trees.insert(0, copied("base", checkout(given.base), folder / "base"))
        chosen = drawn([tree.source for tree in trees], given.rooms, given.count, given.seed)
        os.environ["OMP_NUM_THREADS"] = "1"
        for library in ("pytest", "hypothesis", "torch", "scipy.stats", "sqlalchemy", "pydantic"):
            __import__(library)
        for number, ones in enumerate(chosen[part - 1 :: parts], 1):
            both, words = list(zip(trees, ones, strict=True)), []
            known = results.find(tree=trees[0].name, mutant=ones[0].name)
            for tree, one in both if known else both[::-1]:
                line = meet(tree, one, results)
                words += [f"{tree.name.split()[0]} {'killed' if line['killed'] else 'ALIVE'} {line['seconds']} s"]
                if line["killed"] == (tree is trees[-1]):  # killed now, or alive before: it is not lost
                    break
            print(f"{number}/{len(chosen[part - 1 :: parts])} {ones[-1].name}: {', '.join(words)}", flush=True)
        lost = report(trees, results, chosen)
    return 1 if lost > 2 else 0


if __name__ == "__main__":
    sys.exit(main())
