"""Crashes at any byte of a posting, kill -9, two writers, a full disk: nothing is lost, doubled or half written."""

import resource
from pathlib import Path

import pytest
from faults import crash_at
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
