"""Letters: receipts that are on their way to clients, kept on disk until their clients have them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.files import write_whole

__all__ = ["FILE", "Letters"]

FILE = "letters.json"


@dataclass
class Letters:
    """Lines by client that it has not acknowledged, oldest first, written to ``path`` at each change if there is one.

    ``rounds`` says of how many rounds receipts were written; None if nothing was written yet.
    """

    path: Path | None = None
    waiting: dict[int, list[str]] = field(default_factory=dict)
    rounds: int | None = None

    @staticmethod
    def read(path: Path) -> Letters:
        """Read the letters of a run that was interrupted, or start with none. Raises UserError for a damaged file."""
        if not path.exists():
            return Letters(path)
        try:
            said = json.loads(path.read_bytes())
            waiting = {int(client): [str(line) for line in lines] for client, lines in said["waiting"].items()}
            return Letters(path, waiting, int(said["rounds"]))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
            raise UserError(
                f"{path}: is not what it was ({wrong}); without it the run goes on, and the receipts that had not "
                "reached their participants are lost"
            ) from None

    def add(self, lines: Iterable[tuple[int, str]], rounds: int) -> None:
        """Put lines, ``(client, line)``, behind those that wait, now that ``rounds`` rounds are told."""
        for client, line in lines:
            mine = self.waiting.setdefault(client, [])
            if line not in mine:
                mine.append(line)
        self.rounds = rounds
        self._write()

    def delivered(self, count: Mapping[int, int]) -> None:
        """Drop each client's first ``count`` lines: it has them."""
        known = {client: lines for client, lines in count.items() if lines}
        for client, lines in known.items():
            del self.waiting[client][:lines]
            if not self.waiting[client]:
                del self.waiting[client]
        if known:
            self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        write_whole(self.path, json.dumps({"rounds": self.rounds, "waiting": self.waiting}) + "\n", durable=True)
