"""A run and its ledger in one archive file, and back: ``hanse ledger backup`` and ``hanse ledger restore``.

The archive is a .tar.gz of the run directory with a consistent copy of the ledger. A ledger on a server is written into
it as JSON lines. :func:`restore` treats an archive as untrusted, since it may come from anywhere: it bounds the size of
what it unpacks, accepts plain files and folders only, ignores where the archive says that its books are, and verifies
the ledger before the run directory appears under its name.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath
from typing import Any, cast

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.base.files import json_lines, read_json, read_toml, run_folder, table, whole_file, write_whole
from hanse.base.lock import LOCK
from hanse.core.book import LedgerError
from hanse.core.entry import GENESIS, Transaction
from hanse.ledger.connect import as_url
from hanse.ledger.export import from_dict, write_jsonl
from hanse.ledger.place import open_ledger, place_of, reading, url_said
from hanse.ledger.store import Ledger, Record
from hanse.ledger.verify import Verdict, verify

BOOK = "ledger.jsonl"  # in the archive: the book of a run whose ledger is on a server
MARK = "hanse-backup.json"  # the first file in the archive: says that it is a backup, and in which version
VERSION = 1  # of the archive's layout
MOST = 10**9  # bytes that an archive may unpack to, unless the user allows more


def backup(folder: Path, file: Path, ledger_url: str | None = None) -> str:
    """Write a run directory with its ledger into one archive (.tar.gz) and return the head of the ledger.

    The run may go on meanwhile. The ledger is copied as it is at one moment, after the checkpoints, so that it is never
    behind by more than what the copied checkpoint holds; resuming from the backup completes it.

    Args:
        folder: the run directory.
        file: the archive to write; it must not exist.
        ledger_url: where the ledger is, if not in the directory. It is then written as JSON lines.

    Raises:
        UserError: ``folder`` is no run directory with a ledger, the ledger does not verify, or ``file`` exists.
    """
    place, book = place_of(folder, ledger_url)
    if file.exists():
        raise UserError(f"{file}: exists already")
    local = folder / "ledger.db"
    with whole_file(file, durable=True) as blob, tarfile.open(fileobj=blob, mode="w:gz", compresslevel=3) as archive:
        # whether the ledger is the file in the directory, which SQLite can copy, or elsewhere
        embedded = isinstance(place, Path) and place.resolve() == local.resolve()
        mark = {"version": VERSION, "name": folder.resolve().name, "book": book, "embedded": embedded}
        _add(archive, MARK, json.dumps(mark).encode())
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not _left_out(path):
                with suppress(FileNotFoundError):  # the run, which may go on, has just deleted an old checkpoint
                    _add(archive, path.relative_to(folder).as_posix(), path.read_bytes())
        with open_ledger(folder, ledger_url) as ledger:
            _sound(ledger, verify(ledger))
            if not embedded:
                lines = io.StringIO()
                head = ledger.head()
                write_jsonl(ledger, ledger.history(), lines)
                _add(archive, BOOK, lines.getvalue().encode())
                return head
        with tempfile.TemporaryDirectory() as scratch:
            # SQLite's own backup: a copy of the file's bytes could catch a writer halfway
            copy = Path(scratch) / "ledger.db"
            with closing(sqlite3.connect(local)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            _add(archive, "ledger.db", copy.read_bytes())
            with Ledger.open(copy, book=book, read_only=True) as ledger:
                return ledger.head()


def _left_out(path: Path) -> bool:
    """Say whether a backup skips a file: the ledger (a copy goes in separately), locks, and files being written."""
    return path.name.startswith("ledger.db") or path.name == LOCK or path.name.endswith(".part")


def restore(
    file: Path,
    folder: Path,
    ledger_url: str | None = None,
    *,
    most: int = MOST,
    said: Callable[[str], None] = lambda line: None,
) -> Verdict:
    """Unpack an archive into a new run directory, verify its ledger, and return the verdict.

    The books go to ``ledger_url`` if the user names a place, else into the run directory, and config.toml is changed to
    say so. A place that the archive's own config.toml names is not used.

    Args:
        file: an archive that :func:`backup` wrote.
        folder: the run directory to create.
        ledger_url: a database to post the transactions to, unless it has them already. Only for an archive that holds
            its ledger as JSON lines.
        most: how many bytes the archive may unpack to.
        said: called with a line for the user if the archive named a place for its books that was not used.

    Raises:
        UserError: ``folder`` exists, ``file`` is not a whole backup or unpacks to more than ``most`` bytes, or its
            ledger does not verify. ``folder`` is not created then.
    """
    if folder.exists():
        raise UserError(f"{folder}: exists already")
    if not file.is_file():
        raise UserError(f"{file}: there is no such file")
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Unpack beside the target and rename at the end, so that a directory under the user's name is always complete.
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _unpack(file, scratch, most)
        before = _rename_ledger(scratch, ledger_url)
        if (scratch / BOOK).exists():
            _repost(scratch, ledger_url)
        elif ledger_url is not None:
            raise UserError(f"--ledger-url: {file} holds its ledger as a file, which stays in the run directory")
        with reading(scratch, ledger_url) as ledger:
            verdict = _sound(ledger, verify(ledger))
        for left in scratch.glob("ledger.db-*"):  # SQLite's side files, of no use once the ledger is closed
            left.unlink()
        scratch.replace(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    if before is not None:
        said(f"its books were at {before}; they are at {ledger_url or folder / 'ledger.db'} now, as config.toml says")
    return verdict


class _Counted:
    """A stream that raises _TooMuchError once more than ``left`` bytes were read.

    The count is of unpacked bytes, headers included: tarfile reads a long name or extended header into memory as a
    whole, before any member could be refused by its size.
    """

    def __init__(self, inner: gzip.GzipFile, left: int) -> None:
        self.inner, self.left = inner, left

    def read(self, size: int) -> bytes:
        data = self.inner.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise _TooMuchError
        return data


class _TooMuchError(Exception):
    """The archive unpacks to more bytes than allowed."""

    pass


def _unpack(file: Path, folder: Path, most: int) -> None:
    """Write an archive's files and folders below a folder, at most ``most`` bytes in all.

    Links, devices, paths that lead outside and sparse files (which unpack to any size) are refused. The standard
    library's ``extractall(filter="data")`` would refuse bad paths too, but the first releases of Python 3.11 lack it,
    and it does not limit the size. Raises UserError if the archive is not a whole backup.
    """
    try:
        with gzip.open(file) as blob:
            counted = _Counted(blob, most)
            with tarfile.open(fileobj=cast(Any, counted), mode="r|") as archive:
                for member in archive:
                    _member(archive, member, folder, most)
            # Read to the end, where gzip's checksum is. tarfile alone would take damaged data for the archive's end.
            while counted.read(1 << 20):
                pass
        if not (folder / "config.toml").is_file():
            raise tarfile.TarError("it has no config.toml")
        version = read_json(folder / MARK)["version"]
        if type(version) is not int:
            raise TypeError(f"{MARK}: {str(version)[:40]}")
    except _TooMuchError:
        raise UserError(f"{file}: unpacks to more than {most:,} bytes; --most BYTES allows more") from None
    except Exception as wrong:  # tarfile, gzip, zlib and json each have their own errors for damaged data
        said = " ".join(str(wrong).split())[:200] or type(wrong).__name__
        raise UserError(f"{file}: is not a whole backup of a run ({said})") from None
    if version > VERSION:
        raise UserError(f"{file}: was written by a newer hanse (version {version}; this one reads up to {VERSION})")
    (folder / MARK).unlink()


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, most: int) -> None:
    """Write one member of an archive below ``folder``. Raises for anything but a plain file or folder in it."""
    if member.size > most:
        raise _TooMuchError
    place = PurePosixPath(member.name)
    plain = (member.isfile() and not member.issparse()) or member.isdir()
    if place.is_absolute() or ".." in place.parts or not plain:
        raise tarfile.TarError(f"{member.name!r} is neither a file nor a folder of a run")
    target = folder.joinpath(*place.parts)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    source = archive.extractfile(member)
    assert source is not None  # a regular file
    with source, target.open("xb") as written:  # x: a second member of the same name is refused
        shutil.copyfileobj(source, written)


def _rename_ledger(folder: Path, ledger_url: str | None) -> str | None:
    """Make config.toml name the place where the books are put, and return the place that it named before.

    Return None if it named the same place, or none.
    """
    config = read_toml(run_folder(folder) / "config.toml")
    said = url_said(folder, config)
    if said == ledger_url:
        return None
    section = {**table(config, "ledger"), "url": ledger_url}  # None is left out
    try:
        text = toml.dumps({**config, "ledger": section})
    except (TypeError, AttributeError) as wrong:
        raise UserError(f"config.toml: is not an experiment ({wrong})") from None
    write_whole(folder / "config.toml", text)
    return None if said is None else as_url(said).render_as_string()


def _repost(folder: Path, ledger_url: str | None) -> None:
    """Post the JSON lines of an archive into a ledger, and delete them.

    Raises UserError if they are refused, or if the ledger has a book of this name with another history.
    """
    last = GENESIS

    def transactions() -> Iterator[tuple[int, Transaction]]:
        nonlocal last
        for record in _records(folder / BOOK):
            last = record.hash
            yield record.round, record.transaction

    with open_ledger(folder, ledger_url, read_only=False) as ledger:
        try:
            head = ledger.post_rounds(transactions())
        except LedgerError as wrong:
            raise UserError(f"{folder / BOOK}: cannot be posted again: {wrong}") from None
        if head != last:
            raise UserError(f"{folder / BOOK}: {ledger.url.render_as_string()} has another book of this name")
    (folder / BOOK).unlink()


def _records(file: Path) -> Iterator[Record]:
    """Yield the records of a file of JSON lines. Raises UserError for a line that is not one."""
    for number, fields in enumerate(json_lines(file), start=1):
        try:
            yield from_dict(fields)
        except (KeyError, TypeError, ValueError) as wrong:
            raise UserError(f"{file}: line {number} is not a transaction ({wrong})") from None


def _sound(ledger: Ledger, verdict: Verdict) -> Verdict:
    """Return the verdict if the book holds. Raises UserError if it does not."""
    if verdict.wrong is not None:
        raise UserError(f"book '{ledger.book}': does not verify: {verdict.wrong}")
    return verdict


def _add(archive: tarfile.TarFile, name: str, blob: bytes) -> None:
    """Add a file to an archive, with no owner, no date and fixed permissions."""
    entry = tarfile.TarInfo(name)
    entry.size = len(blob)
    entry.mode = 0o644
    archive.addfile(entry, io.BytesIO(blob))
