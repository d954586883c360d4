"""A pot that is shared out at the end: sums, floors, order, proven work, and nothing for nothing."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experiments import digits
from hypothesis import example, given, settings
from hypothesis import strategies as some
from mistaken import mistakes

import hanse
from hanse.core.book import Book
from hanse.core.entry import MINT, TOKEN, client, pool
from hanse.core.part import Context
from hanse.games.shares import shares
from hanse.ledger.run_ledger import reading
from hanse.mechanisms.by_value import rounded
from hanse.mechanisms.pot import Pot, errors_of
from hanse.reports.audit import audit_run
from hanse.reports.invoice import invoice

VALUES = some.lists(some.floats(-10, 10), min_size=1, max_size=10)


POT = {"name": "fedavg", "value": "path", "settle": {"name": "pot", "tokens": 30, "for_work": 0.0}}


def experiment(mechanism: Any = POT, **more: Any) -> hanse.Experiment:
    return digits(mechanism, data={"validation": 0.2}, train={"steps": 5}, **more)


@settings(deadline=None)
@given(VALUES, some.floats(0, 5), some.floats(0, 1), some.integers(1, 4))
def test_shares_are_whole_units_that_sum_to_the_pot_and_keep_the_order_of_equally_sure_values(
    values: list[float], error: float, for_work: float, vests: int
) -> None:
    n, part = len(values), Pot(tokens=7.0, for_work=for_work, vests=vests)
    worth, drawn = np.array(values), np.stack([np.array(values)] * 2, axis=1)
    state = {**part.init(Context.tiny()), "worth": worth, "without": drawn, "variance": np.full(n, error**2),
             "work": np.ones(n, np.int64), "filled": 1}  # fmt: skip
    out = part.paid_out(state)
    assert all(sum(units for _, units in one.postings) == 0 for one in out)
    got = {one.kind: np.array([dict(one.postings).get(client(i), 0) for i in range(n)]) for one in out}
    by_worth = got.get("shares", np.zeros(n, np.int64))
    assert (by_worth >= 0).all()
    vested = (part.units - round(for_work * part.units)) / vests if (worth > 0).any() else 0  # all worked once
    assert abs(by_worth.sum() - vested) <= (len(values) if vests > 1 else 0)
    assert (np.diff(by_worth[np.argsort(worth, kind="stable")]) >= -1).all()
    assert not by_worth[worth <= 0].any()
    work = got.get("work", np.zeros(n, np.int64))
    assert work.sum() == round(for_work * part.units)
    assert np.ptp(work) <= 1


@settings(deadline=None, max_examples=40)
@given(some.integers(1, 6000), some.floats(1e-6, 1e9), some.floats(0, 1), some.booleans(), some.integers(0, 99))
@example(3000, 100.001999, 0.0, True, 0)  # each share ends on 0.9997 units
@example(6000, 1e9, 1.0, False, 0)
def test_whole_units_of_thousands_sum_to_the_pot_and_are_the_shares_up_or_down(
    n: int, tokens: float, for_work: float, alike: bool, seed: int
) -> None:
    part = Pot(tokens=tokens, for_work=for_work)
    worth = np.ones(n) if alike else np.random.default_rng(seed).exponential(size=n) ** 3
    state = {**part.init(Context.tiny(n)), "worth": worth, "work": np.ones(n, np.int64), "filled": 1}
    Book().post(0, [*part.filled(), *part.paid_out(state)])
    wanted = (worth / worth.sum() * part.units).tolist()
    for amounts, total in (
        (wanted, part.units),
        ([*wanted, -float(part.units)], 0),
        ([-one for one in wanted], -part.units),
    ):
        units = rounded(amounts, total)
        assert sum(units) == total
        assert all(abs(whole - one) < 1 + 1e-3 + 1e-9 * part.units for whole, one in zip(units, amounts, strict=True))


HUGE = some.floats(allow_nan=True, allow_infinity=True)


@settings(deadline=None)
@given(some.lists(some.tuples(HUGE, HUGE), min_size=1, max_size=9))
def test_whatever_the_numbers_are_shares_sum_to_one_or_nobody_has_any(given: list[tuple[float, float]]) -> None:
    values, errors = np.array(given).T
    found = shares(values, errors)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(1.0 if ((values > 0) & np.isfinite(values)).any() else 0.0)


@settings(deadline=None)
@given(some.lists(some.floats(0.1, 5), min_size=2, max_size=8), some.floats(100, 1e6))
def test_an_unsure_value_takes_nothing_from_what_is_known_of_others_and_gains_nothing(
    values: list[float], error: float
) -> None:
    sure, known = np.array(values), np.zeros(len(values))
    alone, beside = shares(sure, known), shares([*sure, 0.05], [*known, error])
    assert beside[-1] <= 1e-4
    np.testing.assert_allclose(beside[:-1], alone, atol=1e-4)


def test_a_run_pays_once_at_the_end_and_its_books_hold(tmp_path: Path) -> None:
    run = hanse.run(experiment(), out=tmp_path / "run")
    grant = round(run.experiment.clients.grant * TOKEN)
    got = [run.book.balance(client(i)) - grant for i in range(4)]
    assert sum(got) == 30 * TOKEN
    assert min(got) >= 0
    assert run.book.balance(pool("pot")) == 0
    with reading(tmp_path / "run") as ledger:
        kinds = [record.transaction.kind for record in ledger.history() if record.transaction.kind in ("pot", "shares")]
    assert kinds == ["pot", "shares"]
    assert all(check.holds for check in audit_run(tmp_path / "run").checks)
    assert invoice(tmp_path / "run", "30", "EUR").by == "earned"


def test_who_sends_nothing_gets_nothing_and_what_nobody_earned_goes_back(tmp_path: Path) -> None:
    run = hanse.run(experiment(behaviour={"deviant": {"clients": [1], "sends": "nothing"}}), out=tmp_path / "run")
    assert run.book.balance(client(1)) == round(run.experiment.clients.grant * TOKEN)
    nobody = hanse.run(experiment(behaviour={"deviant": {"clients": [0, 1, 2, 3], "sends": "nothing"}}))
    assert nobody.book.balance(MINT) == -4 * round(nobody.experiment.clients.grant * TOKEN)


def test_work_is_paid_only_where_training_is_proved() -> None:
    settle = {"name": "fedavg", "value": "path", "settle": {"name": "pot", "for_work": 0.5}}
    assert any("evidence.training" in line for line in mistakes(hanse.run, experiment(mechanism=settle)))


def test_values_are_drawn_together_by_plain_errors() -> None:
    without = np.array([[1.0, 3.0], [2.0, 2.0]])  # apart from their mean by 1/2 each way; alone the second by nothing
    state = {"worth": np.full(2, 2.0), "without": without, "variance": np.array([0.0, 0.09])}
    assert errors_of(state).tolist() == pytest.approx([0.5, 0.3])


@pytest.mark.parametrize("value", ["path", "exact", "first_order", "first_order_clients"])
def test_values_that_only_rank_are_warned_of_since_half_of_the_clients_would_get_nothing(value: str) -> None:
    run = hanse.run(experiment({**POT, "value": value}, run={"rounds": 1}))
    assert sum("only ranks" in line for line in run.said) == value.startswith("first_order")
