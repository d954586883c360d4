"""What the operator of a running federation orders: pause, go on, expel a participant. Each order keeps its reason.

Orders are lines of ``operator.jsonl`` in the run directory; the server reads it at the start of a round's exchange. It
is only ever added to, so it is the record as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.deployment.members import Members

__all__ = ["FILE", "Orders", "give"]

FILE = "operator.jsonl"
LONGEST = 500  # characters of a reason


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
        for line in path.read_text().splitlines(keepends=True) if path.exists() else []:
            if not line.endswith("\n"):
                break
            try:
                order = json.loads(line)
                if order["order"] == "pause":
                    paused = str(order["reason"])
                elif order["order"] == "go-on":
                    paused = None
                elif order["order"] == "expel":
                    expelled[int(order["client"])] = str(order["reason"])
            except (ValueError, KeyError, TypeError) as wrong:
                raise UserError(
                    f"{path}: is no list of orders: {line.strip()[:80]!r} ({wrong}): mend or remove it"
                ) from None
        return Orders(paused, expelled)


def give(run: Path, order: str, reason: str, client: int | None = None) -> None:
    """Add an order ("pause", "go-on", "expel") to a run, which may still wait for its members.

    Raises UserError if it is none of a network, or cannot be.
    """
    if not (run / "federation.json").exists():
        raise UserError(f"{run}: is not a run on a network that has begun (it has no federation.json)")
    if not reason.strip() or len(reason) > LONGEST:
        raise UserError(f"--reason: {len(reason)} characters: must be 1 to {LONGEST}")
    line: dict[str, Any] = {"order": order, "reason": reason.strip(), "time": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
    if order == "expel":
        known = Members.read(run / "members.json").by_id()
        member = None if client is None else known.get(client)
        if member is None:
            raise UserError(f"--client: {client}: the members are {', '.join(map(str, sorted(known))) or 'none yet'}")
        line |= {"client": client, "key": member.key, "name": member.name}
    with (run / FILE).open("a") as file:
        file.write(json.dumps(line) + "\n")
