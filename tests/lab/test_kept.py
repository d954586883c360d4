"""A paper's results in one file: added line by line, read whole, and every kind of damage told in one line."""

import errno
import gzip
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hanse.base.errors import MachineError, UserError
from hanse.lab.job import Job, seeded
from hanse.lab.kept import KeptFile

DIGITS = {"data": {"source": "digits", "clients": 4}, "mechanism": {"name": "fedavg"}, "run": {"rounds": 2}}


def done(seed: int, **made: str) -> tuple[Job, dict[str, Any]]:
    job = seeded(DIGITS, seed, f"seed {seed}")
    found = {"key": job.key, "label": job.label, "given": job.sections, "status": "done", "tested": [1, 2]}
    curves = {"test/accuracy": [0.5, 0.1 + 0.2], "weigh/late": [None, 3.0]}
    return job, found | {"experiment": job.experiment.sections(), "curves": curves, "cpu_seconds": 0.1, "made": made}


def text(kept: KeptFile) -> list[str]:
    return gzip.decompress(kept.path.read_bytes()).decode().splitlines()


def rewritten(kept: KeptFile, lines: list[str]) -> None:
    kept.path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))


def test_lines_are_added_and_read_with_every_digit(tmp_path: Path) -> None:
    kept = KeptFile(tmp_path / "new")
    results = [done(seed) for seed in range(3)]
    for job, found in results:
        kept.write(job, found)
        before = kept.path.read_bytes()
    for job, found in results:
        again = KeptFile(tmp_path / "new").read(job)
        assert again["curves"] == found["curves"]
        assert again["version"] == 1
    assert kept.read(done(7)[0]) is None
    kept.write(*done(3))
    assert kept.path.read_bytes().startswith(before)  # nothing that was there is touched


def test_a_repeat_elsewhere_is_kept_beside_the_run_and_the_first_counts(tmp_path: Path) -> None:
    kept = KeptFile(tmp_path)
    job, first = done(0, commit="a", instructions="AVX512")
    kept.write(job, first)
    kept.write(*done(0, commit="a", instructions="AVX2"))
    assert [run["made"]["instructions"] for run in kept.repeats(job)] == ["AVX512", "AVX2"]
    assert kept.read(job)["made"]["instructions"] == "AVX512"  # type: ignore[index]
    kept.write(*done(0, commit="a", instructions="AVX2"))
    with pytest.raises(UserError, match=f"{job.key}"):
        kept.lines()


def test_every_wrong_line_is_told_in_one(tmp_path: Path) -> None:
    kept = KeptFile(tmp_path)
    for seed in range(13):
        job, found = done(seed)
        kept.write(job, found | {"audit": AUDIT})
    lines = text(kept)
    assert kept.read(job)["audit"] == AUDIT  # type: ignore[index]
    values = [json.loads(line) for line in lines]
    lines[1] = lines[1][:-9]
    lines[2] = json.dumps(values[2] | {"version": 2})
    lines[3] = json.dumps(values[3] | {"curves": {"test/accuracy": [7.0]}})
    lines[4] = json.dumps(values[4] | {"given": {}})
    lines[5] = "[" * 100_000
    lines[6] = "{}"
    lines[7] = lines[0]
    records = (1, {"holds": True}, {"holds": "yes", "said": ""})
    for place, audit in enumerate(({}, {"rounds": "3"}, *({"rounds": 3, "records": one} for one in records)), 8):
        lines[place] = json.dumps(values[place] | {"audit": audit})
    rewritten(kept, lines)
    with pytest.raises(UserError) as wrong:
        kept.lines()
    key = [value["key"] for value in values]
    assert [line.split()[2].strip(":") for line in wrong.value.lines] == [str(n) for n in range(2, 14)]
    assert [n for n, line in enumerate(wrong.value.lines, 2) if any(k in line for k in key)] == [4, 5, 8, *range(9, 14)]


AUDIT = {"rounds": 3, "records": {"holds": True, "said": ""}}


def test_a_cut_end_is_told_and_mended_and_damage_inside_is_not_touched(tmp_path: Path) -> None:
    kept = KeptFile(tmp_path)
    assert kept.mend() is None
    for seed in range(2):
        kept.write(*done(seed))
        size = kept.path.stat().st_size
        assert kept.mend() is None
    kept.write(*done(2))
    cut = kept.path.read_bytes()[:-20]
    kept.path.write_bytes(cut)
    with pytest.raises(UserError, match=f"{size}"):
        kept.lines()
    assert (kept.mend() or "").endswith(f"a line that was cut off at byte {len(cut)} was taken away")
    assert [kept.read(done(seed)[0]) is None for seed in range(3)] == [False, False, True]
    broken = bytearray(kept.path.read_bytes())
    broken[size - 60] ^= 0xFF
    kept.path.write_bytes(broken)
    for use in (kept.lines, kept.mend):
        with pytest.raises(UserError, match="damaged after"):
            use()
    assert kept.path.read_bytes() == broken


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = KeptFile(tmp_path)
    kept.write(*done(0))
    before, write = kept.path.read_bytes(), os.write

    def full(file: int, data: memoryview) -> int:
        if len(data) < 200:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:100])

    with monkeypatch.context() as context:
        context.setattr(os, "write", full)
        with pytest.raises(MachineError, match=r"kept.jsonl.gz"):
            kept.write(*done(1))
    assert kept.path.read_bytes() == before
    kept.write(*done(1))
    assert len(kept.lines()) == 2


def test_writers_at_the_same_time_add_whole_lines(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda seed: KeptFile(tmp_path).write(*done(seed)), range(12)))
    assert sorted(KeptFile(tmp_path).lines()) == sorted(done(seed)[0].key for seed in range(12))
