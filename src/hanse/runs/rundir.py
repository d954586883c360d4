"""The run directory: creating, extending and reopening it.

A new directory is made by :func:`claim` and :meth:`RunDir.create`, an existing one is opened by :meth:`RunDir.reopen`.
Each round is then appended, and from time to time a checkpoint is written.

A round becomes part of the run with its checkpoint: on resume, lines and files of later rounds are cut off and made
again, bit for bit. Its transactions are in the checkpoint, too, and are appended to the ledger right after it. So the
ledger is never ahead of the run, and a resumed run appends anything that a crash prevented.

The log of a run with books is written by :class:`RunBooks`, and the log's index in a database follows it. If that
database is unavailable, the run continues with a warning.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import platform
import re
import shutil
import sys
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from hanse.base import toml
from hanse.base.errors import MachineError, UserError, in_python
from hanse.base.files import (
    FEDERATION,
    MEMBERS,
    going_on,
    in_order,
    on_network,
    private_folder,
    read_toml,
    table,
    taken,
    write_whole,
)
from hanse.base.lock import LOCK, Hold
from hanse.base.plain_text import quantity
from hanse.base.pytorch import torch
from hanse.core.book import LedgerError
from hanse.core.entry import LEAVE, LOG, TOKEN, Transaction
from hanse.core.telling import ABOUT, write_about
from hanse.data.commitment import CommittedSet
from hanse.data.fingerprint import DATA, compare_data, fingerprint, write_data
from hanse.ledger.note import PrivateKey, public_of
from hanse.ledger.note import fingerprint as print_of
from hanse.ledger.receipts import write_receipts
from hanse.ledger.run_ledger import BooksAtCheckpoint, name_and_key
from hanse.ledger.store import Issuer, Ledger
from hanse.runs import checkpoint
from hanse.runs.checkpoint import CorruptCheckpointError, LoopState, Snapshot
from hanse.runs.config import Experiment, began_with
from hanse.runs.recomputable import FILE as COMMITTED
from hanse.runs.recomputable import Commitment, answers_file, audit_folder, validation_file
from hanse.runs.round_record import HASH, LINES, METRICS, ROUNDS, SEATS, SHAPE, RoundRecord, lost_rounds, round_file
from hanse.runs.run_record import LEFT_OUT, LENGTH, changeable, differences, may_change, model_made_for, played_lines
from hanse.runs.setup import Session

log = logging.getLogger("hanse.ledger")


class RunBooks:
    """An open log and its index. Make one with :meth:`open`.

    Args:
        ledger: the open ledger.
        index: where the index is, a database's URL or the path of an SQLite file.

    Examples:
        The books of a new run, in a folder prepared by :class:`hanse.runs.rundir.RunDir`:

        >>> from hanse.runs.rehearsal import rehearse
        >>> small = rehearse("ipfl")
        >>> _ = Path("ledger.json").write_text('{"book": "mine"}')
        >>> books = RunBooks.open(Path(), small.experiment, None)
        >>> books.post([(0, one) for one in small.view.posted])
        >>> len(Path("transactions.jsonl").read_text().splitlines()) == len(small.view.posted)
        True
    """

    def __init__(self, ledger: Ledger, index: str | Path) -> None:
        self._ledger, self._index, self._away = ledger, index, False
        # a reader that stays where the index is, so what was written long ago is not read at each checkpoint
        self._followed = Ledger.open(
            ledger.file, book=ledger.book, floor=ledger.floor, read_only=True, public=ledger.public
        )

    @staticmethod
    def open(
        folder: Path, experiment: Experiment, snapshot: Snapshot | None, key: PrivateKey | None = None
    ) -> RunBooks:
        """Open the log, and append those transactions of the checkpoint that it lacks.

        Args:
            folder: the run directory, which already has ``ledger.json`` with the book's name.
            experiment: the experiment, whose settings name the index and the floor.
            snapshot: the checkpoint from which the run continues. None: the run is new.
            key: the operator's key, which signs the heads of the log. None: they are not signed.

        Raises:
            LedgerError: the index of a new run cannot be created; a resumed run continues without.
            MachineError: the log does not lead to the checkpoint's head, or a client has left behind it; or
                ``ledger.json`` is gone, damaged or cannot be read, or names another key.
            OSError: the log cannot be written.
        """
        claim = BooksAtCheckpoint() if snapshot is None else snapshot.books
        try:
            (name, public), file = name_and_key(folder / "ledger.json"), folder / LOG
        except UserError as wrong:
            raise MachineError(f'{wrong}; it must be {{"book": NAME}}, with the name that receipts give') from None
        if public != (None if key is None else public_of(key)):
            signed = "are not signed" if public is None else f"are signed by the key {print_of(public)}"
            here = "no key" if key is None else f"the key {print_of(public_of(key))}"
            raise MachineError(
                f"{folder / 'ledger.json'}: its heads {signed}, and here is {here}; go on with the key that it names"
            )
        if claim.count > len(claim.pending) and not file.exists():
            raise MachineError(f"{file}: is gone, and with it the run's books; put a copy of it and of its heads back")
        ledger = Ledger.open(file, book=name, floor=round(experiment.ledger.floor * TOKEN), key=key)
        if (odd := ledger.verify(heads=claim.heads, lacking=claim.lacking).wrong) is not None:
            raise MachineError(f"{file}: {odd}; put a copy of it and of its heads back")
        if gone := [r.transaction.step for r in ledger.history(after=claim.count) if r.transaction.kind == LEAVE]:
            raise MachineError(f"{file}: has '{gone[0]}' behind the {claim.who}; bring back a backup of the run")
        ledger.post_rounds(claim.lacking(ledger.as_book().count))
        books = RunBooks(ledger, experiment.ledger.url or folder / "ledger.db")
        books._follow(new=snapshot is None)
        return books

    def post(self, transactions: Sequence[tuple[int, Transaction]]) -> None:
        """Append transactions to the log in the order of their rounds, and update the index.

        Raises:
            LedgerError: the transactions cannot follow those in the log.
            OSError: the log cannot be written.
        """
        self._ledger.post_rounds(transactions)
        self._follow()

    def _follow(self, *, new: bool = False) -> None:
        """Update the index from the log; if that fails, and the run is not new, warn once, and try again next time."""
        from hanse.ledger.index import follow  # here: databases take a while to import, and few runs need them

        try:
            follow(self._index, self._followed)
        except (LedgerError, MachineError) as wrong:
            if new:
                raise
            if not self._away:
                log.warning(
                    "the index of the books is not written: %s; the run goes on without it, and tries again ('hanse "
                    "ledger rebuild %s' writes it, too)", wrong, self._followed.file.parent
                )  # fmt: skip
            self._away = True
            return
        if self._away:
            log.warning("the index of the books is written again, and whole")
        self._away = False

    def receipts(self, folder: Path) -> None:
        """Write the last receipt of each participant into ``receipts/`` of the finished run.

        Args:
            folder: the run directory.

        Raises:
            LedgerError: the log is damaged.
        """
        last = self._ledger.as_book().round
        write_receipts(folder / "receipts", Issuer(self._ledger, folder, last).new())


# there before the run begins: who is in it, who plays it, what the operator ordered
EARLIER = (FEDERATION, MEMBERS, "members.tmp", "operator.jsonl", "letters.json", LOCK)
# there before config.toml makes it a run
STARTED = (ROUNDS, "checkpoints", "environment.json", "ledger.json", COMMITTED, ABOUT, DATA, SHAPE)
FULL = (errno.ENOSPC, errno.EDQUOT)
KEEP = 3  # checkpoints: the last one, and two to fall back on


def claim(hold: Hold, *, overwrite: bool) -> None:
    """Check that a new run can use a directory, before anything is built. A run that will be overwritten is locked from
    here on, so nobody resumes it meanwhile.

    Raises:
        UserError: the path is taken, also by a federation's run, or another process is playing the run there.
    """
    path = hold.folder
    if on_network(path):
        raise UserError(
            f"--out {path}: holds the run of a federation on a network, which '{going_on(path)}' goes on with; give "
            "another folder"
        )
    if (path / LOCK).exists() or (overwrite and (path / "config.toml").exists()):
        hold.take()
    try:
        _check_free(path, overwrite=overwrite)
    except UserError:
        hold.release()  # whoever asks again, in this process, too, is not told that somebody plays it
        raise


def claim_anew(hold: Hold, *, overwrite: bool) -> None:
    """The same as :func:`claim` for a run that only a program can start and nobody can resume.

    Raises:
        UserError: as :func:`claim`, but naming the arguments ``out`` and ``overwrite`` instead of options.
    """
    with in_python(lambda line: re.sub(r", overwrite=True, or '?hanse.*", ", or overwrite=True", line)):
        claim(hold, overwrite=overwrite)


def clear(path: Path, but: Collection[str] = (LOCK,)) -> None:
    """Delete everything in a folder except entries with these names. Links are removed, never followed."""
    for entry in path.iterdir():
        if entry.name not in but:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _check_free(path: Path, *, overwrite: bool) -> None:
    """Raise UserError if a new run cannot go to this place: it is taken, or is not a run that ``overwrite`` might
    delete.
    """
    if not path.exists() or (path.is_dir() and all(map(_is_no_run, path.iterdir()))):
        return
    if not overwrite:
        raise taken(path)
    if not (path / "config.toml").exists():
        raise UserError(f"--out {path}: is not a run directory, so --overwrite will not delete it")


def _is_no_run(path: Path) -> bool:
    """Say whether this entry may exist where a run begins: registered members, or leftovers of a killed start."""
    return path.name in EARLIER or (path.name in STARTED and not (path.is_dir() and any(path.iterdir())))


@dataclass
class RunDir:
    """An open run directory.

    Use :meth:`create` or :meth:`reopen`, then :meth:`append` and :meth:`checkpoint` for the rounds, then :meth:`close`.
    Opening it takes its lock. Failures of the machine raise MachineError with advice on how to continue.

    Examples:
        The directory of a small run: created, given a round, and closed.

        >>> from hanse.runs.rehearsal import rehearse
        >>> from hanse.runs.round_record import RoundRecord
        >>> from hanse.runs.testing import Figures
        >>> small = rehearse("fedavg")
        >>> with Hold(Path("run")) as hold:
        ...     folder = RunDir.create(small.session, hold)
        ...     folder.append(RoundRecord.of(small.played, Figures(), {}).filed(), small.played.state)
        ...     folder.close()
        >>> len((Path("run") / "metrics.jsonl").read_text().splitlines())
        1
    """

    path: Path
    _files: dict[str, BinaryIO] = field(default_factory=dict)
    _books: RunBooks | None = None
    _pending: list[tuple[int, Transaction]] = field(default_factory=list)
    kept: int = 0  # rounds that are part of the run
    _settings: str = ""  # what each checkpoint says was played

    @staticmethod
    def create(session: Session, hold: Hold, *, overwrite: bool = False, key: PrivateKey | None = None) -> RunDir:
        """Make a new run directory. If that fails, nothing new is left behind.

        Args:
            session: what will be played. Its experiment is written last, as ``config.toml``, because this file makes
                the directory a run. If it can be recomputed, the directory also gets what it commits to.
            hold: the right (a lock) to write into the directory. This method acquires it.
            overwrite: whether an earlier run there may be deleted.
            key: the operator's key, which signs the heads of the ledger. None: they are not signed.

        Raises:
            UserError: the path is taken, another process plays a run there, or it cannot be written.
            MachineError: the disk is full.
        """
        path, validation = hold.folder, session.data.server_validation
        data, folder = fingerprint(session.data), RunDir(path)
        _check_free(path, overwrite=overwrite)
        with _making(path):
            path.mkdir(parents=True, exist_ok=True)
            hold.take()
            _check_free(path, overwrite=overwrite)  # again: another process may have been quicker
            clear(path, (LOCK,) if overwrite else EARLIER)
            try:
                (path / ROUNDS).mkdir()
                (path / "checkpoints").mkdir()
                write_whole(path / "environment.json", json.dumps(environment(), indent=1) + "\n")
                write_about(path, session.about)
                write_data(path, 0, data)
                write_whole(path / SHAPE, json.dumps(model_made_for(session.data, session.problem)) + "\n")
                if session.books:
                    signs = {} if key is None else {"key": public_of(key).hex()}
                    write_whole(path / "ledger.json", json.dumps({"book": uuid.uuid4().hex} | signs) + "\n")
                if session.recomputable:
                    shutil.rmtree(audit_folder(path), ignore_errors=True)  # of an earlier run of this name
                    private_folder(audit_folder(path))
                    held = None if validation is None else CommittedSet.of(validation)
                    Commitment.of(session.experiment, held, session.data.num_clients).write(path)
                    if held is not None:
                        held.write(validation_file(path))
                write_whole(path / "config.toml", session.experiment.to_toml())
                folder._open(session.experiment, None, key)
            except BaseException:
                folder.discard()
                raise
        return folder

    @staticmethod
    def reopen(
        session: Session, hold: Hold, *, other_data: bool = False, key: PrivateKey | None = None
    ) -> tuple[RunDir, Snapshot | None, list[str]]:
        """Open a run directory to resume it. Everything after the last intact checkpoint is cut off, once it is known
        that books and lines can go on from there: a refusal loses nothing.

        Args:
            session: what will be played.
            hold: the right (a lock) to write into the directory, which has been acquired.
            other_data: whether to continue although the data have changed. This is recorded.
            key: as for :meth:`create`. It must be the run's original key.

        Returns:
            The directory, the last intact checkpoint (None: start from round 0), and lines on what was skipped or
            repaired.

        Raises:
            UserError: the data have changed, and ``other_data`` is false; or settings have changed that must not.
            MachineError: the books cannot be brought to the state of the checkpoint.
        """
        path, experiment, data = hold.folder, session.experiment, fingerprint(session.data)
        note = compare_data(path, data, allowed=other_data, names=session.data.names)
        notes = [*([] if note is None else [f"warning: {note}"]), *_other_versions(path)]
        folder = RunDir(path)
        with folder._storing():
            snapshot = folder._last_sound(session.device, notes)
            if snapshot is not None and snapshot.settings:
                _same_settings(path, experiment, snapshot)
            lengths = dict.fromkeys(LINES, 0) if snapshot is None else snapshot.lengths
            for name, length in lengths.items():
                _same_lines(path / name, length)
            folder._open(experiment, snapshot, key)
            # files that a killed process had not finished writing
            for litter in (*path.glob(".*.part"), *(path / "checkpoints").glob(".*.part")):
                litter.unlink()
            for name, file in folder._files.items():
                file.seek(file.truncate(min(lengths[name], file.tell())))
            settled = snapshot is not None and snapshot.state.finished  # its answers lie behind the last round
            for record in (*(path / ROUNDS).glob("*.npz"), *audit_folder(path).glob("*.safetensors")):
                if record.stem.isdigit() and int(record.stem) >= folder.kept + settled:
                    record.unlink()
            played_lines(path, METRICS)  # damaged metrics are told as a failure of the machine
            notes += [f"warning: round {n}: {why}; what it said is lost" for n, why in lost_rounds(path).items()]
            if note is not None:
                write_data(path, folder.kept, data, note)
                if snapshot is not None:  # its scores may be of another test set
                    snapshot = replace(snapshot, state=replace(snapshot.state, on_server=None))
        return folder, snapshot, notes

    def _last_sound(self, device: torch.device, said: list[str]) -> Snapshot | None:
        """Return the last intact checkpoint, and move damaged later ones aside, with a line for each in ``said``."""
        passed_over = False
        for file in reversed(in_order(self.path / "checkpoints", ".safetensors")):
            try:
                snapshot = _whole(self.path, checkpoint.load(file, device), file.name)
                self.kept = snapshot.state.round
                return snapshot
            except CorruptCheckpointError as wrong:
                said.append(f"warning: corrupt checkpoint {wrong}; using the one before it")
                file.rename(file.with_suffix(".corrupt"))
                passed_over = True
        if passed_over:
            said.append("warning: no sound checkpoint is left; starting again from round 0")
        return None

    def _open(self, experiment: Experiment, snapshot: Snapshot | None, key: PrivateKey | None) -> None:
        """Open the books and the line files."""
        self._settings = settings_played(self.path, experiment)
        file = self.path / "ledger.json"
        if file.exists():
            self._books = RunBooks.open(self.path, experiment, snapshot, key)
        elif snapshot is not None and snapshot.state.book.count:
            raise MachineError(f'{file}: is gone; it must be {{"book": NAME}}, with the name that receipts give')
        self._files = {name: (self.path / name).open("ab") for name in LINES}

    def append(self, done: RoundRecord, state: LoopState | None) -> None:
        """Write one finished round's file and lines, and a checkpoint of the state after it, if one is due: the round
        counts once a checkpoint is written.
        """
        view = done.played.view
        assert done.file is not None
        with self._storing():
            round_file(self.path, view.round).write_bytes(done.file[0])
            if done.answers is not None:
                self.keep(view.round, done.answers.packed())
            for name, lines in ((SEATS, done.seats), (METRICS, [{**done.metrics, HASH: done.file[1]}])):
                self._files[name].write("".join(json.dumps(line) + "\n" for line in lines).encode())
                self._files[name].flush()  # through to the operating system: a page that follows the run sees it
        self.owe(view.round, view.posted)
        if state is not None:
            self.checkpoint(state)

    def keep(self, round: int, answers: bytes) -> None:
        """Write the clients' answers of a round, or of the final settlement, next to the run."""
        with self._storing():
            private_folder(audit_folder(self.path))  # a copy of the run may have come without it
            answers_file(self.path, round).write_bytes(answers)

    def owe(self, round: int, transactions: Sequence[Transaction]) -> None:
        """Keep a round's transactions for the next checkpoint."""
        self._pending += [(round, t) for t in transactions]

    def checkpoint(self, state: LoopState) -> None:
        """Make all rounds so far part of the run, and append transactions since the last checkpoint to the ledger."""
        lengths = {name: file.tell() for name, file in self._files.items()}
        folder = self.path / "checkpoints"
        with self._storing():
            snapshot = Snapshot(state, lengths, tuple(self._pending), self._settings)
            checkpoint.store(folder / f"{state.round:05d}.safetensors", snapshot)
            self.kept = state.round
            if self._books is not None:
                self._books.post(self._pending)
            self._pending = []
            for old in in_order(folder, ".safetensors")[:-KEEP]:
                old.unlink()

    @contextmanager
    def _storing(self) -> Iterator[None]:
        """Turn a failure of the machine into a MachineError that says how many rounds are kept and how to continue."""
        try:
            yield
        except (OSError, LedgerError) as wrong:
            what = (wrong.strerror if isinstance(wrong, OSError) else None) or str(wrong)
            full = getattr(wrong, "errno", None) in FULL
            where = f"{getattr(wrong, 'filename', None) or self.path}: " if isinstance(wrong, OSError) else ""
            if not (self.path / "config.toml").exists():
                raise MachineError(f"{where}{what}; the run directory {self.path} was moved or deleted") from wrong
            kept = quantity(self.kept, "round of the run is", "rounds of the run are")
            raise MachineError(
                f"{where}{'disk full: ' if full else ''}{what}; {kept} kept; "
                f"{'free some space' if full else 'mend that'}, then '{going_on(self.path)}'"
            ) from wrong

    def receipts(self) -> None:
        """Write each participant's receipt of the finished run into ``receipts/``, unless it exists."""
        if self._books is not None:
            with self._storing():
                self._books.receipts(self.path)

    def close(self) -> None:
        """Close the line files."""
        for file in self._files.values():
            with suppress(OSError):  # lines were flushed; what could not be written was said then, and is tried again
                file.close()
        self._files = {}
        self._books = None

    def discard(self) -> None:
        """Close and delete the directory, except for files from before the run."""
        self.close()
        if (self.path / COMMITTED).exists():
            shutil.rmtree(audit_folder(self.path), ignore_errors=True)
        clear(self.path, EARLIER)
        if [entry.name for entry in self.path.iterdir()] == [LOCK]:
            (self.path / LOCK).unlink()  # it is held until its holder lets go; who comes later makes a new one
            self.path.rmdir()

    @property
    def is_new(self) -> bool:
        """Whether the directory has no finished round yet, so nothing is lost by deleting it."""
        return self.kept == 0 and all(file.tell() == 0 for file in self._files.values())


