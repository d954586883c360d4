"""iPFL's tables as data: printed numbers against the paper, settings, the fit of Table 7."""

from __future__ import annotations

from pathlib import Path

import pytest
from paper_cases import made_up

from hanse.lab.kept import KeptFile
from hanse_papers.catalogue import find_table
from hanse_papers.computed import fit, kept_table7
from hanse_papers.runner import job_of
from hanse_papers.tables import read_table

NAMES = [f"figure{i}" for i in range(2, 9)] + ["table4", "table5", "table7", "table8", "table9"]
NAMES += ["table1", "settings"]


def published(name: str, group: str) -> dict[str, list[float]]:
    found: dict[str, list[float]] = read_table("ipfl", name, "paper")["published"][group]
    return found


SAMPLES = (50000, 25000, 10000, 5000, 2500, 1000, 500, 250)
TABLE7 = dict(zip(SAMPLES, published("table7", "CIFAR-10")["local"], strict=True))


def test_the_printed_fit_is_not_the_least_squares_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # where no runs of table 7 are kept
    found = fit(TABLE7)
    assert found["p1"] == pytest.approx(-609.92, abs=0.01)
    assert found["p2"] == pytest.approx(64.03, abs=0.01)
    assert found["R2"] == pytest.approx(0.9482, abs=1e-4)
    assert published("table8", "fit of Table 7")["the printed numbers"][0] == -698.87
    ours = {cell.column: cell.computed for cell in find_table("ipfl", "table8", "paper").cells}
    assert ours == found
    exact = {n: -500 / n**0.5 + 60 for n in (100, 400, 900)}
    assert fit(exact) == pytest.approx({"p1": -500, "p2": 60, "R2": 1, "RMSE": 0})


def test_figure6_counts_the_clients_data_without_training() -> None:
    table = find_table("ipfl", "figure6", "smoke")
    assert not any("utilit" in note for note in table.notes)  # those are table 5's, whose clients it counts
    assert len(table.cells) == 144
    assert all(c.computed is not None and not c.variants for c in table.cells)
    assert all(0 < c.computed <= 100 for c in table.cells if c.column == "largest class %")  # type: ignore[operator]
    samples = sum(c.computed for c in table.cells if c.column == "samples")  # type: ignore[misc]
    assert samples == 1297  # all of the digits that are trained on
    assert sum(c.computed for c in table.cells if c.column.startswith("class ")) == samples  # type: ignore[misc]


def test_table8_fits_our_own_table7_where_its_runs_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = find_table("ipfl", "table7", "smoke")
    exact = {n: -100 / n**0.5 + 60 for n in (1200, 600, 240, 120, 60, 24, 20)}
    for seed, cell in ((s, c) for s in range(table.seeds) for c in table.cells):
        job = job_of(cell, cell.variants[0], seed)
        value = (exact[job.sections["data"]["partition"]["samples_per_client"]] + (1 if seed else -1)) / 100
        kept = made_up(job, lambda rounds: None) | {"tested": [job.rounds], "curves": {"test/accuracy": [value]}}
        if KeptFile(tmp_path).read(job) is None:  # two columns are the same run at this scale
            KeptFile(tmp_path).write(job, kept)
        if cell is table.cells[0]:
            assert kept_table7([tmp_path], "smoke", "paper") is None
    ours = kept_table7([tmp_path], "smoke", "paper")
    assert ours == pytest.approx(exact)
    assert ours is not None
    assert fit(ours)["p1"] == pytest.approx(-100)
    assert [c.algorithm for c in find_table("ipfl", "table8", "smoke").cells] == ["the printed numbers"] * 4
    cells = find_table("ipfl", "table8", "smoke", kept=[tmp_path]).cells  # as 'reproduce --out' gives it
    assert {c.column: c.computed for c in cells if c.algorithm == "our numbers"}["p1"] == pytest.approx(-100)
