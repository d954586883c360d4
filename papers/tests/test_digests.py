"""Every table at every scale plays the same experiments beside the same published numbers as when it was taken down.

``digests.json`` was made from the tables as Python code, before they became files; ``PRINT=1 pytest`` on this file
prints it anew, for a change that is meant.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from rotation import rotating

from hanse.lab.job import named
from hanse_papers import figures
from hanse_papers.catalogue import PAPERS, find_table
from hanse_papers.ids import IDS
from hanse_papers.runner import expand
from hanse_papers.tables import RECIPES, SCALES, Cell, PaperTable, Recipe, Scale

DIGESTS = Path(__file__).parent / "digests.json"
FILES = ("mnist", "fashion_mnist", "cifar10", "emnist_balanced", "emnist_cased")


def row_of(table: PaperTable, cell: Cell) -> list[Any]:
    metric = cell.metric or table.metric
    published = None if cell.published is None else [cell.published.mean, cell.published.sd]
    return [
        cell.group,
        cell.column,
        cell.algorithm,
        [[v.name, named(v.sections, IDS), named(v.against, IDS)] for v in cell.variants],
        cell.at,
        cell.measure,
        [metric] if isinstance(metric, str) else list(metric),
        table.factor if cell.factor is None else cell.factor,
        published,
        None if cell.computed is None else round(cell.computed, 9),
    ]


def digest(table: PaperTable) -> str:
    """The settings, not what they resolve to: a new option with an old default changes nothing."""
    rows = [
        table.seeds,
        table.unit,
        table.figures == ({"kind": "curves"},),
        *(row_of(table, cell) for cell in table.cells),
    ]
    return hashlib.blake2b(json.dumps(rows, sort_keys=True).encode(), digest_size=8).hexdigest()


def names_what_a_default_could_change(given: Mapping[str, Any]) -> bool:
    train, data = given.get("train", {}), given.get("data", {})
    size = train.keys() & {"batch_size", "batches_per_epoch", "batch_share"}
    split = "source" in data and ("partition" in data or data["source"] in ("digits", "mnist"))
    return bool("lr" in train and size and "name" in given.get("model", {}) and split and "rounds" in given["run"])


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("case", rotating(list(product(sorted(PAPERS), SCALES)), 3))
def test_every_table_is_made_of_valid_experiments_in_the_rounds_that_it_reads(
    case: tuple[str, Scale], recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper, scale = case
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HANSE_DATA", str(tmp_path))
    monkeypatch.setattr("hanse.data.sources.cache_dir", lambda: tmp_path)
    for name in PAPERS[paper].tables:
        if name != "figure6" or scale == "smoke":  # which reads the files
            table = find_table(paper, name, scale, recipe)
            jobs, readings = expand(table, 1)
            assert len(readings) == sum(len(cell.variants) for cell in table.cells)
            assert all(job.experiment.run.rounds >= 1 for job in jobs)
            assert scale != "smoke" or table.seeds == 2 or not jobs  # what is computed has no seeds
            assert bool(table.figures) == name.startswith("figure")
            assert all(spec["kind"] in figures.KINDS for spec in table.figures)
            assert all(names_what_a_default_could_change(v.sections) for cell in table.cells for v in cell.variants)


@pytest.mark.parametrize("here", [False, True], ids=["without data", "with data"])
def test_every_table_is_the_same(here: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where no results are kept, which iPFL's table 8 would fit
    monkeypatch.setenv("HANSE_DATA", str(tmp_path))
    monkeypatch.setattr("hanse.data.sources.cache_dir", lambda: tmp_path)  # whatever this machine has downloaded
    for name in FILES if here else ():
        (tmp_path / f"{name}.npz").touch()
    found = {
        f"{paper} {name} {scale}{' with data' if here else ''}": digest(find_table(paper, name, scale))
        for paper in sorted(PAPERS)
        for name in sorted(PAPERS[paper].tables)
        for scale in SCALES
        if (name, here) != ("figure6", True)  # which reads the files
    }
    if "PRINT" in os.environ:
        print(json.dumps(found, indent=1))
    wanted = json.loads(DIGESTS.read_text())
    assert {key: value for key, value in wanted.items() if key.endswith("with data") == here} == found
