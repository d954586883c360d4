"""A node's own log: what its operator asked of it, over how many of its samples, what left it, and what it refused.

It is a participant's record of its node, ``requests.log`` in its folder: a line of JSON when a request comes, and one
when it is answered. It holds no sample and no model. Only what the operator has signed is written down, so that nobody
else can fill it. The nonce of each request stands in it, too: a request is taken once.

The lines are the leaves of a Merkle tree (:mod:`hanse.base.merkle`), whose peaks are kept in ``requests.head``. A line
that was changed, or an end that was cut off, therefore shows; whoever can write both files could write both anew, so an
owner who wants to prove its log notes the root elsewhere.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import ASKED, ASKED_HEAD, private_folder, read_text
from hanse.base.lock import flock
from hanse.base.merkle import Tree, grow, root_of
from hanse.core.declared import Count, Declared, Digest
from hanse.federation.codec import Message, WireError

MOST = 1 << 26  # bytes of a log, which is read at each request; with more, none is taken until its owner moves it away


@dataclass(frozen=True)
class _Head:
    """The end of a log: how many lines it has, their size in bytes, and the peaks of the tree over its lines."""

    lines: Count
    size: Count
    peaks: list[Digest]

    @property
    def hashes(self) -> list[bytes]:
        return [bytes.fromhex(peak) for peak in self.peaks]


_HEAD = Declared[_Head](_Head)


@dataclass(frozen=True)
class NodeLog:
    """The log in a participant's folder.

    Attributes:
        home: the folder.
        clock: a function that returns the seconds since 1970.

    Examples:
        >>> log = NodeLog(Path("mine"), clock=lambda: 0)
        >>> log.took("00", kind="hello"), log.took("00", kind="hello")
        (True, False)
        >>> log.add("00", left={"bytes": 120})
        >>> [line["event"] for line in log.verified()]
        ['asked', 'answered']
    """

    home: Path
    clock: Callable[[], float] = time.time

    def took(self, nonce: str, **said: Any) -> bool:
        """Write down that a request came, unless it came before. Return whether it is new.

        Of two processes that ask at once, one is told so.

        Args:
            nonce: the request's nonce.
            said: what the request is: plain values.

        Raises:
            WireError: the log cannot be written, others may write it, or it is not what was written. The request must
                then be ignored.
        """
        return self._append({"event": "asked", "nonce": nonce, **said}, nonce)

    def add(self, nonce: str, **said: Any) -> None:
        """Write down what became of a request. Errors are those of :meth:`took`."""
        self._append({"event": "answered", "to": nonce, **said})

    def verified(self) -> list[dict[str, Any]]:
        """Return the lines of the log. Raises UserError if it is not what was written."""
        path = self.home / ASKED
        if not path.exists():
            raise UserError(f"{path}: there is no log: this node was never asked anything")
        data, head = read_text(path, 2 * MOST).encode(), self._head()
        if head is None or len(data) < head.size:
            raise UserError(f"{path}: {'has lost its ' + ASKED_HEAD if head is None else 'was cut'}")
        lines, tree = data[: head.size].splitlines(), Tree()
        for line in lines:
            tree.append(line)
        if len(lines) != head.lines or tree.root() != root_of(head.hashes):
            raise UserError(f"{path}: its lines are not those that were written: it was changed")
        return [json.loads(line) for line in lines]

    def until(self, root: str) -> int:
        """Return how many lines the log had when it had this root, 64 hexadecimal digits.

        Raises:
            UserError: the log is not what was written, or never had this root.
        """
        tree, path = Tree(), self.home / ASKED
        for number, line in enumerate(path.read_bytes().splitlines()[: len(self.verified())], 1):
            tree.append(line)
            if tree.root().hex() == root:
                return number
        raise UserError(f"{path}: never had the root {root}: it was written anew, or cut")

    def behind(self) -> int:
        """Return how many bytes stand behind what is proved: a request that is being answered, or was when it died."""
        head = self._head()
        return (self.home / ASKED).stat().st_size - (0 if head is None else head.size)

    def root(self) -> str:
        """Return the root of the tree over all lines, 64 hexadecimal digits."""
        head = self._head()
        return root_of([] if head is None else head.hashes).hex()

    def _head(self) -> _Head | None:
        """Return the head; None if there is none. Raises UserError if it is damaged."""
        path = self.home / ASKED_HEAD
        try:
            return _HEAD.read(read_text(path).partition("\n")[0]) if path.exists() else None
        except ValueError as wrong:
            raise UserError(f"{path}: is damaged ({wrong}); move it and {ASKED} away, and a new log begins") from None

    def _append(self, said: Mapping[str, Any], nonce: str = "") -> bool:
        """Write a line, unless ``nonce`` stands in an earlier one; return whether it was written."""
        path = self.home / ASKED
        if not self.home.exists():
            private_folder(self.home)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.clock()))
        line = json.dumps({"at": at, **said}, separators=(",", ":")).encode()
        try:
            path.touch(0o600)
            with path.open("r+b") as file:
                now = os.fstat(file.fileno())
                # whoever can write it can take a nonce out, and the request would be acted upon again
                if now.st_mode & 0o022 or now.st_uid != os.geteuid():
                    raise WireError(f"{path}: others may write it, so no request is acted upon: chmod 600")
                if nonce and now.st_size >= MOST:  # what was taken before may still be answered
                    raise WireError(
                        f"{path}: has {now.st_size} bytes: move it and {ASKED_HEAD} away, and a new log begins"
                    )
                flock(file)
                data, head = file.read(), self._head()
                if nonce and f'"nonce":"{nonce}"'.encode() in data:
                    return False
                if head is None and data:
                    raise WireError(f"{self.home / ASKED_HEAD}: is gone; move {ASKED} away, and a new log begins")
                head = head or _Head(0, 0, [])
                if len(data) < head.size:
                    raise WireError(f"{path}: was cut; move it and {ASKED_HEAD} away, and a new log begins")
                if not head.lines:
                    self._write(head)
                # the head does not know the lines since the last answer; a crash may have cut the last of them short
                whole = data[: data.rfind(b"\n") + 1]
                file.truncate(len(whole))
                file.seek(0, os.SEEK_END)
                file.write(line + b"\n")
                file.flush()
                if nonce:  # it must be there whatever happens next; the rest of the log may end with a power cut
                    os.fsync(file.fileno())
                    return True
                new = [*whole[head.size :].splitlines(), line]
                peaks = head.hashes
                for count, one in enumerate(new, head.lines):
                    grow(peaks, count, one)
                self._write(_Head(head.lines + len(new), len(whole) + len(line) + 1, [peak.hex() for peak in peaks]))
                return True
        except (OSError, UserError) as wrong:
            raise WireError(f"{path}: the request cannot be noted, so it is not acted upon: {wrong}") from None

    def _write(self, head: _Head) -> None:
        """Write the head over the one before; what may be left of that is behind the first line, and not read."""
        said = {"lines": head.lines, "size": head.size, "peaks": head.peaks}
        with os.fdopen(os.open(self.home / ASKED_HEAD, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
            file.write(json.dumps(said).encode() + b"\n")


def left(message: Message, beside: Mapping[str, Any]) -> dict[str, Any]:
    """Return what leaves a node with an answer: kinds of results, lengths of their arrays, and bytes in all.

    Args:
        message: the packed reply.
        beside: the plain values beside it.
    """
    said = json.loads(message.header)
    fields = said["fields"] if isinstance(said, dict) else {}
    found: dict[str, Any] = {"results": [result["$kind"] for result in fields.get("results", ())]}
    found["lengths"] = [int(array.size) for array in message.arrays.values()]
    found["bytes"] = message.num_bytes + sum(len(str(value)) for value in beside.values())
    found["beside"] = sorted(set(beside) - {"round"})
    return found


def in_words(line: Mapping[str, Any]) -> str:
    """Return a line of the log in words."""
    if line["event"] == "asked":
        what = line.get("kind", "")
        round = f" of round {line.get('round')}" if what == "request" else ""
        return f"{line['at']}  asked by {line.get('by')}: {what}{round}, agreement {line.get('agreement', '')[:16]}"
    if line.get("refused"):
        return f"{line['at']}    refused: {line['refused']}"
    asked = ", ".join(f"{kind} {n} about {models} models" for kind, (n, models) in line.get("questions", {}).items())
    over = ", ".join(f"{n} {share} samples" for share, n in line.get("samples", {}).items())
    gone = line.get("left", {})
    results = ", ".join(gone.get("results", ())) or ", ".join(gone.get("beside", ())) or "nothing"
    numbers = f" ({'+'.join(map(str, gone['lengths']))} numbers)" if gone.get("lengths") else ""
    parts = [part for part in (asked, f"over {over}" if over else "", f"{results}{numbers} left") if part]
    return f"{line['at']}    {'; '.join(parts)}, {gone.get('bytes', 0)} bytes"
