"""What is installed: every file that the code reads beside its modules is named in pyproject.toml."""

import tomllib
from pathlib import Path

import pytest

import hanse

ROOT = Path(__file__).parents[1]


PROJECTS = [(ROOT, "hanse", 12), (ROOT / "papers", "hanse_papers", 70)]


@pytest.mark.parametrize(("project", "name", "files"), [one for one in PROJECTS if one[0].exists()])
def test_the_wheel_has_every_template_and_page(project: Path, name: str, files: int) -> None:
    tools = tomllib.loads((project / "pyproject.toml").read_text())["tool"]["setuptools"]
    package = project / "src" / name
    installed = {file for pattern in tools["package-data"][name] for file in package.glob(pattern)}
    there = {p for p in package.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc", ".so")}
    assert there - installed == set()
    assert len(installed) > files
    folders = {p.parent for p in package.rglob("*.py")}
    assert [f for f in folders if not (f / "__init__.py").is_file()] == []  # else setuptools does not find it


def test_public_names_are_completed_and_documented_before_they_are_imported() -> None:
    assert sorted(dir(hanse)) == sorted(hanse.__all__)
