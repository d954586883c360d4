"""Privacy accounts on a network: participants keep their own, and a simulation's code answers."""

from pathlib import Path
from typing import Any

import pytest
from experiments import digits

pytest.importorskip("dp_accounting")

from inprocess import InProcessGrid, apps_of
from test_flower_in_process import over_flower

import hanse
from hanse.wings.private.account import AccountFile, Release, spent

N = 5


def experiment(rounds: int, seed: int = 0, **private: Any) -> hanse.Experiment:
    federation = {"private": {"clip": 1.0, "epsilon": 8.0, "delta": 1e-5} | private}
    return digits("fedavg", N, rounds, run={"seed": seed}, federation=federation)


def play(exp: hanse.Experiment, folder: Path, own: Path, private: Any = None) -> hanse.Run:
    apps = apps_of(exp, own, lambda i: {"private": private} if i == 0 else {})
    return over_flower(exp, folder, InProcessGrid(apps))


def count(own: Path, node: int) -> dict[Release, int]:
    account = AccountFile(own / f"node{node}" / "privacy.json").read()
    return {} if account is None else dict(account.releases)


def test_participants_spend_their_budgets_over_runs_and_sit_out_then(tmp_path: Path) -> None:
    own = tmp_path / "own"
    first = play(experiment(2, noise=1.5), tmp_path / "first", own)
    assert [line["fit/epsilon"] for line in first.clients] == pytest.approx(
        [spent(((Release(1.5), n),), 1e-5) for n in (1, 2) for _ in range(N)]
    )
    assert count(own, 1) == {Release(1.5): 2}
    # another run of another server goes on where the account is: four more answers fit, and no more
    second = play(experiment(7, seed=1, noise=1.5, epsilon=1e4), tmp_path / "second", own)
    fits = [6] * N  # epsilon 7.81 of 8
    assert [count(own, i)[Release(1.5)] for i in range(N)] == fits
    assert [m["answered"] for m in second.metrics] == [N] * 4 + [0] * 3
    assert all("budget is used up" in line["refused"] for line in second.clients if line["round"] > 3)


def test_noise_that_a_budget_asks_for_reaches_the_participants_who_may_have_terms_of_their_own(tmp_path: Path) -> None:
    terms = {"clip": 0.5, "noise": 5.0, "epsilon": 2.0, "delta": 1e-5}
    run = play(experiment(3, stricter=[{"clients": [2], "epsilon": 1.0}]), tmp_path / "run", tmp_path / "own", terms)
    private = run.experiment.federation.private
    # it adds 2.5 to each number: more than the run's terms have room for, so its updates are shortened
    assert all(private["noise"] < line["fit/noise"] < 2.5 for line in run.clients if line["client"] == 0)
    assert {line["fit/noise"] for line in run.clients if line["client"] not in (0, 2)} == {private["noise"]}
    assert count(tmp_path / "own", 0) == {Release(5.0): 3}
    assert count(tmp_path / "own", 2) == {Release(private["stricter"][0]["noise"]): 3}
