"""Descriptions that parts, behaviours and policies give of themselves, so no report needs to know them by name.

A part returns a :class:`Telling` from its method ``tells``, and a behaviour or policy a :class:`Conduct`. A payment
rule returns :class:`Terms` before anybody joins. These are plain data, written into the run directory as ``about.json``
when the run begins (:func:`describe`, :func:`write_about`). Reports, statements and the live page read them there
(:func:`read_about`). The directory may come from a stranger. Types and lengths are checked, nothing is imported, and
pages escape all text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.core.declared import Declared
from hanse.core.entry import LEAVE, in_tokens, tokens

Words = Annotated[str, Field(max_length=80)]  # a title, a label, a unit
Label = Annotated[str, Field(min_length=1, max_length=80)]
Sentence = Annotated[str, Field(max_length=600)]
Pattern = Annotated[str, Field(min_length=1, max_length=200)]
Ids = Annotated[tuple[Annotated[int, Field(ge=0, lt=10**7)], ...], Field(max_length=10**6)]


@dataclass(frozen=True)
class Plot:
    """A chart of metrics that a part records, by round.

    Attributes:
        title: the chart's title.
        metric: a name in ``metrics.jsonl``, such as "fees/total", or a pattern: ``*`` matches anything between two
            slashes, as in "tokens/tier */accuracy".
        unit: the label of the axis.
        line: the name of a curve, such as "tier *", in which each ``*`` is replaced by what the pattern's ``*``
            matched. Empty: the name is what matched.
        caption: a sentence below the chart.
        how: "lines" connects the rounds, "steps" holds each value until the next, "bars" shows only the last round.
        factor: the factor of all values.
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
    """A kind of transaction that a part posts, and its name in statements and reports.

    A payment rule that declares kinds may post no others: the loop refuses them, and ``hanse ledger verify`` reports
    them.

    Attributes:
        kind: the transactions' ``kind``.
        label: the name for readers, such as "seats paid for".
    """

    kind: Label
    label: Label


@dataclass(frozen=True)
class Measure:
    """What a value part measures.

    Attributes:
        name: the name of one value, such as "Shapley value".
        sentence: what a value means.
        share_out: whether the values of a round sum to the round's gain, which makes shares of the sum meaningful.
        ranks: whether the values of a round sum to zero. They then only rank, and a value below zero means no harm.
        marginal: whether a value is what is lost if only this update is missing. An update that others can replace is
            then worth about 0.
        scatters: whether honest clients' sums of values scatter around 0, some above and some below, depending on how
            alike the clients' data are. Then only a sum far below the others' means harm.

    Examples:
        >>> Measure("Shapley value").plural, Measure("place among the others").plural
        ('Shapley values', 'places among the others')
    """

    name: Label
    sentence: Sentence = ""
    share_out: bool = False
    ranks: bool = False
    marginal: bool = False
    scatters: bool = False

    @property
    def plural(self) -> str:
        """The name of several values."""
        return re.sub(r"^.+?(?= (?:among|from|of) |$)", r"\g<0>s", self.name)


@dataclass(frozen=True)
class Telling:
    """A part's description of itself.

    Attributes:
        participant: a sentence for a participant, such as "It bids for seats ...".
        report: a sentence for the report.
        section: the heading above its charts.
        charts: the charts that the part wants.
        kinds: the part's kinds of transactions, with their names.
        measures: what the part's values mean, if it values updates.
        warning: a sentence to show before a run's results, wherever they appear.
    """

    participant: Sentence = ""
    report: Sentence = ""
    section: Words = ""
    charts: Annotated[tuple[Plot, ...], Field(max_length=20)] = ()
    kinds: Annotated[tuple[Kind, ...], Field(max_length=50)] = ()
    measures: Measure | None = None
    warning: Sentence = ""


@dataclass(frozen=True)
class Check:
    """One property that a run should have.

    Attributes:
        name: the property's name, such as "payments".
        holds: whether the run has the property in all rounds.
        said: what the property means, or a figure, if it holds; otherwise the first or worst place where it fails.
    """

    name: str
    holds: bool
    said: str

    @staticmethod
    def of(name: str, meaning: str, wrong: Iterable[tuple[int, str]]) -> Check:
        """Return a check of rounds, given by number and what is wrong in each; "" if nothing."""
        first = next((f"round {number}: {said}" for number, said in wrong if said), "")
        return Check(name, not first, first or meaning)


@dataclass(frozen=True)
class Fact:
    """A finding of an audit that is neither right nor wrong, such as a list of who traded nothing.

    Attributes:
        name: what the fact is about.
        said: what was found.
        unchecked: whether this is a check that could not be made; ``said`` is then why.
    """

    name: str
    said: str
    unchecked: bool = False


