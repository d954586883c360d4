"""Stores the results of finished runs on disk, and reads them.

A sweep has one file per run (:class:`Store`), since several machines may write into its folder at once. The runs of a
paper are in one append-only file of JSON lines, ``kept.jsonl.gz`` (:class:`KeptFile`). It has one gzip member or
several (``zcat`` reads both). Each line has the key of its run and the version of the format. Both implement
:class:`Results`, the interface that :func:`hanse.lab.player.play_all` uses.

A line is the compacted result of :func:`hanse.lab.job.attempt`: ``experiment`` omits settings in ``given``, and a curve
starts at its first number. A key may have several lines: failures, runs under other defaults, and repeats on another
machine or commit (``made``). The first finished line that fits is the run's result.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import dropwhile
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NotRequired, Protocol, TypeGuard

from pydantic import AfterValidator, Field
from typing_extensions import TypedDict

from hanse.base.errors import MachineError, UserError
from hanse.base.files import opened, write_whole
from hanse.base.lock import flock
from hanse.base.toml import flat
from hanse.core.declared import Accuracy, Count, Declared, UnsoundError
from hanse.lab.job import Job, key_of, named

NAME = "kept.jsonl.gz"
VERSION = 1
WITHOUT_STATISTICS = (
    "logistic", "mlp", "cnn", "cnn_pifl", "cnn_greedyfed", "cnn_small", "cnn_femnist", "lenet", "lstm", "lora",
)  # fmt: skip
"""Built-in models without batch norm, unless an option adds it."""
_LARGEST = 1e100  # of a kept number; a larger one is damage, and its square would be infinite
_MOST = 1 << 32  # bytes that a file of results may unpack to
# hanse's own accuracies in the curves of any experiment
_ACCURACY = re.compile(r"(test/|client/(\d+/)?test_)accuracy(_weighted|_min)?|client/best_accuracy")


Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST, allow_inf_nan=False)]


class _Check(TypedDict):
    """What an audit found by one of its checks."""

    holds: bool
    said: str


class _Finished(TypedDict):
    """What is used of a finished line. The file may have been edited or cut and still be valid JSON."""

    status: Literal["done"]
    given: dict[str, Any]
    experiment: dict[str, Any]
    cpu_seconds: Annotated[Number, Field(ge=0)]
    tested: list[int]
    curves: dict[str, list[Number | None]]
    clients: NotRequired[dict[str, Accuracy | None]]
    audit: NotRequired[dict[str, Count | _Check]]


def _together(found: _Finished) -> _Finished:
    """Hold the curves against the tests. hanse's own accuracies are shares; a user's metric may be any number. Of an
    audit, only "rounds" is a number.
    """
    tested = found["tested"]
    shares = [value for name, curve in found["curves"].items() if _ACCURACY.fullmatch(name) for value in curve]
    if tested != sorted(set(tested)) or any(len(curve) > len(tested) for curve in found["curves"].values()):
        raise ValueError("curves: must have a point for each of the tests, which must be in order")
    if not all(value is None or 0 <= value <= 1 for value in shares):
        raise ValueError("curves: accuracies must be from 0 to 1")
    audit = found.get("audit")
    if audit is not None and [name for name, one in audit.items() if isinstance(one, int)] != ["rounds"]:
        raise ValueError("audit: must be checks by name, beside the number of rounds")
    return found


_FINISHED = Declared[_Finished](Annotated[_Finished, AfterValidator(_together)])


class Results(Protocol):
    """A store of jobs' results."""

    def read(self, job: Job) -> dict[str, Any] | None:
        """Return a job's finished result, or None if it must be played."""

    def write(self, job: Job, result: Mapping[str, Any]) -> None:
        """Keep a result, finished or failed. Raises MachineError if it cannot be written."""


class Store:
    """The folder of a sweep's results, one file ``<key>.json`` for each job.

    Files are written atomically. Several sweeps may use the same folder. Runs that they have in common are then played
    once.

    Examples:
        >>> from hanse.lab.job import seeded
        >>> store, job = Store(Path("kept")), seeded({"mechanism": {"name": "fedavg"}}, 7, "fedavg")
        >>> store.path(job).name == f"{job.key}.json", store.read(job)
        (True, None)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, job: Job) -> Path:
        """Return the file of a job's result, whether or not it exists."""
        return self.folder / f"{job.key}.json"

    def read(self, job: Job) -> dict[str, Any] | None:
        """Return a job's finished result as :func:`hanse.lab.job.attempt` made it, or None if there is none.

        There is none if the file is missing or damaged, or if its job failed or belongs to another experiment (whatever
        the file is called).
        """
        try:
            kept = json.loads(self.path(job).read_text())
        except (OSError, ValueError, RecursionError):  # not there, or cut short by something that was not us
            return None
        return _whole(kept) if _is_finished(kept) and is_of(kept, job) else None

    def write(self, job: Job, result: Mapping[str, Any]) -> None:
        """Keep a result. Raises MachineError if the file cannot be written, such as on a full disk."""
        with _told(self.path(job)):
            write_whole(self.path(job), _line(result))


