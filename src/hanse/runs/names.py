"""The names of a run's clients: from the data, or, on a network, chosen by the participants.

Users can name a client by number or name; :func:`client_of` resolves both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from hanse.base.errors import UserError, nearest
from hanse.base.factories import named_choice
from hanse.base.files import CLIENTS, MEMBERS, read_json, table
from hanse.core.declared import Count, Declared, UnsoundError
from hanse.core.telling import read_about


class Registered(TypedDict):
    """A member in the register of a federation on a network.

    Attributes:
        id: the client's number.
        name: the member's name.
        tests: the number of the member's own test samples.
    """

    id: Annotated[int, Field(ge=0, lt=CLIENTS)]
    name: NotRequired[str]
    tests: NotRequired[Count]


_REGISTER = Declared[list[Registered]](list[Registered])


def registered(folder: Path, config: Mapping[str, Any]) -> int | None:
    """Return how many clients can have an account; None if it is not known.

    Args:
        folder: the run directory. On a network, the register of members says it.
        config: the run's ``config.toml``.

    Raises:
        UserError: the register of members is damaged.
    """
    if (folder / MEMBERS).is_file():
        return 1 + max(read_members(folder / MEMBERS), default=-1)
    data = table(config, "data")
    count = 1 if named_choice(data.get("partition"), "dirichlet") == "pooled" else data.get("clients")
    return count if isinstance(count, int) else None


def client_names(path: Path) -> dict[int, str]:
    """Return the names of a run's clients by number; empty if they have none.

    Unprintable characters are removed, because the directory may be a stranger's.

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
    """Return the number of the client that a user named.

    Args:
        name: a number (not checked for existence), or the name of exactly one client.
        names: the clients' names by number; empty if clients have no names.
        where: the start of an error message, such as the option.

    Raises:
        UserError: the name belongs to no client or to several, or it is the number of one client and the name of
            another.
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
        allowed = f", 0 to {len(names) - 1}" if names else ": this run's clients have no names"
        raise UserError(f"{where} {name}: {what}; give its number{allowed}")
    return called[0]


def read_members(file: Path) -> Mapping[int, Registered]:
    """Return the register of a federation on a network, by client number. Raises UserError if it is damaged."""
    try:
        listed = _REGISTER.check(read_json(file))
    except UnsoundError as wrong:
        raise UserError(f"{file}: cannot be read: {wrong}; it must be a list of members, each with its 'id'") from None
    return {member["id"]: member for member in listed}
