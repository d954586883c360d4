"""What an experiment may cost a client, said before it joins."""

import pytest

from hanse.reports.prospect import prospect
from hanse.runs.config import Experiment


def test_how_long_a_budget_that_hides_single_samples_lasts() -> None:
    pytest.importorskip("dp_accounting", reason="needs the extra 'private'")
    pytest.importorskip("opacus", reason="needs the extra 'private'")
    private = {"unit": "sample", "epsilon": 4.0, "delta": 1e-4, "clip": 1.0}
    given = {"data": {"clients": 6}, "mechanism": "fedavg", "run": {"rounds": 5}}

    def gives(noise: float | None) -> str:
        rule = private if noise is None else {**private, "noise": noise}
        return prospect(Experiment(**given, federation={"private": rule}), 2).gives[-1]

    chosen = gives(None)  # as much as the budget needs to last for the run
    assert "hides each single sample, up to epsilon 4 at delta 0.0001; then it sits out" in chosen
    assert "The budget lasts for 5 of 5 rounds. It trains with the noise inside: at each of its " in chosen
    assert "The budget lasts for 0 of 5 rounds." in gives(0.2)
    private["delta"] = 0.1
    assert gives(None).startswith("federation.private.delta: 0.1: should be below 1/")