class KeptFile:
    """All results of a paper in one append-only file.

    Several processes may add lines at the same time. An incomplete line is removed at once. If the process that wrote
    it was killed, the next writer removes it.

    Attributes:
        path: the file, ``kept.jsonl.gz`` in the folder.
        ids: the ids of parts by which the jobs' keys were made (:func:`hanse.lab.job.key_of`).

    Examples:
        >>> from hanse.lab.job import seeded
        >>> kept, job = KeptFile(Path("paper")), seeded({"mechanism": {"name": "fedavg"}}, 7, "fedavg")
        >>> kept.path.name, kept.read(job), kept.repeats(job)
        ('kept.jsonl.gz', None, [])
    """

    def __init__(self, folder: Path, ids: Mapping[str, str] = MappingProxyType({})) -> None:
        self.path, self.ids = folder / NAME, ids

    def lines(self) -> Mapping[str, Sequence[dict[str, Any]]]:
        """Return every line by its key, in the order in which lines were added; nothing if there is no file.

        Raises:
            UserError: a line is truncated, damaged, of another version or duplicated. The error has one line for each.
        """
        if not self.path.exists():
            return {}
        now = self.path.stat()
        return _lines(self.path.absolute(), now.st_size, now.st_mtime_ns, tuple(self.ids.items()))

    def read(self, job: Job) -> dict[str, Any] | None:
        """Return a job's finished result, or None. Raises UserError as :meth:`lines` does."""
        return next(iter(self.repeats(job)), None)

    def repeats(self, job: Job) -> list[dict[str, Any]]:
        """Return all finished results of a job: the main one, then repeats on other machines or at other commits."""
        there = self.lines().get(job.key, ())
        return [_whole(line) for line in there if line["status"] == "done" and is_of(line, job, self.ids)]

    def write(self, job: Job, result: Mapping[str, Any]) -> None:
        """Add a result as a line.

        Raises MachineError if it cannot be written, for example because the disk is full. The file then stays as it
        was.
        """
        member = gzip.compress(_line({"version": VERSION, **result}).encode(), mtime=0)
        with _told(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                flock(file)
                _append(file, member)
            finally:
                os.close(file)

    def mend(self) -> str | None:
        """Remove an incomplete line at the end. Return what was done, or None."""
        if not self.path.exists():
            return None
        with _told(self.path), self.path.open("r+b") as file:
            flock(file)
            data = file.read()
            _, whole = _unpacked(self.path, data)
            if whole == len(data):
                return None
            file.truncate(whole)
        return f"{self.path}: a line that was cut off at byte {len(data)} was taken away"


@lru_cache(maxsize=8)
def _lines(path: Path, size: int, changed_ns: int, ids: tuple[tuple[str, str], ...]) -> dict[str, list[dict[str, Any]]]:
    """Return :meth:`KeptFile.lines`; a file is only read again when its size or its time has changed."""
    with _told(path, reading=True), opened(path) as file:
        flock(file, shared=True)
        data = file.read()
    return _checked(path, data, dict(ids))


def _append(file: int, member: bytes) -> None:
    """Write bytes at the end of an open file, all of them or none."""
    size = os.fstat(file).st_size
    try:
        os.lseek(file, size, os.SEEK_SET)
        left = memoryview(member)
        while left:
            left = left[os.write(file, left) :]
        os.fsync(file)
    except BaseException:
        os.ftruncate(file, size)
        raise


def _unpacked(path: Path, data: bytes) -> tuple[bytes, int]:
    """Return the text of a file's whole gzip members, and how many bytes they take. Raises UserError for damage."""
    text: list[bytes] = []
    whole = 0
    while whole < len(data):
        member = zlib.decompressobj(wbits=31)
        try:
            piece = member.decompress(memoryview(data)[whole:], _MOST)
        except zlib.error:
            lines = b"".join(text).count(b"\n")
            raise UserError(f"{path}: is damaged after line {lines}") from None
        if member.unconsumed_tail:
            raise UserError(f"{path}: unpacks to more than {_MOST >> 30} GiB")
        if not member.eof:
            break
        text.append(piece)
        whole = len(data) - len(member.unused_data)
    return b"".join(text), whole


def _checked(path: Path, data: bytes, ids: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of a file's bytes by key. Raises UserError with a line for everything that is wrong."""
    text, whole = _unpacked(path, data)
    results: dict[str, list[dict[str, Any]]] = {}
    seen: dict[tuple[str, ...], int] = {}
    wrong = []
    for number, line in enumerate(text.splitlines(), 1):
        said, parsed = _parsed(line, ids)
        if parsed is not None:
            first = seen.setdefault(_identity(parsed), number)
            results.setdefault(parsed["key"], []).append(parsed)
            said = f"is the same run as line {first}, {parsed['key']}" if first != number else ""
        wrong += [f"{path}: line {number} {said}"] if said else []
    if whole < len(data):
        wrong.append(f"{path}: its last line is cut off after byte {whole}; the next command that adds a run mends it")
    if wrong:
        raise UserError(*wrong)
    return results


def _parsed(line: bytes, ids: Mapping[str, str]) -> tuple[str, dict[str, Any] | None]:
    """Return what is wrong with a line, and the line if nothing is."""
    try:
        parsed = json.loads(line)
    except (ValueError, RecursionError):
        return "is damaged", None
    if not isinstance(parsed, dict) or not isinstance(parsed.get("key"), str):
        return "has no key", None
    if parsed.get("version") != VERSION:
        return f"has version {parsed.get('version')!r}; allowed: {VERSION}", None
    failed = parsed.get("status") == "failed" and isinstance(parsed.get("error"), str)
    if not failed and not _is_finished(parsed):
        return f"is no result of a run, {parsed['key']}", None
    if not isinstance(parsed.get("given"), dict) or key_of(parsed["given"], ids) != parsed["key"]:
        return f"has not the settings of its key, {parsed['key']}", None
    return "", parsed


def _identity(found: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what no two lines may share: the run with all its settings, and what played it. A failure may repeat."""
    made = found.get("made", {})
    failed = () if found["status"] == "done" else (str(id(found)),)
    settings = key_of(found.get("experiment", {}))
    by = [str(made.get(name)) for name in ("commit", "processor", "instructions")]
    return (found["key"], settings, *by, *failed)


@contextmanager
def _told(path: Path, *, reading: bool = False) -> Iterator[None]:
    """Turn what keeps a file from being written (or read) into an error with one line."""
    try:
        yield
    except OSError as wrong:
        what = "read" if reading else "written"
        rest = "" if reading else "; the results before it are kept"
        raise MachineError(f"{path}: cannot be {what}: {wrong.strerror or wrong}{rest}") from None


def _line(result: Mapping[str, Any]) -> str:
    """Return a result as a line of JSON, made small as the head of this module says."""
    kept = dict(result)
    if "experiment" in kept:
        kept["experiment"] = _beyond(kept["experiment"], kept["given"])
    if "curves" in kept:
        begun = {name: dropwhile(lambda value: value is None, curve) for name, curve in kept["curves"].items()}
        kept["curves"] = {name: list(curve) for name, curve in begun.items()}
    return json.dumps(kept, separators=(",", ":")) + "\n"  # a setting may be infinite, as the cost of who only buys


def _whole(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a finished line with its curves filled with None at the start where they have no number."""
    points = len(found["tested"])
    return {**found, "curves": {name: [None] * (points - len(c)) + c for name, c in found["curves"].items()}}


def is_of(found: Mapping[str, Any], job: Job, ids: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Return whether a finished line belongs to this job and has all of its tests.

    The key covers only the settings that the job mentions. Other defaults may have changed since, so they are compared,
    too. Settings that only one of the two versions of hanse has are ignored. Adding an option therefore does not
    invalidate finished runs. Nor does the default of batch norm's statistics, where a model has none.

    Args:
        found: the line.
        job: the job.
        ids: the ids of parts, for the key (:func:`hanse.lab.job.key_of`); a part that has moved is the same.
    """
    if key_of(found["given"], ids) != job.key or not _has_every_test(found, job):
        return False
    then = dict(flat(named(found["given"], ids))) | dict(flat(named(found["experiment"], ids)))
    now = dict(flat(named(json.loads(json.dumps(job.experiment.sections())), ids)))
    plain = now.get("model.name") in WITHOUT_STATISTICS and not now.get("model.batch_norm")
    if plain and "own" not in (then.get("train.statistics"), now["train.statistics"]):
        then.pop("train.statistics", None)
    return all(then[name] == now[name] for name in then.keys() & now.keys())


def _is_finished(found: Any) -> TypeGuard[dict[str, Any]]:
    """Return whether this is the result of a finished run with figures of the right types: see :class:`_Finished`."""
    try:
        _FINISHED.check(found)
    except UnsoundError:
        return False
    return True


def _has_every_test(found: Mapping[str, Any], job: Job) -> bool:
    """Return whether a result has all tests of its job: a cut one would count as finished and leave out its numbers.

    A run may have ended before its last round, at a limit that the experiment sets; ``rounds`` says when. Where there
    is nothing to test on, a run has no tests at all.
    """
    planned, every = job.rounds, job.experiment.eval.every
    played, tested = found.get("rounds", planned), found["tested"]
    if type(played) is not int or not 0 <= played <= planned or any(not 0 < number <= played for number in tested):
        return False
    due = {number for number in range(1, played + 1) if number % every == 0 or number == planned}
    return due <= set(tested) and bool(found["curves"]) if tested else not found["curves"]


def _beyond(whole: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the nested settings of ``whole`` that ``said`` lacks or has with another value."""
    numbers: dict[str, Any] = {}
    for name, value in whole.items():
        below = said.get(name)
        if isinstance(value, Mapping) and isinstance(below, Mapping):
            more = _beyond(value, below)
            numbers |= {name: more} if more else {}
        elif name not in said or value != below:
            numbers[name] = value
    return numbers