def settings_played(path: Path, experiment: Experiment) -> str:
    """Return the settings that checkpoints say were played: those of ``config.toml``, if they are the experiment's.

    An older version may have written that file, without settings that are new since and have their defaults; the run
    may have committed to it. The number of rounds is the experiment's.
    """
    written = read_toml(path / "config.toml")
    written["run"] = {**table(written, "run"), "rounds": experiment.run.rounds}
    with suppress(UserError):
        if Experiment(**written).to_toml() == experiment.to_toml():
            return toml.dumps(written)
    return experiment.to_toml()


def _same_settings(path: Path, experiment: Experiment, snapshot: Snapshot) -> None:
    """Raise UserError if a run would go on with other settings than it was played with, a line for each.

    Those that are ``changeable`` (:mod:`hanse.runs.run_record`) may change, and of a run that committed to its
    configuration only the number of rounds. Once the last round was settled, nothing may make the run longer or
    shorter.
    """
    played, lines = snapshot.state.round, list[str]()
    before = Experiment.played(snapshot.settings, path)  # with the defaults of settings that are new since
    free = changeable(before, experiment, path, played)
    both = [toml.loads(one.to_toml()) for one in (before, experiment)]
    sources = [toml.inline(one["data"]["source"]) for one in both]
    for key, old, new in differences(*both):
        # nobody here sees whether members' tables by another schema are the same
        other = key == "data.source.sha256" and on_network(path) and LEFT_OUT not in (old, new)
        if key.startswith(("data.partition", "data.client_")) and sources[0] != sources[1]:
            key, old, new, other = "data.source", *sources, True  # which may decide how samples are dealt out
        changed = "" if new == LEFT_OUT else f" --set {key}={new}"
        back = "leave it out" if old == LEFT_OUT else f"put {old} back"
        anew = "" if on_network(path) else f": hanse run {path / 'config.toml'}{changed}"
        if key == "run.rounds" and not snapshot.state.finished and experiment.run.rounds >= played:
            continue
        if snapshot.state.finished and key in LENGTH:
            why = f"round {played} of {before.run.rounds} was settled as the last one, which cannot be taken back"
        elif key == "run.rounds":
            why = f"{played} of {quantity(old, 'round was', 'rounds were')} played already"
        elif may_change(key, free) and not (other or before.run.recomputable):
            continue
        else:
            why = f"the {quantity(played, 'round until now was', 'rounds until now were')} played with another"
        lines.append(f"{key}: {new}: {why}; {back}, or play it as a new run{anew}")
    if lines:
        raise UserError(*dict.fromkeys(lines))


