"""What the clients of a run are called: by their data, or by themselves where they are participants on a network.

Wherever a person may name a client, a number or a name will do; :func:`client_of` decides which one is meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from hanse.base.errors import UserError, nearest
from hanse.base.files import CLIENTS, MEMBERS, read_json
from hanse.core.declared import Count, Declared, UnsoundError
from hanse.core.telling import read_about


class Registered(TypedDict):
    """What is read of a line of the register of a federation on a network.

    Attributes:
        id: the client's number.
        name: what it is called.
        tests: on how many samples of its own it tests.
    """

    id: Annotated[int, Field(ge=0, lt=CLIENTS)]
    name: NotRequired[str]
    tests: NotRequired[Count]


_REGISTER = Declared[list[Registered]](list[Registered])


def client_names(path: Path) -> dict[int, str]:
    """Return what the clients of a run directory are called, by number; empty if they have no names.

    The names are those of the data, or those that participants on a network gave themselves. Characters that cannot be
    printed are taken out, because the directory may be a stranger's.

    Raises:
        UserError: the register of members is damaged.
    """
    try:
        told = read_about(path).names
    except UserError:  # numbers do instead; what reads more of it says what is wrong
        told = ()
    members = read_members(path / MEMBERS) if (path / MEMBERS).is_file() else {}
    named = dict(enumerate(told)) | {i: name for i, member in members.items() if (name := member.get("name"))}
    return {i: "".join(c for c in name if c.isprintable()) for i, name in named.items()}


def client_of(name: str, names: Sequence[str], where: str = "--client") -> int:
    """Return the number of the client that a person means.

    Args:
        name: a number, or the name of exactly one client. A number may be one that no client has.
        names: what the clients are called, by number; empty: they have no names.
        where: what an error begins with, such as the option.

    Raises:
        UserError: no client or several have this name, or it is one client's number and another's name.
    """
    called = [c for c, label in enumerate(names) if label == name]
    if name.isdecimal():
        number = int(name)
        if called in ([], [number]):
            return number
        if number < len(names):
            raise UserError(
                f"{where} {name}: is the name of client {called[0]} and the number of client {number} "
                f"({names[number]}): give the number or name of that one that is no other's"
            )
    if len(called) != 1:
        close = [label for label in names if not label.isdecimal()]
        what = f"no client has this name{nearest(name, close) if close else ''}"
        what = what if not called else f"{len(called)} clients have this name"
        said = f", 0 to {len(names) - 1}" if names else ": this run's clients have no names"
        raise UserError(f"{where} {name}: {what}; give its number{said}")
    return called[0]


def read_members(file: Path) -> Mapping[int, Registered]:
    """Return the register of a federation on a network, by client number. Raises UserError if it is damaged."""
    try:
        listed = _REGISTER.check(read_json(file))
    except UnsoundError as wrong:
        raise UserError(f"{file}: cannot be read: {wrong}; it must be a list of members, each with its 'id'") from None
    return {member["id"]: member for member in listed}
