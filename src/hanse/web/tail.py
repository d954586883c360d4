"""Follows a JSON-lines file that another process appends to, and notices when it was cut or replaced."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.base.files import opened

__all__ = ["Grown", "LineTail"]

CHUNK = 1 << 20  # bytes that are read at a time
LONGEST = 1 << 26  # a line that is longer is damage, not a line
REMEMBER = 64  # bytes before the place reached, to see whether they are still the same


@dataclass(frozen=True)
class Grown:
    """What one look found: new ``lines``; ``cut`` if everything that was read before no longer counts (the lines are
    from the beginning then); ``left`` bytes that were not looked at yet.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    cut: bool = False
    left: int = 0


@dataclass
class LineTail:
    """A place in a growing file. ``damaged`` counts lines that are not JSON objects; they are passed over."""

    path: Path
    place: int = 0
    damaged: int = 0
    _before: bytes = b""
    _file: tuple[int, int] | None = None  # device and inode

    def read(self, most: int = CHUNK) -> Grown:
        """Return the complete lines after the place reached, about ``most`` bytes of them; a torn last line waits.

        A file that is shorter than the place reached, is another file, or has other bytes before that place was cut
        by a resumed run or made anew: it is read from its beginning. A file that is not there is an empty one.
        """
        try:
            file = opened(self.path)
        except FileNotFoundError:  # none yet, or a link
            cut, self._file = self.place > 0, None
            self._rewind()
            return Grown(cut=cut)
        with file:
            status = os.fstat(file.fileno())
            same = self._file in (None, (status.st_dev, status.st_ino)) and status.st_size >= self.place
            if same and self._before:
                file.seek(self.place - len(self._before))
                same = file.read(len(self._before)) == self._before
            cut = not same
            if cut:
                self._rewind()
            self._file = (status.st_dev, status.st_ino)
            file.seek(self.place)
            data = file.read(most)
            while b"\n" not in data and len(data) < LONGEST and (more := file.read(most)):
                data += more
        end = data.rfind(b"\n") + 1
        texts = data[:end].split(b"\n")[:-1]
        if not end and len(data) >= LONGEST:
            self.damaged += 1
            end = len(data)
        self.place += end
        self._before = (self._before + data[:end])[-REMEMBER:]
        lines = [line for text in texts if (line := self._line(text)) is not None]
        return Grown(lines, cut, max(0, status.st_size - self.place) if end else 0)

    def _rewind(self) -> None:
        self.place, self.damaged, self._before = 0, 0, b""

    def _line(self, text: bytes) -> dict[str, Any] | None:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict):
            self.damaged += 1
            return None
        return line
