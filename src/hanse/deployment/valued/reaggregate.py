"""A strategy's aggregate of some of the replies, made on a copy: the model of a coalition where it is no average.

To value a reply, hanse needs the models that the strategy would have made without it. For an average they follow from
the replies. For any other rule :class:`Again` lets a copy of the strategy aggregate a subset of them.

None of this may be noticed by the training. So the copy is deep, and a copy that would still share something changeable
with the strategy is refused (:func:`shared`, which walks through everything that the strategy reaches: see
:class:`Reach`). Generators of random numbers, attributes of classes, settings and logging are put back afterwards
(:func:`bare`). While a copy works, whatever would write a file, open a connection, or start a program or a thread
raises :class:`NotAgain`.
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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from functools import cache, cached_property, partial
from pathlib import PurePath
from typing import Any
from uuid import UUID

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import Strategy

from hanse.base.errors import first_line
from hanse.learning.generators import untouched

SKIPPED = frozenset({"train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"})  # Flower's attributes that only make metrics
_DEEPEST = 12  # so many attributes of attributes are looked at
# what cannot change, or is shared by the whole process without harm
_ATOMS = (
    str, bytes, int, float, complex, bool, type(None), type, types.ModuleType, range, slice, np.dtype, np.number,
    np.ufunc, torch.dtype, torch.device, torch.Size, logging.Logger, enum.Enum, re.Pattern,
)  # fmt: skip
# what does not change, as a variable of a module or a class
_STILL = (
    types.FunctionType, types.GetSetDescriptorType, types.MemberDescriptorType, PurePath, date, timedelta, Decimal,
    Fraction, UUID,
)  # fmt: skip
_HERE = threading.local()  # "works": a copy is working in this thread


class NotAgain(Exception):  # noqa: N818 (a reason, told as such)
    """Why a strategy's aggregate cannot be made again, in one line."""


# ---- the copy


def copied(strategy: Strategy) -> Strategy:
    """Return a deep copy of a strategy that shares nothing changeable with it.

    Raises:
        NotAgain: an attribute cannot be copied, or would be shared; the message names it.
    """
    try:
        found = copy.deepcopy(strategy)
    except Exception as wrong:
        raise NotAgain(f"{_uncopied(strategy)} cannot be copied ({first_line(wrong)})") from None
    if (where := shared(strategy, found)) is not None:
        raise NotAgain(f"a copy of it would share {where} with it, so it is not aggregated again")
    return found


def _uncopied(strategy: Strategy) -> str:
    """Return which attribute of a strategy cannot be copied, in words."""
    for name, value in vars(strategy).items():
        try:
            copy.deepcopy(value)
        except Exception:
            return f"its attribute {name!r}"
    return "it"


def shared(strategy: Strategy, other: Strategy) -> str | None:
    """Return, in words, something changeable that is part of both a strategy and its copy; None if there is nothing.

    Examples are an attribute that returns itself when it is copied, a variable that a function remembers, a list of a
    class.
    """
    mine, theirs = Reach.of(strategy).found, Reach.of(other).found
    return next((theirs[key] for key in theirs if key in mine), None)


