"""Who the members are: node keys and the client ids that they got when they registered, kept in the run directory.

A member is its authenticated key (or, without node authentication, its node id), whatever name it gives itself; it
keeps its id, its account and its grant when it comes back.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from hanse.base.errors import UserError
from hanse.base.files import json_lines, write_whole
from hanse.core.declared import LARGEST_COUNT, Count, Declared, UnsoundError
from hanse.core.port import ClientInfo

LONGEST = 64_000  # characters of a hello
NAME = 80  # characters of a name


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError("has characters that cannot be printed")
    return text


Finite = Annotated[float, Field(allow_inf_nan=False)]
Size = Annotated[int, Field(ge=1, le=2**31)]
Word = Annotated[str, Field(max_length=NAME), AfterValidator(_printable)]
Kind = Literal["plain", "penalty"]  # of a training loop: whether it takes pulls and tilts
Plain = bool | Annotated[int, Field(ge=-LARGEST_COUNT, le=LARGEST_COUNT)] | Finite | Word


@dataclass(frozen=True)
class SaidInput:
    """One of several inputs of a participant's samples, as :class:`hanse.data.samples.Input` has it."""

    name: Word
    shape: Annotated[tuple[Size, ...], Field(max_length=8)]
    whole: bool = False


@dataclass(frozen=True)
class Hello:
    """What a newcomer says of itself, within bounds: ``num_samples`` to train on, ``tests`` to test on,
    ``input_shape`` of a sample, ``num_classes`` (None: regression), ``text`` (samples are tokens with a label at every
    position), plain values in ``profile``, the ``order`` in which ids are given, which kind of training ``loop`` of
    its own it has (None: it trains as the experiment says), and how several ``inputs`` lie in a sample, if it has
    several.
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

    @staticmethod
    def of(said: object) -> Hello:
        """Read a hello, which is untrusted input. Raises ValueError with the field and what is wrong with it."""
        if not isinstance(said, str) or len(said) > LONGEST:
            raise ValueError(f"hello: must be JSON of at most {LONGEST} characters")
        return _HELLO.read(said)


@dataclass(frozen=True)
class Member:
    """A registered participant. ``expelled`` says why it may no longer take part; ``text``: its samples are tokens with
    a label at every position; ``loop``: the kind of its own training loop.
    """

    id: int
    key: str
    name: str
    num_samples: int
    input_shape: tuple[int, ...]
    num_classes: int | None
    tests: int
    profile: Mapping[str, Any] = field(default_factory=dict)
    expelled: str | None = None
    text: bool = False
    inputs: tuple[SaidInput, ...] = ()
    loop: str | None = None

    @property
    def info(self) -> ClientInfo:
        """What mechanisms see of it."""
        return ClientInfo(self.id, self.name, self.key, self.num_samples, self.profile)


Check = Callable[[Hello | Member], str | None]  # why such samples do not belong to the experiment, if they do not


def kind(said: Hello | Member) -> str:
    """Return what a participant's samples are like; all members' must be alike. Texts may be of any length."""
    if said.text:
        return f"as texts of {said.num_classes} tokens"
    labels = "targets that are numbers" if said.num_classes is None else f"{said.num_classes} classes"
    if said.inputs:
        parts = (f"{part.name} {'whole ' if part.whole else ''}{list(part.shape)}" for part in said.inputs)
        return f"of the inputs {', '.join(parts)} with {labels}"
    return f"of shape {list(said.input_shape)} with {labels}"


def majority(said: Iterable[Hello | Member]) -> str | None:
    """Return the kind of samples that most have; of equally many the first one's. None if there is nobody."""
    counted = Counter(kind(one) for one in said).most_common(1)
    return counted[0][0] if counted else None


