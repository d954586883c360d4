"""iPFL, its baselines and its attackers as the authors' public code runs them: each option beside the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_ipfl import experiment, records, rounds_of
from test_personalised_rounds import PROBLEM, N, Scripted, World, opposed, training

import hanse
from hanse.core.port import Answered, Reply, Request, Score, Train, Trained
from hanse.core.recipe import Recipe
from hanse.federation.behaviour import Attacker, Liar, Me
from hanse.games import market
from hanse.mechanisms.fedamp import heur_fedamp
from hanse.mechanisms.fedfomo import fedfomo
from hanse.mechanisms.pfedgraph import pfedgraph
from hanse.mechanisms.weigh import Received
from hanse.reports.audit import audit_run
from tests.conftest import needs_papers

ME = Me(1, 3, 0, Recipe(lr=0.1), 4)
MARKET = "hanse_papers.authors:ipfl"
UTILITIES = "hanse_papers.authors:AuthorsUtilities"


# the market


@needs_papers
def test_a_market_that_breaks_is_recorded_and_audited(tmp_path: Path) -> None:
    profiles = {"name": "listed", "cost": [0.1, 1.0, 6.0, 0.2, 0.3], "eagerness": [1e4] * 5}
    made = experiment(mechanism={"name": MARKET, "stop": "break"}, profiles=profiles, rounds=3)
    hanse.run(made, out=tmp_path / "run")
    r = records(tmp_path / "run")[0]
    args = r["market_distance"], r["market_size"], r["market_cost"], r["market_eagerness"], float(r["market_lam"])
    assert str(r["market_stop"]) == "break"
    assert np.array_equal(r["market_graph"], market.learn_graph(*args, "break"))
    assert all(check.holds for check in audit_run(tmp_path / "run").checks if check.name in ("graph", "payments"))


@needs_papers
def test_a_market_after_the_last_training(tmp_path: Path) -> None:
    last = hanse.run(experiment(mechanism={"name": MARKET, "last_market": True}), out=tmp_path / "last")
    plain = hanse.run(experiment(), out=tmp_path / "plain")
    markets = records(tmp_path / "last")
    assert ["market_graph" in r for r in markets] == [True] * 4
    assert torch.equal(last.table.rows[:5], plain.table.rows[:5])  # models are what they were
    utility = sum(r["market_utility"] for r in markets)
    assert last.metrics[-1]["utility/mean"] == pytest.approx(utility.mean())
    assert last.metrics[-1]["utility/mean"] > plain.metrics[-1]["utility/mean"]


@needs_papers
def test_who_imports_nothing_is_pulled_to_its_own_last_model() -> None:
    played = rounds_of(experiment(rounds=2, mechanism={"name": MARKET, "pull_alone": True, "lam": 2.0, "eta": 5.0}))
    first, second = (p.view for p in played)
    seats = second.trained.seats
    assert seats.mu.tolist() == [0.4] * 5  # lam / eta, everybody; client 0 only sells
    assert first.trained.seats.mu.tolist() == [0.0] * 5
    centre = second.table.rows[int(np.flatnonzero(seats.R[0])[0])]
    assert torch.equal(centre, first.trained.rows[0])
    plain = hanse.run(experiment(rounds=2))
    pulled = hanse.run(experiment(rounds=2, mechanism={"name": MARKET, "pull_alone": True}))
    assert not torch.equal(plain.table.rows[0], pulled.table.rows[0])


# the baselines


def test_heuristic_fedamp_pulls_from_round_1_on() -> None:
    federation = Scripted(move=opposed)
    world = World(heur_fedamp(lam=0.01, pull_from=1), federation)
    world.play()
    world.play()
    assert [task.mu for task in training(federation, 0)] == [0.0, 0.01]


def test_pfedgraph_repels_from_round_1_on() -> None:
    federation = Scripted(move=opposed)
    world = World(pfedgraph(lam=0.5, sign="repel", term_from=1), federation)
    world.play()
    world.play()
    first, second = training(federation, 0)
    length = float(torch.linalg.vector_norm(second.start[: PROBLEM.layout.num_parameters]))
    assert first.mu == 0.0
    assert second.mu == pytest.approx(-0.5 / length**2)
    assert second.row == N  # from the mixed model


def test_fedfomo_draws_among_all_and_weighs_by_the_train_loss() -> None:
    # everybody loses 1 with its old model, and 0.5 with whatever it is sent
    federation = Scripted(losses=lambda c, models: [1.0, *[0.5] * (models - 1)], move=lambda c, t: t.start + c)
    world = World(fedfomo(models=2, sent="drawn", share="train", entry=1e-6), federation)
    played = world.play()
    scores = [t for r in federation.asked[-1] for t in r.tasks if isinstance(t, Score)]
    assert [(t.share, len(t.models)) for t in scores] == [("train", 4)] * N  # old, own, two that were drawn
    W, received = played.view.mixed.W[:, :N], played.view.get(Received)
    assert received.sent.sum(axis=1).tolist() == [2] * N
    assert W.sum(axis=1).tolist() == pytest.approx([1.0] * N)
    assert ((W > 0) <= (received.sent > 0)).all()
    for c in range(N):
        sent = np.flatnonzero(received.sent[c])
        # |c - j + 1e-6| in each of P entries; the own update is 1e-6 away, and takes nearly all
        raw = 0.5 / (np.abs(c - sent + 1e-6) * np.sqrt(PROBLEM.layout.num_parameters))
        np.testing.assert_allclose(W[c, sent], raw / raw.sum(), rtol=0.05)
    affinity = played.state.states["train"]["affinity"]
    np.testing.assert_allclose(affinity, W)


@needs_papers
def test_utilities_count_what_was_received() -> None:
    received = Received(np.array([0, 2, 3]), np.array([[1, 1, 0], [0, 0, 1], [1, 0, 0]], np.int8))
    assert received.among(np.array([0, 1, 2, 3])).tolist() == [[0, 0, 1, 0], [0] * 4, [0, 0, 0, 1], [1, 0, 0, 0]]
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


# attackers and free-riders


def attack(kind: Any, **options: Any) -> torch.Tensor:
    start, row = torch.zeros(4), torch.tensor([1.0, 2.0, 3.0, 4.0])
    request = Request(1, (Train(0, 0, start),))
    reply = Reply(1, (Trained(0, row, 10.0, 0.5, 1),))
    return Attacker(clients=[1], kind=kind, of="model", **options).on_reply(ME, 0, request, reply).results[0].row


def test_whole_models_are_turned() -> None:
    assert attack("flip").tolist() == [-1.0, -2.0, -3.0, -4.0]
    assert attack("same").tolist() == [1.0] * 4
    assert sorted(attack("shuffle").tolist()) == [1.0, 2.0, 3.0, 4.0]
    assert attack("gaussian", scale=2.0).tolist() == pytest.approx((2.0 * attack("gaussian")).tolist())
    assert attack("random").tolist() == attack("gaussian").tolist()


def test_an_attacker_goes_on_from_the_centre_that_it_was_sent() -> None:
    centre, start = torch.ones(4), torch.zeros(4)
    tasks = (Train(0, 0, start, centre, 0.4), Train(1, 1, start), Train(2, 2, start, centre, 0.4, private=True))
    sent = Attacker(clients=[1], kind="flip", start="sent")
    taken = sent.on_request(ME, 0, Request(1, tasks))
    assert [t.start.tolist() for t in taken.tasks if isinstance(t, Train)] == [[1.0] * 4, [0.0] * 4, [0.0] * 4]
    assert Attacker(clients=[1], kind="flip").on_request(ME, 0, Request(1, tasks)).tasks == tasks


def test_what_a_free_rider_says_whatever_is_true() -> None:
    request = Request(1, ())
    honest = Reply(1, (Answered("declare", {"cost": 0.0, "eagerness": 5.0}),))
    said = Liar(clients=[1], says={"cost": 1.0}).on_reply(ME, 0, request, honest).results[0]
    assert isinstance(said, Answered)
    assert said.values == {"cost": 1.0, "eagerness": 5.0}
    assert "cost 1" in Liar(clients=[1], says={"cost": 1.0}).tells(3, 0).sentence
