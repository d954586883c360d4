"""Keys and sessions: who is asking, and what they may see.

``hanse token`` keeps a file of keys with :func:`make_key`, :func:`read_keys` and :func:`write_keys`. The live page
identifies who asks with :class:`Sessions`, and :func:`may_ask` says who may request which addresses.

The file holds only hashes. A key itself is shown once, when it is made. A key is ``hanse_ID_SECRET`` with 256 random
bits in SECRET, so one pass of SHA-256 is enough. Slow hashes protect secrets that can be guessed, and this one cannot.

Sessions are kept in memory, not in a signed cookie as in Starlette. A self-contained cookie stays valid until it
expires. Here, a session ends at once when its holder logs out or its key is removed from the file.
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
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field
from typing_extensions import TypedDict

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.core.declared import Count, Declared, Digest

ROLES = ("operator", "participant")
_FORM = re.compile(r"hanse_([0-9a-f]{8})_[A-Za-z0-9_-]{43}")
# an unknown id is compared with this, so it takes as long as a known one
_NOBODY = hashlib.sha256(b"nobody's key").hexdigest()


@dataclass(frozen=True)
class Key:
    """One holder of a key, as it is kept in the file.

    Attributes:
        id: eight hexadecimal digits, which the key itself begins with.
        role: "operator", who sees everything, or "participant".
        hash: SHA-256 of the whole key, in hexadecimal digits.
        client: the client whose statements a participant sees; None for an operator.
        run: the only run whose statements a participant sees, by its name on the page. None: every run.
        made: when the key was made (ISO 8601, UTC).

    Examples:
        >>> said, key = make_key("participant", client=2)
        >>> key.role, key.sees("any run", 2), key.sees("any run", 3)
        ('participant', True, False)
        >>> check_key({key.id: key}, said) == key
        True
    """

    # a misspelt "run" would open every run
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid", strict=True)
    id: str
    role: Annotated[str, Field(pattern="^(operator|participant)$")]
    hash: Digest
    client: Count | None = None
    run: str | None = None
    made: str = ""

    def sees(self, run: str, client: int) -> bool:
        """Return whether the holder may see the statement of ``client`` in the run of this name.

        Examples:
            >>> _, mine = make_key("participant", client=3)
            >>> mine.sees("exp", 3), mine.sees("exp", 4)
            (True, False)
        """
        if self.role == "operator":
            return True
        return self.client == client and self.run in (None, run)


class _File(TypedDict):
    keys: list[Key]


_KEYS = Declared[_File](_File)


def make_key(role: str, client: int | None = None, run: str | None = None) -> tuple[str, Key]:
    """Return the secret of a new key, and the entry that the file keeps.

    Args:
        role: "operator" or "participant".
        client: the participant's client id; None for an operator.
        run: the only run that a participant is to see, by its name on the page. None: every run.

    Returns:
        The secret, to be handed to its holder, and the holder's :class:`Key`.

    Raises:
        UserError: role, client and run do not fit together.

    Examples:
        >>> secret, holder = make_key("operator")
        >>> check_key({holder.id: holder}, secret) == holder
        True
        >>> check_key({holder.id: holder}, secret[:-1] + "?") is None
        True
    """
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
    """Return the holder of a key, or None if it is nobody's. A wrong secret takes as long as a right one.

    Args:
        keys: the holders by id.
        said: what was presented as a key. It is untrusted input.
    """
    form = _FORM.fullmatch(said)
    key = keys.get(form[1]) if form else None
    right = hmac.compare_digest(_hash(said), key.hash if key is not None else _NOBODY)
    return key if right and key is not None else None


def read_keys(file: Path) -> dict[str, Key]:
    """Return the keys in a file by their ids.

    Raises:
        UserError: the file does not exist, cannot be read, or is not a file of keys.
    """
    try:
        keys = _KEYS.read(file.read_text(encoding="utf-8"))["keys"]
    except FileNotFoundError:
        raise UserError(f"{file}: there is no such file; 'hanse token new {file} --role operator' makes it") from None
    except OSError as wrong:
        raise UserError(f"{file}: cannot be read: {wrong.strerror}") from None
    except ValueError as wrong:
        raise UserError(f"{file}: is not a file of keys ({wrong}); 'hanse token new FILE' makes one") from None
    for key in keys:
        if (key.role == "participant") != (key.client is not None):
            raise UserError(f"{file}: key {key.id[:20]!r}: is damaged; revoke it and make a new one")
    return {key.id: key for key in keys}


def write_keys(file: Path, keys: Sequence[Key]) -> None:
    """Write the file in one step, readable by its owner alone.

    Raises:
        UserError: the file cannot be written.
    """
    text = json.dumps({"keys": [asdict(key) for key in keys]}, indent=1) + "\n"
    try:
        write_whole(file, text, private=True)
    except OSError as wrong:
        raise UserError(f"{file}: cannot be written: {wrong.strerror}") from None


def _hash(said: str) -> str:
    """Return the SHA-256 of a text in hexadecimal digits. Any text has one, also one that UTF-8 cannot encode."""
    return hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()


# ---- sessions


log = logging.getLogger("hanse.wings.operate.page")

SESSION_S = 12 * 3600  # seconds that a session lasts
SESSIONS = 10_000  # the most that are open; the oldest one ends for a new one
OPEN = ("/login", "/static/")  # what is shown to those who have not logged in
ANYBODY = Key("", "operator", "")  # without keys, whoever reaches the page is its operator


def may_ask(key: Key, path: str) -> bool:
    """Return whether the holder of a key may request an address.

    An operator may request everything. A participant may request its start page, statements, and the logout. Which
    statements it may see is checked when they are made.
    """
    if key.role == "operator":
        return True
    return path in ("/", "/login", "/logout") or path.startswith(("/statement/", "/static/"))


@dataclass
class Sessions:
    """The keys of a file, and the sessions of those who logged in with one.

    The file is read again whenever it changes, so removing a key ends its sessions at once.

    Attributes:
        file: the file of keys. None: nobody is asked for a key.
        clock: a function that returns the time in seconds; tests replace it.

    Examples:
        >>> said, key = make_key("operator")
        >>> write_keys(Path("keys.json"), [key])
        >>> sessions = Sessions(Path("keys.json"))
        >>> sessions.by_key(said).role
        'operator'
        >>> token = sessions.open_session(key)
        >>> sessions.by_session(token).id == key.id
        True
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
        """Return who opened this session; None if it is unknown or too old, or its key is no longer in the file."""
        found = self._open.get(_hash(said))
        if found is None:
            return None
        key, opened = found
        if self.clock() - opened > SESSION_S or self._current().get(key.id) != key:
            del self._open[_hash(said)]
            return None
        return key

    def open_session(self, key: Key) -> str:
        """Return the secret of a new session for the holder of ``key``. Only its hash is kept."""
        secret = secrets.token_urlsafe(32)
        self._open[_hash(secret)] = (key, self.clock())
        while len(self._open) > SESSIONS:
            self._open.popitem(last=False)
        return secret

    def close_session(self, said: str) -> None:
        """End the session with this secret, if there is one."""
        self._open.pop(_hash(said), None)

    def still(self, key: Key) -> bool:
        """Return whether a holder may stay logged in, that is, whether the key is in the file, unchanged."""
        return self.file is None or self._current().get(key.id) == key

    def _current(self) -> dict[str, Key]:
        """Return the keys as the file has them now. If it cannot be read, nobody holds a key."""
        if self.file is None:
            return {}
        try:
            status = self.file.stat()
            # the inode too: a file may be replaced by one of the same size within the clock's resolution
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp != self._stamp:
                self._keys, self._stamp = read_keys(self.file), stamp
        except (OSError, UserError) as wrong:
            log.error("nobody is let in: %s", wrong)
            self._keys, self._stamp = {}, None
        return self._keys
