"""A node's own log: what its operator asked of it, over how many of its samples, what left it, and what it refused.

It is a participant's record of its node, ``requests.log`` in its folder: a line of JSON when a request comes, and one
when it is answered. It holds no sample and no model. Only what the operator has signed is written down, so that nobody
else can fill it; what goes beyond the agreement stands there as it was signed, to be shown to others. The nonce of each
request stands in it, too: a request is taken once.

Each line names the SHA-256 of the line before it, so a line that was changed, added or taken out shows. The hash of the
last line stands for all of them (the *root*): whoever can write the file could cut its end off or write it anew, so an
owner who wants to prove its log notes the root elsewhere.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import ASKED, private_folder, read_text
from hanse.base.lock import flock
from hanse.base.plain_text import quantity
from hanse.federation.codec import Message, WireError

MOST = 1 << 26  # bytes of a log, which is read at each request; with more, none is taken until its owner moves it away
FIRST = "0" * 64  # stands for the line before the first one


@dataclass(frozen=True)
class NodeLog:
    """The log in a participant's folder.

    Attributes:
        home: the folder.

    Examples:
        >>> log = NodeLog(Path("mine"))
        >>> log.took("00", kind="hello"), log.took("00", kind="hello")
        (True, False)
        >>> log.add("00", left={"bytes": 120})
        >>> [line["event"] for line in log.verified()[0]]
        ['asked', 'answered']
    """

    home: Path

    def took(self, nonce: str, **said: Any) -> bool:
        """Write down that a request came, unless it came before. Return whether it is new.

        Of two processes that ask at once, one is told so.

        Args:
            nonce: the request's nonce.
            said: what the request is: plain values.

        Raises:
            WireError: the log cannot be written, or others may write it. The request must then be ignored.
        """
        return self._append({"event": "asked", "nonce": nonce, **said}, nonce)

    def add(self, nonce: str, **said: Any) -> None:
        """Write down what became of a request. Errors are those of :meth:`took`."""
        self._append({"event": "answered", "to": nonce, **said})

    def verified(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Return the lines of the log, and its root (64 hexadecimal digits) after each of them.

        Raises:
            UserError: a line is not what was written.
        """
        path, found, roots = self.home / ASKED, list[dict[str, Any]](), [FIRST]
        if not path.exists():
            raise UserError(f"{path}: there is no log: this node was never asked anything")
        for line in read_text(path, 4 * MOST).encode().split(b"\n")[:-1]:  # without one that is being written
            try:
                said = json.loads(line)
            except ValueError:
                said = None
            if not isinstance(said, dict) or said.pop("before", None) != roots[-1]:
                where = f"line {len(roots)} is not the one that was written there"
                raise UserError(f"{path}: {where}: the log was changed")
            roots.append(sha256(line).hexdigest())
            found.append(said)
        return found, roots[1:]

    def _append(self, said: Mapping[str, Any], nonce: str = "") -> bool:
        """Write a line, unless ``nonce`` stands in an earlier one; return whether it was written."""
        path = self.home / ASKED
        if not self.home.exists():
            private_folder(self.home)
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            # a link is not followed: such a log could not be verified
            with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
                now = os.fstat(file.fileno())
                # whoever can write it can take a nonce out, and the request would be acted upon again
                if now.st_mode & 0o022 or now.st_uid != os.geteuid():
                    raise WireError(f"{path}: others may write it, so no request is acted upon: chmod 600")
                if nonce and now.st_size >= MOST:  # what was taken before may still be answered
                    raise WireError(f"{path}: has {quantity(now.st_size, 'byte')}: move it away, and a new log begins")
                flock(file)
                data = file.read()
                if nonce and f'"nonce":"{nonce}"'.encode() in data:
                    return False
                whole = data[: data.rfind(b"\n") + 1]  # a crash may have cut the last line short
                last = sha256(whole[whole.rfind(b"\n", 0, -1) + 1 : -1]).hexdigest() if whole else FIRST
                line = json.dumps({"before": last, "at": at, **said}, separators=(",", ":")).encode()
                file.truncate(len(whole))
                file.seek(0, os.SEEK_END)
                file.write(line + b"\n")
                file.flush()
                if nonce:  # it must be there whatever happens next; the rest of the log may end with a power cut
                    os.fsync(file.fileno())
                return True
        except OSError as wrong:
            raise WireError(f"{path}: the request cannot be noted, so it is not acted upon: {wrong}") from None


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
    questions = line.get("questions", {}).items()
    asked = ", ".join(f"{kind} {n} about {quantity(models, 'model')}" for kind, (n, models) in questions)
    over = ", ".join(quantity(n, f"{share} sample") for share, n in line.get("samples", {}).items())
    gone = line.get("left", {})
    results = ", ".join(gone.get("results", ())) or ", ".join(gone.get("beside", ())) or "nothing"
    lengths = "+".join(map(str, gone.get("lengths", ())))
    numbers = f" ({quantity(lengths, 'number')})" if lengths else ""
    parts = [part for part in (asked, f"over {over}" if over else "", f"{results}{numbers} left") if part]
    return f"{line['at']}    {'; '.join(parts)}, {quantity(gone.get('bytes', 0), 'byte')}"
