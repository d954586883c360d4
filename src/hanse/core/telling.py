"""What parts, behaviours and policies say of themselves, so that no report has to know them by name.

A part returns a :class:`Telling`, a behaviour or policy a :class:`Conduct`. They are data: they are written into the
run directory when a run begins (:mod:`hanse.core.about`), and reports, statements and the live page read them there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.core.entry import tokens

__all__ = ["FREE", "HONEST", "Conduct", "Joining", "Kind", "Plot", "Telling", "Terms", "Worth", "matched"]

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
class Telling:
    """What a part says of itself: a sentence for a ``participant`` ("You bid for seats ..."), one for a ``report``, the
    ``charts`` that it wants, under the heading ``section``, and what its ``kinds`` of transactions are called.
    """

    participant: Sentence = ""
    report: Sentence = ""
    section: Words = ""
    charts: Annotated[tuple[Plot, ...], Field(max_length=20)] = ()
    kinds: Annotated[tuple[Kind, ...], Field(max_length=50)] = ()
    worth: Worth | None = None


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
