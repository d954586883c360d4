"""Payment by value: sums of zero, nothing for opposite updates, nobody loses more than its stake."""

from __future__ import annotations

import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forging import rerecorded
from hypothesis import example, given, settings
from hypothesis import strategies as some
from typer.testing import CliRunner

import hanse
from hanse.base.errors import UserError
from hanse.cli import app
from hanse.core.entry import TOKEN
from hanse.federation.behaviour import Behaviour
from hanse.ledger.run_ledger import movements, reading
from hanse.mechanisms.by_value import transfers
from hanse.reports.audit import audit_run
from hanse.runs.refusals import paid_by_claims
from hanse.runs.replay import replay_books
from hanse.runs.replay_by_value import replay_by_value
from hanse.runs.round_record import round_file
from hanse.runs.setup import build

WORTH = some.lists(some.floats(-10, 10), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(WORTH, some.floats(1e-6, 1e6), some.integers(1, 10**9))
def test_transfers_sum_to_nothing_and_nobody_gains_or_loses_more_than_a_stake(
    worth: list[float], rate: float, most: int
) -> None:
    paid = transfers(np.array(worth), rate, most)
    assert sum(paid) == 0
    assert -most <= min(paid) <= max(paid) <= most
    ranked = [paid[i] for i in np.argsort(worth)]
    assert all(later >= earlier - 1 for earlier, later in pairwise(ranked))


@settings(max_examples=200, deadline=None)
@given(WORTH, some.floats(-5, 5), some.floats(-5, 5), some.floats(1e-3, 100))
@example([1.0], 5.0, -1.0, 51.0)  # alone, the key that sends nothing would lose more than its stake
def test_two_keys_that_send_opposite_things_have_what_one_alone_brings(
    others: list[float], mine: float, added: float, rate: float
) -> None:
    """d and nothing against d + z and -z: the same, and never more than if no stake had limited the round."""
    most = 10**8
    plain = sum(transfers(np.array([mine, 0.0, *others]), rate, most)[:2])
    pair = sum(transfers(np.array([mine + added, -added, *others]), rate, most)[:2])
    unlimited = sum(transfers(np.array([mine, 0.0, *others]), rate, 10**15)[:2])
    assert pair <= max(unlimited, 0) + 4
    if max(abs(mine), abs(added), *(abs(v) for v in others)) * rate * 4 < 100:  # nobody comes near its stake
        assert abs(pair - plain) <= 4


def test_who_is_far_ahead_in_one_round_and_behind_in_the_next_gains_nothing() -> None:
    """Where only losses were limited it gained 7 stakes in the first and lost one in the second."""
    up = transfers(np.r_[9.0, np.zeros(7)], 10.0, 1_000_000)
    down = transfers(np.r_[-9.0, np.zeros(7)], 10.0, 1_000_000)
    assert (up[0], down[0]) == (1_000_000, -1_000_000)


def experiment(**sections: Any) -> hanse.Experiment:
    return hanse.Experiment(
        data={"clients": 5, "partition": {"alpha": 100.0}},
        model="logistic",
        mechanism={"name": "fedavg", "value": "path", "settle": "by_value"},
        train={"steps": 5, "lr": 0.1},
        engine={"threads": 1},
        run={"rounds": 4},
        **sections,
    )


def test_who_trains_is_paid_by_who_does_not(tmp_path: Path) -> None:
    run = hanse.run(experiment(behaviour={"attacker": {"clients": [2], "kind": "flip"}}), out=tmp_path / "run")
    held = np.array([run.book.balance(f"client/{c}") for c in range(5)]) / TOKEN
    assert held.sum() == 500
    assert held[2] < 99 < 100 < held[[0, 1, 3, 4]].min()
    assert not any(run.book.balance(f"escrow/{c}") for c in range(5))
    with reading(tmp_path / "run") as ledger:
        assert replay_books(tmp_path / "run", ledger).wrong is None
    # by hand, round 0: the values of clients.jsonl less their mean, ten tokens a unit
    worth = np.array([seat["value"] for seat in run.clients if seat["round"] == 0])
    file = np.load(tmp_path / "run" / "rounds" / "00000.npz")
    np.testing.assert_allclose(file["by_value_units"], 1e7 * (worth - worth.mean()), atol=1)


def test_a_client_that_does_not_send_its_update_pays_the_mean() -> None:
    run = hanse.run(experiment(behaviour={f"{__name__}:Refuses": {}}))
    assert run.book.balance("client/1") < 100 * TOKEN


def test_who_cannot_put_up_a_stake_trains_unpaid() -> None:
    run = hanse.run(experiment(clients={"grant": 0.5}))
    assert {run.book.balance(f"client/{c}") for c in range(5)} == {TOKEN // 2}


def test_without_values_it_is_refused() -> None:
    with pytest.raises(UserError, match=r"mechanism\.settle"):
        hanse.run(
            hanse.Experiment(data={"clients": 4}, model="logistic", mechanism={"name": "fedavg", "settle": "by_value"})
        )


class Refuses(Behaviour):
    """Client 1 sends no update."""

    def on_reply(self, me: Any, round: int, request: Any, reply: Any) -> Any:
        return reply if me.id != 1 else type(reply)(1, refused="no")


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which client 2 is absent from round 2 on and client 0 sends nothing."""
    place = tmp_path_factory.mktemp("valued") / "run"
    hanse.run(experiment(behaviour={"leaver": {"clients": [2], "at": 2}, "free_rider": {"fraction": 0.2}}), out=place)
    return place


def replayed(folder: Path) -> tuple[int | None, str | None]:
    with reading(folder) as ledger:
        found = replay_books(folder, ledger)
    return found.by_value, found.wrong


def test_payments_follow_from_the_records(played: Path) -> None:
    assert replayed(played) == (4, None)
    checks = {check.name: check for check in audit_run(played).checks}
    assert checks["by value"].said == "what 4 rounds paid by value follows from records"
    shown = CliRunner().invoke(app, ["ledger", "verify", str(played)])
    assert "4 payments" in " ".join(shown.output.split())
    with np.load(round_file(played, 3)) as record:  # by hand: 10 tokens a unit above the mean of those who have a stake
        worth = record["value"] - record["value"].mean()
        assert record["by_value_units"] == pytest.approx(10 * TOKEN * worth, abs=1)


@pytest.mark.parametrize("change", [{"value": lambda v: v + np.arange(len(v))}, {"client": lambda v: v[1:]}])
def test_records_that_do_not_give_the_payments_are_found(change: dict[str, Any], played: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(played, folder)
    with np.load(round_file(folder, 1)) as record:
        arrays = {name: function(record[name]) for name, function in change.items()}
    rerecorded(folder, 1, **arrays)
    assert str(replayed(folder)[1]).startswith("round 1: ")
    assert not audit_run(folder).holds


def test_ledgers_that_do_not_follow_from_the_records_are_found(played: Path) -> None:
    with reading(played) as ledger:
        history = list(movements(ledger))
    at = [i for i, (round, one) in enumerate(history) if round == 1 and one.kind in ("stake", "value")]

    def wrong(changed: list[Any]) -> str:
        return replay_by_value(played, changed)[1]

    assert wrong(history) == ""
    assert wrong([h for i, h in enumerate(history) if i not in at]).startswith("round 1: ")
    assert wrong([h for i, h in enumerate(history) if i != at[1]]).startswith("round 1: ")
    stake = history[at[0]][1]
    less = replace(stake, postings=tuple((name, units // 2) for name, units in stake.postings))
    assert wrong([(r, less if i == at[0] else one) for i, (r, one) in enumerate(history)]).startswith("round 1: ")
    assert wrong([*history, (9, stake)]).startswith("round 9: ")


@pytest.mark.parametrize(
    ("weigh", "proved", "warned"), [("samples", False, True), ("samples", True, False), ("uniform", False, False)]
)
def test_pay_that_goes_by_what_members_say_of_their_samples_is_warned_of(
    weigh: str, proved: bool, warned: bool
) -> None:
    """Sizes that are proved, and weights that ask for none, leave nothing to be had by a claim."""
    path = {"name": "fedavg", "weigh": weigh, "value": "path", "settle": "by_value"}

    def paid(**behaviour: Any) -> tuple[hanse.Experiment, list[int]]:
        asked = hanse.Experiment(
            data={"clients": 4},
            model="logistic",
            mechanism=path,
            train={"steps": 5},
            sizes={"proved": proved},
            behaviour=behaviour,
            engine={"threads": 1},
            run={"rounds": 3},
        )
        book = hanse.run(asked).book
        return asked, [book.balance(f"client/{c}") for c in range(4)]

    (asked, honest), (_, lied) = paid(), paid(liar={"clients": [0], "size": 3.0})
    assert (lied[0] > honest[0]) == warned
    assert bool(paid_by_claims(asked, build(asked).mechanism)) == warned
