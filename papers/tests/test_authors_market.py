"""iPFL's market and utilities as the authors' public code runs them: each option beside the default."""

from pathlib import Path

import numpy as np
import pytest
import torch

import hanse
from hanse.games import market
from hanse.reports.audit import audit_run
from hanse.runs.setup import build
from tests.mechanisms.test_ipfl import experiment, records
from tests.watching import rounds_of

MARKET = "hanse_papers.authors:ipfl"
UTILITIES = "hanse_papers.authors:AuthorsUtilities"


def test_a_market_that_breaks_is_recorded_and_audited(tmp_path: Path) -> None:
    profiles = {"name": "listed", "cost": [0.1, 1.0, 6.0, 0.2, 0.3], "eagerness": [1e4] * 5}
    made = experiment(mechanism={"name": MARKET, "stop": "break"}, profiles=profiles, rounds=3)
    hanse.run(made, out=tmp_path / "run")
    r = records(tmp_path / "run")[0]
    args = r["market_distance"], r["market_size"], r["market_cost"], r["market_eagerness"], float(r["market_lam"])
    assert str(r["market_stop"]) == "break"
    assert np.array_equal(r["market_graph"], market.learn_graph(*args, "break"))
    assert all(check.holds for check in audit_run(tmp_path / "run").checks if check.name in ("graph", "payments"))


def test_a_market_after_the_last_training(tmp_path: Path) -> None:
    last = hanse.run(experiment(mechanism={"name": MARKET, "last_market": True}), out=tmp_path / "last")
    plain = hanse.run(experiment(), out=tmp_path / "plain")
    markets = records(tmp_path / "last")
    assert ["market_graph" in r for r in markets] == [True] * 4
    assert torch.equal(last.table.rows[:5], plain.table.rows[:5])  # models are what they were
    assert last.metrics[-1]["utility/mean"] == pytest.approx(sum(r["market_utility"] for r in markets).mean())
    assert last.metrics[-1]["utility/mean"] > plain.metrics[-1]["utility/mean"]


def test_who_imports_nothing_is_pulled_to_its_own_last_model() -> None:
    alone = experiment(rounds=2, mechanism={"name": MARKET, "pull_alone": True, "lam": 2.0, "eta": 5.0})
    first, second = (p.view for p in rounds_of(build(alone), 2))
    seats = second.trained.seats
    assert seats.mu.tolist() == [0.4] * 5  # lam / eta, everybody; client 0 only sells
    assert first.trained.seats.mu.tolist() == [0.0] * 5
    assert torch.equal(second.table.rows[int(np.flatnonzero(seats.R[0])[0])], first.trained.rows[0])
    plain = hanse.run(experiment(rounds=2))
    pulled = hanse.run(experiment(rounds=2, mechanism={"name": MARKET, "pull_alone": True}))
    assert not torch.equal(plain.table.rows[0], pulled.table.rows[0])


def test_utilities_count_what_was_received() -> None:
    counted = []
    for count in ("mixed", "received"):
        given = experiment(clients=8, profiles={"name": "uniform", "cost": 0.0, "eagerness": 1e4}).sections()
        given["mechanism"] = {
            "name": "fedfomo", "models": 3, "sent": "drawn", "share": "train", "entry": 1e-6,
            "settle": {"name": UTILITIES, "count": count},
        }  # fmt: skip
        counted.append(hanse.run(hanse.Experiment(**given)).metrics[-2]["market/edges"])
    assert counted[1] > counted[0]
    assert 8 * 2 <= counted[1] <= 8 * 3  # three are drawn, itself perhaps