@dataclass
class Reach:
    """Everything that a strategy reaches through attributes, elements, classes and functions.

    Attributes:
        found: what can change: its path in words, such as "attribute 'history'", by its ``id()``, or by module and name
            for a module's variable.
        kinds: the classes written by users, in the order in which they were met (a dictionary as an ordered set).
        seen: what was looked at, by its ``id()``; holding the objects keeps their ids from being used again.

    Examples:
        >>> from flwr.serverapp.strategy import FedAvg
        >>> sorted(kind.__name__ for kind in Reach.of(FedAvg()).kinds)
        []
    """

    found: dict[Any, str] = field(default_factory=dict)
    kinds: dict[type, None] = field(default_factory=dict)
    seen: dict[int, Any] = field(default_factory=dict)

    @staticmethod
    def of(strategy: Strategy) -> Reach:
        """Return all that a strategy reaches."""
        reach = Reach()
        reach._thing(strategy, "", 0)
        return reach

    def _thing(self, thing: Any, path: str, depth: int) -> None:
        """Look at an object: its elements, its attributes, its class, and what it remembers if it is a function.

        Args:
            thing: the object.
            path: how it was reached, in words.
            depth: how many steps away from the strategy it is.
        """
        if isinstance(thing, _ATOMS) or id(thing) in self.seen or depth > _DEEPEST:
            return
        self.seen[id(thing)] = thing
        if isinstance(thing, types.FunctionType):
            self._function(thing, depth)
            return
        if isinstance(thing, types.MethodType | types.BuiltinFunctionType):
            if not any(thing.__self__ is one for one in _PUT_BACK):
                self._thing(thing.__self__, f"the object of {path}", depth + 1)
            return
        if not isinstance(thing, tuple | frozenset):
            self.found[id(thing)] = path or "itself"
        if isinstance(thing, partial):
            for part in (thing.func, *thing.args, *thing.keywords.values()):
                self._thing(part, f"a part of {path}", depth + 1)
        if isinstance(thing, Mapping):
            for key, value in thing.items():
                self._thing(value, f"{path}[{key!r}]", depth + 1)
        elif isinstance(thing, list | tuple | set | frozenset):
            for place, value in enumerate(thing):
                self._thing(value, f"{path}[{place}]", depth + 1)
        for name, value in _attributes(thing).items():
            if name not in SKIPPED:
                self._thing(value, f"{path}.{name}" if path else f"attribute {name!r}", depth + 1)
        self._kind(type(thing), depth)

    def _kind(self, kind: type, depth: int) -> None:
        """Look at the classes of an object that users wrote: their attributes and methods."""
        for one in _own_classes(kind):
            # named tuples and enumerations cannot change
            if one in self.kinds or issubclass(one, tuple | enum.Enum):
                continue
            self.kinds[one] = None
            for name, value in vars(one).items():
                for function in _functions_of(value):
                    self._function(function, depth + 1)
                if _changes(value) and not name.startswith("__"):
                    self.found[id(value)] = f"{one.__name__}.{name} of the class"

    def _function(self, function: types.FunctionType, depth: int) -> None:
        """Look at what a function remembers: the variables around it, its defaults, and its module's variables if a
        user wrote it.
        """
        self.seen[id(function)] = function
        # a variable that the function itself sets (nonlocal) is state, whatever it holds
        sets = {one.argval for one in _steps(function) if one.opname == "STORE_DEREF"}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # an empty cell
                path = f"{name!r} of the function {function.__name__}"
                if name in sets:
                    self.found[id(cell)] = path
                self._thing(cell.cell_contents, path, depth + 1)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._thing(value, f"a default of the function {function.__name__}", depth + 1)
        if not _library(function.__module__):
            self._module(function, depth)

    def _module(self, function: types.FunctionType, depth: int) -> None:
        """Look at the variables of modules that a user's function uses: those that can change or that it sets.
        Functions and classes among them are looked at in turn.
        """
        steps = list(_steps(function))
        uses = {one.argval for one in steps if one.opname in _VARIABLES}
        parts = {one.argval for one in steps if one.opname in _ATTRIBUTES}
        sets = {one.argval for one in steps if one.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")}
        variables = {name: function.__globals__[name] for name in sorted(uses & function.__globals__.keys())}
        modules = [one for one in variables.values() if isinstance(one, types.ModuleType)]
        own = [one for one in modules if not _library(one.__name__)]
        self._variables(variables, function.__module__, sets, "its module", depth)
        for module in own:
            named = {name: vars(module)[name] for name in sorted(parts & vars(module).keys())}
            self._variables(named, module.__name__, set(), f"the module {module.__name__}", depth)

    def _variables(self, variables: Mapping[str, Any], module: str, sets: set[Any], where: str, depth: int) -> None:
        """Look at variables of a module, by name; ``sets`` are those that the function assigns to."""
        for name, value in variables.items():
            if name in sets or _changes(value):
                self.found[module, name] = f"{name!r} of {where}"
            elif isinstance(value, type):
                self._kind(value, depth + 1)
            elif isinstance(value, types.FunctionType | partial) and id(value) not in self.seen:
                self._thing(value, f"{name!r} of {where}", depth + 1)


_VARIABLES = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "STORE_ATTR")
_PUT_BACK = (random._inst, np.random.mtrand._rand)  # the global generators


def _attributes(thing: Any) -> dict[str, Any]:
    """Return an object's attributes by name, those in slots included."""
    found = dict(vars(thing)) if hasattr(thing, "__dict__") else {}
    for kind in _own_classes(type(thing)):
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):
                found[name] = getattr(thing, name)
    return found


def _functions_of(value: Any) -> list[types.FunctionType]:
    """Return the functions behind an attribute of a class: of a method, a property, or a class method."""
    if isinstance(value, property):
        found: list[Any] = [value.fget, value.fset, value.fdel]
    elif isinstance(value, staticmethod | classmethod):
        found = [value.__func__]
    else:
        found = [value, getattr(value, "func", None)]  # of a cached property
    return [one for one in found if isinstance(one, types.FunctionType)]


