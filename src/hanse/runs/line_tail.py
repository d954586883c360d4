"""Follows a file of JSON lines while a run goes on (:class:`LineTail`), and reads the last line of one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.base.files import LONGEST, opened, parse_line
from hanse.runs.round_record import CHUNK

REMEMBER = 64  # bytes before the place reached, to see whether they are still the same
END = 1 << 16  # bytes in which a file's last line is looked for


@dataclass(frozen=True)
class Grown:
    """The result of one look at a growing file.

    Attributes:
        lines: new lines, parsed.
        cut: whether everything that was read before is void. If so, ``lines`` start from the beginning of the file.
        left: bytes not read yet.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    cut: bool = False
    left: int = 0


@dataclass
class LineTail:
    """A position in a growing file of JSON lines, from which :meth:`read` continues.

    Attributes:
        path: the file, which need not be there yet.
        whole: keys under which each line must have a count, such as "round".
        place: bytes that have been read.
        damaged: how many lines were skipped because they are not JSON objects or lack these counts.
    """

    path: Path
    whole: Sequence[str] = ()
    place: int = 0
    damaged: int = 0
    _before: bytes = b""
    _file: tuple[int, int] | None = None  # device and inode

    def read(self, most: int = CHUNK) -> Grown:
        """Return the complete lines after the current position. An incomplete last line is left for the next call.

        The file is read from the beginning if it was replaced, became shorter, or has different bytes before the
        position (because a resumed run cut it, or it was rewritten). A missing file counts as empty.

        Args:
            most: about how many bytes to read at most.
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
            # a line longer than ``most`` is read to its end, but one that never ends is given up at LONGEST
            while b"\n" not in data and len(data) < LONGEST and (more := file.read(most)):
                data += more
        end = data.rfind(b"\n") + 1
        texts = data[:end].split(b"\n")[:-1]
        if not end and len(data) >= LONGEST:
            self.damaged += 1
            end = len(data)
        self.place += end
        self._before = (self._before + data[:end])[-REMEMBER:]
        lines = [line for text in texts if (line := parse_line(text, self.whole)) is not None]
        self.damaged += len(texts) - len(lines)
        return Grown(lines, cut, max(0, status.st_size - self.place) if end else 0)

    def _rewind(self) -> None:
        """Begin again at the start of the file."""
        self.place, self.damaged, self._before = 0, 0, b""


def last_line(file: Path) -> Mapping[str, Any]:
    """Return the last complete line of a JSON-lines file; empty if there is none, or the file cannot be read."""
    try:
        with opened(file) as lines:
            size = lines.seek(0, os.SEEK_END)
            lines.seek(max(0, size - END))
            whole = lines.read().split(b"\n")[:-1]
        line = json.loads(whole[-1])
    except (OSError, ValueError, IndexError, RecursionError):
        return {}
    return line if isinstance(line, dict) else {}
