"""Seeded faults in every payment rule's ``settle``: how many does ``hanse audit`` find?

    OMP_NUM_THREADS=1 python benchmarks/faults.py [--part tokens by_value market] [--count 20] [--seed 7]

A fault is one comparison, sum, number, condition or call changed in what a rule settles with (:mod:`mutants`): in its
``settle`` and ``learn``, and in the functions of its module that these use. It stands in the code while small runs are
played and while they are audited, as a fault of a release would. Counted are faults with which the runs end and that
change a posting; one that the books refuse has changed nothing. Printed is a table, and a line for each fault.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from common import markdown
from mutants import changes as one_word
from mutants import places

import hanse
from hanse.base.errors import UserError
from hanse.core.entry import Transaction
from hanse.ledger.run_ledger import open_ledger
from hanse.mechanisms import by_value, ipfl, pifl
from hanse.reports.audit import audit_run

LIMIT_S = 60  # seconds for the runs and audits of a fault: one may never end
BASE: dict[str, Any] = {"model": "logistic", "train": {"steps": 3}, "engine": {"threads": 1}, "run": {"rounds": 4}}
DIGITS = {"source": "digits", "clients": 6, "partition": {"alpha": 1.0}}
SHARES = {"client_validation": 0.2, "client_test": 0.2, "validation": 0.0}
ROLES = {"profiles": {"name": "roles", "eagerness": [6e3, 1.2e4]}}
FEDAVG = {"name": "fedavg", "clients_per_round": 4, "value": "path"}
SEATS = {"name": "pifl", "by_contribution": 1, "at_random": 2}


def play(mechanism: Mapping[str, Any], **sections: Any) -> hanse.Experiment:
    data = DIGITS | sections.pop("data", {})
    return hanse.Experiment(**(BASE | {"data": data, "mechanism": dict(mechanism)} | sections))


def plays(part: str) -> list[hanse.Experiment]:
    """Return the runs of a part: with money for everything, and with less than is owed."""
    if part == "tokens":
        market = {"data": SHARES}
        return [
            play(SEATS | {"price": 1.0}, clients={"grant": 2.5}, **market),
            play(SEATS | {"price": 0.7, "invited": "earn", "eta": 0.9, "gamma": 0.9}, **market),
        ]
    if part == "by_value":
        tight = {"name": "by_value", "rate": 300.0, "stake": 0.2}
        sure = {"name": "by_value", "pays_when": "sure", "rate": 100.0}
        return [
            play(FEDAVG | {"settle": "by_value"}),
            play(FEDAVG | {"settle": tight}, clients={"grant": 0.5}),
            play(FEDAVG | {"settle": sure}),
        ]
    posted = {"name": "ipfl_posted", "flat": 2.0, "related": "none"}
    market = {"data": SHARES | {"partition": "cluster"}, "clients": ROLES}
    capped = {**ROLES, "grant": 30.0, "policy": {"name": "trader", "most": 20.0}}
    plain, tight = play({"name": "ipfl"}, **market), play({"name": "ipfl"}, **(market | {"clients": capped}))
    return [plain, tight, play(posted, **market)]


MODULES: Mapping[str, tuple[ModuleType, Sequence[str]]] = {
    "tokens": (pifl, ("TokenManager.settle", "TokenManager.learn", "Tokens.accuracies")),
    "by_value": (by_value, ("ByValue.settle",)),
    "market": (ipfl, ("IPFL.settle",)),
}


def changes(node: ast.AST) -> Iterator[Callable[[Any], None]]:
    """Yield the ways to change one node in place: as mutants, or left out, or in another's place."""
    yield from one_word(node)
    match node:
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            yield lambda n: setattr(n.func, "id", "max" if name == "min" else "min")
        case ast.Call(args=[_, _, *_]) if not any(isinstance(one, ast.Starred) for one in node.args):
            yield lambda n: n.args.insert(0, n.args.pop(1))
        case ast.Tuple(elts=[_, _], ctx=ast.Load()):
            yield lambda n: n.elts.reverse()
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv() | ast.BitAnd()):
            yield lambda n: n.__dict__.update(op=ast.Add(), right=ast.Constant(0))
        case ast.comprehension(ifs=[_, *_]):
            yield lambda n: n.ifs.clear()


