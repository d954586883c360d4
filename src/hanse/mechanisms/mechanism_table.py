"""Writes a mechanism that was put together in Python as an experiment's ``[mechanism]`` table.

With that table in ``config.toml``, the mechanism's run can be resumed and repeated like one that came from a file. The
table names the published mechanism from which this one was made (or else FedAvg), and the parts that differ from its
own. A part is given by name or, if it is the user's own, by import path. :func:`table_of` is the inverse of
:func:`hanse.mechanisms.registry.build_mechanism`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hanse.base import toml
from hanse.base.errors import UserError, collected
from hanse.base.factories import defaults
from hanse.core.part import Mechanism
from hanse.mechanisms.deploy import ServerModel
from hanse.mechanisms.registry import MECHANISMS, PARTS, SLOTS, build_mechanism, is_rule


def table_of(mechanism: Mechanism) -> dict[str, Any]:
    """Return the ``[mechanism]`` table from which the registry builds this mechanism again.

    Raises:
        UserError: with a line for each part that no file can name, because its class is defined inside a function or an
            option is not a plain value.

    Examples:
        >>> from dataclasses import replace
        >>> from hanse.mechanisms.baselines import fedavg
        >>> from hanse.mechanisms.robust import Krum
        >>> table_of(replace(fedavg(clients_per_round=5), weigh=Krum(f=1)))
        {'name': 'fedavg', 'select': {'name': 'uniform', 'clients_per_round': 5}, 'weigh': {'name': 'krum', 'f': 1}}
    """
    if mechanism.deploy is None:  # which hands out the same models
        mechanism = replace(mechanism, deploy=ServerModel())
    table: dict[str, Any] = {"name": mechanism.name if mechanism.name in MECHANISMS else "fedavg"}
    base, slots, lines = MECHANISMS[table["name"]]().slots(), mechanism.slots(), list[str]()
    for slot in SLOTS:
        if _same(base.get(slot), slots.get(slot)):
            continue
        with collected(lines):
            table[slot] = "none" if slot not in slots else part_table(slot, slots[slot])
    if not lines:
        lines += _differences(table, mechanism)
    if lines:
        raise UserError(*lines)
    return table


def without_effect(table: Mapping[str, Any]) -> list[str]:
    """Return the options of a ``[mechanism]`` table that change nothing, since the parts that used them are replaced.

    An option at its default, or that a part's own table repeats, is not one of them: a run's ``config.toml`` has all.

    Examples:
        >>> without_effect({"name": "greedyfed", "averaging": 0.5, "eps": 1e-3, "select": "uniform"})
        ['averaging']
    """
    given = [table[slot] for slot in SLOTS if slot in table]
    make = MECHANISMS.get(table["name"])
    if not given or make is None:
        return []
    built = build_mechanism(table)
    repeated = [part for part in given if isinstance(part, Mapping)]
    return [
        option
        for option, default in defaults(make).items()
        if option in table
        and table[option] != default
        and all(option not in part or part[option] != table[option] for part in repeated)
        and _same(built, build_mechanism({key: value for key, value in table.items() if key != option}))
    ]


def _same(one: Any, other: Any) -> bool:
    """Say whether two parts are of the same class with equal options."""
    if type(one) is not type(other):
        return False
    try:
        return bool(one == other)
    except (ValueError, RuntimeError):  # arrays among the options
        return False


def part_table(slot: str, part: Any) -> dict[str, Any]:
    """Return a part as a table: its name or import path, and all its options.

    An option that is itself a part becomes a table of its own.

    Args:
        slot: the slot in which the part stands.
        part: the part.

    Raises:
        UserError: the part's class is not at the top of a module, or an option is not a plain value.
    """
    kind, where = type(part), f"mechanism.{slot}"
    name = PARTS[slot].name_of(kind)
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
            raise UserError(f"{where}.{option}: {kind.__name__} does not keep its options: must be a dataclass")
        own = getattr(part, option)
        table[option] = part_table(slot, own) if is_rule(own) else "none" if own is None else toml.plain(own)
        toml.dumps({where: {option: table[option]}})  # it refuses what no file can have
    return table


def _differences(table: Mapping[str, Any], mechanism: Mechanism) -> list[str]:
    """Return a line for each slot in which the table, written to a file and read again, gives another part."""
    built = build_mechanism(toml.loads(toml.dumps({"mechanism": table}))["mechanism"])
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
