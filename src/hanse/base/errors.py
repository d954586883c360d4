"""Errors that end a command with a line instead of a traceback: what the user gave, and what the machine did."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hanse.base.looking import is_looking


class UserError(ValueError):
    """A mistake in what the user gave; the command line prints its lines and exits with 2, without a traceback."""

    def __init__(self, *lines: str) -> None:
        self.lines: Sequence[str] = lines
        super().__init__("\n".join(lines))


class MachineError(RuntimeError):
    """Something that failed though nobody gave anything wrong: a full disk, a damaged file, a database that is gone.

    Its lines say what, where, and the next command; the command line prints them and exits with 1.
    """

    def __init__(self, *lines: str) -> None:
        self.lines: Sequence[str] = lines
        super().__init__("\n".join(lines))


class RunFailedError(MachineError):
    """A run that ended by itself before its last round, for what its lines say."""


class PartError(RuntimeError):
    """A part of a mechanism did what no part may do: its line names the part, the round and what is allowed."""


def first_line(error: BaseException) -> str:
    """Return an error's kind and the first line of what it says, for a line that explains it to a user."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:160]}" if said else type(error).__name__


def nearest(word: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the nearest allowed word, or the whole list if none is near."""
    names = sorted(allowed)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean '{close[0]}'?" if close else f"; allowed: {', '.join(names)}"


def import_path(path: str, where: str, allowed: Iterable[str]) -> Callable[..., Any]:
    """Return what ``"package.module:name"`` names. Raises UserError that says what could not be found.

    ``where`` is the key that held the path, ``allowed`` the built-in names that it could have been instead. To import a
    module is to run it: in a command that only looks at a run the path is refused (:mod:`hanse.base.looking`).
    """
    module, colon, name = path.partition(":")
    if not colon:
        hint = nearest(path, allowed)
        raise UserError(f"{where}: '{path}': no such name{hint} (or an import path 'package.module:name')")
    if is_looking():
        raise UserError(
            f"{where}: '{path}': is an import path, which would run code that this run's files name; --trust allows it"
        )
    try:
        found = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        if missing.name is None or not (module + ".").startswith(missing.name + "."):
            raise  # the user's module is there, but something that it imports is not
        raise UserError(f"{where}: '{path}': there is no module '{missing.name}'") from None
    except AttributeError:
        raise UserError(f"{where}: '{path}': module '{module}' has no '{name}'") from None
    if not callable(found):
        raise UserError(f"{where}: '{path}': is {type(found).__name__}, not something to call")
    result: Callable[..., Any] = found
    return result


def path_of(thing: Any) -> str:
    """Return the import path of a function or an object, as :func:`import_path` takes it. Of one that no module has by
    a name (a lambda, a function made in another) it names what it is, and cannot be imported.
    """
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    module, name = getattr(thing, "__module__", kind.__module__), kind.__qualname__
    found = getattr(importlib.import_module(module), name, None) if module else None
    return f"{module}:{name}" if found is thing or name.startswith("<") else f"{module}:<{name}>"


def named(given: Any, where: str, known: Mapping[str, Callable[..., Any]]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return what a name, an import path, or a table with ``name`` and options stands for, and the options.

    Raises UserError, as :func:`import_path` does, or for anything else.
    """
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping) or not isinstance(table.get("name"), str):
        raise UserError(f"{where}: {given!r}: must be a name, or a table with a name and its options")
    options = {key: value for key, value in table.items() if key != "name"}
    return known.get(table["name"]) or import_path(table["name"], where, known), options


def library(module: str, said: str) -> Any:
    """Return a library that hanse can do without. Raises UserError with the line ``said`` if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is not None and missing.name.split(".")[0] != module.split(".")[0]:
            raise  # it is there, and something else is missing
        raise UserError(said) from None
