"""What is installed: every file that the code reads beside its modules is named in pyproject.toml."""

from __future__ import annotations

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "hanse"


def test_the_wheel_has_every_template_and_page() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    installed = {file for pattern in tools["package-data"]["hanse"] for file in PACKAGE.glob(pattern)}
    there = {p for p in PACKAGE.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc", ".so")}
    assert there - installed == set()
    assert len(installed) > 20
    folders = {p.parent for p in PACKAGE.rglob("*.py")}
    assert [f for f in folders if not (f / "__init__.py").is_file()] == []  # else setuptools does not find it
    assert PACKAGE / "ledger" in folders
