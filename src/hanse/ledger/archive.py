"""A run and its ledger in one file, and back."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import tarfile
import tempfile
from contextlib import closing
from itertools import groupby
from pathlib import Path, PurePosixPath

from hanse.errors import UserError
from hanse.ledger.book import LedgerError
from hanse.ledger.export import read_jsonl, write_jsonl
from hanse.ledger.place import open_ledger, place_of
from hanse.ledger.store import Ledger
from hanse.ledger.verify import Verdict, verify
from hanse.lock import LOCK

__all__ = ["backup", "restore"]

BOOK = "ledger.jsonl"  # in the archive: the book of a run whose ledger is on a server
MARK = "hanse-backup.json"  # in the archive, first: what it is
VERSION = 1


def backup(folder: Path, file: Path) -> str:
    """Write a run directory with its ledger into one archive (.tar.gz) and return the ledger's head.

    It may be done while the run goes on: the ledger is copied at one moment, after the checkpoints; resuming from
    the copy posts again what it lacks. A ledger on a server is written out as JSON lines.
    Raises UserError for what is no run directory, a ledger that does not verify, or an archive that is there already.
    """
    url, book = place_of(folder)
    if file.exists():
        raise UserError(f"{file}: exists already")
    local = folder / "ledger.db"
    temporary = file.with_name(file.name + ".part")
    try:
        with tempfile.TemporaryDirectory() as scratch, tarfile.open(temporary, "w:gz", compresslevel=3) as archive:
            embedded = url.startswith("sqlite") and Path(url.removeprefix("sqlite:///")).resolve() == local.resolve()
            mark = {"version": VERSION, "name": folder.resolve().name, "book": book, "embedded": embedded}
            _add(archive, MARK, json.dumps(mark).encode())
            for path in sorted(folder.rglob("*")):
                if path.is_file() and not _left_out(path) and path.resolve() != temporary.resolve():
                    try:
                        _add(archive, path.relative_to(folder).as_posix(), path.read_bytes())
                    except FileNotFoundError:  # an old checkpoint that the run has just deleted
                        continue
            with open_ledger(folder) as ledger:
                _sound(ledger, verify(ledger))
            copy = Path(scratch) / "ledger.db"
            if embedded:
                with closing(sqlite3.connect(local)) as source, closing(sqlite3.connect(copy)) as target:
                    source.backup(target)
                _add(archive, "ledger.db", copy.read_bytes())
                with Ledger.open(copy, book=book, read_only=True) as ledger:
                    head = ledger.head()
            else:
                lines = io.StringIO()
                with open_ledger(folder) as ledger:
                    head = ledger.head()
                    write_jsonl(ledger, ledger.history(), lines)
                _add(archive, BOOK, lines.getvalue().encode())
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    return head


def _left_out(path: Path) -> bool:
    """Say whether a backup leaves a file out: the ledger, of which it has a copy, and what a process is just using."""
    return path.name.startswith("ledger.db") or path.name == LOCK or path.name.endswith(".part")


def restore(file: Path, folder: Path) -> Verdict:
    """Unpack an archive into a new run directory, verify its ledger and return the verdict.

    A ledger that was on a server is posted to the URL of the run's config.toml, unless its book is there already.
    Raises UserError if the folder exists, or the file is no such archive or its ledger does not verify.
    """
    if folder.exists():
        raise UserError(f"{folder}: exists already")
    if not file.exists():
        raise UserError(f"{file}: there is no such file")
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        try:
            with tarfile.open(file, "r:gz") as archive:
                _unpack(archive, scratch)
            mark = json.loads((scratch / MARK).read_text())
        except (tarfile.TarError, OSError, EOFError, ValueError) as wrong:
            raise UserError(f"{file}: is not a whole backup of a run ({wrong})") from None
        if mark["version"] > VERSION:
            raise UserError(f"{file}: was written by a newer hanse (form {mark['version']}, this is {VERSION})")
        (scratch / MARK).unlink()
        if (scratch / BOOK).exists():
            _repost(scratch)
        with open_ledger(scratch) as ledger:
            verdict = _sound(ledger, verify(ledger))
        for left in scratch.glob("ledger.db-*"):
            left.unlink()
        scratch.replace(folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    return verdict


def _unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Write an archive's files and folders below a folder; anything else (links, devices, places outside) is refused.

    ``extractall(filter="data")`` would do; Python 3.11's first releases do not have it.
    """
    for member in archive:
        place = PurePosixPath(member.name)
        if place.is_absolute() or ".." in place.parts or not (member.isfile() or member.isdir()):
            raise tarfile.TarError(f"{member.name!r} is neither a file nor a folder of a run")
        target = folder.joinpath(*place.parts)
        if member.isdir():
            target.mkdir(parents=True, exist_ok=True)
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        source = archive.extractfile(member)
        assert source is not None  # a regular file
        with source, target.open("xb") as written:
            shutil.copyfileobj(source, written)


def _repost(folder: Path) -> None:
    lines = (folder / BOOK).read_text().splitlines()
    head = ""
    with open_ledger(folder, read_only=False) as ledger:
        for round_, records in groupby(read_jsonl(lines), key=lambda record: record.round):
            try:
                head = ledger.post(round_, [record.transaction for record in records])[-1].hash
            except LedgerError as wrong:
                raise UserError(f"{folder / BOOK}: cannot be posted again: {wrong}") from None
        if lines and head != json.loads(lines[-1])["hash"]:
            raise UserError(f"{folder / BOOK}: the book that is at {ledger.url.render_as_string()} is another one")
    (folder / BOOK).unlink()


def _sound(ledger: Ledger, verdict: Verdict) -> Verdict:
    if verdict.wrong is not None:
        raise UserError(f"book '{ledger.book}': does not verify: {verdict.wrong}")
    return verdict


def _add(archive: tarfile.TarFile, name: str, blob: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(blob)
    entry.mode = 0o644
    archive.addfile(entry, io.BytesIO(blob))
