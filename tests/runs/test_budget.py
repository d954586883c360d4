"""Runs that end before their last round: on a target, on time, on traffic."""

from pathlib import Path
from typing import Any

import pytest

import hanse
from hanse.reports.groups import group_runs
from hanse.reports.report import warnings
from hanse.reports.statement import render, statement
from hanse.runs.rehearsal import small_experiment
from hanse.runs.run_record import load_run
from hanse.runs.sections import RunSection


def line(accuracy: float | None, seconds: float = 1.0, megabytes: float = 2.0) -> dict[str, Any]:
    half = megabytes * 1e6 / 2
    return {"time/round_s": seconds, "bytes/down": half, "bytes/up": half, "test/accuracy": accuracy}


@pytest.mark.parametrize(
    ("limits", "rounds", "said"),
    [
        ({"target_accuracy": 0.5}, 3, "target accuracy 0.5 reached after 3 rounds (0.6000)"),
        ({"max_seconds": 2.0}, 2, "max_seconds 2 used up after 2 rounds (2.0 s)"),
        ({"max_megabytes": 5.0}, 3, "max_megabytes 5 used up after 3 rounds (6.0 MB)"),
        ({"target_accuracy": 0.7, "max_seconds": 4}, 4, "max_seconds 4 used up after 4 rounds (4.0 s)"),
        ({}, None, None),
    ],
)
def test_a_budget_is_over_at_the_first_limit(limits: dict, rounds: int | None, said: str | None) -> None:
    lines = [line(accuracy) for accuracy in [0.2, None, 0.6, 0.4, 0.6]]
    found = [RunSection(**limits).over(lines[:i]) for i in range(1, len(lines) + 1)]
    assert next(((i, over) for i, over in enumerate(found, 1) if over), (None, None)) == (rounds, said)


def experiment(**run: Any) -> hanse.Experiment:
    pays, exit = {"value": "path", "settle": "pot"}, {"models": "anew"}  # and nobody leaves
    mechanism, run = {"name": "fedavg", "clients_per_round": 2, **pays}, {"rounds": 6, **run}
    return small_experiment(mechanism, data={"clients": 6}, run=run, clients={"exit": exit})


@pytest.mark.parametrize("limit", ["max_seconds", "max_megabytes"])
def test_the_last_round_is_tested_wherever_a_limit_puts_it(limit: str) -> None:
    last = hanse.run(small_experiment("fedavg", eval={"every": 2}, run={"rounds": 5, limit: 1e-6})).metrics[-1]
    assert (last["round"], last["test/accuracy"] > 0) == (0, True)


def test_a_run_stops_at_its_target_keeps_the_round_and_is_not_resumed_past_it(tmp_path: Path) -> None:
    whole = hanse.run(experiment())
    target = sorted(m["test/accuracy"] for m in whole.metrics)[2]
    first = next(i for i, m in enumerate(whole.metrics) if m["test/accuracy"] >= target)
    run = hanse.run(experiment(target_accuracy=target, checkpoint_every=100), out=tmp_path / "run")
    assert len(run.metrics) == first + 1
    assert f"after {first + 1} round" in run.over
    assert not run.interrupted
    again = hanse.resume(tmp_path / "run")
    assert len(again.metrics) == first + 1
    assert again.over == run.over
    record = load_run(tmp_path / "run")
    assert (record.ended_early, record.unfinished) == (run.over, False)
    [(told, whose)] = warnings(group_runs([record]), [record])
    assert (told.code, told.fields["rounds"], told.fields["why"]) == ("ended_early", first + 1, run.over.rstrip("."))
    assert whose == ()
    assert "is not finished" not in render(statement(tmp_path / "run", 0))
