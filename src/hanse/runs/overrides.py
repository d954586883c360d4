"""What ``--set`` and ``--grid`` change in an experiment's file.

======================  ================================================================================
``train.lr=0.1``        sets a key
``train.batch_size=``   leaves a key out, as if the file did not have it
``mechanism=local``     replaces a whole table: by a name alone, or by ``{name = "local", ...}``
``mechanism.name=x``    another mechanism, with those of the file's options that it has, too
======================  ================================================================================

Whole tables are replaced first, regardless of the order on the command line. If you switch to another mechanism,
options that only the old one has are dropped. Options that neither has are mistakes and stay, to be refused by the
check.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hanse.base import toml
from hanse.base.errors import UserError, nearest
from hanse.base.imports import import_path
from hanse.core.part import Mechanism
from hanse.mechanisms.registry import MECHANISMS, SLOTS

Sections = dict[str, Any]
NAMED = ("mechanism", "model")  # tables that a name alone may stand for
_FORM = (
    "--set {}: must be section.key=value, as in --set train.lr=0.1, or a whole table, as in --set mechanism=local or "
    "--set 'behaviour={{}}'"
)


def apply(sections: Sections, overrides: Sequence[str]) -> tuple[Sections, list[str]]:
    """Return the sections with these overrides, and notes on options dropped because of them.

    Options that an override itself sets are never dropped.

    Args:
        sections: the sections of the file; they are not changed.
        overrides: as on the command line, such as ``train.lr=0.1``.

    Raises:
        UserError: an override is malformed, or removes a key that does not exist.
    """
    written_for, paths = name_of(sections), [_split(one)[0] for one in overrides]
    given = {keys[1] for keys in paths if keys[0] == "mechanism" and len(keys) > 1}
    changed = changed_by(sections, overrides)
    kept, gone = fitting(changed, [written_for] if written_for else [], but=given)
    name = name_of(kept)
    notes = [f"note: mechanism.{key}: left out: '{name}' has no such option" for key in gone]
    notes += replaced(sections, kept, overrides)
    return kept, notes


def replaced(before: Mapping[str, Any], after: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """Return a note if replacing the whole mechanism table lost options that the new mechanism also has."""
    table, name = before.get("mechanism"), name_of(after)
    if name is None or not isinstance(table, Mapping) or all(_split(one)[0] != ["mechanism"] for one in overrides):
        return []
    lost = [k for k, v in table.items() if k != "name" and k not in after["mechanism"] and _has(name, k, v)]
    what = ", ".join(lost)
    return [f"note: mechanism={name}: replaces the table, {what} too; mechanism.name={name} keeps that"] if lost else []


def changed_by(sections: Mapping[str, Any], overrides: Sequence[str]) -> Sections:
    """Return the sections with each override applied, whole tables first. Raises UserError."""
    result = copy.deepcopy(dict(sections))
    for override in sorted(overrides, key=lambda one: len(_split(one)[0]) > 1):
        _set(result, override)
    return result


def fitting(
    sections: Mapping[str, Any], written_for: Sequence[str], but: Collection[str] = ()
) -> tuple[Sections, list[str]]:
    """Return the sections without options that belong to another mechanism, and the keys dropped.

    Args:
        sections: the sections of the file.
        written_for: mechanisms for which the options were written. An option is dropped if one of these mechanisms has
            it and the named one does not.
        but: the keys that always stay.
    """
    table, name = sections.get("mechanism"), name_of(sections)
    others = [other for other in written_for if other != name]
    if not isinstance(table, Mapping) or name is None or not others:
        return dict(sections), []
    gone = [
        key
        for key, value in table.items()
        if key != "name" and key not in but and not _has(name, key, value)
        and any(_has(other, key, value) for other in others)
    ]  # fmt: skip
    return {**sections, "mechanism": {key: value for key, value in table.items() if key not in gone}}, gone


def name_of(sections: Mapping[str, Any]) -> str | None:
    """Return the mechanism's name, or None if the sections name none."""
    table = sections.get("mechanism")
    name = table.get("name") if isinstance(table, Mapping) else table
    return name if isinstance(name, str) else None


def _has(name: str, key: str, value: Any) -> bool:
    """Say whether a mechanism has an option, or takes this part in a slot.

    A table without a name changes options of the mechanism's own part, which must have them.
    """
    try:
        make = MECHANISMS.get(name) or import_path(name, "mechanism.name", MECHANISMS)
        if key not in SLOTS:
            return key in inspect.signature(make).parameters
        if not isinstance(value, Mapping) or "name" in value:
            return True
        built: Mechanism = make()
        own = built.slots().get(key)
        return own is not None and set(value) <= set(inspect.signature(type(own)).parameters)
    except (UserError, TypeError, ValueError):  # no such mechanism, or one that cannot be asked: the check says so
        return True


def _split(override: str) -> tuple[list[str], str]:
    """Return an override's keys and its value as it is written. Raises UserError for another form than
    ``a.b=value``.
    """
    name, equals, text = override.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not equals or not all(keys):
        raise UserError(_FORM.format(override))
    if len(keys) > toml.DEEPEST:
        raise UserError(f"--set {override[:40]}...: {len(keys)} tables within one another; at most {toml.DEEPEST}")
    return keys, text.strip()


def _set(sections: Sections, override: str) -> None:
    """Set one ``a.b=value`` in nested dictionaries. An empty value removes the key."""
    keys, text = _split(override)
    inside: Any = sections
    for key in keys[:-1]:
        below = inside.get(key)
        if below is None:
            below = inside[key] = {}
        if isinstance(below, str):  # a part given by name gets options: weigh.strength=0.5
            below = inside[key] = {"name": below}
        if not isinstance(below, dict):
            raise UserError(f"--set {override}: '{key}' is {below!r}, not a section")
        inside = below
    if text:
        value = toml.parse_value(text)
        if len(keys) == 1 and not isinstance(value, Mapping) and not (keys[0] in NAMED and isinstance(value, str)):
            raise UserError(_FORM.format(override))
        inside[keys[-1]] = {"name": value} if len(keys) == 1 and isinstance(value, str) else value
    elif keys[-1] in inside:
        del inside[keys[-1]]
    else:
        raise UserError(f"--set {override}: no such key to leave out{nearest(keys[-1], inside) if inside else ''}")
