"""Runs of a paper's table that move money: their ledgers are verified and their markets replayed."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paper_cases import cell, sections, table

from hanse.lab.job import play
from hanse.mechanisms.ipfl import IPFL
from hanse_papers.runner import audits, job_of, play_audited, run_table
from hanse_papers.tables import Variant


def market(name: str = "ipfl", **more: Any) -> Variant:
    given = {**sections(), "mechanism": {"name": name}, **more}
    given["data"] = {**given["data"], "client_validation": 0.2}
    return Variant("", given)


def test_a_run_without_books_is_played_as_ever() -> None:
    job = job_of(cell("a"), cell("a").variants[0], 0)
    found = play_audited(job, lambda rounds: None)
    assert "audit" not in found
    assert found["curves"] == play(job, lambda rounds: None)["curves"]


def test_a_market_is_replayed_and_its_figures_are_those_without_a_folder(tmp_path: Path) -> None:
    wanted = table(cell("iPFL", market()), cell("FedAvg"))
    outcome = run_table(wanted, seeds=2, workers=1, folder=tmp_path, work=play_audited)
    assert not outcome.failures
    jobs = {job.label: outcome.results[job.key] for job in outcome.jobs}
    mine = next(found for label, found in jobs.items() if "iPFL" in label)
    assert mine["audit"]["rounds"] == mine["rounds"] - 1  # no market after the last training
    assert all(check["holds"] for name, check in mine["audit"].items() if name != "rounds")
    assert mine["curves"] == play(outcome.jobs[0], lambda rounds: None)["curves"]
    (line,) = audits(outcome)
    markets = 2 * mine["audit"]["rounds"]
    assert line.startswith(f"2 runs with books were audited, {markets} markets replayed; it holds: the ledger")
    for name in ("graph", "true rationality", "conservation"):
        assert name in line


def test_what_does_not_hold_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = IPFL.settle

    def settle(self: IPFL, view: Any, state: Any) -> Any:  # the record says another price than eq. (10)
        made, after = honest(self, view, state)
        if "market_units" not in made.arrays:
            return made, after
        wrong = dict(made.arrays) | {"market_cost": np.asarray(made.arrays["market_cost"]) + 1.0}
        return replace(made, arrays=wrong), after

    monkeypatch.setattr(IPFL, "settle", settle)
    outcome = run_table(table(cell("iPFL", market())), seeds=1, workers=1, folder=tmp_path, work=play_audited)
    lines = audits(outcome)
    assert any(line.startswith(("payments: not in 1 of 1 runs", "graph: not in 1 of 1 runs")) for line in lines)
