"""Who the members are: node keys and the client ids that they got when they registered, kept in the run directory.

A member is its authenticated key (or, without node authentication, its node id), whatever name it gives itself; it
keeps its id, its account and its grant when it comes back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from hanse.federation.port import ClientInfo

__all__ = ["Member", "Members", "checked"]


def checked(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a newcomer says of itself, in the right types. Raises KeyError, TypeError, ValueError."""
    classes = said["num_classes"]
    return {
        "name": str(said.get("name", ""))[:80],
        "num_samples": int(said["num_samples"]),
        "input_shape": [int(n) for n in said["input_shape"]],
        "num_classes": None if classes is None else int(classes),
        "text": bool(said.get("text", False)),
        "tests": int(said.get("tests", 0)),
        "profile": {str(k): v for k, v in dict(said.get("profile", {})).items() if isinstance(v, int | float | str)},
        "order": int(said.get("order", 1 << 30)),
    }


@dataclass(frozen=True)
class Member:
    """A registered participant. ``expelled`` says why it may no longer take part; ``text``: its samples are tokens with
    a label at every position.
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

    @property
    def info(self) -> ClientInfo:
        """What mechanisms see of it."""
        return ClientInfo(self.id, self.name, self.key, self.num_samples, self.profile)


@dataclass
class Members:
    """The register: members by key; written to ``path`` at each change if there is one."""

    path: Path | None = None
    by_key: dict[str, Member] = field(default_factory=dict)

    @staticmethod
    def read(path: Path | None) -> Members:
        """Read the register of a run, or start an empty one."""
        if path is None or not path.exists():
            return Members(path)
        found = [Member(**m | {"input_shape": tuple(m["input_shape"])}) for m in json.loads(path.read_text())]
        return Members(path, {m.key: m for m in found})

    def register(self, new: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Give ids to newcomers, ``(key, what they said)`` in this order; a known key keeps its id and its grant."""
        for key, said in new:
            known = self.by_key.get(key)
            number = len(self.by_key) if known is None else known.id
            self.by_key[key] = Member(
                number,
                key,
                said["name"] or f"client {number}",
                said["num_samples"],
                tuple(said["input_shape"]),
                said["num_classes"],
                said["tests"],
                said["profile"],
                None if known is None else known.expelled,
                said["text"],
            )
        self._write()

    def expel(self, client: int, reason: str) -> None:
        """Keep a member out from now on; the reason is in the register."""
        found = [m for m in self.by_key.values() if m.id == client and m.expelled != reason]
        for member in found:
            self.by_key[member.key] = replace(member, expelled=reason)
        if found:
            self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        temporary = self.path.with_suffix(".tmp")
        temporary.write_text(json.dumps([asdict(m) for m in self.by_key.values()], indent=1) + "\n")
        temporary.replace(self.path)
