"""Ours beside the paper's: means, the best variant, what is printed and written."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from paper_cases import cell, made_up, sections, table
from typer.testing import CliRunner

from hanse_papers import show
from hanse_papers.compare import cpu_hours, rows
from hanse_papers.reproduce import reproduce
from hanse_papers.runner import TableOutcome, run_table
from hanse_papers.tables import Variant


def outcome(folder: Path, **more: bool) -> TableOutcome:
    def lr(value: float) -> Variant:
        return Variant(f"lr={value:g}", {**sections(), "train": {"lr": value}})

    cells = (
        cell("tuned", lr(0.1), lr(0.2), lr(66.0), published=90.0),
        cell("plain", lr(0.05), published=91.0),
        cell("other", lr(0.3)),
        cell("lost", lr(66.0), published=12.0),
    )
    return run_table(table(*cells, **more), seeds=2, workers=1, folder=folder, work=made_up)


def test_best_variant_mean_and_deviation(tmp_path: Path) -> None:
    tuned, plain, *_ = rows(outcome(tmp_path))
    assert (tuned.best.variant, tuned.best.n) == ("lr=0.2", 2)
    assert tuned.best.mean == pytest.approx(75.0)  # 70 and 80
    assert tuned.best.sd == pytest.approx(50**0.5)  # sample deviation
    assert [s.n for s in tuned.variants] == [2, 2, 0]
    assert plain.best.mean == pytest.approx(60.0)


def test_json_schema(tmp_path: Path) -> None:
    done = outcome(tmp_path)
    found = json.loads(json.dumps(show.as_json(done), allow_nan=False))
    assert list(found) == ["paper", "table", "recipe", "scale", "seeds", "rows"]
    assert all(list(r) == ["setting", "algorithm", "published", "mean", "sd", "n"] for r in found["rows"])
    assert found["rows"][0]["published"] == 90.0
    assert found["rows"][2]["published"] is None
    assert (found["rows"][3]["mean"], found["rows"][3]["n"]) == (None, 0)
    hours, missing = cpu_hours(done, done.table)
    assert hours == pytest.approx(0.001 * 3 * 10 / 3600)  # a millisecond a round, 3 rounds, 5 experiments, 2 seeds
    assert missing == []
    mlp = sections() | {"model": {"name": "mlp"}}  # what a round of the logistic model costs says nothing of it
    full = replace(done.table, cells=(cell("another model", Variant("", mlp)),))
    assert cpu_hours(done, full) == (0.0, ["mlp on digits"])


def test_files(tmp_path: Path) -> None:
    done = outcome(tmp_path, figures=({"kind": "curves"},))
    paths = show.write_outcome(done, done.table, tmp_path)
    assert [p.name for p in paths] == [f"table1-smoke.{end}" for end in ("json", "md", "csv", "png", "svg")]
    whole = json.loads(paths[0].read_text())
    assert whole["rows"][0]["variants"][1] == {"name": "lr=0.2", "mean": 75.0, "sd": pytest.approx(50**0.5), "n": 2}
    assert len(whole["failures"]) == 2  # the run that two cells share failed for both seeds
    assert "| tuned | 75.00 ± 7.07 (lr=0.2) / 90.00 ± 1.00 |" in paths[1].read_text()
    lines = list(csv.DictReader(paths[2].open()))
    assert {line["series"].split(" lr=")[0] for line in lines} == {
        "tuned", "plain", "other", "tuned, printed", "plain, printed",
    }  # fmt: skip
    assert [line["rounds played"] for line in lines[:3]] == ["1", "2", "3"]
    assert paths[3].stat().st_size > 5000


def test_a_failure_ends_with_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = Variant("", {**sections(), "train": {"lr": 66.0}})
    monkeypatch.setattr("hanse_papers.catalogue.find_table", lambda *_: table(cell("a", bad), cell("b")))
    monkeypatch.setattr("hanse_papers.runner.play_audited", made_up)
    app = typer.Typer()
    app.command()(reproduce)
    done = CliRunner().invoke(app, ["ours", "table1", "--workers", "1", "--out", str(tmp_path), "--json"])
    assert done.exit_code == 1
    assert [r["n"] for r in json.loads(done.stdout)["rows"]] == [0, 2]
    assert "a, seed 0 failed: ValueError: as ordered" in " ".join(done.stderr.split())
