"""The runner: jobs once each, resumed, failures recorded; the frame's expansions."""

import json
from pathlib import Path

import pytest
from paper_cases import cell, made_up, sections, table

from hanse.base.errors import UserError
from hanse.lab.job import Job
from hanse.lab.kept import KeptFile, Store
from hanse.lab.player import Work, play_all
from hanse_papers.compare import rows
from hanse_papers.runner import expand, job_of, run_table
from hanse_papers.tables import Cell, Variant


def with_lr(lr: float) -> Variant:
    return Variant(f"lr={lr:g}", {**sections(), "train": {"lr": lr}})


def test_seeds_and_keys() -> None:
    one, same = cell("a"), cell("b")
    jobs, readings = expand(table(one, same), 3)
    assert [(j.sections["data"]["seed"], j.sections["run"]["seed"]) for j in jobs] == [(0, 0), (1, 1), (2, 2)]
    assert len(readings) == 6
    assert job_of(one, one.variants[0], 1).key == jobs[1].key
    assert job_of(one, Variant("", sections(rounds=4)), 1).key != jobs[1].key


def test_a_round_that_is_not_tested_is_refused() -> None:
    rare = Variant("", {**sections(), "eval": {"every": 2}})
    with pytest.raises(UserError, match="nothing is tested after round 1"):
        expand(table(cell("a", rare, at=1)), 1)
    expand(table(cell("a", rare, at=3)), 1)  # the last round always is


def test_a_wrong_experiment_is_named() -> None:
    with pytest.raises(UserError, match=r"digits, iid: a, seed 0: train.lr"):
        expand(table(cell("a", Variant("", {**sections(), "train": {"lr": -1.0}}))), 1)


def test_resumes_what_is_missing(tmp_path: Path) -> None:
    wanted = table(cell("a", with_lr(0.1)), cell("b", with_lr(0.2)))
    first = run_table(wanted, seeds=2, workers=1, folder=tmp_path, work=made_up)
    assert first.played == 4
    assert list(KeptFile(tmp_path).lines()) == [job.key for job in first.jobs]
    gone = first.jobs[2]
    KeptFile(tmp_path).path.unlink()
    for job in first.jobs:
        if job != gone:
            KeptFile(tmp_path).write(job, first.results[job.key])
    asked = []

    def work(job, step):  # type: ignore[no-untyped-def]
        asked.append(job.key)
        return made_up(job, step)

    again = run_table(wanted, seeds=2, workers=1, folder=tmp_path, work=work)
    assert asked == [gone.key]
    assert [r.best.mean for r in rows(again)] == [r.best.mean for r in rows(first)]
    assert run_table(wanted, seeds=3, workers=1, folder=tmp_path, work=made_up).played == 2


def stored(tmp_path: Path, *cells: Cell, seeds: int = 1, work: Work = made_up) -> tuple[Store, list[Job]]:
    """A sweep's folder with the finished jobs of a table."""
    store, jobs = Store(tmp_path), expand(table(*(cells or (cell("a"),))), seeds)[0]
    play_all(jobs, store, work, workers=1, label="test")
    return store, jobs


def test_a_result_of_another_run_under_a_jobs_name_does_not_count(tmp_path: Path) -> None:
    store, (ours, other) = stored(tmp_path, cell("a"), cell("b", with_lr(0.2)))
    store.path(ours).write_text(store.path(other).read_text())  # differs in what ours leaves at its default
    assert store.read(ours) is None
    foreign = json.loads(store.path(other).read_text()) | {"given": {}, "experiment": {}}
    store.path(ours).write_text(json.dumps(foreign))
    assert store.read(ours) is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"experiment": None}, {"given": []}, {"tested": None}, {"tested": [3, 2, 1]}, {"curves": None},
        {"curves": {"test/accuracy": None}}, {"curves": {"test/accuracy": [0.1] * 9}},
        {"curves": {"test/accuracy": ["0.1", 0.2, 0.3]}}, {"curves": {"test/accuracy": [float("nan")] * 3}},
        {"cpu_seconds": None}, {"cpu_seconds": float("inf")}, {"cpu_seconds": 10**400}, {"cpu_seconds": -1.0},
        {"curves": {"test/accuracy": [1e308] * 3}}, {"curves": {}}, {"tested": []},
        {"tested": [1, 2], "curves": {"test/accuracy": [0.1, 0.2]}}, {"tested": [1, 3]}, {"tested": [1, 2, 4]},
        {"rounds": 9}, {"rounds": "3"}, {"clients": 7}, {"audit": 7},
        {"clients": {"0": 57.0}}, {"clients": {"0": -0.5}},
        *({"curves": {name: [0.1, 57.0, 0.3]}} for name in (
            "test/accuracy", "client/test_accuracy", "client/test_accuracy_min", "client/3/test_accuracy",
            "client/best_accuracy",
        )),
    ],
)  # fmt: skip
def test_a_damaged_result_is_run_again(tmp_path: Path, wrong: dict[str, object]) -> None:
    store, [job] = stored(tmp_path)
    path = store.path(job)
    path.write_text(json.dumps(json.loads(path.read_text()) | wrong))
    assert store.read(job) is None
    path.write_text("[" * 100_000)
    assert store.read(job) is None


def test_a_run_that_ended_at_a_limit_has_fewer_tests(tmp_path: Path) -> None:
    store, [job] = stored(tmp_path)
    found = json.loads(store.path(job).read_text())
    ended = {"rounds": 2, "tested": [1, 2], "curves": {"test/accuracy": [0.1, 0.2]}}
    audit = {"rounds": 1, "the ledger verifies": {"holds": True, "said": ""}}
    store.path(job).write_text(json.dumps(found | ended | {"audit": audit}))
    assert store.read(job) is not None
    # nor has one whose data have no test set
    store.path(job).write_text(json.dumps(found | {"tested": [], "curves": {}}))
    assert store.read(job) is not None


def test_one_failure_stops_nothing(tmp_path: Path) -> None:
    wanted = table(cell("bad", with_lr(66.0)), cell("good", with_lr(0.1)))
    outcome = run_table(wanted, seeds=2, workers=1, folder=tmp_path, work=made_up)
    assert dict(outcome.failures) == {f"digits, iid: bad lr=66, seed {s}": "ValueError: as ordered" for s in (0, 1)}
    bad, good = rows(outcome)
    assert (bad.best.mean, bad.best.n) == (None, 0)
    assert good.best.mean == pytest.approx(65.0)
    assert KeptFile(tmp_path).lines()[outcome.jobs[0].key][0]["error"] == "ValueError: as ordered"
    assert run_table(wanted, seeds=2, workers=1, folder=tmp_path, work=made_up).played == 2  # tried again


def test_an_interrupted_run_is_not_kept(tmp_path: Path) -> None:
    def work(job, step):  # type: ignore[no-untyped-def]
        return {"status": "interrupted"}

    with pytest.raises(KeyboardInterrupt):
        run_table(table(cell("a")), seeds=1, workers=1, folder=tmp_path, work=work)
    assert not KeptFile(tmp_path).path.exists()
