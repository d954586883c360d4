"""What only a participant's own user can read: its folders, its files, and its secret, made when it first needs one
and never sent.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError
from hanse.base.files import write_whole

__all__ = ["FILE", "own_secret", "private_arrays", "private_file", "private_folder"]

FILE = "secret.key"
BYTES = 32


def private_folder(path: Path) -> Path:
    """Make a folder, and those above it that are missing, which only this user can enter; return it. If it is there
    already and this user's, it is closed to others.
    """
    if not path.parent.exists():
        private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.stat()
    if found.st_mode & 0o077 and found.st_uid == os.geteuid():
        path.chmod(0o700)
    return path


@contextmanager
def private_file(path: Path, mode: str = "wb") -> Iterator[IO[Any]]:
    """Open a file to write or append to, which only this user can read; one that is there is closed to others."""
    with open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        if os.fstat(file.fileno()).st_mode & 0o077:
            os.fchmod(file.fileno(), 0o600)
        yield file


def private_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays into an npz file, whole and durably, which only this user can read. Raises OSError."""
    packed = io.BytesIO()
    np.savez(packed, **dict(arrays))  # type: ignore[arg-type]
    write_whole(path, packed.getvalue(), durable=True, private=True)


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
    if not path.parent.exists():
        private_folder(path.parent)
    temporary = path.with_name(f".{FILE}.{os.getpid()}")
    with private_file(temporary, "w") as file:
        file.write(secrets.token_hex(BYTES) + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass  # the other one won
    finally:
        temporary.unlink()
