"""Reads files that somebody else may have written, and writes files atomically.

A stranger's run directory may be damaged or malicious: links that lead out of it, pipes that never answer, endlessly
nested JSON, a tiny archive that unpacks to many gigabytes. Code that reads a run directory calls :func:`run_folder`
once, and then :func:`read_toml`, :func:`read_json`, :func:`json_lines` and :func:`read_arrays`. All of these read a
bounded amount and never follow a link. Any damage becomes a one-line UserError that names the file.

:func:`write_whole` writes a temporary file next to the target and renames it.
:func:`private_folder` makes folders that only their user can enter.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, BinaryIO, TextIO

import numpy as np
from numpy.typing import NDArray
from pydantic_core import from_json

from hanse.base import toml
from hanse.base.errors import UserError

SMALL = 1 << 24  # bytes of a file that is read in one piece
LONGEST = 1 << 26  # bytes of a line; a longer one is damage
ARRAYS = 1 << 28  # bytes that the arrays of one round may unpack to
CLIENTS = 10**7  # no run has more; arrays by client are as long as the highest number says
FEDERATION = "federation.json"  # names the run to its participants, on a network and in a simulation on Ray
OPERATORS = "operators"  # in a participant's folder: the operators' keys that are pinned
ASKED = "requests.log"  # the requests that a participant's node has taken
AGREEMENTS = "agreements"  # the folder of the agreements that a participant has signed
MEMBERS = "members.json"  # who takes part in a federation on a network

Arrays = dict[str, NDArray[Any]]


def run_folder(folder: str | Path) -> Path:
    """Check that nothing in a run directory leads out of it, and return its path.

    Raises:
        UserError: there is no such folder, it has no ``config.toml``, or it contains a link or anything else that is
            neither a file nor a folder.
    """
    folder = given_path("folder", folder)
    if not folder.is_dir():
        what = "is a file, not a run directory" if folder.exists() else "there is no such run directory"
        raise UserError(f"{folder}: {what}")
    if not (folder / "config.toml").exists():
        raise UserError(f"{folder}: is not a run directory (it has no config.toml)")
    odd = _odd(folder)
    if odd is not None:
        raise UserError(
            f"{odd}: is a link, or neither a file nor a folder; hanse does not follow such things in a run directory "
            "('cp -rL' makes a copy without links, if you know where they lead)"
        )
    return folder


def given_path(name: str, given: Any) -> Path:
    """Return the path that an argument was given as. Raises UserError, naming the argument, if it is none."""
    if not isinstance(given, str | Path):
        raise UserError(f"{name}: {given!r:.80}: must be a path, as text or as a pathlib.Path")
    return Path(given)


def home_of(folder: str | Path | None = None) -> Path:
    """Return a participant's own folder: ``folder`` if given, else ``HANSE_HOME``, else ``~/.hanse``."""
    given = folder or os.environ.get("HANSE_HOME") or Path.home() / ".hanse"
    return given_path("folder", given).expanduser()


def on_network(folder: Path) -> bool:
    """Say whether the run in a directory belongs to a federation on a network."""
    return (folder / FEDERATION).exists()


def going_on(folder: Path) -> str:
    """Return the command that continues the run in a directory, for messages.

    ``hanse resume`` would play a network's run as a simulation and write that into the participants' books.
    """
    if not on_network(folder):
        return f"hanse resume {folder}"
    project = folder.absolute().parent
    return f"hanse network run {project if (project / 'network.json').exists() else 'DIR'}"


def taken(folder: Path) -> UserError:
    """Return the error that refuses a directory for a new run because something is already there."""
    return UserError(f"--out {folder}: exists already; give another folder, --overwrite, or '{going_on(folder)}'")


def _odd(folder: Path) -> Path | None:
    """Return the first thing in a folder or below it that is neither a file nor a folder; None if there is none."""
    waiting = [folder]  # a stack: folders nested without end must not reach Python's recursion limit
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


def in_order(folder: Path, ending: str) -> list[Path]:
    """Return a folder's files that are called by numbers, such as ``00012.npz``, the smallest number first.

    Numbers have five digits or more. A file of another name stands among those with names as long as its own.
    """
    return sorted(folder.glob(f"*{ending}"), key=lambda file: (len(file.name), file.name))


def opened(file: Path) -> BinaryIO:
    """Open a regular file for reading in binary mode.

    It never follows a link, which may lead anywhere, and never waits for a pipe, which may never answer.

    Raises:
        FileNotFoundError: there is no such file, or it is a link, a pipe, a folder or a device.
        OSError: the file cannot be opened for another reason.
    """
    try:
        # O_NONBLOCK: to open a pipe would otherwise wait for somebody to write into it
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as wrong:
        if wrong.errno != errno.ELOOP:
            raise
        raise FileNotFoundError(wrong.errno, "is a link", str(file)) from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise FileNotFoundError(errno.ENOENT, "is not a regular file", str(file))
    return os.fdopen(handle, "rb")


