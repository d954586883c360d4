"""The charter of a consortium: its file, what it sets in an experiment, and its hash.

``[charter] file = "charter.toml"`` names it. The experiment then has the whole charter in this section, so the file is
read once. On a network the agreement that members sign holds the experiment, and with it the charter.
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError

from hanse.base.errors import UserError, nearest
from hanse.base.factories import Count, Positive, Rate, Share, SomeShare, Weight
from hanse.base.plain_text import quantity
from hanse.core.port import Task
from hanse.data.kinds import alike
from hanse.runs.config import Experiment, mistakes_in, read_file
from hanse.runs.sections import ExitSection, Section

KINDS = tuple(kind.__name__ for kind in get_args(Task))  # of questions
Word = Annotated[str, Field(min_length=1, max_length=80)]
Key = Annotated[str, Field(pattern="^([0-9a-f]{64})?$")]  # or a hash


class Member(Section):
    """A member, ``[members.NAME]``.

    Attributes:
        clients: names or keys of its clients. Empty: one client, with the member's name. Names are what clients call
            themselves; on a network, give keys.
        key: its public key (Ed25519, 64 hexadecimal digits), which signs amendments.
        weight: its fixed weight. All members have one, or none has: then samples weigh.
    """

    clients: tuple[Word, ...] = Field(default=(), strict=False)
    key: Key = ""
    weight: Weight | None = None


class Quorum(Section):
    """``[quorum]``: who must answer for a round to count, and must sign for an amendment to hold.

    Attributes:
        members: the least share of the members.
        weight: the least share of the members' fixed weights.
    """

    members: Share = 0.5
    weight: Share = 0.0


class Charter(Section):
    """What a consortium agreed to.

    Attributes:
        title: what it is called.
        members: the members by name; nobody else may take part.
        cap: the most weight of a member in a new model.
        length: the longest update, in units of the median over members. None: any.
        floor: whether a member whose summed path values are surely below 0 is used no more.
        vests: in how many parts a grant is paid, one after each round of work; and a pot's shares (``pot``).
        exit: what becomes of a leaver's balance, bond, receipts and models (:class:`hanse.runs.sections.ExitSection`).
        quorum: who must answer, or sign.
        sees: what each member may see: its own "values", and the "names" of those it traded with.
        answers: the kinds of questions that members answer. None: what the experiment asks.
        amends: the hash of the charter that this one amends. "": none.
        first_round: the first round of an amendment.
        signed: the members that signed the amendment.
        before: by client, what it had agreed to answer where a member did not sign. Left out: what is answered now.
    """

    title: Word
    members: dict[Word, Member] = Field(min_length=2)
    cap: SomeShare = 1.0
    length: Rate | None = None
    floor: bool = False
    vests: Positive = 1
    exit: ExitSection = ExitSection()
    quorum: Quorum = Quorum()
    sees: tuple[Literal["values", "names"], ...] = Field(default=(), strict=False)
    answers: tuple[str, ...] | None = Field(default=None, strict=False)
    amends: Key = ""
    first_round: Count = 0
    signed: tuple[Word, ...] = Field(default=(), strict=False)
    before: dict[Word, Annotated[tuple[str, ...], Field(strict=False)]] = Field(default={})

    @staticmethod
    def of(given: Any, where: str = "charter.") -> Charter:
        """Return a charter from plain values. Raises UserError with a line for each mistake, which begins with
        ``where``.
        """
        try:
            charter = Charter.model_validate(given)
        except ValidationError as wrong:
            lines = mistakes_in(wrong, "charter", Charter, given)
            raise UserError(*(line.replace("charter.", where, 1) for line in lines)) from None
        if lines := [f"{where}{line}" for line in charter._mistakes()]:
            raise UserError(*lines)
        return charter

    @staticmethod
    def read(path: Path) -> Charter:
        """Read a charter's file. Raises UserError."""
        return Charter.of(read_file(path), f"{path}: ")

    def _mistakes(self) -> list[str]:
        """Return a line for each number that does not fit another, and each client of two members."""
        lines, count = list[str](), len(self.members)
        if self.cap * count < 1 - 1e-12:
            lines.append(f"cap: {self.cap:g}: of {quantity(count, 'member')}: must be at least {1 / count:.6g}")
        unweighted = [name for name, member in self.members.items() if member.weight is None]
        if unweighted and (len(unweighted) < count or self.quorum.weight > 0):
            lines.append(f"members.{unweighted[0]}.weight: is missing: all members need one, or none and no by weight")
        elif self.weights is not None and not sum(self.weights.values()):
            lines.append("members: all weights are 0: no model could change: one at least must be above")
        listed = [client for name in self.members for client in self.clients_of(name)]
        keys = [member.key for member in self.members.values() if member.key]
        for what, ones in (("a client", listed), ("the key", keys)):
            lines += [f"members: '{one}' is {what} of two members" for one in sorted({*ones}) if ones.count(one) > 1]
        odd = [kind for kind in self.answers or () if kind not in KINDS]
        lines += [f"answers: '{kind}': must be one of {', '.join(KINDS)}{nearest(kind, KINDS)}" for kind in odd]
        if both := alike(((one, 0) for one in dict.fromkeys([*self.members, *listed])), case=lambda _: True):
            lines.append(f"members: {both} look the same: must differ in more")
        return lines

    @property
    def hash(self) -> str:
        """SHA-256 of the charter as canonical JSON, 64 hexadecimal digits."""
        usual = {"exit"} if self.exit == ExitSection() else set[str]()  # so that older charters keep their hash
        text = json.dumps(self.model_dump(mode="json", exclude=usual), indent=1, sort_keys=True) + "\n"
        return hashlib.sha256(text.encode()).hexdigest()

    def clients_of(self, member: str) -> tuple[str, ...]:
        """Return the names or keys of a member's clients."""
        return self.members[member].clients or (member,)

    @property
    def by_client(self) -> dict[str, str]:
        """Each client's member, by the client's name or key."""
        return {client: name for name in self.members for client in self.clients_of(name)}

    @property
    def weights(self) -> dict[str, float] | None:
        """The members' fixed weights; None: samples weigh."""
        found = {name: member.weight for name, member in self.members.items() if member.weight is not None}
        return found or None

    @property
    def least(self) -> int:
        """How many members a quorum has at least."""
        return max(1, math.ceil(self.quorum.members * len(self.members) - 1e-9))

    def lacks(self, members: set[str]) -> str:
        """Return what these members lack for a quorum, or "" if they are one. Nobody is none."""
        if len(members) < self.least:
            needed = quantity(self.least, "is needed", "are needed")
            return f"{len(members)} of {quantity(len(self.members), 'member')}, {needed}"
        weights = self.weights or {}
        share = sum(weights.get(name, 0.0) for name in members) / (sum(weights.values()) or 1.0)
        least_weight = self.quorum.weight
        return f"{share:.3g} of the weight, {least_weight:g} is needed" if share < least_weight - 1e-9 else ""

    @property
    def stuck(self) -> str:
        """Why no amendment can ever hold: who has no key to sign with, and what the others lack; "" if one can."""
        bare = [name for name, member in self.members.items() if not member.key]
        lack = self.lacks(self.members.keys() - bare)
        return f"can never be amended: no key to sign with: {', '.join(bare)}; the others are {lack}" if lack else ""

    def answered_by(self, member: str) -> tuple[str, ...] | None:
        """Return the kinds of questions that all clients of a member answer; None: any. "": a client of nobody."""
        clients = self.clients_of(member) if member in self.members else self.before
        agreed = [self.before[one] for one in clients if one in self.before]
        if self.answers is not None:
            agreed.append(self.answers)
        return tuple(kind for kind in agreed[0] if all(kind in one for one in agreed)) if agreed else None


def charter_of(experiment: Experiment) -> Charter:
    """Return the charter of an experiment. Raises UserError if it has none."""
    if (given := experiment.of_wing("charter")) is None:
        raise UserError('charter: the experiment has none: must be there, as in [charter] file = "charter.toml"')
    return Charter.of(given)