def _steps(function: types.FunctionType) -> Iterator[dis.Instruction]:
    """Yield the bytecode instructions of a function, and of the functions and comprehensions inside it."""
    for code in _codes(function.__code__):
        yield from dis.get_instructions(code)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Yield a function's code object, and those of the functions and comprehensions inside it."""
    yield code
    for one in code.co_consts:
        if isinstance(one, types.CodeType):
            yield from _codes(one)


def _changes(value: Any) -> bool:
    """Say whether a variable of a class or a module can change: a list, a generator of random numbers, an open file, a
    cache. Numbers, functions and classes cannot.
    """
    if isinstance(value, types.MethodType | types.BuiltinFunctionType):
        return not any(value.__self__ is one for one in _PUT_BACK) and _changes(value.__self__)
    if isinstance(value, tuple | frozenset):
        return any(map(_changes, value))
    if isinstance(value, (*_ATOMS, *_STILL)):
        return False
    typing = type(value).__module__ in ("typing", "types", "typing_extensions", "__future__", "_abc")
    return not typing and not isinstance(value, staticmethod | classmethod | property | cached_property | partial)


@cache
def _library(module: str) -> bool:
    """Say whether a module belongs to a library or to Python, and not to the user."""
    top = module.split(".")[0]
    if top in sys.stdlib_module_names or top in ("hanse", "flwr", "__builtin__"):
        return top != "__main__"
    file = str(getattr(sys.modules.get(top), "__file__", "") or "")
    return "site-packages" in file or "dist-packages" in file


def _own_classes(kind: type) -> list[type]:
    """Return those of a class's bases, itself included, that a user wrote."""
    return [one for one in kind.__mro__ if not _library(one.__module__)]


# ---- the aggregate


@dataclass(frozen=True)
class Again:
    """A strategy's aggregate of some of a round's replies.

    Attributes:
        before: a copy of the strategy from just before it aggregated.
        number: the round's number in Flower.
        replies: the replies by client, in the order in which they came.
        generators: the states of the random generators at that time, so that all coalitions meet the same noise.
        kinds: the users' classes whose attributes may be state of the strategy, and are put back.

    Examples:
        Two replies to FedAvg, of which the second alone is aggregated:

        >>> from flwr.app import Array, RecordDict
        >>> from flwr.serverapp.strategy import FedAvg
        >>> from hanse.deployment.rehearsal import InProcessGrid
        >>> def answer(message, context):
        ...     arrays = ArrayRecord({"w": Array(np.full(2, context.node_id, np.float32))})
        ...     metrics = MetricRecord({"num-examples": 10})
        ...     return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
        >>> grid = InProcessGrid({100: answer, 101: answer})
        >>> messages = [Message(RecordDict(), dst_node_id=node, message_type="train") for node in (100, 101)]
        >>> replies = dict(enumerate(grid.send_and_receive(messages)))
        >>> Again(copied(FedAvg()), 1, replies, generators()).made([1])["w"].numpy()
        array([101., 101.], dtype=float32)
    """

    before: Strategy
    number: int
    replies: Mapping[int, Message]
    generators: Any
    kinds: Sequence[type] = ()

    def made(self, clients: Sequence[int]) -> ArrayRecord | None:
        """Return the aggregate of these clients' replies, in the order in which they came.

        None if the strategy makes none of them, for example because it needs more replies. An exception that it raises
        for all of the replies together is passed on: that is no matter of their number.

        Raises:
            NotAgain: the strategy does something that a copy may not do.
        """
        wanted = set(clients)
        with bare(self.kinds):
            strategy = copy.deepcopy(self.before)
            for name in SKIPPED & vars(strategy).keys():
                setattr(strategy, name, lambda contents, key: MetricRecord())  # no metrics of replies
            replies = [copy.deepcopy(reply) for client, reply in self.replies.items() if client in wanted]
            _set_generators(self.generators)
            try:
                arrays, _ = strategy.aggregate_train(self.number, replies)
            except NotAgain:
                raise
            except (Exception, SystemExit):  # a rule that needs more of them, most likely: the model stays as it was
                if len(wanted) == len(self.replies):
                    raise
                return None
            return arrays


def generators() -> Any:
    """Return the states of the process's random generators: Python's, NumPy's, and PyTorch's on all devices in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]
    return random.getstate(), np.random.get_state(), torch.get_rng_state(), cuda  # noqa: NPY002


def _set_generators(states: Any) -> None:
    """Put the process's random generators into states that :func:`generators` has returned."""
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    if states[3] is not None:
        torch.cuda.set_rng_state_all(states[3])


