"""The settings of kept results were committed before the results."""

import subprocess
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", "-C", str(folder), *who, *words], check=True, capture_output=True, text=True).stdout


def test_every_kept_result_was_planned_in_an_earlier_commit(pages: ModuleType) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: the commits cannot be compared")
    if git(ROOT, "rev-parse", "--is-shallow-repository").strip() != "false":
        pytest.skip("a shallow clone: the commits before the results are not here")
    assert pages.unplanned() == []
