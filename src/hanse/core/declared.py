"""The types of all values that server and clients exchange, with their bounds, and the check of a value against them.

Whatever comes from a client, a reply over a network or the answer of a policy in this process, is untrusted. Pydantic
validates it strictly here: a bool is not an int, a number is not a text, and nothing is converted. The port's
dataclasses (:mod:`hanse.core.port`) use the annotated types below as field types. :class:`Declared` checks a value
against such a class and says in one line what is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, TypeVar, Union

import numpy as np
from pydantic import ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError
from typing_extensions import TypeAliasType

from hanse.base.errors import UserError
from hanse.base.files import SMALL, read_text

LARGEST_COUNT = 2**53  # samples, steps, labels: every whole number up to it is a float64
MOST_METRICS = 32  # that one seat's training may report
LARGEST_LOSS = float(np.finfo(np.float32).max)  # losses are made in float32; sums and squares stay finite

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Units = Annotated[int, Field(ge=0, le=2**63 - 1)]  # an amount of the smallest unit
Count = Annotated[int, Field(ge=0, le=LARGEST_COUNT)]
Samples = Annotated[float, Field(ge=0, le=LARGEST_COUNT, allow_inf_nan=False)]
Loss = Annotated[float, Field(ge=-LARGEST_LOSS, le=LARGEST_LOSS, allow_inf_nan=False)]
Error = Annotated[float, Field(ge=0, le=LARGEST_LOSS, allow_inf_nan=False)]
Accuracy = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Figure = Annotated[float, Field(allow_inf_nan=False)]
Clip = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Name = Annotated[str, Field(max_length=200)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


# pydantic would try all members of a plain union and report the failures of each; a tag leaves one line
def _tag(value: Any) -> str | None:
    """Return the name of the member of the union ``Plain`` that a value belongs to; None if it is of no plain type.

    A bool must be looked at before an int, since Python counts it as one.
    """
    if value is None or isinstance(value, bool):
        return "bool" if value is not None else "none"
    kinds = {"int": int, "float": float, "str": str, "list": list, "tuple": tuple, "map": Mapping}
    return next((name for name, kind in kinds.items() if isinstance(value, kind)), None)


PLAIN = "input should be a number, a text, a list, a mapping by text, or None"
Plain = TypeAliasType(  # what a policy may say: it is written as JSON on a network
    "Plain",
    Annotated[
        Union[  # noqa: UP007 (a union of strings)
            Annotated[None, Tag("none")],
            Annotated[bool, Tag("bool")],
            Annotated[Int64, Tag("int")],
            Annotated[float, Tag("float")],
            Annotated[str, Tag("str")],
            Annotated["list[Plain]", Tag("list")],
            Annotated["tuple[Plain, ...]", Tag("tuple")],
            Annotated["Mapping[Name, Plain]", Tag("map")],
        ],
        Discriminator(_tag, custom_error_type="plain", custom_error_message=PLAIN),
    ],
)


_CONFIG = ConfigDict(strict=True, arbitrary_types_allowed=True, revalidate_instances="always", extra="ignore")
T = TypeVar("T")


class UnsoundError(ValueError):
    """A value does not match its declared type. The message is one line: the field, the value, and what is allowed."""


@dataclass(frozen=True)
class Declared(Generic[T]):
    """A type against which untrusted values are checked.

    Attributes:
        kind: a dataclass, a typed dictionary or an annotated type.
    """

    kind: Any
    _all: ClassVar[list[Declared[Any]]] = []

    def __post_init__(self) -> None:
        """Note this type for :meth:`prepare`."""
        Declared._all.append(self)

    @staticmethod
    def prepare() -> None:
        """Make all validators now, as in a process whose forks would each make theirs."""
        for one in Declared._all:
            _ = one._adapter

    @cached_property
    def _adapter(self) -> TypeAdapter[tuple[T]]:
        # when it is first asked, as making one takes milliseconds and most runs ask few; in a tuple: a dataclass alone
        # would have to bring its own configuration
        """The type's validator, made when it is first used."""
        return TypeAdapter(tuple[self.kind], config=_CONFIG)  # type: ignore[name-defined]

    def check(self, value: Any, error: type[Exception] = UnsoundError, says: str = "{}") -> T:
        """Return ``value`` if it is of the declared type.

        Args:
            value: the value.
            error: what is raised if it is not.
            says: the error's line, with ``{}`` for what is wrong.
        """
        try:
            return self._adapter.validate_python((value,))[0]
        except ValidationError as wrong:
            raise error(says.replace("{}", _line(wrong, self.kind))) from None

    def read(self, text: str, error: type[Exception] = UnsoundError, says: str = "{}") -> T:
        """Parse a JSON text and check that it is of the declared type; for the arguments see :meth:`check`."""
        try:
            return self._adapter.validate_json(f"[{text}]")[0]
        except ValidationError as wrong:
            raise error(says.replace("{}", _line(wrong, self.kind))) from None

    def of_file(self, file: Path, most: int = SMALL, says: str = "{}") -> T:
        """Read a JSON file of at most so many bytes, which may be a stranger's.

        Raises UserError, which says of the file what ``says`` has, with ``{}`` for what is wrong in it.
        """
        return self.read(read_text(file, most), UserError, f"{file}: {says}")

    def canonical(self, text: str) -> T:
        """Read a JSON text, as :meth:`read`, that is signed or hashed: it must be as Python writes it, without blanks.

        Raises ValueError for any other text, which another program might read otherwise.
        """
        found = self.read(text)
        if json.dumps(found, separators=(",", ":")) != text:
            raise ValueError("is not written in the one form that is signed: other programs may read it otherwise")
        return found


_BOUNDS = {"ge": "at least", "le": "at most"}


def _line(wrong: ValidationError, kind: Any) -> str:
    """Return one of pydantic's errors as a short line: the field, what came, and what is allowed.

    It is the first of those that lie deepest: of a union's members, that one fits best.
    """
    first = max(wrong.errors(include_url=False), key=lambda error: len(error["loc"]))
    path = [part for part in map(str, first["loc"][1:]) if "[" not in part]  # a union's member, such as list[int]
    named = [i for i, part in enumerate(path) if part[:1].isupper()]  # the kind of the result that it lies in
    where = ".".join(path[named[-1] :] if named else [getattr(kind, "__name__", "value"), *path])
    bounds = [f"{word} {first['ctx'][key]:g}" for key, word in _BOUNDS.items() if key in first.get("ctx", {})]
    said = " and ".join(["must be " + bound for bound in bounds]) or first["msg"][:1].lower() + first["msg"][1:]
    return f"{where[:80]}: {_shown(first['input'])}: {said}"


def _shown(value: Any) -> str:
    """Return a value as an error message shows it: short, whatever a stranger sent."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if (kind := str(getattr(value, "dtype", ""))).startswith("torch."):  # a tensor; what only reads does without torch
        return f"{kind.removeprefix('torch.')} of shape {tuple(value.shape)}"
    return repr(value[:40]) if isinstance(value, str) else type(value).__name__
