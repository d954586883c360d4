"""A strategy's aggregate made again on a copy, of some of the replies: a coalition's model where that is no average.

Nothing of it may reach the training. The copy is deep, and one that shares something changeable with the strategy is
refused; generators, the classes' own attributes and logging are put back; and while a copy works, whatever would write
a file, open a connection or start a program raises :class:`NotAgain`.
"""

from __future__ import annotations

import contextlib
import copy
import dis
import enum
import io
import logging
import os
import random
import re
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import Strategy

from hanse.base.errors import first_line
from hanse.learning.generators import untouched

SKIPPED = frozenset({"train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"})  # of Flower's: they make no arrays
_DEEPEST = 12  # attributes of attributes that are looked at
_ATOMS = (
    str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, types.BuiltinFunctionType, range, slice,
    np.dtype, np.number, np.ufunc, torch.dtype, torch.device, torch.Size, logging.Logger, enum.Enum, re.Pattern,
)  # fmt: skip
_HERE = threading.local()  # whether a copy works in this thread


class NotAgain(Exception):  # noqa: N818 (a reason, told as such)
    """Why a strategy's aggregate cannot be made again."""


# ---- the copy


def copied(strategy: Strategy) -> Strategy:
    """Return a deep copy of a strategy. Raises NotAgain that names the attribute which cannot be copied, or which the
    copy would share with the strategy.
    """
    for name, value in vars(strategy).items():
        try:
            copy.deepcopy(value)
        except Exception as wrong:
            raise NotAgain(f"its attribute {name!r} cannot be copied ({first_line(wrong)})") from None
    try:
        found = copy.deepcopy(strategy)
    except Exception as wrong:
        raise NotAgain(f"it cannot be copied ({first_line(wrong)})") from None
    if (where := shared(strategy, found)) is not None:
        raise NotAgain(f"a copy of it would share {where} with it, so it is not aggregated again")
    return found


def shared(strategy: Strategy, other: Strategy) -> str | None:
    """Return what can change and is part of both a strategy and its copy, or None: an attribute that refuses to be
    copied, what a function of it remembers, a class's own list.
    """
    mine, theirs = dict(_reached(strategy, "", 0, {})), dict(_reached(other, "", 0, {}))
    return next((theirs[key] for key in theirs if key in mine), None)


def _reached(thing: Any, path: str, depth: int, seen: dict[int, Any]) -> Iterator[tuple[int, str]]:
    """Yield the identity of everything changeable that is reached from a thing, with its path in words."""
    if isinstance(thing, _ATOMS) or id(thing) in seen or depth > _DEEPEST:
        return
    seen[id(thing)] = thing
    if isinstance(thing, types.FunctionType):
        for name, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                yield from _reached(cell.cell_contents, f"{name!r} of the function {thing.__name__}", depth + 1, seen)
        for one in thing.__defaults__ or ():
            yield from _reached(one, f"a default of the function {thing.__name__}", depth + 1, seen)
        yield from _of_module(thing)
        return
    if isinstance(thing, types.MethodType):
        yield from _reached(thing.__self__, f"the object of {path}", depth + 1, seen)
        return
    if not isinstance(thing, tuple | frozenset):
        yield id(thing), path or "itself"
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield from _reached(value, f"{path}[{key!r}]", depth + 1, seen)
    elif isinstance(thing, list | tuple | set | frozenset):
        for place, value in enumerate(thing):
            yield from _reached(value, f"{path}[{place}]", depth + 1, seen)
    for name, value in (vars(thing) if hasattr(thing, "__dict__") else {}).items():
        if name not in SKIPPED:
            yield from _reached(value, f"{path}.{name}" if path else f"attribute {name!r}", depth + 1, seen)
    for kind in _own_classes(type(thing)):
        for name, value in vars(kind).items():
            if isinstance(value, types.FunctionType):
                yield from _of_module(value)
            elif _changes(value) and not name.startswith("__"):
                yield id(value), f"{kind.__name__}.{name} of the class"


