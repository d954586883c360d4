"""Who is asking, and whether they may: keys, sessions, and one rule for every address of the page."""

from __future__ import annotations

import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hanse.base.errors import UserError
from hanse.web.keys import Key, check_key, read_keys

__all__ = ["ANYBODY", "Doors", "may"]

log = logging.getLogger("hanse.web")

SESSION_S = 12 * 3600
SESSIONS = 10_000
OPEN = ("/login", "/static/")  # what is shown to those who have not said who they are
ANYBODY = Key("", "operator", "")  # without keys, whoever reaches the page is its operator


def may(key: Key, path: str) -> bool:
    """Say whether this holder may ask for this path. A participant: its home, its statements, and to leave; which
    statements are its own is asked again where they are made.
    """
    if key.role == "operator":
        return True
    return path in ("/", "/login", "/logout") or path.startswith(("/statement/", "/static/"))


@dataclass
class Doors:
    """The keys of a file, read again when it changes, and the sessions of those who logged in with one.

    Without a ``file`` nobody is asked for a key. A key that was taken out of the file ends its sessions at once.
    """

    file: Path | None
    clock: Callable[[], float] = time.monotonic
    _keys: dict[str, Key] = field(default_factory=dict)
    _stamp: tuple[int, int, int] | None = None
    _sessions: OrderedDict[str, tuple[Key, float]] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        if self.file is not None:
            self._keys = read_keys(self.file)
            if not self._keys:
                raise UserError(f"--auth {self.file}: holds no keys; 'hanse token new {self.file} --role operator'")

    def by_key(self, said: str) -> Key | None:
        """Return who holds this key, or None."""
        return check_key(self._current(), said)

    def by_session(self, said: str) -> Key | None:
        """Return who opened this session, or None: unknown, too old, or its key is no longer in the file."""
        found = self._sessions.get(_name(said))
        if found is None:
            return None
        key, opened = found
        if self.clock() - opened > SESSION_S or self._current().get(key.id) != key:
            del self._sessions[_name(said)]
            return None
        return key

    def open_session(self, key: Key) -> str:
        """Return the secret of a new session; only its hash is kept."""
        secret = secrets.token_urlsafe(32)
        self._sessions[_name(secret)] = (key, self.clock())
        while len(self._sessions) > SESSIONS:
            self._sessions.popitem(last=False)
        return secret

    def close_session(self, said: str) -> None:
        """End a session."""
        self._sessions.pop(_name(said), None)

    def still(self, key: Key) -> bool:
        """Say whether a holder who was let in may stay."""
        return self.file is None or self._current().get(key.id) == key

    def _current(self) -> dict[str, Key]:
        if self.file is None:
            return {}
        try:
            status = self.file.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                self._keys, self._stamp = read_keys(self.file), stamp
        except (OSError, UserError) as wrong:
            log.error("nobody is let in: %s", wrong)
            self._keys, self._stamp = {}, None
        return self._keys


def _name(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
