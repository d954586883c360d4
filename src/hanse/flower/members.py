"""The register of a run's members on a network, and the operator's orders.

A newcomer introduces itself with a :class:`Hello`. If accepted, it becomes a :class:`Member` with a client id in the
register :class:`Members`, which a run keeps as ``members.json``. A member is recognised by its authenticated key
(without node authentication, by its node id), whatever its name. So it keeps its id, account and grant when it returns.

:class:`Orders` are what an operator has ordered during a run with ``hanse network pause``, ``go-on`` and ``expel``.
:func:`give` adds an order to ``operator.jsonl``, and the server reads the file in each round.

What a newcomer says is untrusted. The types below bound every field.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from hanse.base.errors import UserError
from hanse.base.files import FEDERATION, LONGEST, MEMBERS, json_lines, write_whole
from hanse.base.plain_text import quantity
from hanse.core.declared import LARGEST_COUNT, Count, Declared, Digest, Figure, UnsoundError
from hanse.core.port import ClientInfo

NAME = 80  # the most characters of a participant's name


def _printable(text: str) -> str:
    """Return ``text``. Raises ValueError if a character could disturb a terminal or a log."""
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


Size = Annotated[int, Field(ge=1, le=2**31)]
Word = Annotated[str, Field(max_length=NAME), AfterValidator(_printable)]
Kind = Literal["plain", "penalty"]  # of a participant's own training loop; "penalty": it takes pulls and tilts
Plain = bool | Annotated[int, Field(ge=-LARGEST_COUNT, le=LARGEST_COUNT)] | Figure | Word


@dataclass(frozen=True)
class SaidInput:
    """One of several inputs of a participant's samples (:class:`hanse.data.samples.Input`).

    Attributes:
        name: the input's name, such as ``"image"``.
        shape: the input's shape in one sample, without the batch.
        whole: whether the input holds whole numbers, such as tokens or categories.
    """

    name: Word
    shape: Annotated[tuple[Size, ...], Field(max_length=8)]
    whole: bool = False


@dataclass(frozen=True)
class Hello:
    """A newcomer's description of itself. Each field is within bounds.

    Attributes:
        num_samples: how many samples the newcomer trains on.
        input_shape: shape of one sample, without the batch.
        num_classes: the number of classes. None: targets are numbers (regression).
        name: the name that the newcomer wants, at most 80 printable characters.
        text: whether samples are tokens with a label at every position.
        tests: how many samples the newcomer tests on.
        profile: plain values that the server may know, such as the newcomer's costs.
        order: the partition that the node was started with; newcomers get their ids in ascending order of this number.
        inputs: the layout of a sample's inputs, if there are several.
        loop: the kind of the newcomer's own training loop. None: it trains as the experiment says.
        agreed: the newcomer's signature under the agreement (a witness's cosignature). "": its owner has not agreed.
        witness: the public key of that signature, 64 hexadecimal digits.

    Examples:
        >>> Hello(num_samples=120, input_shape=(8,), num_classes=2, name="clinic").num_samples
        120
    """

    num_samples: Count
    input_shape: Annotated[tuple[Size, ...], Field(max_length=8)]
    num_classes: Size | None
    name: Word = ""
    text: bool = False
    tests: Count = 0
    profile: Annotated[Mapping[Word, Plain], Field(max_length=100)] = field(default_factory=dict)
    order: Count = 1 << 30
    inputs: Annotated[tuple[SaidInput, ...], Field(max_length=100)] = ()
    loop: Kind | None = None
    agreed: Annotated[str, Field(max_length=500)] = ""
    witness: Digest | Literal[""] = ""

    @staticmethod
    def of(said: str) -> Hello:
        """Return the hello (a newcomer's description of itself) in a JSON text, which is untrusted input.

        Raises:
            UnsoundError: the text is not JSON, a field is missing, unknown or out of bounds, or the name looks like a
                key. The message names the field.

        Examples:
            >>> Hello.of('{"num_samples": 120, "input_shape": [8], "num_classes": 2, "name": "clinic"}').num_samples
            120
            >>> Hello.of('{"num_samples": -1, "input_shape": [8], "num_classes": 2}')
            Traceback (most recent call last):
            hanse.core.declared.UnsoundError: Hello.num_samples: -1: must be at least 0
        """
        hello = _HELLO.read(said)
        if _KEY.fullmatch(hello.name):
            raise UnsoundError(f"Hello.name: {hello.name}: must not look like a key, since lists name clients by both")
        return hello


@dataclass(frozen=True)
class Member(Hello):
    """A registered participant: what it last said of itself, under a name and a number.

    Attributes:
        id: the member's client id, given in the order of registration, from 0.
        key: the member's identity: the hash of its key, or ``node-ID`` (:func:`hanse.flower.nodes.key_of`).
        expelled: why the member may no longer take part. None: it may.
        agreement: the hash of the agreement that it signed last. "": there was none.
    """

    id: Count = field(kw_only=True)
    key: str = field(kw_only=True)
    expelled: str | None = field(default=None, kw_only=True)
    agreement: Digest | Literal[""] = field(default="", kw_only=True)

    @property
    def info(self) -> ClientInfo:
        """What mechanisms know of the member."""
        return ClientInfo(self.id, self.name, self.key, self.num_samples, self.profile)


Check = Callable[[Hello], str | None]  # says why such samples do not fit the experiment; None if they do


def kind(said: Hello) -> str:
    """Describe a participant's samples in words. Members' samples fit together if these words are equal.

    Texts may have any length, so their shape is not part of it.
    """
    if said.text:
        return f"texts of {quantity(said.num_classes, 'token')}"
    labels = "targets that are numbers" if said.num_classes is None else quantity(said.num_classes, "class", "classes")
    if said.inputs:
        parts = (f"{part.name} {'whole ' if part.whole else ''}{list(part.shape)}" for part in said.inputs)
        return f"of the inputs {', '.join(parts)} with {labels}"
    return f"of shape {list(said.input_shape)} with {labels}"


def majority(said: Iterable[Hello]) -> str | None:
    """Return the kind of samples that most participants have (the first participant's in a tie); None without any."""
    counted = Counter(kind(one) for one in said).most_common(1)
    return counted[0][0] if counted else None


@dataclass
class Members:
    """The register of participants.

    Attributes:
        path: the file to which the register is written at each change. None: it is only in memory.
        by_key: the members by their identities.

    Examples:
        >>> members = Members()
        >>> members.register([("key a", Hello(120, (8,), 2, name="clinic")), ("key b", Hello(80, (8,), 2))])
        >>> [(member.id, member.name) for member in members.fitting()]
        [(0, 'clinic'), (1, 'client 1')]
        >>> members.expel({1: "it sent nonsense"})
        >>> [member.id for member in members.fitting()]
        [0]
    """

    path: Path | None = None
    by_key: dict[str, Member] = field(default_factory=dict)

    @staticmethod
    def read(path: Path | None) -> Members:
        """Return the register in the file ``path``, or an empty one if there is no file.

        Raises:
            UserError: the file is damaged, or holds a key or an id twice.
        """
        if path is None or not path.exists():
            return Members(path)
        found = _REGISTER.of_file(path, LONGEST, _DAMAGED)
        if len({m.key for m in found}) < len(found) or len({m.id for m in found}) < len(found):
            raise UserError(f"{path}: {_DAMAGED.format('a key or an id is there twice')}")
        return Members(path, {m.key: m for m in found})

    def by_id(self) -> dict[int, Member]:
        """Return the members by their client ids."""
        return {m.id: m for m in self.by_key.values()}

    def fitting(self, check: Check = lambda said: None) -> list[Member]:
        """Return the members that may take part, by ascending id.

        A member may take part if three things are true: it is not expelled, ``check`` finds nothing wrong, and its
        samples are of the most frequent kind.
        """
        known = sorted(self.by_key.values(), key=lambda m: m.id)
        sound = [m for m in known if m.expelled is None and check(m) is None]
        like = majority(sound)
        return [m for m in sound if kind(m) == like]

    def register(self, new: Sequence[tuple[str, Hello]], agreement: str = "") -> None:
        """Give client ids to newcomers, and write the register.

        Args:
            new: ``(key, hello)`` for each newcomer; ids follow this order. A known key keeps its id (with account and
                grant) and its expulsion, and gets the new description. A name that another has gets a number.
            agreement: the hash of the agreement that they have signed.
        """
        for key, said in new:
            known = self.by_key.get(key)
            number = 1 + max((m.id for m in self.by_key.values()), default=-1) if known is None else known.id
            expelled = None if known is None else known.expelled
            name = asked = said.name or f"client {number}"
            others, numbers = {m.name.casefold().strip() for m in self.by_key.values() if m.key != key}, count(number)
            while name.casefold().strip() in others:  # pages call members by name: nobody passes for another
                name = f"{asked[: NAME - 20]} ({next(numbers)})"
            said = replace(said, name=name)
            self.by_key[key] = Member(**vars(said), id=number, key=key, expelled=expelled, agreement=agreement)
        if new:
            self._write()

    def expel(self, expelled: Mapping[int, str]) -> None:
        """Keep members out from now on, and write the register if this changes it.

        Args:
            expelled: the reason by client id; unknown ids are left out.
        """
        members = self.by_id() if expelled else {}
        found = [replace(members[c], expelled=why) for c, why in expelled.items() if c in members]
        changed = [m for m in found if m != self.by_key[m.key]]
        self.by_key.update({m.key: m for m in changed})
        if changed:
            self._write()

    def _write(self) -> None:
        """Write the whole register in one step, so that a crash leaves the old one or the new one."""
        if self.path is None:
            return
        write_whole(self.path, json.dumps([asdict(m) for m in self.by_key.values()], indent=1) + "\n", durable=True)


_KEY = re.compile("[0-9a-f]{64}", re.IGNORECASE)
_HELLO = Declared[Hello](Hello)
_REGISTER = Declared[list[Member]](list[Member])
_DAMAGED = (
    "is not a register of members ({}); put a copy of it back: it says which key has which account "
    "(without any, a run starts anew in another folder)"
)


def unregistered(folder: Path, keys: Mapping[str, bytes]) -> str:
    """Return which of these public keys of members (32 bytes each), by name, is not in a run's register; "" if each is,
    or there is no register with keys.
    """
    there = {member.witness for member in Members.read(folder / MEMBERS).by_key.values()} - {""}
    others = [name for name, key in keys.items() if there and key.hex() not in there]
    return f"{MEMBERS} has another key for {others[0]}, or it is no member: leave it out then" if others else ""


# ---- the operator's orders
FILE = "operator.jsonl"
LONGEST_REASON = 500  # the most characters of a reason
LEAVES = "leaves"  # the reason of an expulsion by which a member leaves
ENDS = "a client leaves, and nobody trains on (clients.exit.models)"  # the reason of a pause until that is settled


@dataclass(frozen=True)
class Orders:
    """The effect of all orders so far.

    Attributes:
        paused: the reasons of the pauses since the last order to go on; None if there is none.
        expelled: the reasons of expulsions by client id.
    """

    paused: str | None = None
    expelled: Mapping[int, str] = field(default_factory=dict)

    @property
    def resume(self) -> str:
        """The command that ends the pause."""
        return "'hanse leave'" if self.ends else "'hanse network go-on'"

    @property
    def ends(self) -> bool:
        """Whether the server waits because nobody trains on."""
        return ENDS in (self.paused or "")

    @staticmethod
    def read(run: Path) -> Orders:
        """Return the effect of the orders in a run directory. Without a file, there are no orders.

        A last line that is still being written is left for the next time.

        Raises:
            UserError: a line is not an order.
        """
        path = run / FILE
        pauses: dict[str, None] = {}  # one does not hide another
        expelled: dict[int, str] = {}
        for line in json_lines(path, remedy="mend or remove it"):
            match line:
                case {"order": "pause", "reason": str(reason)}:
                    pauses[reason] = None
                case {"order": "go-on"}:
                    pauses.clear()
                case {"order": "expel", "client": int(client), "reason": str(reason)}:
                    expelled[client] = reason
                case _:
                    raise UserError(f"{path}: is not a list of orders: {str(line)[:80]!r}: mend or remove it")
        return Orders("; ".join(pauses) or None, expelled)


def give(run: Path, order: str, reason: str, client: int | None = None) -> None:
    """Add an order to a run on a network. The run may still be waiting for its members.

    Args:
        run: the run directory.
        order: ``"pause"``, ``"go-on"`` or ``"expel"``.
        reason: 1 to 500 characters, kept with the order.
        client: the id of the member to expel.

    Raises:
        UserError: the folder is not a run on a network, the reason is empty or too long, or there is no such member.
    """
    if not (run / FEDERATION).exists():
        raise UserError(f"{run}: is not a run on a network that has begun (it has no federation.json)")
    if not reason.strip() or len(reason) > LONGEST_REASON:
        raise UserError(f"--reason: {quantity(len(reason), 'character')}: must be 1 to {LONGEST_REASON}")
    line: dict[str, Any] = {"order": order, "reason": reason.strip(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    if order == "expel":
        known = Members.read(run / MEMBERS).by_id()
        member = None if client is None else known.get(client)
        if member is None:
            raise UserError(f"--client: {client}: the members are {', '.join(map(str, sorted(known))) or 'none yet'}")
        line |= {"client": client, "key": member.key, "name": member.name}
    with (run / FILE).open("a") as file:
        file.write(json.dumps(line) + "\n")
