"""Files that are written whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = ["write_whole"]


def write_whole(path: Path, data: str | bytes, *, durable: bool = False) -> None:
    """Write a file beside its place and rename it, so that a reader sees all of it or the old one.

    The folder is made if it is not there. ``durable``: it is on the disk when the call returns. Raises OSError; also if
    the place is taken by a link or by something that is no file, since whoever put it there may want another file
    written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError(0, "is a link, or no file", str(path))
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    # O_EXCL: neither a file that is there nor a link is written through
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
