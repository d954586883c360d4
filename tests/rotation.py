"""Large draws in turn: a run of the tests plays the share of them that the head commit picks, nightly runs play all."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar
from zlib import crc32

import pytest

Case = TypeVar("Case")


def _head() -> int:
    """Return the head commit's hash as a number; 0 outside a clone."""
    told = subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, check=False)
    return int(told.stdout, 16) if told.returncode == 0 else 0


# conftest.py imports this first, so that all worker processes of a run agree, whatever is committed meanwhile
HEAD = int(os.environ.setdefault("HANSE_TEST_HEAD", str(_head())))


def in_turn(cases: Sequence[Case], of: int, head: int = HEAD) -> list[Case]:
    """Return the cases whose number modulo ``of`` is the commit's: the same ones at the same commit."""
    return [case for number, case in enumerate(cases) if number % of == head % of]


def is_its_turn(name: str, of: int, turn: int | None = None, head: int = HEAD) -> bool:
    """Return whether the commit plays this test: the turn that it is given, else one that its name stands for."""
    return ((crc32(name.encode()) if turn is None else turn) - head) % of == 0


def rotating(cases: Sequence[Case], of: int, mark: Callable[..., object] | None = None) -> list[object]:
    """Return all cases as parameters: those in turn bear ``mark`` if one is given, the others are nightly."""
    turn = HEAD % of
    marks = [(() if mark is None else (mark,)) if k % of == turn else (pytest.mark.nightly,) for k in range(len(cases))]
    return [pytest.param(case, marks=m) for case, m in zip(cases, marks, strict=True)]
