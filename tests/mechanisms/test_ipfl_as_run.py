"""iPFL, its baselines and its attackers as the authors' public code runs them: each option beside the default."""

from typing import Any

import numpy as np
import pytest
import torch
from test_personalised_rounds import PROBLEM, N, Scripted, World, opposed, training

from hanse.core.port import Answered, Reply, Request, Score, Train, Trained
from hanse.core.recipe import Recipe
from hanse.federation.behaviour import Attacker, Liar, Me
from hanse.mechanisms.fedamp import heur_fedamp
from hanse.mechanisms.fedfomo import fedfomo
from hanse.mechanisms.pfedgraph import pfedgraph
from hanse.mechanisms.weigh import Received

ME = Me(1, 3, 0, Recipe(lr=0.1), 4)


# the baselines


def test_heuristic_fedamp_pulls_from_round_1_on() -> None:
    world = World(heur_fedamp(lam=0.01, pull_from=1), Scripted(move=opposed))
    for mu in (0.0, 0.01):
        world.play()
        assert training(world, 0)[0].mu == mu


def test_pfedgraph_repels_from_round_1_on() -> None:
    world = World(pfedgraph(lam=0.5, sign="repel", term_from=1), Scripted(move=opposed))
    first, second = (training(world, 0)[0] for _ in range(2) if world.play())
    length = float(torch.linalg.vector_norm(second.start[: PROBLEM.layout.num_parameters]))
    assert first.mu == 0.0
    assert second.mu == pytest.approx(-0.5 / length**2)
    assert second.row == N  # from the mixed model


def test_fedfomo_draws_among_all_and_weighs_by_the_train_loss() -> None:
    # everybody loses 1 with its old model, and 0.5 with whatever it is sent
    federation = Scripted(losses=lambda c, models: [1.0, *[0.5] * (models - 1)], move=lambda c, t: t.start + c)
    played = World(fedfomo(models=2, sent="drawn", share="train", entry=1e-6), federation).play()
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
    np.testing.assert_allclose(played.state.states["train"]["affinity"], W)


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
    taken = Attacker(clients=[1], kind="flip", start="sent").on_request(ME, 0, Request(1, tasks))
    assert [t.start.tolist() for t in taken.tasks if isinstance(t, Train)] == [[1.0] * 4, [0.0] * 4, [0.0] * 4]
    assert Attacker(clients=[1], kind="flip").on_request(ME, 0, Request(1, tasks)).tasks == tasks


def test_what_a_free_rider_says_whatever_is_true() -> None:
    request = Request(1, ())
    honest = Reply(1, (Answered("declare", {"cost": 0.0, "eagerness": 5.0}),))
    said = Liar(clients=[1], says={"cost": 1.0}).on_reply(ME, 0, request, honest).results[0]
    assert said.values == {"cost": 1.0, "eagerness": 5.0}
    assert "cost 1" in Liar(clients=[1], says={"cost": 1.0}).tells(3, 0).sentence