def _of_module(function: types.FunctionType) -> Iterator[tuple[int, str]]:
    """Yield the variables of its module that a user's function uses and that can change, or that it sets."""
    if _library(function.__module__):
        return
    codes = list(_codes(function.__code__))
    uses = {name for code in codes for name in code.co_names}
    steps = (one for code in codes for one in dis.get_instructions(code))
    sets = {one.argval for one in steps if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
    for name in sorted(uses & function.__globals__.keys()):
        value = function.__globals__[name]
        if name in sets or _changes(value):
            yield hash((function.__module__, name)), f"{name!r} of its module"


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a function's code, and that of the functions and comprehensions in it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _changes(value: Any) -> bool:
    """Say whether a variable of a class or a module is something that can change."""
    if isinstance(value, (*_ATOMS, types.FunctionType, types.MethodType)):
        return False
    kept = isinstance(value, list | dict | set | bytearray | np.ndarray | torch.Tensor | Iterator)
    return kept or bool(_own_classes(type(value)))


@cache
def _library(module: str) -> bool:
    """Say whether a module is a library's, and no user's."""
    top = module.split(".")[0]
    if top in sys.stdlib_module_names or top in ("hanse", "flwr", "__builtin__"):
        return top != "__main__"
    file = str(getattr(sys.modules.get(top), "__file__", "") or "")
    return "site-packages" in file or "dist-packages" in file


def _own_classes(kind: type) -> list[type]:
    """Return the classes that a user wrote: those whose attributes may be a strategy's state."""
    return [one for one in kind.__mro__ if not _library(one.__module__)]


# ---- the aggregate


@dataclass(frozen=True)
class Again:
    """What a strategy makes of some replies of a round: ``before`` is its copy from before the round, ``replies`` those
    by client, ``generators`` what was to be drawn (so that all coalitions meet the same noise).
    """

    before: Strategy
    number: int
    replies: Mapping[int, Message]
    generators: Any

    def made(self, clients: Sequence[int]) -> ArrayRecord | None:
        """Return the aggregate of these clients' replies, in the order in which they came; None: it makes none of so
        few. Raises NotAgain for what a copy may not do.
        """
        wanted = set(clients)
        with bare():
            strategy = copy.deepcopy(self.before)
            for name in SKIPPED & vars(strategy).keys():
                setattr(strategy, name, _nothing)
            replies = [copy.deepcopy(reply) for client, reply in self.replies.items() if client in wanted]
            set_generators(self.generators)
            try:
                arrays, _ = strategy.aggregate_train(self.number, replies)
            except NotAgain:
                raise
            except Exception:  # a rule that needs more of them, most likely: then the model stays as it was
                if len(wanted) == len(self.replies):
                    raise
                return None
            return arrays


def _nothing(contents: Any, key: str) -> Any:
    """Stand in for a function that only makes metrics."""
    from flwr.app import MetricRecord

    return MetricRecord()


def generators() -> Any:
    """Return the states of the process's generators."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda  # noqa: NPY002


def set_generators(states: Any) -> None:
    """Put the process's generators into these states."""
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    if states[3] is not None:
        torch.cuda.set_rng_state_all(states[3])


@contextmanager
def same_generators() -> Iterator[None]:
    """Let a block draw what it likes, and put all generators back."""
    states = generators()
    try:
        with untouched(torch.device("cpu")):
            yield
    finally:
        set_generators(states)


@contextmanager
def bare() -> Iterator[None]:
    """Let a copy of a strategy work without any trace: see the top of this file."""
    _watch_writes()
    disabled, kept = logging.root.manager.disable, _class_attributes()
    _HERE.works = True
    logging.disable(logging.CRITICAL)
    try:
        with same_generators(), contextlib.redirect_stdout(io.StringIO()), _no_torch_files():
            yield
    finally:
        _HERE.works = False
        logging.disable(disabled)
        _restore(kept)


def _class_attributes() -> dict[type, dict[str, Any]]:
    """Return the attributes of the strategies' classes that users wrote."""
    found, left = {}, list(Strategy.__subclasses__())
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind in _own_classes(kind):
            found[kind] = dict(vars(kind))
    return found


def _restore(kept: Mapping[type, Mapping[str, Any]]) -> None:
    for kind, before in kept.items():
        for name in vars(kind).keys() - before.keys():
            delattr(kind, name)
        for name, value in before.items():
            if vars(kind).get(name) is not value and name not in ("__dict__", "__weakref__"):
                setattr(kind, name, value)


# ---- what a copy may not do

_FORBIDDEN = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.utime",
    "os.putenv", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.chdir", "subprocess.Popen", "shutil.",
    "socket.connect", "socket.sendto", "sqlite3.connect", "tempfile.",
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _hook(event: str, given: tuple[Any, ...]) -> None:
    if not getattr(_HERE, "works", False):
        return
    if event == "open":
        path, mode, flags = given
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)
        if writes and path != os.devnull:
            raise NotAgain(f"its aggregate_train writes {str(path)!r}, which nobody may do for a model of some replies")
    elif event.startswith(_FORBIDDEN):
        what = f" ({str(given[0])[:80]!r})" if given else ""
        raise NotAgain(f"its aggregate_train does {event}{what}, which nobody may do for a model of some replies")


@cache
def _watch_writes() -> None:
    sys.addaudithook(_hook)  # it can never be taken away, and does nothing where no copy works


@contextmanager
def _no_torch_files() -> Iterator[None]:
    """Let ``torch.save`` write no file: it writes them from C++, which no audit sees."""
    serial: Any = torch.serialization
    known = getattr(serial, "_open_zipfile_writer", None)
    if known is None:
        yield
        return

    def refused(to: Any) -> Any:
        if isinstance(to, str | os.PathLike):
            raise NotAgain(f"its aggregate_train writes {str(to)!r}, which nobody may do for a model of some replies")
        return known(to)

    serial._open_zipfile_writer = refused
    try:
        yield
    finally:
        serial._open_zipfile_writer = known
