"""Files of a run directory that somebody else may have written, and files that are written whole.

A directory of a stranger may be damaged, or made to do harm: links that lead out of it, pipes that never answer,
nestings without end, an archive of a few bytes that unpacks to many gigabytes. What is read here is bounded, and what
is wrong becomes one line that names the file.
"""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import stat
import tomllib
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeGuard

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError

SMALL = 1 << 24  # bytes of a file that is read in one piece
LONGEST = 1 << 26  # bytes of a line; a longer one is damage
ARRAYS = 1 << 28  # bytes that the arrays of one round may unpack to
CLIENTS = 10**7  # no run has more; arrays by client are as long as the highest number says

Arrays = dict[str, NDArray[Any]]


def run_folder(folder: Path) -> Path:
    """Return a run directory, once it is sure that nothing in it leads out of it.

    Raises UserError with one line if there is none, or if it holds a link or anything else than files and folders.
    """
    if not folder.is_dir():
        what = "is a file, not a run directory" if folder.exists() else "there is no such run directory"
        raise UserError(f"{folder}: {what}")
    if not (folder / "config.toml").exists():
        raise UserError(f"{folder}: is not a run directory (it has no config.toml)")
    odd = _odd(folder)
    if odd is not None:
        raise UserError(
            f"{odd}: is a link, or neither a file nor a folder; a run directory that is looked at holds none "
            "('cp -rL' makes a copy without links, if you know where they lead)"
        )
    return folder


def _odd(folder: Path) -> Path | None:
    """Return something in a folder or below it that is neither a file nor a folder; None if there is no such thing."""
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(Path(entry.path))
                    elif not entry.is_file(follow_symlinks=False):
                        return Path(entry.path)
        except OSError as wrong:
            raise UserError(f"{folder}: cannot be read: {wrong.strerror}") from None
    return None


def opened(file: Path) -> BinaryIO:
    """Open a file for reading. Raises OSError; FileNotFoundError also for a link or a pipe: one would lead elsewhere,
    the other wait for ever.
    """
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as wrong:
        if wrong.errno != errno.ELOOP:
            raise
        raise FileNotFoundError(wrong.errno, "is a link", str(file)) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "is no file", str(file))
    return os.fdopen(handle, "rb")


def read_text(file: Path, most: int = SMALL) -> str:
    """Read a text of at most so many bytes. Raises UserError."""
    try:
        with opened(file) as blob:
            data = blob.read(most + 1)
        if len(data) > most:
            raise UserError(f"{file}: has more than {most >> 20} MiB")
        return data.decode()
    except UnicodeDecodeError:
        raise UserError(f"{file}: cannot be read: is not text") from None
    except OSError as wrong:
        raise UserError(f"{file}: cannot be read: {wrong.strerror}") from None


def _parsed(file: Path, parse: Callable[[str], Any]) -> Any:
    text = read_text(file)
    try:
        return parse(text)
    except (ValueError, RecursionError) as wrong:
        raise UserError(f"{file}: cannot be read: {_said(wrong)}") from None


def read_toml(file: Path) -> dict[str, Any]:
    """Read a TOML file. Raises UserError."""
    table: dict[str, Any] = _parsed(file, tomllib.loads)
    return table


def read_json(file: Path) -> Any:
    """Read a JSON file. Raises UserError."""
    return _parsed(file, json.loads)


def parse_line(text: bytes, whole: Sequence[str] = ()) -> dict[str, Any] | None:
    """Return the JSON object on a line; None if it is none, or if a key of ``whole`` does not hold a count."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return line if isinstance(line, dict) and all(is_count(line.get(key), key) for key in whole) else None


def json_lines(
    file: Path, whole: Sequence[str] = (), until: int | None = None, remedy: str | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the complete lines of a JSON-lines file; a torn last line (a run in progress) is left out, a file that is
    not there is an empty one. ``whole``: keys that hold counts; ``until``: only the lines before this byte.

    Raises UserError with the number of the line that is damaged and the ``remedy``.
    """
    if not file.exists():
        return
    try:
        lines = opened(file)
    except OSError as wrong:
        raise UserError(f"{file}: cannot be read: {wrong.strerror}") from None
    with lines:
        number = 0
        while text := lines.readline(LONGEST):
            number += 1
            if (until is not None and lines.tell() > until) or (not text.endswith(b"\n") and len(text) < LONGEST):
                return
            line = parse_line(text, whole)
            if line is None:
                cut = remedy or f"'hanse resume {file.parent}' cuts off what cannot be used"
                raise UserError(f"{file}: line {number} is damaged; {cut}")
            yield line


