"""``hanse reproduce`` alone: what there is, the data of each, and whether they are here."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import typer
from rotation import rotating
from typer.testing import CliRunner

from hanse import Experiment
from hanse.cli.options import out
from hanse_papers.catalogue import PAPERS, find_table, list_papers
from hanse_papers.reproduce import reproduce
from hanse_papers.tables import RECIPES, filtered


def call(*args: str) -> str:
    app = typer.Typer()
    app.command()(reproduce)
    before, out.width = out.width, 200  # made when it was imported, as wide as the terminal was then
    try:
        done = CliRunner().invoke(app, list(args))
    finally:
        out.width = before
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HANSE_DATA", str(tmp_path))
    monkeypatch.setattr("hanse.data.sources.cache_dir", lambda: tmp_path)  # whatever this machine has downloaded
    monkeypatch.setattr("hanse_papers.catalogue.cache_dir", lambda: tmp_path)
    return tmp_path


def tables(found: list[dict[str, Any]], paper: str) -> dict[str, Any]:
    (one,) = [p for p in found if p["paper"] == paper]
    return {table["table"]: table for table in one["tables"]}


def test_every_table_is_listed_with_its_data(data: Path) -> None:
    (data / "mnist.npz").touch()
    (data / "fiqa.train.jsonl").touch()
    found = json.loads(call("--json"))["papers"]
    assert [paper["paper"] for paper in found] == list(PAPERS)
    for name, paper in PAPERS.items():
        assert set(tables(found, name)) == set(paper.tables)
    greedyfed = tables(found, "greedyfed")["table1"]
    assert greedyfed["title"] == "Table I, data heterogeneity"
    assert greedyfed["data"] == {
        "smoke": {"mnist": True},
        "small": {"mnist": True, "fashion_mnist": False},
        "paper": {"mnist": True, "fashion_mnist": False, "cifar10": False},
    }
    assert tables(found, "gtflat")["example1"]["data"]["paper"] == {}
    assert tables(found, "gtflat")["table3"]["data"]["paper"]["emnist_balanced"] is False  # though it is left out here
    assert tables(found, "ipfl")["table1"]["data"]["small"] == {"instructions": True}
    assert tables(found, "ipfl")["table1"]["data"]["paper"] == {"mixed_finance": False, "finance_code": False}


@pytest.mark.parametrize("paper", rotating(list(PAPERS), 4))
def test_the_list_is_of_what_the_tables_play_and_smoke_needs_nothing(data: Path, paper: str) -> None:
    for table in list_papers(paper)[0]["tables"]:
        assert all(table["data"]["smoke"].values()), table
        for (scale, sources), recipe in product(table["data"].items(), RECIPES):
            cells = find_table(paper, table["table"], scale, recipe).cells
            assert {v.sections["data"]["source"]["name"] for cell in cells for v in cell.variants} <= set(sources)


def test_a_tables_experiments_are_written_as_they_are_played(tmp_path: Path) -> None:
    call("gtflat", "table3", "--only", "mnist alpha=0.05", "--export", str(tmp_path / "mine"))
    table = filtered(find_table("gtflat", "table3", "smoke"), ["mnist alpha=0.05"])
    files = sorted((tmp_path / "mine").iterdir())
    tried = [variant for cell in table.cells for variant in cell.variants]
    assert len(files) == len(tried) > 10
    for file, variant in zip(files, tried, strict=True):
        assert Experiment.read(file).sections() == Experiment(**variant.sections).sections()