@dataclass
class Members:
    """The register: members by key; written to ``path`` at each change if there is one."""

    path: Path | None = None
    by_key: dict[str, Member] = field(default_factory=dict)

    @staticmethod
    def read(path: Path | None) -> Members:
        """Read the register of a run, or start an empty one. Raises UserError for a damaged one."""
        if path is None or not path.exists():
            return Members(path)
        try:
            found = _REGISTER.read(path.read_text())
        except ValueError as wrong:
            raise UserError(_damaged(path, str(wrong))) from None
        if len({m.key for m in found}) < len(found) or len({m.id for m in found}) < len(found):
            raise UserError(_damaged(path, "a key or an id is there twice"))
        return Members(path, {m.key: m for m in found})

    def by_id(self) -> dict[int, Member]:
        """Return the members by their client ids."""
        return {m.id: m for m in self.by_key.values()}

    def fitting(self, check: Check = lambda said: None) -> list[Member]:
        """Return those who may take part, by id: not expelled, what they said is sound, they pass the ``check``, and
        their samples are like those of most of them.
        """
        known = sorted(self.by_key.values(), key=lambda m: m.id)
        sound = [m for m in known if m.expelled is None and _sound(m) and check(m) is None]
        like = majority(sound)
        return [m for m in sound if kind(m) == like]

    def register(self, new: Sequence[tuple[str, Hello]]) -> None:
        """Give ids to newcomers, ``(key, what they said)`` in this order; a known key keeps its id and its grant."""
        for key, said in new:
            known = self.by_key.get(key)
            number = 1 + max((m.id for m in self.by_key.values()), default=-1) if known is None else known.id
            expelled = None if known is None else known.expelled
            samples = {name: getattr(said, name) for name in SAMPLES}
            self.by_key[key] = Member(number, key, said.name or f"client {number}", expelled=expelled, **samples)
        if new:
            self._write()

    def expel(self, expelled: Mapping[int, str]) -> None:
        """Keep members out from now on; the reasons are in the register."""
        members = self.by_id() if expelled else {}
        found = [replace(members[c], expelled=why) for c, why in expelled.items() if c in members]
        changed = [m for m in found if m != self.by_key[m.key]]
        self.by_key.update({m.key: m for m in changed})
        if changed:
            self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        write_whole(self.path, json.dumps([asdict(m) for m in self.by_key.values()], indent=1) + "\n", durable=True)


_HELLO = Declared[Hello](Hello)
_REGISTER = Declared[list[Member]](list[Member])
SAMPLES = (  # what is kept of a hello
    "num_samples", "input_shape", "num_classes", "tests", "profile", "text", "loop", "inputs",
)  # fmt: skip


def _sound(member: Member) -> bool:
    """Say whether a member's hello would be taken today; registers of earlier versions hold what was not checked."""
    try:
        _HELLO.check(Hello(name=member.name, **{name: getattr(member, name) for name in SAMPLES}))
    except UnsoundError:
        return False
    return True


def _damaged(path: Path, why: str) -> str:
    return (
        f"{path}: is not a register of members ({why}); put a copy of it back: it says which key has which account "
        "(without any, a run starts anew in another folder)"
    )


FILE = "operator.jsonl"
LONGEST_REASON = 500  # characters of a reason


@dataclass(frozen=True)
class Orders:
    """What holds after all orders so far: the reason of the pause if there is one, and whom to keep out, and why."""

    paused: str | None = None
    expelled: Mapping[int, str] = field(default_factory=dict)

    @staticmethod
    def read(run: Path) -> Orders:
        """Return the orders of a run directory; a line that is still being written is left for the next time."""
        path = run / FILE
        paused: str | None = None
        expelled: dict[int, str] = {}
        for line in json_lines(path, remedy="mend or remove it"):
            match line:
                case {"order": "pause", "reason": str(reason)}:
                    paused = reason
                case {"order": "go-on"}:
                    paused = None
                case {"order": "expel", "client": int(client), "reason": str(reason)}:
                    expelled[client] = reason
                case _:
                    raise UserError(f"{path}: is no list of orders: {str(line)[:80]!r}: mend or remove it")
        return Orders(paused, expelled)


def give(run: Path, order: str, reason: str, client: int | None = None) -> None:
    """Add an order ("pause", "go-on", "expel") to a run, which may still wait for its members.

    Raises UserError if it is none of a network, or cannot be.
    """
    if not (run / "federation.json").exists():
        raise UserError(f"{run}: is not a run on a network that has begun (it has no federation.json)")
    if not reason.strip() or len(reason) > LONGEST_REASON:
        raise UserError(f"--reason: {len(reason)} characters: must be 1 to {LONGEST_REASON}")
    line: dict[str, Any] = {"order": order, "reason": reason.strip(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    if order == "expel":
        known = Members.read(run / "members.json").by_id()
        member = None if client is None else known.get(client)
        if member is None:
            raise UserError(f"--client: {client}: the members are {', '.join(map(str, sorted(known))) or 'none yet'}")
        line |= {"client": client, "key": member.key, "name": member.name}
    with (run / FILE).open("a") as file:
        file.write(json.dumps(line) + "\n")
