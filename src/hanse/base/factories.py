"""Calls the factory that an experiment names, with options that are checked against the factory's annotations.

Everything that a user can choose by name (a part, a policy, a behaviour, a loss) is built by a callable. The parameters
of this callable are the options. :func:`call` validates these strictly, with pydantic, and reports each wrong one in
its own line. The annotated types below are the bounds that most options share. Use them in the signature of a factory.
"""

from __future__ import annotations

import difflib
import inspect
import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import lru_cache, wraps
from numbers import Integral
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError

from hanse.base.errors import UserError, gated, nearest

Made = TypeVar("Made")
MOST = 1e30  # far beyond any sensible option, and still a number in single precision

# the bounds that most options share; numbers are never NaN or infinite
MOST_COUNT = 10**12
"""The largest whole number that a setting or an argument may be."""
Count = Annotated[int, Field(ge=0, le=MOST_COUNT)]
Positive = Annotated[int, Field(ge=1, le=MOST_COUNT)]
Weight = Annotated[float, Field(ge=0, le=MOST, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=MOST, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
SomeShare = Annotated[float, Field(gt=0, le=1)]
PartShare = Annotated[float, Field(ge=0, lt=1)]
TokenAmount = Annotated[float, Field(ge=1e-6, le=1e9)]  # in tokens, at least the smallest unit


def defaults(make: Callable[..., Any]) -> dict[str, Any]:
    """Return the default value of each parameter of a factory, by name; parameters without a default are left out."""
    parameters = inspect.signature(make).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def whole_number(name: str, given: Any, least: int) -> None:
    """Raise UserError, naming the argument, unless this is a whole number from ``least`` to ``MOST_COUNT``."""
    if isinstance(given, bool) or not isinstance(given, Integral) or not least <= int(given) <= MOST_COUNT:
        raise UserError(f"{name}: {given!r:.80}: must be a whole number, at least {least} and at most 1e12")


OBJECT = "object"
"""The name of data, or of a model, that were given as an object in Python."""


def named_choice(given: Any, default: str) -> str:
    """Return the name in a setting, which is a name or a table with one, or ``default`` if there is none."""
    name = given.get("name") if isinstance(given, Mapping) else given
    return default if name is None else str(name)


def call(
    make: Callable[..., Any],
    options: Mapping[str, Any],
    where: str,
    also: Sequence[str] = (),
    first: Sequence[Any] = (),
) -> Any:
    """Check the options that a user gave, and call a factory with them.

    Values are validated strictly and never converted: ``"3"`` is not an integer. The text ``"none"`` stands for None
    where None is allowed, because TOML cannot say None. NaN is never an option: it is not even equal to itself.

    Args:
        make: the factory, a class or a function. A parameter without an annotation accepts anything.
        options: the options by name.
        where: the key of these options, such as ``"mechanism.value"``. Error messages begin with it.
        also: other keys allowed in the same place, for the hint at a misspelt key.
        first: the positional arguments that come before the options.

    Returns:
        What the factory returns.

    Raises:
        UserError: with a line for each unknown option and each wrong value.
    """
    if not isinstance(options, Mapping):
        raise UserError(f"{where}: {options!r}: must be a table of options")
    declared = list(inspect.signature(make).parameters.values())[len(first) :]
    parameters = [p.name for p in declared]
    adapter = _kept_adapter if isinstance(make, Hashable) else _adapter
    lines: list[str] = []  # every mistake gets one, so a user can mend them all at once
    checked: dict[str, Any] = {}
    for name, value in options.items():
        if name not in parameters:
            lines.append(f"{where}.{name}: no such key{nearest(name, [*parameters, *also])}")
            continue
        if _has_nan(value):
            lines.append(f"{where}.{name}: {value!r}: must not be NaN")
            continue
        wanted = adapter(make, name)
        if value == "none" and _allows_none(wanted):  # TOML has no word of its own for it
            checked[name] = None
            continue
        try:
            checked[name] = wanted.validate_python(value, strict=True)
        except ValidationError as wrong:
            reasons = "; or ".join(dict.fromkeys(_reason(e["loc"], e["msg"], value) for e in wrong.errors()))
            lines.append(f"{where}.{name}: {value!r}: {reasons}")
    lines += [
        f"{where}.{p.name}: is required"
        for p in declared
        if p.default is p.empty and p.name not in options and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if lines:
        raise UserError(*lines)
    try:
        with gated(where):
            return make(*first, **checked)
    except UserError as wrong:  # options that do not go together begin with the name of one of them
        raise UserError(
            *(f"{where}.{line}" if re.split(r"[:\[]", line)[0] in parameters else line for line in wrong.lines)
        ) from None


def options_of(
    part: Callable[..., Any], names: str, **usual: Any
) -> Callable[[Callable[[Any], Made]], Callable[..., Made]]:
    """Give a factory options of the part that it is made of, so that it repeats neither their types nor their defaults.

    The function that is decorated gets the part.

    Args:
        part: makes the part: a dataclass.
        names: the options, in the order in which they are listed, with a space between them.
        usual: what the part gets by default, other than its own defaults; also options that are not among the names.

    Examples:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Price:
        ...     tokens: Weight = 1.0
        ...     of: str = "a seat"
        >>> @options_of(Price, "tokens", of="a model")
        ... def priced(part: Price) -> str:
        ...     return f"{part.of} costs {part.tokens:g}"
        >>> priced(), priced(tokens=2.0), defaults(priced)
        ('a model costs 1', 'a model costs 2', {'tokens': 1.0})
    """
    own, hints = inspect.signature(part).parameters, get_type_hints(part, include_extras=True)
    taken = [own[name].replace(default=usual.get(name, own[name].default)) for name in names.split()]
    signature = inspect.Signature(taken)

    def taking(make: Callable[[Any], Made]) -> Callable[..., Made]:
        @wraps(make)
        def made(*given: Any, **options: Any) -> Made:
            return make(part(**usual | signature.bind(*given, **options).arguments))

        made.__annotations__ = {name: hints[name] for name in signature.parameters}
        vars(made).update(__signature__=signature, made_of=part)
        return made

    return taking


def _has_nan(value: Any) -> bool:
    """Whether an option is NaN, or is a list or a table with one in it."""
    if isinstance(value, Mapping | list | tuple):
        return any(map(_has_nan, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, float) and math.isnan(value)


def _reason(loc: Sequence[int | str], said: str, value: Any) -> str:
    """Return what is wrong with an option; of a table in a list of tables, with the key that it is about."""
    said = said.removeprefix("Value error, ")
    said = "Input should be a list" if said.endswith(("instance of Sequence", "as a Sequence value")) else said
    of_table = isinstance(value, list) and len(loc) > 1 and isinstance(loc[0], int) and isinstance(loc[1], str)
    return f"{loc[1]}: {said[0].lower()}{said[1:]}" if of_table else f"{said[0].lower()}{said[1:]}"


def _adapter(make: Callable[..., Any], name: str) -> TypeAdapter[Any]:
    """Return what checks the values of one parameter of a factory."""
    # a dataclass may inherit fields from another module, whose names its own __init__ does not know
    annotated = make.__init__ if inspect.isclass(make) and not is_dataclass(make) else make
    return TypeAdapter(get_type_hints(annotated, include_extras=True).get(name, Any))


_kept_adapter = lru_cache(maxsize=2048)(_adapter)  # sweeps and tables build the same parts thousands of times


def _allows_none(wanted: TypeAdapter[Any]) -> bool:
    """Whether None is a valid value of a type."""
    try:
        return wanted.validate_python(None, strict=True) is None
    except ValidationError:
        return False


def misspelt(kind: type, known: Sequence[str]) -> str | None:
    """Return a warning if the name of a public method is almost that of a known method, else None.

    Python does not notice such a slip: the method would exist, but nothing would ever call it.

    Args:
        kind: a part's, policy's or behaviour's class. Only methods that it defines itself count.
        known: the names of the methods that are called.
    """
    for name, member in vars(kind).items():
        if name.startswith("_") or name in known or not inspect.isfunction(member):
            continue
        near = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
        if near:
            return f"its method '{name}' is never called: did you mean '{near[0]}'?"
    return None