def functions(module: ModuleType) -> dict[str, FunctionType]:
    """Return the functions of a module and the methods of its classes, by qualified name."""
    found = {}
    for name, value in vars(module).items():
        inside = vars(value).items() if inspect.isclass(value) else [(None, value)]
        for own, one in inside:
            one = getattr(one, "__func__", getattr(one, "fget", one))
            here = isinstance(one, FunctionType) and one.__module__ == module.__name__
            if here and not one.__name__.startswith("__"):  # those of dataclasses have no source
                found[name if own is None else f"{name}.{own}"] = one
    return found


def used(module: ModuleType, first: Sequence[str]) -> list[str]:
    """Return the functions that ``first`` use, directly or not, of their module; constructors and texts aside."""
    there, wanted, found = functions(module), list(first), list[str]()
    trees = {name: tree_of(f) for name, f in there.items()}
    while wanted:
        name = wanted.pop()
        if name in found or name not in there:
            continue
        found.append(name)
        for node in ast.walk(trees[name]):
            called = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None
            wanted += [one for one in there if one.rpartition(".")[2] == called]
    return sorted(found)


def faults(module: ModuleType, names: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield every change that can be made to these functions: a name, a node's number and the way to change it."""
    for name in names:
        tree = tree_of(functions(module)[name])
        for number, node in enumerate(places(tree)):
            for way, _ in enumerate(changes(node)):
                yield name, number, way


def tree_of(function: FunctionType) -> ast.Module:
    lines, _ = inspect.getsourcelines(function)
    indent = len(lines[0]) - len(lines[0].lstrip())
    return ast.parse("".join(line[indent:] if line.strip() else line for line in lines))


@contextmanager
def planted(module: ModuleType, fault: tuple[str, int, int]) -> Iterator[str]:
    """Change a function in place, for whoever has imported it, and say what was changed."""
    name, number, way = fault
    function = functions(module)[name]
    tree = tree_of(function)
    node = places(tree)[number]
    was = ast.unparse(node).splitlines()[0]
    list(changes(node))[way](node)
    now = ast.unparse(ast.fix_missing_locations(node)).splitlines()[0]
    tree.body[0].decorator_list = []  # type: ignore[attr-defined]
    scope: dict[str, Any] = {}
    exec(compile(tree, function.__code__.co_filename, "exec"), vars(module), scope)
    before, function.__code__ = function.__code__, scope[function.__name__].__code__
    try:
        yield f"{name}: {was} -> {now}"
    finally:
        function.__code__ = before


def postings(folder: Path) -> list[Transaction]:
    return [one.transaction for one in open_ledger(folder).history() if one.transaction.postings]


def played(part: str, folder: Path) -> list[list[Transaction]]:
    """Play a part's runs, and return what each posted."""
    found = []
    for number, experiment in enumerate(plays(part)):
        with redirect_stderr(StringIO()):
            hanse.run(experiment, out=folder / str(number))
        found.append(postings(folder / str(number)))
    return found


def first_found(part: str, folder: Path) -> str:
    """Return the first check of the audits that fails; "" if all hold."""
    for number, _ in enumerate(plays(part)):
        try:
            audit = audit_run(folder / str(number))
        except UserError as wrong:
            return f"refused: {wrong}"
        for check in audit.checks:
            if not check.holds:
                return f"{check.name}: {check.said}"
    return ""


def meet(part: str, count: int, seed: int, scratch: Path) -> tuple[int, int, int]:
    """Plant faults until ``count`` have changed postings: return how many were tried, had changed any, were found."""
    module, first = MODULES[part]
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    honest, tried, changed, found = played(part, scratch / part), 0, 0, 0
    assert not (said := first_found(part, scratch / part)), said
    drawn = list(faults(module, used(module, first)))
    random.Random(f"{seed} {part}").shuffle(drawn)
    for fault in drawn:
        folder = scratch / f"{part}-{tried}"
        tried += 1
        with planted(module, fault) as said:
            signal.alarm(LIMIT_S)
            try:
                if played(part, folder) == honest:
                    continue
                changed += 1
                why = first_found(part, folder)
            except (Exception, KeyboardInterrupt):  # whatever a fault raises, or that it never ends, is seen
                continue
            finally:
                signal.alarm(0)
        shutil.rmtree(folder, ignore_errors=True)
        found += bool(why)
        print(f"  {part}: {said}: {why[:110] or 'NOT FOUND'}", flush=True)
        if changed == count:
            break
    return tried, changed, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", default=list(MODULES), choices=list(MODULES))
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        rows = [(part, *meet(part, given.count, given.seed, Path(scratch))) for part in given.part]
    print(markdown(("part", "faults tried", "changed a posting", "found"), rows))


if __name__ == "__main__":
    sys.exit(main())
