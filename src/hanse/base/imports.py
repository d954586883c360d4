"""What names in an experiment's file mean, and whether the import paths among them are followed.

:func:`named` and :func:`import_path` turn a name in an experiment's file (built-in, or ``"package.module:name"``) into
the Python object that it stands for. :func:`path_of` goes the other way.

An experiment's file is a program: its import paths name modules, and importing a module runs it. Running an experiment
requires trusting its file. Looking at a run directory must not require trust, so nothing that the directory names is
then imported (:func:`looking`). A message that names a model, a loss, a loop or a metric is a program in the same
sense. A node resolves these names inside :func:`from_message`. There, import paths can only mean objects that the
participant's own app lists. Only :func:`import_path` imports, and it reads the marks that these two set, so no path
through the code can bypass them. A parameter that is passed down could be forgotten.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hanse.base.errors import UserError, gated, nearest

# what hanse itself writes into a run's config.toml: it plays nothing and calls nothing that its options name
OWN = frozenset({"hanse.flower.valued.mechanism:flower"})
_LOOKING: ContextVar[bool] = ContextVar("hanse_looking", default=False)
_OWN: ContextVar[Mapping[str, Callable[..., Any]] | None] = ContextVar("hanse_own", default=None)


@contextmanager
def looking(*, trust: bool = False) -> Iterator[None]:
    """Refuse import paths inside this block.

    Args:
        trust: whether the user allows import paths (``--trust``). They then work as usual.
    """
    mark = _LOOKING.set(not trust)
    try:
        yield
    finally:
        _LOOKING.reset(mark)


def is_looking() -> bool:
    """Return whether import paths are refused at this point."""
    return _LOOKING.get()


@contextmanager
def from_message(own: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Mark that import paths inside this block come from a message, so none is imported.

    Args:
        own: the objects of the participant's own app that paths may mean, by import path.
    """
    mark = _OWN.set(own)
    try:
        yield
    finally:
        _OWN.reset(mark)


NOT_TRUSTED = "--trust allows it"
"""How a line ends that refuses to run code that a run's files name."""


def import_path(path: str, where: str, allowed: Iterable[str]) -> Callable[..., Any]:
    """Return the callable that ``"package.module:name"`` names.

    Importing a module runs it. Commands that only look at somebody's run therefore refuse import paths, unless the user
    trusts the run's files. At a node, a path in a message can only mean an object that the participant's own app lists.

    Args:
        path: the import path. A word without a colon is treated as a misspelt built-in name.
        where: the key that held the path, such as ``"mechanism.weigh"``. Error messages begin with it.
        allowed: the built-in names allowed there, for the hint in the error.

    Raises:
        UserError: the path has no colon, the module or the name in it does not exist, the object cannot be called, or
            import paths are refused. So is an error in the user's own module.
    """
    module, colon, name = path.partition(":")
    if not colon:
        hint = nearest(path, allowed)
        raise UserError(f"{where}: '{path}': no such name{hint} (or an import path 'package.module:name')")
    own = _OWN.get()
    if own is not None:
        if path not in own:
            raise UserError(
                f"{where}: '{path}': is an import path, and a node follows none that comes in a message; its own app "
                "may list what it means: client_app(..., own=[...])"
            )
        return own[path]
    if _LOOKING.get() and path not in OWN:
        raise UserError(
            f"{where}: '{path}': is an import path, which would run code that this run's files name; {NOT_TRUSTED}"
        )
    with gated(f"{where}: '{path}': its module cannot be imported"):
        loaded = importlib.import_module(module)
    if not hasattr(loaded, name):
        raise UserError(f"{where}: '{path}': module '{module}' has no '{name}'")
    target = getattr(loaded, name)
    if not callable(target):
        raise UserError(f"{where}: '{path}': is {type(target).__name__}, not something to call")
    result: Callable[..., Any] = target
    return result


def import_paths(said: Any) -> Iterator[str]:
    """Yield the import paths among plain values, such as those of an experiment."""
    if isinstance(said, str):
        if re.fullmatch(r"[^\W\d][\w.]*:[^\W\d][\w.]*", said):
            yield said
    elif isinstance(said, Mapping | list):
        for one in said.values() if isinstance(said, Mapping) else said:
            yield from import_paths(one)


def path_of(thing: Any) -> str:
    """Return the import path of a function or class, as :func:`import_path` takes it.

    Objects that no module holds under their own name (instances, lambdas, nested functions) cannot be imported. They
    get a name in angle brackets, ``"module:<name>"``, which :func:`import_path` refuses.
    """
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    module, name = getattr(thing, "__module__", kind.__module__), kind.__qualname__
    target = getattr(importlib.import_module(module), name, None) if module else None
    return f"{module}:{name}" if target is thing or name.startswith("<") else f"{module}:<{name}>"


def named(given: Any, where: str, known: Mapping[str, Callable[..., Any]]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the factory that a setting names, and the options for calling it.

    Args:
        given: a name from ``known``, an import path, or a mapping with ``name`` (a name or an import path) and options.
        where: the setting's key, for error messages.
        known: the built-in factories by name.

    Returns:
        Two results: the factory, and all entries of the mapping but ``name``. If ``given`` is a string, there are no
        options.

    Raises:
        UserError: ``given`` is none of these, or its name cannot be found (see :func:`import_path`).
    """
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise UserError(f"{where}: {given!r}: must be a name, or a table with a name and its options")
    options = {key: value for key, value in table.items() if key != "name"}
    return known.get(table["name"]) or import_path(table["name"], where, known), options