def read_text(file: Path, most: int = SMALL) -> str:
    """Return a UTF-8 text of at most ``most`` bytes (default: 16 MiB).

    Raises:
        UserError: the file is missing, longer, or not UTF-8.
    """
    try:
        with opened(file) as blob:
            data = blob.read(most + 1)  # one more than allowed tells a file that is too long
        if len(data) > most:
            raise UserError(f"{file}: has more than {most:,} bytes")
        return data.decode()
    except UnicodeDecodeError:
        raise UserError(f"{file}: cannot be read: is not text") from None
    except OSError as wrong:
        raise UserError(f"{file}: cannot be read: {wrong.strerror}") from None


def _parsed(file: Path, parse: Callable[[str], Any]) -> Any:
    """Return what ``parse`` makes of a file's text; any failure becomes a UserError that names the file."""
    text = read_text(file)
    try:
        return parse(text)
    except (ValueError, RecursionError) as wrong:
        raise UserError(f"{file}: cannot be read: {_said(wrong)}") from None


def read_toml(file: Path) -> dict[str, Any]:
    """Return the contents of a TOML file. Raises UserError if it cannot be read or is not TOML."""
    table: dict[str, Any] = _parsed(file, toml.loads)
    return table


def read_json(file: Path) -> Any:
    """Return the contents of a JSON file. Raises UserError if it cannot be read or is not JSON."""
    return _parsed(file, json.loads)


def json_lines(
    file: Path, whole: Sequence[str] = (), until: int | None = None, remedy: str = "bring back a backup of it"
) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file with one object per line.

    A last line without a newline is skipped: it is still being written, or was cut off. A missing file yields nothing.

    Args:
        file: the path.
        whole: keys that must hold a round or client number on every line.
        until: read only the lines that end at or before this byte.
        remedy: what the error for a damaged line advises.

    Raises:
        UserError: a complete line is not a JSON object. The message has its number and the remedy.
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
            # a piece of LONGEST bytes without a newline is no torn line but damage
            if (until is not None and lines.tell() > until) or (not text.endswith(b"\n") and len(text) < LONGEST):
                return
            try:
                line = from_json(text)  # a third of the time of json.loads; runs have hundreds of thousands of lines
            except ValueError:
                line = None
            if not isinstance(line, dict) or not all(_is_count(line.get(key), key) for key in whole):
                raise UserError(f"{file}: line {number} is damaged; {remedy}")
            yield line


def cut_torn(file: IO[bytes]) -> None:
    """Remove an incomplete last line, left by a crash, from a file that is open for reading and writing."""
    file.seek(0)
    file.truncate(file.read().rfind(b"\n") + 1)


def _is_count(value: object, key: str) -> bool:
    """Return whether a line's value is a possible round number or, for the ``key`` "client", a possible client number.

    Client numbers are bounded because arrays by client are as long as the highest number. An absurd number in a
    stranger's file would exhaust the memory.
    """
    return type(value) is int and 0 <= value < (CLIENTS if key == "client" else 10**9)


def read_arrays(file: Path, only: Collection[str] = ()) -> Arrays:
    """Return the arrays of an ``.npz`` file by name. Nothing in it is unpickled.

    Each array's claimed size is compared with the archive's table of contents before memory is allocated.

    Args:
        file: the path.
        only: the names of the arrays to read. Empty: all arrays. Names that the file does not have are left out.

    Raises:
        UserError: the file is broken, an array holds objects, or what is read unpacks to more than 256 MiB.
    """
    try:
        with opened(file) as blob, zipfile.ZipFile(blob) as packed:
            members = {i.filename.removesuffix(".npy"): i for i in packed.infolist() if i.filename.endswith(".npy")}
            wanted = {name: i for name, i in members.items() if not only or name in only}
            size = sum(i.file_size for i in wanted.values())
            if size > ARRAYS:
                raise UserError(f"{file}: unpacks to {size:,} bytes; at most {ARRAYS:,} are read")
            return {name: _array(packed, i) for name, i in wanted.items()}
    except UserError:
        raise
    except Exception as wrong:  # zipfile, zlib, numpy and the operating system each raise their own
        raise UserError(f"{file}: cannot be read: {_said(wrong)}") from None


