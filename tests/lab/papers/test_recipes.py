"""What the authors' recipe does otherwise stands in authors.toml, and on the page that people read."""

from __future__ import annotations

from pathlib import Path

import pytest

from hanse.lab.papers.catalogue import PAPERS
from hanse.lab.papers.recipes import differences_markdown, undocumented, without_effect
from hanse.lab.papers.tables import differences

PAGE = Path(__file__).parents[3] / "docs" / "papers.md"


@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_every_difference_between_the_recipes_is_written_down_and_has_an_effect(
    paper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hanse.lab.papers.tables.is_here", lambda source: True)  # with the groups of all data sets
    assert undocumented(PAPERS[paper]) == []
    assert without_effect(PAPERS[paper]) == []


@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_every_line_has_its_source(paper: str) -> None:
    assert differences(paper)
    for line in differences(paper):
        needed = {"setting", "paper", "authors", "source"}
        assert needed <= line.keys() <= needed | {"also", "missing"}
        assert all(line[key].strip() for key in ("paper", "authors", "source"))


@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_the_page_has_the_list(paper: str) -> None:
    assert differences_markdown(paper) in PAGE.read_text()
