"""A run and its ledger in one file, and back."""

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
from hanse.ledger.place import open_ledger, place_of, url_said
from hanse.ledger.store import Ledger, Record
from hanse.ledger.verify import Verdict, verify

BOOK = "ledger.jsonl"  # in the archive: the book of a run whose ledger is on a server
MARK = "hanse-backup.json"  # in the archive, first: what it is
VERSION = 1
MOST = 10**9  # bytes that an archive may unpack to, unless the user says otherwise


def backup(folder: Path, file: Path, ledger_url: str | None = None) -> str:
    """Write a run directory with its ledger into one archive (.tar.gz) and return the ledger's head.

    It may be done while the run goes on: the ledger is copied at one moment, after the checkpoints; resuming from
    the copy posts again what it lacks. A ledger elsewhere (``ledger_url``) is written out as JSON lines.
    Raises UserError for what is no run directory, a ledger that does not verify, or an archive that is there already.
    """
    place, book = place_of(folder, ledger_url)
    if file.exists():
        raise UserError(f"{file}: exists already")
    local = folder / "ledger.db"
    with whole_file(file, durable=True) as blob, tarfile.open(fileobj=blob, mode="w:gz", compresslevel=3) as archive:
        embedded = isinstance(place, Path) and place.resolve() == local.resolve()
        mark = {"version": VERSION, "name": folder.resolve().name, "book": book, "embedded": embedded}
        _add(archive, MARK, json.dumps(mark).encode())
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not _left_out(path):
                with suppress(FileNotFoundError):  # an old checkpoint that the run has just deleted
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
            copy = Path(scratch) / "ledger.db"
            with closing(sqlite3.connect(local)) as source, closing(sqlite3.connect(copy)) as target:
                source.backup(target)
            _add(archive, "ledger.db", copy.read_bytes())
            with Ledger.open(copy, book=book, read_only=True) as ledger:
                return ledger.head()


def _left_out(path: Path) -> bool:
    """Say whether a backup leaves a file out: the ledger, of which it has a copy, and what a process is just using."""
    return path.name.startswith("ledger.db") or path.name == LOCK or path.name.endswith(".part")


def restore(
    file: Path,
    folder: Path,
    ledger_url: str | None = None,
    *,
    most: int = MOST,
    said: Callable[[str], None] = lambda line: None,
) -> Verdict:
    """Unpack an archive into a new run directory, verify its ledger and return the verdict.

    The books go into the directory, or to ``ledger_url`` if the user names a place (unless its book is there already),
    and config.toml says so from then on: what the archive's own config.toml says of other places is not believed. If it
    named one, ``said`` is called with a line that shows it.
    Raises UserError if the folder exists, or the file is no such archive, unpacks to more than ``most`` bytes, or its
    ledger does not verify.
    """
    if folder.exists():
        raise UserError(f"{folder}: exists already")
    if not file.is_file():
        raise UserError(f"{file}: there is no such file")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        _unpack(file, scratch, most)
        before = _rename_ledger(scratch, ledger_url)
        if (scratch / BOOK).exists():
            _repost(scratch, ledger_url)
        elif ledger_url is not None:
            raise UserError(f"--ledger-url: {file} holds its ledger as a file, which stays in the run directory")
        with open_ledger(scratch, ledger_url) as ledger:
            try:
                verdict = _sound(ledger, verify(ledger))
            except LedgerError as wrong:
                raise UserError(str(wrong)) from None
        for left in scratch.glob("ledger.db-*"):
            left.unlink()
        scratch.replace(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    if before is not None:
        said(f"its books were at {before}; they are at {ledger_url or folder / 'ledger.db'} now, as config.toml says")
    return verdict


class _Counted:
    """A stream that ends with an error after ``left`` bytes: also a header that unpacks without end is cut off."""

    def __init__(self, inner: gzip.GzipFile, left: int) -> None:
        self.inner, self.left = inner, left

    def read(self, size: int) -> bytes:
        data = self.inner.read(size)
        self.left -= len(data)
        if self.left < 0:
            raise _TooMuchError
        return data


class _TooMuchError(Exception):
    pass


def _unpack(file: Path, folder: Path, most: int) -> None:
    """Write an archive's files and folders below a folder, at most ``most`` bytes; links, devices, places outside and
    files with holes (which unpack to any size) are refused. Raises UserError if it is no whole backup.

    ``extractall(filter="data")`` would do for the places; Python 3.11's first releases do not have it, and it counts
    nothing.
    """
    try:
        with gzip.open(file) as blob:
            counted = _Counted(blob, most)
            with tarfile.open(fileobj=cast(Any, counted), mode="r|") as archive:
                for member in archive:
                    _member(archive, member, folder, most)
            while counted.read(1 << 20):  # to the end: the checksum stands there, and tarfile takes damage for an end
                pass
        if not (folder / "config.toml").is_file():
            raise tarfile.TarError("it has no config.toml")
        version = read_json(folder / MARK)["version"]
        if type(version) is not int:
            raise TypeError(f"{MARK}: {str(version)[:40]}")
    except _TooMuchError:
        raise UserError(f"{file}: unpacks to more than {most:,} bytes; --most BYTES allows more") from None
    except Exception as wrong:  # tarfile, gzip, zlib and json each raise their own
        said = " ".join(str(wrong).split())[:200] or type(wrong).__name__
        raise UserError(f"{file}: is not a whole backup of a run ({said})") from None
    if version > VERSION:
        raise UserError(f"{file}: was written by a newer hanse (form {version}, this is {VERSION})")
    (folder / MARK).unlink()


def _member(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, most: int) -> None:
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
    with source, target.open("xb") as written:
        shutil.copyfileobj(source, written)


def _rename_ledger(folder: Path, ledger_url: str | None) -> str | None:
    """Make config.toml name the place where the books are now; return the one that it named, if it was another."""
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
            raise UserError(f"{folder / BOOK}: the book that is at {ledger.url.render_as_string()} is another one")
    (folder / BOOK).unlink()


def _records(file: Path) -> Iterator[Record]:
    for number, fields in enumerate(json_lines(file), start=1):
        try:
            yield from_dict(fields)
        except (KeyError, TypeError, ValueError) as wrong:
            raise UserError(f"{file}: line {number} is no transaction ({wrong})") from None


def _sound(ledger: Ledger, verdict: Verdict) -> Verdict:
    if verdict.wrong is not None:
        raise UserError(f"book '{ledger.book}': does not verify: {verdict.wrong}")
    return verdict


def _add(archive: tarfile.TarFile, name: str, blob: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(blob)
    entry.mode = 0o644
    archive.addfile(entry, io.BytesIO(blob))