def as_npz(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return arrays as the content of an ``.npz`` file, made in memory: it goes back and forth in its file."""
    archive = io.BytesIO()
    np.savez(archive, **dict[str, Any](arrays))
    return archive.getvalue()


def array_in(data: bytes | bytearray) -> NDArray[Any]:
    """Return the array that bytes in ``.npy`` format hold. It is not copied, and can be written to if they can.

    Raises:
        ValueError: the array holds Python objects, or its shape and type do not fit the number of bytes. A damaged
            header may raise any of the errors that numpy raises.
    """
    begin = (
        10 + int.from_bytes(data[8:10], "little") if data[6:7] == b"\1" else 12 + int.from_bytes(data[8:12], "little")
    )
    shape, by_columns, kind = _npy_header(bytes(data[:begin]))
    if kind.hasobject:
        raise ValueError("an array that holds objects")
    count = math.prod(shape)
    # a type of 0 bytes is refused: any number of entries would seem to fit
    if min(shape, default=0) < 0 or begin + count * kind.itemsize != len(data) or (count and not kind.itemsize):
        raise ValueError(f"{len(data)} bytes are not of shape {list(shape)[:8]}")
    return np.ndarray(shape, kind, data, begin, order="F" if by_columns else "C")


@lru_cache(1 << 10)  # every round's file has the same ones, and numpy parses each as a Python expression
def _npy_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the shape, whether it is stored in column-major (Fortran) order, and the type that a header names."""
    blob = io.BytesIO(header)
    version = np.lib.format.read_magic(blob)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, kind = read(blob)
    return shape, by_columns, kind


def _array(packed: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Return one array of an archive. Raises ValueError if its header does not fit its size."""
    data = bytearray(packed.read(member))
    try:
        return array_in(data)
    except ValueError as wrong:
        raise ValueError(f"array '{member.filename}': {wrong}") from None


def _said(wrong: BaseException) -> str:
    """Return an error's message on one line of at most 200 characters, or its class if it has no message.

    A RecursionError speaks of Python's stack, which helps no user: it gets a message of its own.
    """
    if isinstance(wrong, RecursionError):
        return "it is nested too deeply"
    return " ".join(str(wrong).split())[:200] or type(wrong).__name__


def write_whole(
    path: Path, data: str | bytes, *, durable: bool = False, private: bool = False, replace: bool = True
) -> None:
    """Write a file under another name next to ``path``, and rename it.

    A reader sees the old file or the complete new one. If it cannot be written, nothing is left behind. The folder is
    created if necessary.

    Args:
        path: where the file goes.
        data: what it contains; a text is encoded as UTF-8.
        durable: whether to flush it to the disk, not only to the system's cache.
        private: whether only this user may read it and enter folders created for it.
        replace: whether an existing file is replaced. If not, it stays, and the new content is dropped.

    Raises:
        OSError: the file cannot be written, or ``path`` is not a regular file. It may be a link, for instance, which
            could make hanse overwrite another file.
    """
    if not private:
        path.parent.mkdir(parents=True, exist_ok=True)
    elif not path.parent.exists():
        private_folder(path.parent)
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise OSError(errno.EEXIST, "is a link, or not a regular file", str(path))
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    # O_EXCL: neither a file that is there nor a link is written through
    try:
        with os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666), "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        if replace:
            os.replace(part, path)
        else:
            with suppress(FileExistsError):
                os.link(part, path)
    except OSError as wrong:
        wrong.filename = str(path)  # the name that was asked for; of a full disk the system names none
        raise
    finally:
        with suppress(OSError):  # there is none where it could not be made
            part.unlink()


def write_csv(out: TextIO, rows: Iterable[Sequence[object]]) -> None:
    """Write rows as CSV. A text that a spreadsheet would run as a formula gets an apostrophe in front.

    Args:
        out: a text file to write into.
        rows: the rows, beginning with the header.
    """
    writer = csv.writer(out, lineterminator="\n")
    for row in rows:
        writer.writerow([f"'{cell}" if isinstance(cell, str) and _is_formula(cell) else cell for cell in row])


def _is_formula(text: str) -> bool:
    """Say whether a spreadsheet would take a text for a formula."""
    return text.lstrip()[:1] in ("=", "+", "-", "@") and re.fullmatch(r"-?[0-9]+(\.[0-9]+)?", text) is None


def private_folder(path: Path) -> Path:
    """Return a folder that only this user can enter, after creating it and its parents if necessary.

    An existing folder of this user is closed to others. Somebody else's folder is left unchanged.
    """
    if not path.parent.exists():
        private_folder(path.parent)
    path.mkdir(mode=0o700, exist_ok=True)
    status = path.stat()
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        path.chmod(0o700)
    return path


def table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return one section of an experiment's file as it was read, such as ``"mechanism"``; empty if there is none.

    A section that is not a table counts as none: the file's validation reports it elsewhere.
    """
    section = config.get(name)
    return section if isinstance(section, Mapping) else {}
