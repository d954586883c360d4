"""'hanse attack' counts the members that exist, whatever the file says of their number, and whoever never joins."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attack_cases import played
from hypothesis import given, settings
from hypothesis import strategies as st

import hanse
from hanse.core.entry import TOKEN
from hanse.lab.job import Job, Step, seeded
from hanse.lab.kept import Store
from hanse.wings.attack.search import Game, Outcome, play_with_outcome, scale_of, search


def sections(**more: Any) -> dict[str, Any]:
    source = {"name": "owners_of_a_table:frame", "target": "y", "client_column": "owner"}
    return {
        "data": {"source": source},  # clients are left out: the default is 20
        "model": {"name": "logistic"},
        "mechanism": {"name": "fedavg", "value": "first_order", "settle": "by_value"},
        "train": {"steps": 2, "batch_size": 4, "lr": 0.5},
        "engine": {"threads": 1},
        "run": {"rounds": 2},
    } | more


@pytest.mark.parametrize("draws", [5, pytest.param(200, marks=pytest.mark.nightly)])
def test_members_counted_are_the_owners_that_exist(owners: Path, draws: int) -> None:
    """The outcome and the yardstick are those of the owners that exist and join."""

    @settings(max_examples=draws, deadline=None)
    @given(st.lists(st.integers(10, 30), min_size=2, max_size=7), st.integers(0, 2))
    def check(sizes: list[int], few: int) -> None:
        absent = min(few, len(sizes) - 1)
        owners.write_text(json.dumps(sizes))
        late = {"joiner": {"clients": list(range(absent)), "at": 99}} if absent else {}
        job = seeded(sections(behaviour=late), 1, "honest")
        kept = play_with_outcome(job, lambda rounds: None)
        assert kept["status"] == "done", kept
        book = hanse.run(job.experiment).book
        found, there = Outcome.of(kept), [f"client/{c}" in book.balances for c in range(len(sizes))]
        assert len(found.held) == len(sizes)
        assert np.isfinite(found.held).tolist() == there == [c >= absent for c in range(len(sizes))]
        held = [book.balance(f"client/{c}") / TOKEN for c in range(absent, len(sizes))]
        assert found.held[absent:].tolist() == held
        assert found.granted == 100
        # payments sum to zero, so on average nobody is above the grant, and the scale is what moved
        assert sum(held) == pytest.approx(100 * len(held))
        assert scale_of([found], [absent]) == pytest.approx(np.mean(np.abs(np.array(held) - 100)))

    check()


def test_what_a_rule_takes_from_the_mint_is_pay_and_no_grant(owners: Path) -> None:
    owners.write_text(json.dumps([12] * 3))
    pot = {"name": "fedavg", "value": "path", "settle": "pot"}
    found = Outcome.of(play_with_outcome(seeded(sections(mechanism=pot), 1, "honest"), lambda rounds: None))
    assert (found.granted, np.sum(found.held) > 3 * found.granted) == (100, True)


def test_a_search_knows_the_owners_of_a_table(owners: Path, tmp_path: Path) -> None:
    owners.write_text(json.dumps([12] * 4))
    with pytest.raises(hanse.UserError, match=r"--client 4: .*0\.\.3"):
        search(sections(), [4], tmp_path / "out")

    def work(job: Job, step: Step) -> dict[str, Any]:
        """Play without training: a cheat gets 3 tokens from the three others; nobody else moves any."""
        deviant = job.sections["behaviour"].get("deviant", {})
        held = [103.0, 99.0, 99.0, 99.0] if deviant.get("silent") else [101.0, 99.0, 101.0, 99.0]
        return played(job, held, "balance")

    found = search(sections(), [0], tmp_path / "out", tries=25, seeds=2, work=work)
    assert found.scale == 1  # 20 clients, of whom 16 had nothing, had made it 80.8
    assert found.best.deviation == {"silent": True}


def test_a_recomputable_run_is_attacked_without_what_an_auditor_needs(tmp_path: Path) -> None:
    game = Game(sections(run={"rounds": 2, "recomputable": True}), [0], Store(tmp_path), 4, 1)
    game.honest([3])
    assert game.measure == "balance"
