"""Payment by value: sums of zero, the order of the values' sums, nothing for opposite updates, limits by stakes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke
from experiments import digits
from forging import rerecorded
from hypothesis import example, given, settings
from hypothesis import strategies as some

import hanse
from hanse.core.entry import TOKEN
from hanse.core.part import Context
from hanse.ledger.run_ledger import movements, reading
from hanse.mechanisms.by_value import ByValue
from hanse.mechanisms.fits import WARNS, clashes
from hanse.mechanisms.value_sums import ValueSums
from hanse.runs.refusals import surroundings
from hanse.runs.replay import Examined, Posted, checked, rule_of
from hanse.runs.round_record import round_file
from hanse.runs.setup import build

WORTH = some.lists(some.floats(-10, 10), min_size=1, max_size=12)
NUMBER = some.floats(-10, 10) | some.floats(-0.1, 0.1) | some.sampled_from([0.0, 1e9, -1e9])
ROUNDS = some.integers(1, 6).flatmap(
    lambda m: some.lists(some.lists(NUMBER, min_size=m, max_size=m), min_size=1, max_size=8)
)


def paid(
    rounds: Any, rate: float = 10.0, stake: float = 1.0, grant: int = 10**12, earlier: tuple[int, ...] = ()
) -> np.ndarray:
    """Return what each of m members was paid in each round, in units, ``[R, m]``, if all train in all rounds.

    In ``earlier`` rounds the first members were paid nothing, so that their limits are as many stakes wider.
    """
    rule, worth = ByValue(rate, stake), np.array(rounds, float)
    everybody, found = np.arange(worth.shape[1]), np.zeros(worth.shape, np.int64)
    state: Any = rule.init(Context.tiny(worth.shape[1]))
    state["rounds"][: len(earlier)] = earlier
    for r, values in enumerate(worth):
        valued = ValueSums.of_round(everybody, {"value": values}, len(everybody))
        units, state = rule.amounts(everybody, grant + found.sum(0), valued, state)
        found[r] = units
    return found


@settings(max_examples=80, deadline=None)
@given(ROUNDS, some.floats(1e-3, 1e6), some.floats(1e-3, 1e3), some.integers(10**6, 10**9))
@example([[1e9, 0.0, 0.1], [-1e9, 0.2, 0.0]], 10.0, 1.0, 10**8)
def test_who_brought_more_over_the_rounds_was_paid_more_and_sums_and_limits_hold(
    rounds: list[list[float]], rate: float, stake: float, grant: int
) -> None:
    units = paid(rounds, rate, stake, grant)
    assert not units.sum(1).any()
    total, sums = np.sum(np.array(rounds), axis=0), units.sum(0)
    most = len(rounds) * round(stake * TOKEN)
    assert -min(most, grant) <= sums.min() <= sums.max() <= most
    for i in range(len(total)):
        for j in range(len(total)):
            if total[i] - total[j] > 1e-6 * max(1.0, np.abs(rounds).max() * 1e-6):
                assert sums[i] >= sums[j] - len(rounds)  # a unit a round is rounding


@settings(max_examples=80, deadline=None)
@given(WORTH, some.floats(-5, 5), some.floats(-5, 5), some.floats(1e-3, 100))
@example([1.0], 5.0, -1.0, 51.0)  # alone, the key that sends nothing would lose more than its stake
@example([0.0, 0.0, 0.0, 8.0], 5.0, -2.5, 64.0)  # 152 tokens; one key is cut at its stake, and both have 50
def test_two_keys_that_send_opposite_things_have_what_one_alone_brings(
    others: list[float], mine: float, added: float, rate: float
) -> None:
    """d + z and -z: as much as d and nothing, and never more than these would have without limits of their own."""
    alone, split = [[mine, 0.0, *others]], [[mine + added, -added, *others]]
    plain, pair = (sum(paid(worth, rate, 100.0)[0, :2]) for worth in (alone, split))
    unlimited = sum(paid(alone, rate, 100.0, 10**15, earlier=(10**4, 10**4))[0, :2])
    assert pair <= max(unlimited, 0) + 4
    if max(abs(mine), abs(added), *(abs(v) for v in others)) * rate * 4 < 100:  # nobody comes near its stake
        assert abs(pair - plain) <= 4


def test_damage_beyond_a_stake_is_owed_in_later_rounds_and_no_single_good_one_makes_up_for_it() -> None:
    """The first does 55 tokens of damage, then 14 of good, then 14 more: it still owes."""
    units = paid([[-5.5, 0.0, 0.0], [1.4, 0.0, 0.0], [1.4, 0.0, 0.0]])
    np.testing.assert_array_equal(units.sum(0), [-3 * TOKEN, 1_500_000, 1_500_000])
    # first the good, then the damage: what it gained is lost again
    units = paid([[1.4, 0.0, 0.0], [1.4, 0.0, 0.0], [-5.5, 0.0, 0.0]])
    np.testing.assert_array_equal(units[:2].sum(0), [2 * TOKEN, -TOKEN, -TOKEN])
    np.testing.assert_array_equal(units.sum(0), [-3 * TOKEN, 1_500_000, 1_500_000])


def test_what_nobody_can_collect_is_missing_to_all_alike() -> None:
    """The first can pay 1 of its 10 tokens; the others stay .5 apart, as their values say."""
    np.testing.assert_array_equal(paid([[-1.0, 0.05, 0.0]]), [[-TOKEN, 750_000, 250_000]])


def experiment(**sections: Any) -> hanse.Experiment:
    data = {"partition": {"alpha": 100.0}}
    train = {"steps": 5, "lr": 0.1}
    return digits({"name": "fedavg", "value": "path", "settle": "by_value"}, 5, 4, data=data, train=train, **sections)


def test_a_client_that_does_not_send_its_update_pays_the_mean() -> None:
    run = hanse.run(experiment(behaviour={"deviant": {"clients": [1], "silent": True}}))
    assert run.book.balance("client/1") < 100 * TOKEN


def test_who_cannot_put_up_a_stake_trains_unpaid() -> None:
    run = hanse.run(experiment(clients={"grant": 0.5}))
    assert {run.book.balance(f"client/{c}") for c in range(5)} == {TOKEN // 2}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in which client 2 is absent from round 2 on and client 0 sends nothing."""
    place = tmp_path_factory.mktemp("valued") / "run"
    hanse.run(experiment(behaviour={"leaver": {"clients": [2], "at": 2}, "free_rider": {"fraction": 0.2}}), out=place)
    return place


