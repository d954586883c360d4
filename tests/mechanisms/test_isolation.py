"""Isolation at the market: trade brings nobody closer, and who sends what has nothing in common sells nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

import hanse
from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.core.port import Reply
from hanse.core.recipe import Recipe
from hanse.core.table import Seats, Updates
from hanse.federation.behaviour import Behaviour, Me, with_updates
from hanse.mechanisms.ipfl import APART, IPFL, ipfl_posted, pull_share
from hanse.mechanisms.market_record import MarketRound
from hanse.runs.replay import recorded_markets

ATTACKER = 8


@dataclass(frozen=True)
class Blended(Behaviour):
    """Client 8 sends a part of its update, and the rest of its length in a direction that it keeps."""

    share: float = 0.4

    def on_reply(self, me: Me, round: int, request: Any, reply: Reply) -> Reply:
        if me.id != ATTACKER:
            return reply

        def sent(task: Any, result: Any) -> Any:
            update = result.row - task.start
            order = torch.from_numpy(stream(me.seed, "blend", client=me.id).permutation(len(update)))
            return replace(result, row=task.start + self.share * update + (1 - self.share**2) ** 0.5 * update[order])

        return with_updates(request, reply, sent)


def markets(tmp_path: Path, behaviour: Any, **options: Any) -> list[MarketRound]:
    """Eight honest clients that ask 1 token, and one that asks nothing and buys nothing."""
    profiles = {"name": "listed", "eagerness": [5e4] * 8 + [0.0], "cost": [1.0] * 8 + [0.0]}
    experiment = hanse.Experiment(
        data={"clients": 9, "partition": {"alpha": 1.0}},
        model="logistic",
        mechanism={"name": "ipfl", **options},
        train={"steps": 20, "batch_size": 16, "lr": 0.1},
        behaviour=behaviour,
        clients={"profiles": profiles},
        engine={"threads": 1},
        run={"rounds": 7},
        eval={"every": 7},
    )
    hanse.run(experiment, out=tmp_path / "run", overwrite=True)
    return list(recorded_markets(tmp_path / "run"))


def importers(rounds: list[MarketRound]) -> list[int]:
    return [int(r.graph[:, ATTACKER].sum()) for r in rounds]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shuffle", "gaussian", "same"])
def test_a_free_attacker_has_importers_until_models_must_be_related(kind: str, tmp_path: Path) -> None:
    """Review of the papers, A3: an attacker that asks nothing."""
    behaviour = {"attacker": {"clients": [ATTACKER], "kind": kind, "of": "model"}}
    assert importers(markets(tmp_path, behaviour))[0] >= 3
    for of in ("travel", "own"):
        rounds = markets(tmp_path, behaviour, related=3.0, of=of)
        assert importers(rounds) == [0] * len(rounds)
        assert all((r.market.distance[:8, ATTACKER] == APART).all() for r in rounds)


def test_trade_wears_the_distance_down_unless_own_gradients_are_compared(tmp_path: Path) -> None:
    """What is bought pulls the buyer to it, and the pull is not a thing that buyer and seller have in common."""
    behaviour = {f"{__name__}:Blended": {"share": 0.4}}
    worn = markets(tmp_path, behaviour, related=3.0)
    kept = markets(tmp_path, behaviour, related=3.0, of="own")
    assert importers(worn)[0] == importers(kept)[0]
    assert importers(worn)[-1] == 8
    assert max(importers(kept)) <= 5
    first, last, at_last = (
        np.minimum(r.market.distance[:8, ATTACKER], 1).mean() for r in (kept[0], kept[-1], worn[-1])
    )
    assert last > first - 0.1
    assert at_last < first - 0.4


@pytest.mark.parametrize("cheat", [{"sends": "echo"}, {"sends": "nothing"}, {"adds": {"copied": 2.0}}, {"scale": 3.0}])
def test_after_the_first_look_nothing_that_is_sent_changes_who_is_alike(cheat: Any, tmp_path: Path) -> None:
    """Client 0 has bought in round 0; what it copies or feigns from round 1 on leaves all its distances as they are."""
    behaviour = {"deviant": {"clients": [0], "since": 1, **cheat}}
    lied = markets(tmp_path, behaviour, related=3.0, of="first")
    honest = markets(tmp_path, {}, related=3.0, of="first")
    assert lied[0].graph[0].sum() > 0
    for deviant, own in zip(lied, honest, strict=True):
        np.testing.assert_array_equal(deviant.market.distance[0, :8], own.market.distance[0, :8])
    # who has not bought yet is looked at again: the one that never buys
    assert (lied[0].market.distance[1:8, ATTACKER] != lied[-1].market.distance[1:8, ATTACKER]).any()


def went(factor: float, mu: float, own: tuple[float, float], says: int = 10, centre: bool = False) -> list[float]:
    """Return how far a client counts as gone that sends ``factor`` times its update of 10 steps: its model is (1, 0),
    its centre (3, 0), from which it may have started. It says that it took so many steps.
    """
    recipe = Recipe(lr=0.1, steps=10)
    pull = 0.0 if centre else pull_share(recipe, 0, mu, 10) * 2
    update = torch.tensor([pull + own[0], own[1]])
    rows = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    start = rows[int(centre)]
    seats = Seats(np.array([0]), np.array([int(centre)]), np.array([0]), mu=np.array([mu]))
    view: Any = SimpleNamespace(
        round=0,
        context=SimpleNamespace(recipe=recipe, layout=SimpleNamespace(num_parameters=2)),
        trained=Updates(seats, (start + factor * update)[None], np.array([9.0]), np.array([0.0]), np.array([says])),
        table=SimpleNamespace(rows=rows),
        at=lambda block, clients: np.array([1]),
    )  # fmt: skip
    found = IPFL(of="own")._went(view, {"own": torch.zeros(1, 2)})
    return found[0].tolist()  # type: ignore[no-any-return]


def test_a_multiple_of_the_update_goes_no_further_towards_what_was_bought() -> None:
    """Three times the update has three times the pull in it. Taken off once, the rest would bring the buyer closer."""
    assert went(1.0, mu=0.4, own=(0.0, 0.5)) == pytest.approx([0, 0.5], abs=1e-6)
    assert went(3.0, mu=0.4, own=(0.0, 0.5)) == pytest.approx([0, 1.5], abs=1e-6)
    assert went(1.0, mu=0.4, own=(-0.2, 0.5)) == pytest.approx([-0.2, 0.5], abs=1e-6)  # away from it: all counts
    assert went(1.0, mu=0.0, own=(0.2, 0.5)) == pytest.approx([0.2, 0.5], abs=1e-6)  # nobody pulled it
    # from the centre on, what goes back counts, and what goes further on the way from its model does not
    assert went(2.0, mu=0.4, own=(-0.2, 0.5), centre=True) == pytest.approx([-0.4, 1.0], abs=1e-6)
    assert went(2.0, mu=0.4, own=(0.2, 0.5), centre=True) == pytest.approx([0, 1.0], abs=1e-6)
    for says in (0, 3):  # as if it had gone towards the centre by itself, or not away from it
        assert went(1.0, mu=0.4, own=(0.0, 0.5), says=says) == pytest.approx([0, 0.5], abs=1e-6)
        assert went(1.0, mu=0.4, own=(-0.2, 0.5), says=says) == pytest.approx([-0.2, 0.5], abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(some.integers(1, 30), some.floats(0, 5), some.sampled_from([0.0, 0.5, 0.9]), some.sampled_from([0.0, 0.01]))
def test_the_share_of_the_pull_is_what_sgd_makes_of_it(steps: int, mu: float, momentum: float, decay: float) -> None:
    """Steps with gradients g_t and a pull end at the sum of what gradients bring alone, and of the pull's share."""
    recipe = Recipe(lr=0.05, momentum=momentum, weight_decay=decay)
    draw = np.random.default_rng(steps)
    gradients, start, centre = draw.standard_normal((steps, 3)), np.zeros(3), draw.standard_normal(3)

    def end(pull: np.ndarray, push: np.ndarray) -> np.ndarray:
        place, speed = start.copy(), np.zeros(3)
        for gradient in push:
            speed = momentum * speed + gradient + mu * (place - pull) + decay * place
            place = place - 0.05 * speed
        return place

    both, alone = end(centre, gradients), end(start, gradients)
    share = pull_share(recipe, 0, mu, steps)
    np.testing.assert_allclose(both, alone + share * (centre - start), rtol=1e-9, atol=1e-9)


def test_settings_that_go_with_nothing_are_refused() -> None:
    with pytest.raises(UserError, match=r"related: 3.*'cosine'"):
        ipfl_posted(distance="squared_l2")
    adam = {"mechanism": {"name": "ipfl_posted", "of": "own"}, "train": {"optimizer": "adamw"}}
    with pytest.raises(UserError, match=r"mechanism.weigh.of: 'own'.*train.optimizer"):
        hanse.run(hanse.Experiment(data={"clients": 4}, model="logistic", run={"rounds": 1}, **adam))
