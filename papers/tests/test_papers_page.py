"""The page of the papers: every cited key is a row of it, and the functions that it names for equations are there."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
from docs.doc_pages import PAGES, ROOT

PAGE = (ROOT / "docs" / "papers.md").read_text()
INDEX = PAGE[PAGE.index("## Where each equation is\n") : PAGE.index("\n## GreedyFed\n")]
CITED = re.compile(r"papers\.md(?:#[\w-]+)?[,)]?\s+([GTPI]\d+)(?:\s*-\s*[GTPI](\d+))?")
LINKED = re.compile(r"\[([GTPI]\d+)(?: to [GTPI](\d+))?\]\([^)]*papers\.md")
ROW = re.compile(r"^\| ([GTPI]\d+[^|]*) \|", re.MULTILINE)


def keys(first: str, last: str | None) -> set[str]:
    return {f"{first[0]}{n}" for n in range(int(first[1:]), int(last or first[1:]) + 1)}


def rows() -> set[str]:
    found = set[str]()
    for cell in ROW.findall(PAGE):
        for part in cell.split(","):
            first, *rest = part.strip().split("-")
            found |= keys(first, rest[0][1:] if rest else None)
    return found


def sources() -> list[Path]:
    folders = (ROOT / "src", ROOT / "papers" / "src")
    return [
        *PAGES,
        *(file for folder in folders for end in ("py", "toml") for file in sorted(folder.rglob(f"*.{end}"))),
    ]


def test_every_cited_key_is_a_row() -> None:
    missing = []
    for file in sources():
        text = re.sub(r"\s+#?\s*", " ", file.read_text()) if file.suffix == ".py" else file.read_text()
        cited = [keys(*found) for pattern in (CITED, LINKED) for found in pattern.findall(text)]
        missing += [(file.name, key) for key in set().union(*cited) - rows()]
    assert missing == []
    assert len(rows()) > 70


def named(dotted: str) -> Any:
    """Return the object of a dotted name; raises if there is none."""
    module, _, name = dotted.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("dotted", sorted(set(re.findall(r"`(hanse(?:_papers)?(?:\.\w+){2,})`", INDEX))))
def test_every_function_in_the_list_of_equations_is_there(dotted: str) -> None:
    assert callable(named(dotted))


@pytest.mark.parametrize(("paper", "last"), [("GTFLAT", 13), ("iPFL", 17), ("PI-FL", 57)])
def test_every_numbered_equation_is_in_the_list(paper: str, last: int) -> None:
    table = INDEX.split(f"**{paper}**\n")[1].split("\n**")[0]
    places = " ".join(re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE))
    found = set[int]()
    for first, end in re.findall(r"\((\d+)\)(?:-\((\d+)\))?", places):
        found |= set(range(int(first), int(end or first) + 1))
    assert found == set(range(1, last + 1))
