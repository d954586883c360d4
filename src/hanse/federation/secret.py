"""A participant's own secret: a file that only it can read, made when it first needs one, and never sent."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from hanse.errors import UserError

__all__ = ["FILE", "own_secret"]

FILE = "secret.key"
BYTES = 32


def own_secret(folder: Path) -> bytes:
    """Return the secret (32 bytes) in ``folder``, which is made there, in mode 0600, if there is none yet.

    Raises UserError for a file that others can read, or that holds something else.
    """
    path = folder / FILE
    if not path.exists():
        _make(path)
    if path.stat().st_mode & 0o077:
        raise UserError(f"{path}: others may read it: chmod 600, or delete it for a new one")
    try:
        found = bytes.fromhex(path.read_text().strip())
    except ValueError:
        found = b""
    if len(found) != BYTES:
        raise UserError(f"{path}: must be {2 * BYTES} hexadecimal digits; delete it for a new one")
    return found


def _make(path: Path) -> None:
    """Write the file whole under another name first: of two processes that do this at once, one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{FILE}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass  # the other one won
    finally:
        temporary.unlink()
