"""Calls what a name in an experiment stands for, with options that are checked by its annotations."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Annotated, Any, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from hanse.base.errors import UserError, nearest

# what most options are
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


def defaults(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the default of each parameter of a part or mechanism."""
    parameters = inspect.signature(make).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def call(
    make: Callable[..., Any],
    options: Mapping[str, Any],
    where: str,
    also: Sequence[str] = (),
    first: Sequence[Any] = (),
) -> Any:
    """Call a part or mechanism factory with checked options. Raises UserError with a line for each wrong one.

    ``also`` are keys that are allowed at the same place, for the hint only; ``first`` are its first arguments.
    """
    parameters = list(inspect.signature(make).parameters)[len(first) :]
    # a dataclass may inherit fields from another module, whose names its own __init__ does not know
    annotated = make.__init__ if inspect.isclass(make) and not is_dataclass(make) else make
    hints = get_type_hints(annotated, include_extras=True)
    lines: list[str] = []
    checked: dict[str, Any] = {}
    for name, value in options.items():
        if name not in parameters:
            lines.append(f"{where}.{name}: no such key{nearest(name, [*parameters, *also])}")
            continue
        wanted = TypeAdapter(hints.get(name, Any))
        if value == "none" and _allows_none(wanted):  # TOML has no word of its own for it
            checked[name] = None
            continue
        try:
            checked[name] = wanted.validate_python(value, strict=True)
        except ValidationError as wrong:
            reasons = "; or ".join(dict.fromkeys(e["msg"].removeprefix("Value error, ") for e in wrong.errors()))
            lines.append(f"{where}.{name}: {value!r}: {reasons[0].lower()}{reasons[1:]}")
    if lines:
        raise UserError(*lines)
    return make(*first, **checked)


def _allows_none(wanted: TypeAdapter[Any]) -> bool:
    try:
        return wanted.validate_python(None, strict=True) is None
    except ValidationError:
        return False


def misspelt(kind: type, known: Sequence[str]) -> str | None:
    """Return a line if a class has a public method whose name is nearly one of ``known`` methods, and not one of them:
    nothing would ever call it.
    """
    for name, member in vars(kind).items():
        if name.startswith("_") or name in known or not inspect.isfunction(member):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if near:
            return f"its method '{name}' is never called: did you mean '{near[0]}'?"
    return None
