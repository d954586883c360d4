"""Weights by member: caps by water filling, fixed weights, a clip, and a floor that ends the use of updates."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import digits
from hypothesis import given
from hypothesis import strategies as st

import hanse
from hanse.core.part import Group
from hanse.runs.rehearsal import rehearse
from hanse.wings.charter.capped import Capped, water_filled

HERE: Group = rehearse("fedavg").groups[0]  # four clients, one update each, of four members
NORTH = {"client 0": "north", "client 1": "north"}
shares_of = st.lists(st.floats(0, 1e6), min_size=1, max_size=12).filter(lambda found: sum(found) > 1)


def experiment(weigh: dict[str, Any], **sections: Any) -> hanse.Experiment:
    mechanism = {"name": "fedavg", "clients_per_round": 5, "weigh": {"name": "capped", **weigh}}
    return digits(mechanism | sections.pop("mechanism", {}), 5, 4, **sections)


@given(shares_of, st.floats(0.05, 1))
def test_water_filling_caps_everybody_and_keeps_what_the_caps_allow(found: Sequence[float], cap: float) -> None:
    shares = np.array(found) / sum(found)
    filled = water_filled(shares, cap)
    some = shares > 0
    assert filled.max() <= cap + 1e-9
    assert filled[~some].sum() == 0
    assert filled.sum() == pytest.approx(min(1.0, cap * some.sum()))
    free = (shares > 1e-12) & (filled < cap - 1e-9)  # below the cap, all grow by one factor
    if free.any():
        ratio = filled[free] / shares[free]
        assert ratio == pytest.approx(ratio[0])
        assert ratio[0] >= 1 - 1e-9


@pytest.mark.parametrize(
    ("part", "weights", "old"),
    [
        (Capped(cap=1.0), np.full(4, np.nan), 0.0),  # as by samples, to the last bit
        (Capped(cap=0.5, weights={"client 0": 3, "client 2": 1}), [0.5, 0.0, 0.5, 0.0], 0.0),
        (Capped(cap=1.0, weights={"client 0": 3, "client 2": 1, "nobody": 9}), [0.75, 0.0, 0.25, 0.0], 0.0),
        (Capped(cap=1.0, weights={"nobody": 1.0}), [0.0] * 4, 1.0),
    ],
)
def test_fixed_weights_leave_out_who_is_absent(part: Capped, weights: Any, old: float) -> None:
    said = part.aggregate(HERE, {})
    by_samples = HERE.num_samples / HERE.num_samples.sum()
    assert (said.weights == by_samples).all() if np.isnan(weights).all() else np.allclose(said.weights, weights)
    assert said.old == pytest.approx(old)


def test_a_member_with_several_clients_has_one_cap_and_the_rest_stays_with_the_old_model() -> None:
    here = rehearse("fedavg", clients={"members": NORTH}).groups[0]
    said = Capped(cap=0.3).aggregate(here, {})
    assert said.weights == pytest.approx([*0.3 * here.num_samples[:2] / here.num_samples[:2].sum(), 0.3, 0.3])
    assert said.old == pytest.approx(0.1)
    short = Capped(cap=0.3, clip=1e-9).aggregate(here, {})  # nothing long is left
    assert float((here.made(short) - here.old).norm()) < 1e-6


def test_what_no_round_could_place_is_refused_with_the_least_cap_that_fits() -> None:
    for cap, members, least in ((0.1, {}, "0.2"), (0.24, NORTH, "0.25")):
        with pytest.raises(hanse.UserError) as refused:
            hanse.run(experiment({"cap": cap}, clients={"members": members}))
        assert [line.split(":")[0] for line in refused.value.lines] == ["mechanism.weigh.cap"]
        assert refused.value.lines[0].endswith(f" {least}")
        hanse.run(experiment({"cap": float(least)}, clients={"members": members}, run={"rounds": 1}))
    for of in ("median", "fedadam", "fedamp"):
        with pytest.raises(hanse.UserError):
            experiment({"of": of})


def test_a_member_surely_below_the_floor_is_used_no_more(tmp_path: Path) -> None:
    flips = {"attacker": {"clients": [3], "kind": "flip"}}
    floored = experiment({"floor": True}, mechanism={"value": "path"}, behaviour=flips, run={"rounds": 6})
    whole = hanse.run(floored, out=tmp_path / "whole")
    below = {seat["client"] for seat in whole.clients if seat["below_floor"]}
    used = {(seat["round"], seat["client"]) for seat in whole.clients if seat["weight"] > 0}
    first = min(seat["round"] for seat in whole.clients if seat["below_floor"])
    assert below == {3}
    assert (first, 3) in used
    assert not [round for round, client in used if client == 3 and round > first]
    assert whole.metrics[-1]["test/accuracy"] > 0.7
    cut = hanse.run(
        floored.model_copy(update={"run": floored.run.model_copy(update={"rounds": 2})}), out=tmp_path / "cut"
    )
    assert bool((hanse.resume(cut.path, rounds=6).table.rows == whole.table.rows).all())