@contextmanager
def as_before() -> Iterator[None]:
    """Run a block, and put back all random generators, and the settings of PyTorch and NumPy.

    Whatever hanse does while an app trains happens inside such a block, so that the training goes on as if it had not.
    """
    states, settings = generators(), _settings()
    try:
        with untouched(torch.device("cpu")):
            yield
    finally:
        _set_generators(states)
        if _settings() != settings:
            kind, certain, warns, threads, grad, known = settings
            torch.set_default_dtype(kind)
            torch.use_deterministic_algorithms(certain, warn_only=warns)
            torch.set_num_threads(threads)
            torch.set_grad_enabled(grad)
            np.seterr(**known)


def _settings() -> tuple[Any, ...]:
    """Return the settings of PyTorch and NumPy that change what the rest of the process computes."""
    certain, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return torch.get_default_dtype(), certain, warns, torch.get_num_threads(), torch.is_grad_enabled(), np.geterr()


@contextmanager
def bare(kinds: Iterable[type] = ()) -> Iterator[None]:
    """Run a block in which a copy of a strategy works, without any trace in this process.

    Args:
        kinds: classes whose attributes are put back, beside those of all strategies that users wrote.
    """
    _watch_writes()
    disabled, kept = logging.root.manager.disable, _class_attributes(kinds)
    _HERE.works = True
    logging.disable(logging.CRITICAL)
    try:
        with as_before(), _nothing_printed(), _no_torch_files(), _no_threads():
            yield
    finally:
        _HERE.works = False
        logging.disable(disabled)
        _restore(kept)


@contextmanager
def _nothing_printed() -> Iterator[None]:
    """Drop what a block prints."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _class_attributes(kinds: Iterable[type]) -> dict[type, dict[str, Any]]:
    """Return the present attributes of these classes, and of all strategy classes that users wrote."""
    found, left = {kind: dict(vars(kind)) for kind in kinds}, list(Strategy.__subclasses__())
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind in _own_classes(kind):
            found[kind] = dict(vars(kind))
    return found


def _restore(kept: Mapping[type, Mapping[str, Any]]) -> None:
    """Put back the attributes of classes; new ones are removed."""
    for kind, before in kept.items():
        for name in vars(kind).keys() - before.keys():
            delattr(kind, name)
        for name, value in before.items():
            if vars(kind).get(name) is not value and name not in ("__dict__", "__weakref__"):
                setattr(kind, name, value)


# ---- what a copy may not do

FORBIDDEN = "which is not allowed while the aggregate of some of the replies is made again"

# audit events that begin with one of these
_EVENTS = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.utime",
    "os.putenv", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.chdir", "subprocess.Popen", "shutil.",
    "socket.connect", "socket.sendto", "sqlite3.connect", "tempfile.",
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _hook(event: str, given: tuple[Any, ...]) -> None:
    """Refuse what a copy may not do. Python calls it for each of its audit events, in all threads."""
    if not getattr(_HERE, "works", False):
        return
    if event == "open":
        path, mode, flags = given
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)
        if writes and path != os.devnull:
            raise NotAgain(f"its aggregate_train writes {str(path)!r}, {FORBIDDEN}")
    elif event.startswith(_EVENTS):
        what = f" ({str(given[0])[:80]!r})" if given else ""
        raise NotAgain(f"its aggregate_train does {event}{what}, {FORBIDDEN}")


@cache
def _watch_writes() -> None:
    """Install the audit hook, once in a process. Python has no way to remove one; it does nothing unless a copy is
    working.
    """
    sys.addaudithook(_hook)


@contextmanager
def _no_torch_files() -> Iterator[None]:
    """Keep ``torch.save`` from writing files during a block: it writes from C++, where no audit event is raised."""
    serial: Any = torch.serialization
    known = getattr(serial, "_open_zipfile_writer", None)
    if known is None:
        yield
        return

    def refused(to: Any) -> Any:
        if isinstance(to, str | os.PathLike):
            raise NotAgain(f"its aggregate_train writes {str(to)!r}, {FORBIDDEN}")
        return known(to)

    serial._open_zipfile_writer = refused
    try:
        yield
    finally:
        serial._open_zipfile_writer = known


@contextmanager
def _no_threads() -> Iterator[None]:
    """Keep a copy from starting threads during a block: the audit hook only watches the thread of the copy."""
    known = threading.Thread.start

    def refused(thread: Any) -> None:
        if getattr(_HERE, "works", False):
            raise NotAgain(f"its aggregate_train starts a thread, {FORBIDDEN}")
        known(thread)

    threading.Thread.start = refused  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        threading.Thread.start = known  # type: ignore[method-assign]
