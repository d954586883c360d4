"""Isolation at the market: trade brings nobody closer, and who sends what has nothing in common sells nothing."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits

import hanse
from hanse.base.streams import stream
from hanse.core.port import Reply
from hanse.federation.behaviour import Behaviour, Me, with_updates
from hanse.mechanisms.ipfl import APART, ipfl_posted
from hanse.mechanisms.market_checks import MarketRound
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
    data, train = {"partition": {"alpha": 1.0}}, {"steps": 20, "batch_size": 16, "lr": 0.1}
    sections = {"data": data, "train": train, "clients": {"profiles": profiles}, "eval": {"every": 7}}
    made = digits({"name": "ipfl", **options}, 9, 7, **sections, behaviour=behaviour)
    hanse.run(made, out=tmp_path / "run", overwrite=True)
    return list(recorded_markets(tmp_path / "run"))


def importers(rounds: list[MarketRound]) -> list[int]:
    return [int(r.graph[:, ATTACKER].sum()) for r in rounds]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shuffle", "gaussian", "same"])
def test_a_free_attacker_has_importers_until_models_must_be_related(kind: str, tmp_path: Path) -> None:
    """Review of the papers, A3: an attacker that asks nothing."""
    behaviour = {"attacker": {"clients": [ATTACKER], "kind": kind, "of": "model"}}
    assert importers(markets(tmp_path, behaviour))[0] >= 3
    for of in ("travel", "first"):
        rounds = markets(tmp_path, behaviour, related=3.0, of=of)
        assert importers(rounds) == [0] * len(rounds)
        assert all((r.market.distance[:8, ATTACKER] == APART).all() for r in rounds)


def test_trade_wears_the_distance_down_unless_only_the_first_look_counts(tmp_path: Path) -> None:
    """What is bought pulls the buyer to it, and the pull is not a thing that buyer and seller have in common."""
    behaviour = {f"{__name__}:Blended": {"share": 0.4}}
    worn = markets(tmp_path, behaviour, related=3.0)
    kept = markets(tmp_path, behaviour, related=3.0, of="first")
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
    lied = markets(tmp_path, {"deviant": {"clients": [0], "since": 1, **cheat}}, related=3.0, of="first")
    honest = markets(tmp_path, {}, related=3.0, of="first")
    assert lied[0].graph[0].sum() > 0
    for deviant, own in zip(lied, honest, strict=True):
        np.testing.assert_array_equal(deviant.market.distance[0, :8], own.market.distance[0, :8])
    # who has not bought yet is looked at again: the one that never buys
    assert (lied[0].market.distance[1:8, ATTACKER] != lied[-1].market.distance[1:8, ATTACKER]).any()


def test_settings_that_go_with_nothing_are_refused() -> None:
    with pytest.raises(hanse.UserError, match=r"related: 3.*'cosine'"):
        ipfl_posted(distance="squared_l2")