def _whole(path: Path, snapshot: Snapshot, name: str) -> Snapshot:
    """Return the snapshot if the line files are at least as long as it says. Raises CorruptCheckpointError
    otherwise.
    """
    for file in LINES:
        length = snapshot.lengths[file]
        size = (path / file).stat().st_size if (path / file).exists() else 0
        if size < length:
            raise CorruptCheckpointError(f"{name}: {file} has {size} bytes of the {length} that it should have")
    return snapshot


def _other_versions(path: Path) -> list[str]:
    """Return a note if other versions than these began a run, since only the same ones promise the same bits."""
    began, now = began_with(path), environment()["packages"]
    told = [
        f"{one} {began[one]} (now {now[one]})" for one in ("hanse", "torch") if began.get(one, now[one]) != now[one]
    ]
    return [f"note: this run began with {' and '.join(told)}: its numbers may differ from here on"] if told else []


@cache  # a process that plays many runs looks once: reading what is installed takes as long as a round
def environment() -> dict[str, Any]:
    """Return the description of the machine and the packages, for the run directory."""
    packages = ("hanse", "torch", "numpy", "scipy", "scikit-learn", "pydantic", "sqlalchemy", "safetensors")
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "packages": {name: version(name) for name in packages},
    }


def _same_lines(file: Path, length: int) -> None:
    """Raise MachineError unless a line ends at ``length`` bytes of a file, where one did at the last checkpoint."""
    if not length or not file.exists():
        return
    with file.open("rb") as lines:
        lines.seek(length - 1)
        if lines.read(1) == b"\n":
            return
    played_lines(file.parent, file.name)  # which line is damaged says more
    raise MachineError(
        f"{file}: was changed after it was written: no line ends at byte {length:,} anymore, where the last checkpoint "
        "left off; bring back a backup of it"
    )


@contextmanager
def _making(path: Path) -> Iterator[None]:
    """Turn a failure to create the directory into an error with one line.

    That is a UserError for a place that cannot be written or a database that cannot be opened, and a MachineError for a
    full disk.
    """
    try:
        yield
    except LedgerError as wrong:
        raise UserError(str(wrong)) from None
    except OSError as wrong:
        if wrong.errno in FULL:
            raise MachineError(f"--out {path}: disk full: {wrong.strerror}; free some space") from None
        raise UserError(f"--out {path}: cannot be written: {wrong.strerror}") from None
    except ValueError as wrong:
        if isinstance(wrong, UserError):
            raise
        raise UserError(f"--out {path}: cannot be a path: {wrong}") from None
