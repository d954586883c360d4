"""The file of keys: who may see what. It holds hashes only; a key itself is shown once, when it is made.

A key is ``hanse_ID_SECRET`` with 256 random bits in SECRET, so one pass of SHA-256 is enough: there is nothing to guess
that a slow hash would protect.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from hanse.base.errors import UserError

__all__ = ["ROLES", "Key", "check_key", "make_key", "read_keys", "write_keys"]

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
    temporary = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
        temporary.replace(file)
    except OSError as wrong:
        raise UserError(f"{file}: cannot be written: {wrong.strerror}") from None


def _hash(said: str) -> str:
    return hashlib.sha256(said.encode(errors="surrogatepass")).hexdigest()
