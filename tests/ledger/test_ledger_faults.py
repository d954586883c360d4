"""Crashes at any byte of a posting, kill -9, two writers, a full disk: nothing is lost, doubled or half written."""

import contextlib
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from faults import crash_at
from killed_runs import COUNTED
from ledger_cases import book_of, grant, history, play
from rotation import in_turn

from hanse.ledger.store import Ledger

HERE = Path(__file__).parent


def test_a_crash_at_every_byte_of_a_round(tmp_path: Path) -> None:
    told = history(3, 3, seed=5)
    whole = tmp_path / "whole.jsonl"
    ledger = Ledger.open(whole)
    play(ledger, told[:-1])
    size = crash_at(ledger, *told[-1], 10**6)
    assert size > 150
    for byte in sorted({0, size - 1, size, *in_turn(range(size + 1), 3)}):  # the last byte ends the note of the head
        file = tmp_path / f"{byte}.jsonl"
        ledger = Ledger.open(file)
        play(ledger, told[:-1])
        crash_at(ledger, *told[-1], byte)
        reader = Ledger.open(file)
        assert reader.as_book() == book_of(told if byte == size else told[:-1])
        assert reader.verify().ok
        play(reader, told)  # and the same rounds are told again
        assert reader.as_book() == book_of(told)
        assert file.read_bytes() == whole.read_bytes()


# ---- kill -9 of a process that pays

DRIVER = f"""{COUNTED}
sys.path.insert(0, sys.argv[1])
from ledger_cases import history
from hanse.ledger.store import Ledger
file, limit = sys.argv[2], int(sys.argv[3])
told = history(30, 6, seed=9)
print("ready", flush=True)
if limit:
    sys.setprofile(profile)
ledger = Ledger.open(file)
for number, new in told:
    ledger.post(number, new)
sys.setprofile(None)
print(count)
"""


def drive(file: Path, limit: int, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
    """Let a process pay until its ``limit``-th function call or, if given, for some seconds after it is ready."""
    command = [sys.executable, "-c", DRIVER, str(HERE), str(file), str(limit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        first = child.stdout.readline()
        if seconds is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(seconds)
            child.kill()
        said, wrong = child.communicate()
        return subprocess.CompletedProcess(command, child.returncode, first + said, wrong)


def after_a_kill(file: Path) -> None:
    """What a killed driver left is whole rounds and verifies; telling them again makes the book of a whole run."""
    told = history(30, 6, seed=9)
    ledger = Ledger.open(file)
    assert ledger.as_book() in [book_of(told[:n]) for n in range(len(told) + 1)]
    assert ledger.verify().ok
    play(ledger, told)
    assert ledger.as_book() == book_of(told)
    assert ledger.verify().ok


@pytest.mark.slow
def test_killed_while_it_pays(tmp_path: Path) -> None:
    whole = drive(tmp_path / "whole.jsonl", -1)
    assert whole.returncode == 0, whole.stderr
    calls = int(whole.stdout.splitlines()[1])
    for i, part in enumerate([0.15, 0.5, 0.85]):
        file = tmp_path / f"{i}.jsonl"
        assert drive(file, int(part * calls)).returncode == -9
        after_a_kill(file)


@pytest.mark.soak
def test_killed_at_two_hundred_moments(tmp_path: Path) -> None:
    """Kills by the clock, so that they fall inside writes and syncs too."""
    draw = random.Random(4)
    tries = int(os.environ.get("HANSE_SOAK_KILLS", "200"))
    killed = 0
    for i in range(tries):
        file = tmp_path / f"{i}.jsonl"
        killed += drive(file, 0, seconds=draw.uniform(0, 0.3)).returncode == -9
        after_a_kill(file)
    assert killed > tries / 2


# ---- two writers, a full disk


def test_a_full_disk_writes_nothing(ledger: Ledger) -> None:
    """The system refuses to let the file grow, in the middle of a round's lines."""
    ledger.post(0, [grant(i) for i in range(5)])
    before, size = ledger.as_book(), ledger.file.stat().st_size
    big = [grant(i) for i in range(10, 2000)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            ledger.post(0, big)
        assert ledger.file.stat().st_size > size  # a part was written, and does not count
        assert ledger.as_book() == before
        assert ledger.verify().ok
        ledger.post(0, [grant(9)])  # a little still fits
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    ledger.post(0, big)
    assert ledger.as_book().count == 6 + len(big)
    assert ledger.verify().ok
