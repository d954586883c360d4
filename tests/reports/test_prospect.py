"""What an experiment may cost a client, said before it joins."""

import pytest

from hanse.base.errors import UserError
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
    assert "epsilon 4 at delta 0.0001" in chosen
    assert "5 rounds" in chosen
    assert "0 of 5 rounds" in gives(0.2)
    private["delta"] = 0.01
    with pytest.raises(UserError, match=r"^federation.private.delta: 0.01: must be below 1/[0-9]+"):
        gives(None)
