"""The papers use hanse as anybody may: by the names that its reference documents.

``docs/reference`` is the list of those names. A name that the papers need is documented there, or its use goes.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import hanse
import hanse_papers

ROOT = Path(__file__).parents[2]


def documented() -> set[str]:
    """Return the names that the reference has: those of a module's ``members``, else what an entry names itself."""
    found = set[str]()
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for name, options in re.findall(r"^::: ([\w.]+)\n((?:    .*\n)*)", page.read_text() + "\n", re.MULTILINE):
            members = re.search(r"members: \[(.*)\]", options)
            found |= {name, *(f"{name}.{one}" for one in (members[1].split(", ") if members else []))}
    return found


def used() -> set[tuple[str, str]]:
    """Return what the papers import of hanse, wherever in a module: module and name."""
    found = set[tuple[str, str]]()
    for file in (ROOT / "papers" / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "hanse":
                found |= {(node.module or "", alias.name) for alias in node.names}
            if isinstance(node, ast.Import):
                found |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "hanse"}
    return found


def test_the_papers_use_documented_names_alone() -> None:
    known = documented()
    assert len(known) > 200
    assert {f"{module}.{name}".rstrip(".") for module, name in used()} - known == set()


def test_the_papers_have_the_version_of_the_hanse_that_they_came_with() -> None:
    assert hanse_papers.__version__ == hanse.__version__
