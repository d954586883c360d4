"""A sweep as a whole: rows by hand, failures one by one, resumption of the sweep and of a run in it."""

import csv
import json
import re
from pathlib import Path

import pytest
from commands import invoke
from sweep_cases import EXPERIMENT, made_up, points_of

import hanse
from hanse.lab.job import folder_of, play, play_kept
from hanse.lab.player import PlayedJobs
from hanse.lab.sweep import kept_runs, rows_of, run_sweep


def table(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "table.csv").read_text().splitlines()))


def test_a_row_a_run(tmp_path: Path) -> None:
    points = points_of(tmp_path, "train.lr=0.75,66.0", seeds=2)
    done = run_sweep(points, tmp_path / "out", workers=1, work=made_up)
    assert (done.played, len(done.results), len(done.failures)) == (4, 2, 2)
    rows = table(tmp_path / "out")
    assert [(r["train.lr"], r["seed"], r["status"]) for r in rows] == [
        *[("0.75", "0", "done"), ("66.0", "0", "failed"), ("0.75", "1", "done"), ("66.0", "1", "failed")]
    ]
    assert [r["test/accuracy"] for r in rows] == ["0.5", "", "0.5", ""]
    assert [r["best test/accuracy"] for r in rows] == ["0.75", "", "0.875", ""]
    assert [r["best after rounds"] for r in rows] == ["3", "", "3", ""]
    assert (rows[0]["megabytes"], rows[0]["ms_per_round"], rows[0]["seconds"]) == ("1.5", "2.0", "1.0")
    assert [r["error"] for r in rows] == ["", "ValueError: as ordered", "", "ValueError: as ordered"]
    assert "client/3/test_accuracy" not in rows[0]
    assert list(rows[0])[-2:] == ["error", "key"]
    left = rows_of(points, PlayedJobs({points[0].job.key: done.results[points[0].job.key]}, {}, 1))
    assert [row["status"] for row in left] == ["done", *["waiting"] * 3]


def test_a_run_is_the_same_with_and_without_a_folder_and_alone(tmp_path: Path) -> None:
    (point,) = points_of(tmp_path, "train.lr=0.5")
    bare = play(point.job, lambda rounds: None)
    kept = play_kept(point.job, lambda rounds: None, runs=tmp_path / "runs")
    alone = hanse.run(point.job.experiment)
    assert bare["curves"] == kept["curves"]
    assert bare["curves"]["test/accuracy"] == [line["test/accuracy"] for line in alone.metrics]
    assert Path(kept["folder"]) == folder_of(tmp_path / "runs", point.job)
    assert Path(kept["folder"]).name == f"train.lr=0.5-{point.job.key[:8]}"


def test_command(here: Path) -> None:
    (here / "exp.toml").write_text(EXPERIMENT)
    given = ["sweep", "exp.toml", "--grid", "train.lr=0.5,0.25", "--seeds", "2", "--workers", "1"]
    dry = invoke(*given, "--dry-run")
    assert dry.output.splitlines() == [f"train.lr={lr}, seed={seed}" for seed in (0, 1) for lr in ("0.5", "0.25")]
    assert not (here / "runs").exists()
    first = invoke(*given, "--json")
    assert first.exit_code == 0, first.output
    assert [row["status"] for row in json.loads(first.stdout)["rows"]] == ["done"] * 4
    assert len(list((here / "runs" / "sweep-exp" / "runs").iterdir())) == 4
    again = invoke(*given)
    assert {"seeds", "±"} <= set(again.output.split())  # the comparison of the two settings
    place = "runs/sweep-exp"
    assert f"4 runs, 0 of them now; {place}/table.csv" in again.output
    # what is printed works in any shell, and whatever else lies there
    pasted = again.output.rpartition("a picture of them: hanse ")[2].split()
    assert pasted == ["report", place]
    (here / place / "runs" / "notes").mkdir()
    assert invoke(*pasted).exit_code == 0
    assert "4 runs" in (here / place / "report.html").read_text()
    for damage in (b"\xff", *(b"folder\n" + length * b"x" for length in (300, 10**6))):
        (here / place / "table.csv").write_bytes(damage)
        with pytest.raises(hanse.UserError, match=f"^{place}/table.csv: is damaged: "):
            kept_runs(Path(place))


def test_command_refusals_and_failures(here: Path) -> None:
    (here / "exp.toml").write_text(EXPERIMENT)
    for given, why in (
        ("", "--grid"),
        ("--grid train.lr=1 --ray auto --workers 2", "--workers 2"),
        ("--grid train.lr=1,2 --set train.lr=0.3", "--set train.lr=0.3"),
        ("--grid train.lr=1 --workers 1 --out exp.toml/out", "exp.toml"),
    ):
        refused = invoke("sweep", "exp.toml", *given.split())
        assert isinstance(refused.exception, hanse.UserError)
        assert why in refused.exception.lines[0]
        assert refused.output == ""
    # 5,000 clients cannot share the digits: that run fails, the other does not
    given = ["sweep", "exp.toml", "--grid", "data.clients=4,5000", "--workers", "1", "--rows-only"]
    ended = invoke(*given)
    assert ended.exit_code == 1
    assert re.search(r"data.clients=5000: UserError: .*5000", ended.stderr.replace("\n", " "))  # below the table
    rows = table(here / "runs" / "sweep-exp")
    assert [row["status"] for row in rows] == ["done", "failed"]
    assert "UserError" in rows[1]["error"]
    assert not (here / "runs" / "sweep-exp" / "runs").exists()