def test_payments_follow_from_the_records(played: Path) -> None:
    found = Examined(played)
    assert (found.failed(), found.again.rounds) == (None, 4)
    assert json.loads(invoke("ledger", "verify", played, "--json").stdout)["checks"] == {"by value": True}
    with np.load(round_file(played, 3)) as record:  # by hand: 10 tokens a unit above the mean of those who have a stake
        worth = record["value"] - record["value"].mean()
        assert record["by_value_units"] == pytest.approx(10 * TOKEN * worth, abs=1)


@pytest.mark.parametrize("change", [{"value": lambda v: v + np.arange(len(v))}, {"client": lambda v: v[1:]}])
def test_records_that_do_not_give_the_payments_are_found(change: dict[str, Any], played: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(played, tmp_path / "copy")
    with np.load(round_file(folder, 1)) as record:
        arrays = {name: function(record[name]) for name, function in change.items()}
    rerecorded(folder, 1, **arrays)
    assert (failed := Examined(folder).failed()) is not None
    assert failed.said.startswith("round 1: ")


def test_ledgers_that_do_not_follow_from_the_records_are_found(played: Path) -> None:
    with reading(played) as ledger:
        history = list(movements(ledger.history()))
    at = [i for i, (round, one) in enumerate(history) if round == 1 and one.kind in ("stake", "value")]

    def wrong(changed: list[Any]) -> str:
        rounds = Posted(played, changed, beyond=range(4, 4), floor=-(10**12), settled=False)
        parts, _ = rule_of(played)
        ((check,), _) = checked(rounds, parts, "not asked for")
        return "" if check.holds else check.said

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
        asked = digits(path, train={"steps": 5}, sizes={"proved": proved}, behaviour=behaviour)
        book = hanse.run(asked).book
        return asked, [book.balance(f"client/{c}") for c in range(4)]

    (asked, honest), (_, lied) = paid(), paid(liar={"clients": [0], "size": 3.0})
    assert (lied[0] > honest[0]) == warned
    made = build(asked)
    around = surroundings(asked, made.data, made.problem, {}, None, remote=True)
    assert bool(clashes(made.mechanism, around, WARNS)) == warned