@dataclass(frozen=True)
class Conduct:
    """What a behaviour or a policy does to clients.

    Attributes:
        label: what its clients are called, such as "free riders". Empty: they have no name.
        sentence: what the clients do.
        clients: the ids of the clients.
        cheats: whether the conduct is cheating.
    """

    label: Words = ""
    sentence: Sentence = ""
    clients: Ids = ()
    cheats: bool = False


@dataclass(frozen=True)
class BeforeJoining:
    """What is known before a client joins, for a payment rule's :class:`Terms`. Amounts are in the smallest unit.

    Attributes:
        client: the client's id.
        clients: how many clients there are.
        rounds: how many rounds the run has.
        grant: the units that each client gets when it joins.
        debt: how far below zero an account may go.
        sizes: ``[N]``, the sizes of the clients' data. None: the data are not here.
        agreed: the most that the client's policy agreed to pay in a round. None: any bill.
        parts: the mechanism's parts by slot.

    Examples:
        >>> joining = BeforeJoining(client=0, clients=4, rounds=10, grant=5_000_000, debt=0)
        >>> joining.at_stake
        5000000
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
        """What an account can lose, as words, in tokens."""
        if self.debt:
            return f"at most {in_tokens(self.at_stake)}: its grant, and {tokens(self.debt)} of debt, where the floor is"
        return f"at most its grant of {in_tokens(self.grant)}, since no account goes below zero"


@dataclass(frozen=True)
class Terms:
    """What a payment rule may cost a client and bring it.

    Attributes:
        pays: sentences on what the client may pay.
        gains: sentences on what the client may get.
        unknown: sentences on what cannot be known in advance.
        most: the most units that the client can lose over the run. None: as much as its account can lose.
        most_round: the most units that the client can lose in one round. None: no bound.
        money: whether anybody pays at all.
    """

    pays: tuple[str, ...] = ()
    gains: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    most: int | None = None
    most_round: int | None = None
    money: bool = True


FREE = Terms(("Nobody pays in this experiment.",), ("A model that learned from others' data; no tokens.",), money=False)


def matched(pattern: str, name: str) -> tuple[str, ...] | None:
    """Return what each ``*`` of a pattern matches in a metric's name, or None if the pattern does not match.

    Both are split at slashes. Each piece of the pattern has at most one ``*``, which matches one character or more,
    never a slash.

    Examples:
        >>> matched("tokens/tier */accuracy", "tokens/tier 2/accuracy")
        ('2',)
        >>> matched("tokens/*", "tokens/tier 2/accuracy") is None
        True
    """
    steps = (step.partition("*") for step in pattern.split("/"))
    forms = (re.escape(before) + ("([^/]+)" + re.escape(after) if star else "") for before, star, after in steps)
    found = re.fullmatch("/".join(forms), name)
    return None if found is None else found.groups()


ABOUT = "about.json"
MOST = 1 << 25  # bytes of the file that are read
MOST_CLIENTS = 10**6  # of one conduct; of more it is not said who they are


@dataclass(frozen=True)
class PartDescription:
    """The description of one part.

    Attributes:
        slot: the first slot that the part fills.
        name: the part's class.
        telling: what the part says of itself.
    """

    slot: Label
    name: Label
    telling: Telling


@dataclass(frozen=True)
class Role:
    """A role that profiles give to some clients.

    Attributes:
        clients: the ids of the clients.
    """

    name: Label
    clients: Ids


@dataclass(frozen=True)
class About:
    """A run's description of itself: the contents of ``about.json``.

    Attributes:
        parts: the parts' descriptions, in the order of a round.
        conducts: what the run's behaviours and policy do.
        roles: the roles that the run's profiles give. None: they are not known.
        names: the clients' names in the data; empty if they have none.
        notes: what the data may mean otherwise than they were read, and what is wrong with them.
        doubt: why the data's rows may be several of one person, though nobody says so; "" if there is no reason.

    Examples:
        The description of a small run:

        >>> from hanse.runs.rehearsal import rehearse
        >>> about = rehearse("ipfl", behaviour={"attacker": {"clients": [0], "kind": "flip"}}).session.about
        >>> [conduct.clients for conduct in about.conducts]
        [(0,)]
    """

    parts: Annotated[tuple[PartDescription, ...], Field(max_length=20)] = ()
    conducts: Annotated[tuple[Conduct, ...], Field(max_length=100)] = ()
    roles: Annotated[tuple[Role, ...], Field(max_length=1000)] | None = None
    names: Annotated[tuple[Label, ...], Field(max_length=MOST_CLIENTS)] = ()
    notes: Annotated[tuple[Sentence, ...], Field(max_length=100)] = ()
    doubt: Sentence = ""

    @property
    def kinds(self) -> Mapping[str, str]:
        """The name of each kind of transaction, including the loop's own."""
        told = {kind.kind: kind.label for said in self.parts for kind in said.telling.kinds}
        own = {"grant": "granted by the mint", "transfer": "transfers", LEAVE: "moved when it left"}
        own |= {"size bond": "bonds for sizes", "bond returned": "bonds returned", "bond kept": "bonds lost"}
        return own | told

    @property
    def warnings(self) -> list[str]:
        """The parts' warnings, to show before a run's results."""
        return [said.telling.warning for said in self.parts if said.telling.warning]

    @property
    def posted(self) -> frozenset[str]:
        """The kinds of transactions that the parts declare; empty if no part declares any."""
        return frozenset(kind.kind for said in self.parts for kind in said.telling.kinds)

    @property
    def measure(self) -> Measure:
        """What the value part measures.

        If the part does not describe it, it is called "value", and shares are shown.
        """
        said = (said.telling.measures for said in self.parts if said.telling.measures is not None)
        return next(said, Measure("value", share_out=True))

    @property
    def sentences(self) -> tuple[str, ...]:
        """A report's sentences on parts, behaviours and policy, without repetition."""
        told = [said.telling.report for said in self.parts] + [conduct.sentence for conduct in self.conducts]
        return tuple(dict.fromkeys(line for line in told if line))

    def told_to(self, client: int) -> tuple[str, ...]:
        """Return the sentences for one participant: what the parts say, and what its own behaviour in this run is."""
        sentences = [said.telling.participant for said in self.parts]
        for conduct in self.conducts:
            if client in conduct.clients:
                who = f" ({conduct.label})" if conduct.label else ""
                sentences.append(f"What this client does in this run{who}: {conduct.sentence or 'it does not say.'}")
        return tuple(dict.fromkeys(line for line in sentences if line))