def is_count(value: object, key: str) -> TypeGuard[int]:
    """Say whether this can be a line's ``round`` or ``client``."""
    return type(value) is int and 0 <= value < (CLIENTS if key == "client" else 10**9)


def read_arrays(file: Path, only: Collection[str] = ()) -> Arrays:
    """Read the arrays of an ``.npz`` file, all or ``only`` those named of them; nothing in it is unpickled.

    What an array says of its size is held against the file's table of contents before any memory is taken for it.
    Raises UserError: it is broken, holds objects, or unpacks to more than 256 MiB.
    """
    try:
        with opened(file) as blob, zipfile.ZipFile(blob) as packed:
            found = {i.filename.removesuffix(".npy"): i for i in packed.infolist() if i.filename.endswith(".npy")}
            wanted = {name: i for name, i in found.items() if not only or name in only}
            size = sum(i.file_size for i in wanted.values())
            if size > ARRAYS:
                raise UserError(f"{file}: unpacks to {size:,} bytes; at most {ARRAYS:,} are read")
            return {name: _array(packed, i) for name, i in wanted.items()}
    except UserError:
        raise
    except Exception as wrong:  # zipfile, zlib, numpy and the operating system each raise their own
        raise UserError(f"{file}: cannot be read: {_said(wrong)}") from None


def array_header(blob: IO[bytes], size: int) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read the header of an array that was written as ``.npy`` and has ``size`` bytes in all: its shape, whether it
    lies by columns, and its type.

    Raises ValueError if it holds objects, or has another size than it says: then nothing is made of it. A header that
    is damaged may raise what numpy raises.
    """
    version = np.lib.format.read_magic(blob)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, kind = read(blob)
    if kind.hasobject:
        raise ValueError("an array that holds objects")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or blob.tell() + count * kind.itemsize != size or (count and not kind.itemsize):
        raise ValueError(f"{size} bytes are not of shape {list(shape)[:8]}")
    return shape, by_columns, kind


def _array(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    with packed.open(member) as blob:
        try:
            array_header(blob, member.file_size)
        except ValueError as wrong:
            raise ValueError(f"array '{member.filename}': {wrong}") from None
    with packed.open(member) as blob:
        array: NDArray[Any] = np.lib.format.read_array(blob, allow_pickle=False)
    return array


def _said(wrong: BaseException) -> str:
    """Return an error's text on one line; Python's own for a nesting without end speaks of itself."""
    if isinstance(wrong, RecursionError):
        return "it is nested too deep"
    return " ".join(str(wrong).split())[:200] or type(wrong).__name__


@contextmanager
def whole_file(
    path: Path, *, durable: bool = False, private: bool = False, replace: bool = True
) -> Iterator[IO[bytes]]:
    """Open a file to be written beside its place and renamed at the end, so that a reader sees all of it or the old
    one; nothing is left if the block raises.

    The folder is made if it is not there. ``durable``: it is on the disk at the end. ``private``: only its own user can
    read it, or enter a folder that is made. Without ``replace`` one that is there stays. Raises OSError; also if the
    place is taken by a link or by something that is no file, since whoever put it there may want another file written.
    """
    if not private:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.parent.exists():
        private_folder(path.parent)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError(errno.EEXIST, "is a link, or no file", str(path))
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    # O_EXCL: neither a file that is there nor a link is written through
    handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if replace:
            os.replace(part, path)
        else:
            with suppress(FileExistsError):
                os.link(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(
    path: Path, data: str | bytes, *, durable: bool = False, private: bool = False, replace: bool = True
) -> None:
    """Write a file as :func:`whole_file` does."""
    with whole_file(path, durable=durable, private=private, replace=replace) as file:
        file.write(data.encode() if isinstance(data, str) else data)


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


def table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section of an experiment's file as it was read; empty if there is none, or if it is no table."""
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}
