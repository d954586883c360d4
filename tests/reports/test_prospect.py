"""What an experiment may cost a client, said before it joins."""

import re

import pytest
from rotation import rotating

from hanse.base.errors import UserError
from hanse.core.port import Train
from hanse.reports.prospect import prospect
from hanse.runs.config import Experiment
from hanse.runs.guards import settled
from hanse.runs.round import first_state, play_round
from hanse.runs.setup import build


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


@pytest.mark.parametrize("unit", rotating(["client", "sample"], 2))
def test_the_noise_that_is_foretold_is_as_long_as_the_noise_that_comes(unit: str) -> None:
    """With so much noise an update is nothing else: its length, and the model's step, are those of the noise."""
    pytest.importorskip("dp_accounting", reason="needs the extra 'private'")
    pytest.importorskip("opacus", reason="needs the extra 'private'")
    strict = {"clients": [1], "epsilon": 1e6, "noise": 900.0}
    private = {"unit": unit, "epsilon": 1e6, "delta": 1e-4, "clip": 0.5, "noise": 300.0, "stricter": [strict]}
    given = Experiment(
        data={"clients": 4, "partition": {"name": "dirichlet", "alpha": 0.5}, "validation": 0.2},
        model={"name": "logistic"},
        mechanism="fedavg",
        train={"lr": 0.1, "batch_size": 20, "epochs": 2, "momentum": 0.5},
        federation={"private": private},
        run={"rounds": 1},
    )
    setup = build(given)
    state = first_state(setup)
    played = play_round(setup, state)
    updates, old = played.view.trained, state.table.rows[0]
    recipe, sizes = given.train.recipe, setup.data.sizes
    rule = settled(given, sizes)["private"].terms
    learned = [rule.of(c).longest(int(n), recipe, recipe.lr, Train(0, 0, old)) for c, n in enumerate(sizes)]
    for client in range(4):
        said = [float(one) for one in re.findall("([0-9.e+]+) times", prospect(given, client).gives[-1])]
        own = float((updates.rows[client] - old).norm()) / learned[client]
        mean = float((played.state.table.rows[0] - old).norm()) / float(sizes @ learned / sizes.sum())
        assert said == pytest.approx([own, mean], rel=0.1)  # the length of 650 normal numbers varies by 3 %
