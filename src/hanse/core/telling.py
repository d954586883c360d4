"""What parts, behaviours and policies say of themselves, so that no report has to know them by name.

A part returns a :class:`Telling`, a behaviour or policy a :class:`Conduct`. They are data: they are written into the
run directory, as ``about.json``, when a run begins, by who runs the experiment. Reports, statements and the live page
read them there as data, which may be a stranger's: its types and lengths are checked, nothing that it names is
imported, and pages show its words as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.base.errors import UserError
from hanse.base.files import read_text, write_whole
from hanse.core.declared import Declared, UnsoundError
from hanse.core.entry import tokens

HONEST = "honest"

Words = Annotated[str, Field(max_length=80)]  # a title, a label, a unit
Label = Annotated[str, Field(min_length=1, max_length=80)]
Sentence = Annotated[str, Field(max_length=600)]
Pattern = Annotated[str, Field(min_length=1, max_length=200)]
Ids = Annotated[tuple[Annotated[int, Field(ge=0, lt=10**7)], ...], Field(max_length=10**6)]


@dataclass(frozen=True)
class Plot:
    """A chart of metrics that the part records, over the rounds.

    ``metric`` is a name as in ``metrics.jsonl`` ("fees/total"), or several at once: a ``*`` stands for anything between
    two slashes ("tokens/tier */accuracy"). ``line`` names a curve, with what each ``*`` stood for in the place of its
    own ("tier *"); without it that is the name. ``unit`` stands at the axis, values are multiplied by ``factor``;
    "lines" joins the rounds, with "steps" a value holds until the next one, "bars" shows the last round alone.
    """

    title: Label
    metric: Pattern
    unit: Words = ""
    line: Words = ""
    caption: Sentence = ""
    how: Literal["lines", "steps", "bars"] = "lines"
    factor: Annotated[float, Field(ge=-1e12, le=1e12)] = 1.0


@dataclass(frozen=True)
class Kind:
    """What a ``kind`` of transaction is called on a statement and in reports, such as "seats paid for"."""

    kind: Label
    label: Label


@dataclass(frozen=True)
class Worth:
    """A figure a client that the live page shows in the place of contributions: ``metric`` with one ``*`` for the
    client's number ("utility/client/*"), its column's ``label``, and a ``sentence`` of what it is.
    """

    metric: Pattern
    label: Label
    sentence: Sentence = ""


@dataclass(frozen=True)
class Measure:
    """What a value part measures: the ``name`` of one value ("Shapley value"), what it says in a ``sentence``, and
    whether the values of a round ``share_out`` what the round gained, so that a share of their sum means something.
    """

    name: Label
    sentence: Sentence = ""
    share_out: bool = False


@dataclass(frozen=True)
class Telling:
    """What a part says of itself: a sentence for a ``participant`` ("You bid for seats ..."), one for a ``report``, the
    ``charts`` that it wants, under the heading ``section``, what its ``kinds`` of transactions are called, and what it
    ``measures`` if it values updates.
    """

    participant: Sentence = ""
    report: Sentence = ""
    section: Words = ""
    charts: Annotated[tuple[Plot, ...], Field(max_length=20)] = ()
    kinds: Annotated[tuple[Kind, ...], Field(max_length=50)] = ()
    worth: Worth | None = None
    measures: Measure | None = None


@dataclass(frozen=True)
class Conduct:
    """What a behaviour or a policy makes of clients: what those ``clients`` (ids) are called in charts ("free riders"),
    and a ``sentence`` of what they do. Without a ``label`` they are not told apart from the others.

    ``rest`` is what the others are called, ``cheats`` says whether it is cheating. A client with several goes under
    the one of the lowest ``rank``.
    """

    label: Words = ""
    sentence: Sentence = ""
    clients: Ids = ()
    cheats: bool = False
    rest: Words = HONEST
    rank: Annotated[int, Field(ge=0, le=1000)] = 0


@dataclass(frozen=True)
class Joining:
    """What is known before a client joins, for a payment rule's :class:`Terms`. Amounts are units.

    ``client`` of ``clients``, how many ``rounds``, the ``grant`` and how much ``debt`` an account may have, the sizes
    ``[N]`` of the clients' data if they are here, the client's ``profile``, the most that its policy has ``agreed`` to
    pay in a round (None: any bill), and the mechanism's ``parts`` by decision.
    """

    client: int
    clients: int
    rounds: int
    grant: int
    debt: int
    sizes: NDArray[np.float64] | None = None
    profile: Mapping[str, Any] = field(default_factory=dict)
    agreed: int | None = None
    parts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def at_stake(self) -> int:
        """What an account can lose, in units, whatever a mechanism does."""
        return self.grant + self.debt

    @property
    def at_stake_in_words(self) -> str:
        """The same in words."""
        if self.debt:
            units = tokens(self.at_stake), tokens(self.debt)
            return f"at most {units[0]} tokens: its grant, and {units[1]} of debt, where the floor is"
        return f"at most its grant of {tokens(self.grant)} tokens, since no account goes below zero"


@dataclass(frozen=True)
class Terms:
    """What a payment rule may cost a client and bring it: sentences, and the ``most`` units that it can lose over the
    run (None: all that its account can bear) and in one round (None: no bound). ``money``: somebody pays.
    """

    pays: tuple[str, ...] = ()
    gains: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    most: int | None = None
    most_round: int | None = None
    money: bool = True


FREE = Terms(("Nobody pays in this experiment.",), ("A model that learned from others' data; no tokens.",), money=False)


def matched(pattern: str, name: str) -> tuple[str, ...] | None:
    """Return what each ``*`` of a pattern stands for in a metric's ``name``; None if the name is another one.

    At most one ``*`` a step, of one character or more; no step of a path is crossed.
    """
    steps, given = pattern.split("/"), name.split("/")
    if len(steps) != len(given):
        return None
    found = []
    for step, word in zip(steps, given, strict=True):
        before, star, after = step.partition("*")
        if not star and step != word:
            return None
        if star:
            inner = word[len(before) : len(word) - len(after)]
            if not inner or not word.startswith(before) or not word.endswith(after):
                return None
            found.append(inner)
    return tuple(found)


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
    profiles. ``roles`` is None where they are not known. ``names``: what the data call each client, or nothing.
    """

    parts: Annotated[tuple[Said, ...], Field(max_length=20)] = ()
    conducts: Annotated[tuple[Conduct, ...], Field(max_length=100)] = ()
    roles: Annotated[tuple[Role, ...], Field(max_length=1000)] | None = None
    names: Annotated[tuple[Label, ...], Field(max_length=MOST_CLIENTS)] = ()

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
    def measure(self) -> Measure:
        """What the value part measures; in runs of before, whose parts do not say, a value whose shares are shown."""
        said = (said.telling.measures for said in self.parts if said.telling.measures is not None)
        return next(said, Measure("value", share_out=True))

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
            telling = _sound(_TELLING, part.tells(standing), f"mechanism.{slot}: {type(part).__name__}")
            said += [Said(slot, type(part).__name__[:80], telling)] if telling != Telling() else []
    acting = {f"behaviour.{name}": behaviour for name, behaviour in behaviours.items()} | {"clients.policy": policy}
    conducts = []
    for where, actor in acting.items():
        if hasattr(actor, "tells"):
            conduct = actor.tells(num_clients, seed)
            if isinstance(conduct, Conduct) and len(conduct.clients) > MOST_CLIENTS:
                conduct = Conduct(sentence=conduct.sentence)
            conduct = _sound(_CONDUCT, conduct, where)
            conducts += [conduct] if conduct.label or conduct.sentence else []
    return About(tuple(said), tuple(conducts), None if profiles is None else _roles(profiles))


def _roles(profiles: Sequence[Mapping[str, Any]]) -> tuple[Role, ...]:
    """Return the roles that profiles name, each with its clients."""
    found: dict[str, list[int]] = {}
    for client, profile in enumerate(profiles):
        if profile.get("role"):
            found.setdefault(str(profile["role"])[:80] or "client", []).append(client)
    return tuple(Role(name, tuple(ids)) for name, ids in list(found.items())[:1000] if len(ids) <= MOST_CLIENTS)


_TELLING, _CONDUCT = Declared[Telling](Telling), Declared[Conduct](Conduct)


def _sound(declared: Declared[T], value: Any, where: str) -> T:
    try:
        return declared.check(value)
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
