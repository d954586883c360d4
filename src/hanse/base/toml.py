"""Writes the nested dictionaries of an experiment as TOML, which the standard library can only read; and reads TOML
that strangers may have written.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from hanse.base.errors import UserError

_BARE = re.compile(r"[A-Za-z0-9_-]+")
DEEPEST = 32
"""The most tables within one another; hanse's own files have five."""
_PART = r"""(?:[\w-]++|"(?:[^"\\\n]|\\.)*+"|'[^'\n]*+')"""  # of a dotted key
_DEEP = re.compile(rf"(?<![\w\\-]){_PART}(?:[ \t]*+\.[ \t]*+{_PART}){{{DEEPEST}}}")  # in a string, too: hanse has none
_TOO_DEEP = f"tables lie more than {DEEPEST} deep within one another"
_SHORT = re.compile(r"[+-]?(\.\d+|\d+\.)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)  # numbers that TOML spells otherwise


def _key(name: str) -> str:
    """Return a key as TOML writes it: bare if it can be, else in quotes."""
    return name if _BARE.fullmatch(name) else json.dumps(name)


def _value(value: Any) -> str:
    """Return a value as TOML writes it. Raises TypeError for a type that TOML does not have."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)  # inf and nan are spelt the same in TOML
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(k)} = {_value(v)}" for k, v in value.items() if v is not None)
        return f"{{ {inside} }}" if inside else "{}"
    what = "None in a list" if value is None else type(value).__name__
    raise TypeError(f"{what} cannot be written as TOML: must be numbers, text, or lists and tables of them")


def plain(given: Any) -> Any:
    """Return settings with Python's own numbers in place of NumPy's, in tables and lists, too."""
    if type(given) is dict:
        return {key: plain(value) for key, value in given.items()}
    if type(given) in (list, tuple):
        return type(given)(plain(value) for value in given)
    return given.item() if isinstance(given, np.generic) else given


def inline(value: Any) -> str:
    """Return one value as TOML writes it on one line. For a type that TOML does not have, it is as Python writes it."""
    try:
        return _value(value)
    except TypeError:
        return repr(value)


def dumps(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a TOML text with one table per section.

    Entries that are None are left out, since TOML has no null. Nested mappings become inline tables.

    Args:
        sections: the entries by section, in the order of writing.

    Raises:
        UserError: a value, or one in it, is of a type that TOML does not have.

    Examples:
        >>> print(dumps({"run": {"rounds": 3, "seed": None}}), end="")
        [run]
        rounds = 3
    """
    blocks = []
    for section, entries in sections.items():
        lines = [f"[{_key(section)}]"]
        for key, value in entries.items():
            try:
                lines += [f"{_key(key)} = {_value(value)}"] if value is not None else []
            except TypeError as wrong:
                raise UserError(f"{section}.{key}: {wrong}") from None
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def loads(text: str, parse_float: Callable[[str], float] = float) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Deep keys are refused before anything is parsed, since the standard library takes time that grows with the square of
    their depth, and code that walks through tables would reach the end of Python's stack.

    Args:
        text: the text.
        parse_float: makes a number of what the text has for it.

    Raises:
        ValueError: the text is not TOML, or tables lie more than 32 deep within one another.

    Examples:
        >>> loads("[run]" + chr(10) + "rounds = 3")
        {'run': {'rounds': 3}}
    """
    if deep := _DEEP.search(text):
        raise ValueError(f"{deep[0][:40]}...: {_TOO_DEEP}")
    try:
        found = tomllib.loads(text, parse_float=parse_float)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    layer: list[Any] = [found]
    for _ in range(DEEPEST + 1):
        layer = [
            v for one in layer if isinstance(one, dict | list) for v in (one.values() if isinstance(one, dict) else one)
        ]
        if not layer:
            return found
    raise ValueError(_TOO_DEEP)


def parse_value(text: str) -> Any:
    """Return the value in ``--set key=value``: parsed as TOML if that is possible, else the text itself.

    So ``3`` is an integer, ``[1, 2]`` a list, and ``greedyfed`` needs no quotes. Unlike in a file, ``.1`` and ``1.``
    are numbers, too.
    """
    if _SHORT.fullmatch(text):
        return float(text)
    try:
        return loads(f"value = {text}")["value"]
    except ValueError:
        return text


def flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested tables with their dotted keys, such as ``("mechanism.weigh", "samples")``.

    Args:
        table: the nested mappings.
        above: the prefix of every key. It ends with a dot unless it is empty.
    """
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value
