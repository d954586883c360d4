"""A pot that is shared out at the end: sums, floors, order, proven work, and nothing for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import hanse
from hanse.base.errors import UserError
from hanse.core.entry import MINT, TOKEN, client, pool
from hanse.core.part import Context
from hanse.games.shares import shares, shrunken
from hanse.ledger.run_ledger import reading
from hanse.mechanisms.pot import Pot
from hanse.reports.audit import audit_run

VALUES = some.lists(some.floats(-10, 10), min_size=1, max_size=10)


def experiment(**more: Any) -> hanse.Experiment:
    given: dict[str, Any] = {
        "data": {"source": "digits", "clients": 4, "validation": 0.2},
        "mechanism": {"name": "fedavg", "value": "path", "settle": {"name": "pot", "tokens": 30, "for_work": 0.0}},
        "model": "logistic", "train": {"steps": 5}, "run": {"rounds": 3},
    }  # fmt: skip
    return hanse.Experiment(**{**given, **more})


@settings(deadline=None)
@given(VALUES, some.floats(0, 5), some.floats(0, 1))
def test_shares_are_whole_units_that_sum_to_the_pot_and_keep_the_order_of_equally_sure_values(
    values: list[float], error: float, for_work: float
) -> None:
    n, part = len(values), Pot(tokens=7.0, for_work=for_work)
    worth, drawn = np.array(values), np.stack([np.array(values)] * 2, axis=1)
    state = {**part.init(Context.tiny()), "worth": worth, "without": drawn, "variance": np.full(n, error**2),
             "work": np.ones(n, np.int64)}  # fmt: skip
    got = np.array(part.amounts(state))
    nobody = not (worth > 0).any()
    assert (got >= 0).all()
    assert got.sum() == (round(for_work * part.units) if nobody else part.units)
    order = np.argsort(worth, kind="stable")
    assert (np.diff(got[order]) >= -1).all()
    assert (np.abs(got[worth <= 0] - round(for_work * part.units) / n) <= 1).all()


@settings(deadline=None)
@given(some.lists(some.tuples(some.floats(-5, 5), some.floats(0, 3)), min_size=2, max_size=9))
def test_a_value_is_drawn_toward_the_mean_the_further_the_less_sure_it_is(given: list[tuple[float, float]]) -> None:
    values, errors = np.array(given).T
    mean, found = values.mean(), shrunken(values, errors)
    kept = np.divide(found - mean, values - mean, out=np.ones(len(values)), where=np.abs(values - mean) > 1e-9)
    assert ((kept >= -1e-9) & (kept <= 1 + 1e-6)).all()
    assert (np.diff(kept[np.argsort(errors)][np.abs(values - mean)[np.argsort(errors)] > 1e-9]) <= 1e-6).all()
    assert shares(values, np.full(len(values), np.nan)).max() <= 1


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


def test_who_sends_nothing_gets_nothing_and_what_nobody_earned_goes_back(tmp_path: Path) -> None:
    lazy = {"deviant": {"clients": [1], "sends": "nothing"}}
    run = hanse.run(experiment(behaviour=lazy), out=tmp_path / "run")
    assert run.book.balance(client(1)) == round(run.experiment.clients.grant * TOKEN)
    idle = {"deviant": {"clients": [0, 1, 2, 3], "sends": "nothing"}}
    nobody = hanse.run(experiment(behaviour=idle))
    assert nobody.book.balance(MINT) == -4 * round(nobody.experiment.clients.grant * TOKEN)


def test_work_is_paid_only_where_training_is_proved() -> None:
    settle = {"name": "fedavg", "value": "path", "settle": {"name": "pot", "for_work": 0.5}}
    with pytest.raises(UserError) as refused:
        hanse.run(experiment(mechanism=settle))
    assert any("evidence.training" in line for line in refused.value.lines)
