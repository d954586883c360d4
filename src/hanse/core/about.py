"""What a run directory remembers of what its parts and behaviours say of themselves: ``about.json``.

It is written when the run begins, by who runs the experiment. Who looks at the run reads it as data, which may be a
stranger's: its types and lengths are checked, nothing that it names is imported, and pages show its words as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from hanse.base.errors import UserError
from hanse.base.files import read_text, write_whole
from hanse.core.declared import Declared, UnsoundError
from hanse.core.telling import Conduct, Ids, Label, Telling, Worth

__all__ = ["ABOUT", "About", "Role", "Said", "describe", "read_about", "write_about"]

ABOUT = "about.json"
MOST = 1 << 25  # bytes
MOST_CLIENTS = 10**6  # of one conduct; of more it is not said who they are
T = TypeVar("T")


@dataclass(frozen=True)
class Said:
    """What the part ``name`` (its class) in a ``slot`` of the mechanism says."""

    slot: Label
    name: Label
    telling: Telling


@dataclass(frozen=True)
class Role:
    """What profiles call some ``clients``."""

    name: Label
    clients: Ids


@dataclass(frozen=True)
class About:
    """What a run's parts say, in the order of a round, what its behaviours and policy do, and the roles of its
    profiles. ``roles`` is None where they are not known.
    """

    parts: Annotated[tuple[Said, ...], Field(max_length=20)] = ()
    conducts: Annotated[tuple[Conduct, ...], Field(max_length=100)] = ()
    roles: Annotated[tuple[Role, ...], Field(max_length=1000)] | None = None

    @property
    def kinds(self) -> Mapping[str, str]:
        """What kinds of transactions are called, those of the loop itself among them."""
        told = {kind.kind: kind.label for said in self.parts for kind in said.telling.kinds}
        return {"grant": "granted when it joined", "transfer": "transfers"} | told

    @property
    def worth(self) -> Worth | None:
        """The first figure a client that a part tells of."""
        return next((said.telling.worth for said in self.parts if said.telling.worth is not None), None)

    @property
    def sentences(self) -> tuple[str, ...]:
        """What a report says of parts, behaviours and policy."""
        told = [said.telling.report for said in self.parts] + [conduct.sentence for conduct in self.conducts]
        return tuple(dict.fromkeys(line for line in told if line))

    def told_to(self, client: int) -> tuple[str, ...]:
        """Return what a participant is told: of the parts, and of what it does itself in this run."""
        found = [said.telling.participant for said in self.parts]
        for conduct in self.conducts:
            if client in conduct.clients:
                who = f" ({conduct.label})" if conduct.label else ""
                found.append(f"What this client does in this run{who}: {conduct.sentence or 'it does not say.'}")
        return tuple(dict.fromkeys(line for line in found if line))


def describe(
    parts: Mapping[str, Any],
    behaviours: Mapping[str, Any],
    policy: Any,
    profiles: Sequence[Mapping[str, Any]] | None,
    num_clients: int,
    seed: int,
) -> About:
    """Return what parts (by slot), behaviours (by name), the clients' policy and their profiles say.

    What has no method ``tells`` says nothing. Raises UserError for what says something that is no :class:`Telling` or
    :class:`Conduct`.
    """
    said, seen = [], set[int]()
    for slot, part in parts.items():
        if hasattr(part, "tells") and id(part) not in seen:
            seen.add(id(part))  # one object may stand in several slots
            standing = frozenset(other for other in parts if parts[other] is part)
            telling = _sound(Telling, part.tells(standing), f"mechanism.{slot}: {type(part).__name__}")
            said += [Said(slot, type(part).__name__[:80], telling)] if telling != Telling() else []
    acting = {f"behaviour.{name}": behaviour for name, behaviour in behaviours.items()} | {"clients.policy": policy}
    conducts = []
    for where, actor in acting.items():
        if hasattr(actor, "tells"):
            conduct = actor.tells(num_clients, seed)
            if isinstance(conduct, Conduct) and len(conduct.clients) > MOST_CLIENTS:
                conduct = Conduct(sentence=conduct.sentence)
            conduct = _sound(Conduct, conduct, where)
            conducts += [conduct] if conduct.label or conduct.sentence else []
    return About(tuple(said), tuple(conducts), None if profiles is None else _roles(profiles))


def _roles(profiles: Sequence[Mapping[str, Any]]) -> tuple[Role, ...]:
    """Return the roles that profiles name, each with its clients."""
    found: dict[str, list[int]] = {}
    for client, profile in enumerate(profiles):
        if profile.get("role"):
            found.setdefault(str(profile["role"])[:80] or "client", []).append(client)
    return tuple(Role(name, tuple(ids)) for name, ids in list(found.items())[:1000] if len(ids) <= MOST_CLIENTS)


def _sound(kind: type[T], value: Any, where: str) -> T:
    try:
        return Declared[T](kind).check(value)
    except UnsoundError as wrong:
        raise UserError(f"{where} says of itself: {wrong}") from None


def write_about(folder: Path, said: About) -> None:
    """Write a run's ``about.json``. Raises OSError."""
    write_whole(folder / ABOUT, json.dumps(asdict(said), separators=(",", ":")) + "\n")


def read_about(folder: Path) -> About | None:
    """Return what a run directory says of itself, which may be anybody's; None if an older hanse wrote it.

    Raises UserError that names the field: something is of another type, too long, or too much.
    """
    file = folder / ABOUT
    if not file.exists():
        return None
    try:
        return Declared[About](About).read(read_text(file, MOST))
    except UnsoundError as wrong:
        raise UserError(f"{file}: {wrong}") from None
