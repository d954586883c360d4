"""How long the way of an update is: what one short run calls, and what its updates are wrapped in.

GreedyFed on digits, 8 clients, 4 a round, 3 rounds, written to a directory. By ``sys.setprofile``, in all threads:
distinct functions of hanse that were called (without the bodies of modules and classes), the files they stand in or
that were imported meanwhile, and the most frames of hanse above one another. Types are the classes of hanse whose
objects hold the model that a seat starts from, alone, or its update (the numbers, bit for bit) in a field, or in what a
field holds, when a function is given or returns them.

    python benchmarks/way.py [--names] [--source FOLDER]

``--source`` measures another tree's ``src`` with this file; ``--names`` lists files and types.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
WATCHED = 1  # the round whose updates are followed
DEPTH = 8  # fields within fields


class Way:
    """Counts calls while it is the profile function; ``held`` has the models that classes were seen to hold."""

    def __init__(self, root: str) -> None:
        self.root, self.deepest, self.watching = root, 0, False
        self.codes: set[CodeType] = set()
        self.held: dict[str, dict[int, Any]] = {}

    def __call__(self, frame: FrameType, event: str, result: object) -> None:
        """Take a call or a return of any function."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(self.root):
            return
        if event == "call":
            self.codes.add(code)
            above: FrameType | None = frame
            depth = 0
            while above is not None:
                depth, above = depth + above.f_code.co_filename.startswith(self.root), above.f_back
            self.deepest = max(self.deepest, depth)
        if self.watching and code.co_flags & inspect.CO_OPTIMIZED:
            given = inspect.getargvalues(frame)
            seen = [given.locals[name] for name in given.args] if event == "call" else [result]
            for value in seen:
                list(self._models(value, DEPTH, set()))

    def _models(self, value: Any, depth: int, been: set[int]) -> Iterator[Any]:
        """Yield the tensors that a value holds, and note under the classes of hanse on the way that they hold them."""
        import torch

        if isinstance(value, torch.Tensor):
            yield value
            return
        if depth == 0 or id(value) in been or isinstance(value, str | bytes | int | float | type | None):
            return
        been.add(id(value))
        kind = type(value)
        own = kind.__module__.startswith("hanse.")
        inner: Any = ()
        if isinstance(value, Mapping):
            inner = list(value.values())
        elif isinstance(value, list | tuple):
            inner = value
        elif own:
            names = [*getattr(value, "__dict__", ()), *getattr(kind, "__slots__", ())]
            inner = [getattr(value, name, None) for name in names]
        for one in inner:
            for tensor in self._models(one, depth - 1, been):
                if own:
                    self.held.setdefault(f"{kind.__module__}.{kind.__qualname__}", {})[id(tensor)] = tensor
                yield tensor

    def types(self, start: Any, update: Any) -> list[str]:
        """Return the classes that were seen to hold a seat's task, ``start [P]`` alone, or its update ``[P]``."""
        size = len(update)

        def has(tensor: Any) -> bool:
            rows = tensor.ndim > 0 and tensor.shape[-1] == size and tensor.dtype == update.dtype
            if rows and tensor.ndim == 1 and bool((tensor == start).all()):
                return True
            return rows and bool((tensor.reshape(-1, size) == update).all(dim=1).any())

        return sorted(name for name, tensors in self.held.items() if any(map(has, tensors.values())))


def measure() -> dict[str, Any]:
    """Return what a run of the installed hanse calls."""
    import hanse

    updates: list[Any] = []
    way = Way(str(Path(hanse.__file__).parent))

    class Watch:
        """Follows the models of one round; rounds are told when the next was played."""

        def on_round(self, metrics: Mapping[str, Any], played: Any) -> None:
            if metrics["round"] == WATCHED:
                updates[:] = played.view.table.rows[0].clone(), played.view.trained.rows[0].clone()
            way.watching = metrics["round"] < WATCHED

        def on_start(self, *given: object) -> None:
            way.watching = True

    experiment = hanse.Experiment(
        data={"source": "digits", "clients": 8},
        mechanism={"name": "greedyfed", "clients_per_round": 4},
        run={"rounds": 3},
    )
    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(way)
        sys.setprofile(way)
        hanse.run(experiment, out=Path(folder) / "run", observers=[Watch()])
        sys.setprofile(None)
    functions = [code for code in way.codes if code.co_flags & inspect.CO_OPTIMIZED]
    files = sorted({code.co_filename.removeprefix(way.root) for code in way.codes})
    inner = sum(code.co_name.startswith("<") for code in functions)  # comprehensions, generators, lambdas
    found = {"functions": len(functions), "inner": inner, "deepest": way.deepest, "files": files}
    return {**found, "types": way.types(*updates)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--source", type=Path, default=ROOT / "src")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measure()))
        return 0
    child = [sys.executable, __file__, "--child"]
    environment = {**os.environ, "PYTHONPATH": str(given.source)}
    found = json.loads(subprocess.run(child, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)
    print(f"functions {found['functions']:,}   (goal 600), {found['inner']} of them within an expression")
    print(f"files     {len(found['files']):,}   (goal 75)")
    print(f"deepest   {found['deepest']}   (goal 20)")
    print(f"types     {len(found['types'])}   (goal 14)")
    if given.names:
        print("\n".join([*found["files"], *found["types"]]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