def describe(
    parts: Mapping[str, Any],
    behaviours: Mapping[str, Any],
    policy: Any,
    profiles: Sequence[Mapping[str, Any]] | None,
    num_clients: int,
    seed: int,
) -> About:
    """Return a run's description of itself, from the ``tells`` methods of its parts, behaviours and policy.

    Args:
        parts: the mechanism's parts by slot.
        behaviours: the behaviours by name.
        policy: the clients' policy, such as :class:`hanse.federation.policy.Loyal`. None: not known.
        profiles: the clients' profiles by id. None: not known.
        num_clients: how many clients there are, for behaviours and the policy.
        seed: the run's seed, from which behaviours draw their clients.

    Raises:
        UserError: a description is not a :class:`Telling` or :class:`Conduct`, or is too long.
    """
    said = []
    for slot, part in parts.items():
        standing = [other for other in parts if parts[other] is part]  # one object may stand in several slots
        if hasattr(part, "tells") and standing[0] == slot:
            where = f"mechanism.{slot}: {type(part).__name__}"
            telling = _TELLING.check(part.tells(frozenset(standing)), UserError, f"{where} {_SAYS}")
            said += [PartDescription(slot, type(part).__name__[:80], telling)] if telling != Telling() else []
    acting = {f"behaviour.{name}": behaviour for name, behaviour in behaviours.items()} | {"clients.policy": policy}
    conducts = []
    for where, actor in acting.items():
        if hasattr(actor, "tells"):
            conduct = actor.tells(num_clients, seed)
            if isinstance(conduct, Conduct) and len(conduct.clients) > MOST_CLIENTS:
                conduct = Conduct(sentence=conduct.sentence)  # too many to list: only what they do is kept
            conduct = _CONDUCT.check(conduct, UserError, f"{where} {_SAYS}")
            conducts += [conduct] if conduct.label or conduct.sentence else []
    return About(tuple(said), tuple(conducts), None if profiles is None else _roles(profiles))


def _roles(profiles: Sequence[Mapping[str, Any]]) -> tuple[Role, ...]:
    """Return the roles that profiles name, each with its clients."""
    by_role: dict[str, list[int]] = {}
    for client, profile in enumerate(profiles):
        if profile.get("role"):
            by_role.setdefault(str(profile["role"])[:80] or "client", []).append(client)
    return tuple(Role(name, tuple(ids)) for name, ids in list(by_role.items())[:1000] if len(ids) <= MOST_CLIENTS)


_TELLING, _CONDUCT, _ABOUT = Declared[Telling](Telling), Declared[Conduct](Conduct), Declared[About](About)
_SAYS = "says of itself: {}"


def write_about(folder: Path, said: About) -> None:
    """Write a run's ``about.json``. Raises OSError."""
    write_whole(folder / ABOUT, json.dumps(asdict(said), separators=(",", ":")) + "\n")


def read_about(folder: Path) -> About:
    """Read a run directory's ``about.json``.

    Raises:
        UserError: the file is missing, or a field has the wrong type, is too long or has too many entries; the message
            names it.
    """
    file = folder / ABOUT
    if not file.exists():
        raise UserError(f"{file}: is missing; every run directory has one")
    return _ABOUT.of_file(file, MOST)
