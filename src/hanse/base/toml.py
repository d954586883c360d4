"""Writes the nested dictionaries of an experiment as TOML, which the standard library can only read."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")
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
    raise TypeError(f"{type(value).__name__} cannot be written as TOML")


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
        TypeError: a value of a type that TOML does not have.

    Examples:
        >>> print(dumps({"run": {"rounds": 3, "seed": None}}), end="")
        [run]
        rounds = 3
    """
    blocks = []
    for section, entries in sections.items():
        lines = [f"[{_key(section)}]"]
        lines += [f"{_key(k)} = {_value(v)}" for k, v in entries.items() if v is not None]
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def parse_value(text: str) -> Any:
    """Return the value in ``--set key=value``: parsed as TOML if that is possible, else the text itself.

    So ``3`` is an integer, ``[1, 2]`` a list, and ``greedyfed`` needs no quotes. Unlike in a file, ``.1`` and ``1.``
    are numbers, too.
    """
    if _SHORT.fullmatch(text):
        return float(text)
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
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
