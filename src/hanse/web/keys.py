"""Keys and sessions: who is asking, and what they may see.

The file of keys holds hashes only; a key itself is shown once, when it is made. It is ``hanse_ID_SECRET`` with 256
random bits in SECRET, so one pass of SHA-256 is enough: there is nothing to guess that a slow hash would protect.

Sessions are kept here and not in a signed cookie (Starlette's): a key that is taken out of the file, and whoever logs
out, must end a session at once, which a cookie that is valid by itself does not allow.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.files import write_whole

ROLES = ("operator", "participant")
_FORM = re.compile(r"hanse_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
_NOBODY = hashlib.sha256(b"nobody's key").hexdigest()


@dataclass(frozen=True)
class Key:
    """One holder of a key: an operator sees everything; a participant the statement of ``client``, in ``run`` (a run's
    name as the page shows it) or in every run. ``hash`` is the SHA-256 of the whole key, in hexadecimal digits.
    """

    id: str
    role: str
    hash: str
    client: int | None = None
    run: str | None = None
    made: str = ""

    def sees(self, run: str, client: int) -> bool:
        """Say whether the holder may see this client's statement of this run."""
        if self.role == "operator":
            return True
        return self.client == client and self.run in (None, run)


def make_key(role: str, client: int | None = None, run: str | None = None) -> tuple[str, Key]:
    """Return a new key and what the file keeps of it. Raises UserError where role and client do not fit."""
    if role not in ROLES:
        raise UserError(f"--role: '{role}': must be operator or participant")
    if (role == "participant") != (client is not None):
        raise UserError("--client: a participant's key needs its client's number, an operator's has none")
    if client is not None and client < 0:
        raise UserError(f"--client: {client}: must be at least 0")
    if run is not None and role == "operator":
        raise UserError("--run: an operator sees every run")
    id_ = secrets.token_hex(4)
    secret = f"hanse_{id_}_{secrets.token_urlsafe(32)}"
    made = datetime.now(UTC).isoformat(timespec="seconds")
    return secret, Key(id_, role, _hash(secret), client, run, made)


def check_key(keys: Mapping[str, Key], said: str) -> Key | None:
    """Return the holder of a key, or None. Takes as long for a wrong secret as for a right one."""
    form = _FORM.fullmatch(said)
    key = keys.get(form[1]) if form else None
    right = hmac.compare_digest(_hash(said), key.hash if key is not None else _NOBODY)
    return key if right and key is not None else None


def read_keys(file: Path) -> dict[str, Key]:
    """Return the keys of a file by their ids. Raises UserError if it is not there or is not a file of keys."""
    try:
        stored = json.loads(file.read_text(encoding="utf-8"))
        keys = [Key(**fields) for fields in stored["keys"]]
    except FileNotFoundError:
        raise UserError(f"{file}: there is no such file; 'hanse token new {file} --role operator' makes it") from None
    except OSError as wrong:
        raise UserError(f"{file}: cannot be read: {wrong.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{file}: is not a file of keys; 'hanse token new FILE' makes one") from None
    for key in keys:
        whole = all(isinstance(text, str) for text in (key.id, key.hash, key.made))
        named = key.run is None or isinstance(key.run, str)
        fits = key.role == "operator" if key.client is None else key.role == "participant" and type(key.client) is int
        if not (whole and named and fits and re.fullmatch(r"[0-9a-f]{64}", key.hash)):
            raise UserError(f"{file}: key {str(key.id)[:20]!r}: is damaged; revoke it and make a new one")
    return {key.id: key for key in keys}


def write_keys(file: Path, keys: Sequence[Key]) -> None:
    """Write the file in one step, readable by its owner alone. Raises UserError if it cannot be written."""
    text = json.dumps({"keys": [asdict(key) for key in keys]}, indent=1) + "\n"
    try:
        write_whole(file, text, private=True)
    except OSError as wrong:
        raise UserError(f"{file}: cannot be written: {wrong.strerror}") from None


def _hash(said: str) -> str:
    return hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()


# ---- sessions


log = logging.getLogger("hanse.web")

SESSION_S = 12 * 3600
SESSIONS = 10_000
OPEN = ("/login", "/static/")  # what is shown to those who have not said who they are
ANYBODY = Key("", "operator", "")  # without keys, whoever reaches the page is its operator


def may_ask(key: Key, path: str) -> bool:
    """Say whether this holder may ask for this path. A participant: its home, its statements, and to leave; which
    statements are its own is asked again where they are made.
    """
    if key.role == "operator":
        return True
    return path in ("/", "/login", "/logout") or path.startswith(("/statement/", "/static/"))


@dataclass
class Sessions:
    """The keys of a file, read again when it changes, and the sessions of those who logged in with one.

    Without a ``file`` nobody is asked for a key. A key that was taken out of the file ends its sessions at once.
    """

    file: Path | None
    clock: Callable[[], float] = time.monotonic
    _keys: dict[str, Key] = field(default_factory=dict)
    _stamp: tuple[int, int, int] | None = None
    _open: OrderedDict[str, tuple[Key, float]] = field(default_factory=OrderedDict)

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
        found = self._open.get(_hash(said))
        if found is None:
            return None
        key, opened = found
        if self.clock() - opened > SESSION_S or self._current().get(key.id) != key:
            del self._open[_hash(said)]
            return None
        return key

    def open_session(self, key: Key) -> str:
        """Return the secret of a new session; only its hash is kept."""
        secret = secrets.token_urlsafe(32)
        self._open[_hash(secret)] = (key, self.clock())
        while len(self._open) > SESSIONS:
            self._open.popitem(last=False)
        return secret

    def close_session(self, said: str) -> None:
        """End a session."""
        self._open.pop(_hash(said), None)

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
