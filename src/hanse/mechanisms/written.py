"""A mechanism that was put together in Python, written as an experiment's ``[mechanism]`` table.

So it stands in ``config.toml`` like one that came from a file, and its run can be resumed: the published mechanism that
it was made from (or is nearest to), its options, and the parts that differ, each by its name, or by its import path if
it is the user's own.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.core.part import Mechanism
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.registry import MECHANISMS, PARTS, PUBLISHED, SLOTS, build_mechanism, is_rule


def table_of(mechanism: Mechanism) -> dict[str, Any]:
    """Return the ``[mechanism]`` table from which the registry builds this mechanism again.

    Raises UserError with a line for each part that no file could name: of a class inside a function, or with an option
    that is no plain value.
    """
    if mechanism.deploy is None:  # which hands out the same models
        mechanism = replace(mechanism, deploy=ServerModel())
    named = MECHANISMS.get(mechanism.name)
    near = [(make, _options(make, mechanism)) for make in (PUBLISHED if named is None else (named,))]
    make, options = max(near, key=lambda one: _alike(one[0], one[1], mechanism))
    base = make(**options).slots()
    changed = {k: v for k, v in options.items() if v != inspect.signature(make).parameters[k].default}
    table: dict[str, Any] = {"name": make.__name__, **{k: _plain(v) for k, v in changed.items()}}
    lines: list[str] = []
    slots = mechanism.slots()
    for slot in SLOTS:
        if _same(base.get(slot), slots.get(slot)):
            continue
        try:
            table[slot] = "none" if slot not in slots else part_table(slot, slots[slot])
        except UserError as wrong:
            lines += wrong.lines
    if not lines:
        lines += _differences(table, mechanism)
    if lines:
        raise UserError(*lines)
    return table


def _options(make: Callable[..., Mechanism], mechanism: Mechanism) -> dict[str, Any]:
    """Return the options of a published mechanism that make its parts most like these: those that a part has under the
    same name.
    """
    own, given = make().slots(), mechanism.slots()
    found = {}
    for name in inspect.signature(make).parameters:
        for slot, part in own.items():
            if type(given.get(slot)) is type(part) and hasattr(part, name):
                found[name] = getattr(given[slot], name)
                break
    try:
        make(**found)
    except (UserError, ValueError, TypeError):  # options of the same name that mean something else there
        return {}
    return found


def _alike(make: Callable[..., Mechanism], options: Mapping[str, Any], mechanism: Mechanism) -> tuple[int, int]:
    """Return how many slots have an equal part, and how many one of the same kind."""
    own, given = make(**options).slots(), mechanism.slots()
    pairs = [(own.get(slot), given.get(slot)) for slot in SLOTS]
    return sum(_same(*pair) for pair in pairs), sum(type(a) is type(b) for a, b in pairs)


def _same(one: Any, other: Any) -> bool:
    """Say whether two parts are of one kind with equal options."""
    if type(one) is not type(other):
        return False
    try:
        return bool(one == other)
    except (ValueError, RuntimeError):  # arrays among the options
        return False


def part_table(slot: str, part: Any) -> dict[str, Any]:
    """Return a part as a table with its name or import path and all its options, another part among them as a table of
    its own. Raises UserError.
    """
    kind, where = type(part), f"mechanism.{slot}"
    name = next((known for known, make in PARTS[slot].items() if make is kind), None)
    if name is None:
        if "." in kind.__qualname__:
            raise UserError(
                f"{where}: {kind.__qualname__}: is defined inside a function or class, where no file can name it: "
                "must be at the top of a module"
            )
        name = f"{kind.__module__}:{kind.__qualname__}"
    table: dict[str, Any] = {"name": name}
    for option in inspect.signature(kind).parameters:
        if not hasattr(part, option):
            raise UserError(
                f"{where}.{option}: {kind.__name__} does not keep what it was made with: must be a dataclass"
            )
        own = getattr(part, option)
        table[option] = part_table(slot, own) if is_rule(own) else _plain(own)
        try:
            toml.dumps({"mechanism": {option: table[option]}})
        except TypeError as wrong:
            raise UserError(f"{where}.{option}: {wrong}: must be numbers, text, or lists and tables of them") from None
    return table


def _plain(option: Any) -> Any:
    """Return an option as a file has it."""
    if option is None:
        return "none"
    return option.item() if isinstance(option, np.generic) else option


def _differences(table: Mapping[str, Any], mechanism: Mechanism) -> list[str]:
    """Return a line for each slot in which the table, once written and read again, gives another part."""
    built = build_mechanism(tomllib.loads(toml.dumps({"mechanism": table}))["mechanism"])
    found, given = built.slots(), mechanism.slots()
    lines = []
    for slot in SLOTS:
        one, other = found.get(slot), given.get(slot)
        if not _same(one, other):
            lines.append(f"mechanism.{slot}: {other!r}: cannot be written into a file: reading it back gives {one!r}")
        elif one is not None and other is not None and built.standing(one) != mechanism.standing(other):
            twin = " and ".join(mechanism.standing(other))
            lines.append(
                f"mechanism.{slot}: {type(other).__name__}: must be one object in all its slots, not in {twin} alone"
            )
    return lines
