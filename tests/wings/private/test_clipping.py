"""The clip that follows a quantile of the updates' lengths."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from watching import Watch

import hanse
from hanse.core.port import Ask, Call, Request, Train
from hanse.core.recipe import Recipe
from hanse.federation.codec import pack, unpack
from hanse.wings.private.account import Release
from hanse.wings.private.clipping import AdaptiveClip
from hanse.wings.private.privacy import InState, Privacy, Private
from tests.wings.private.test_privacy import START, Answers, update

pytest.importorskip("dp_accounting")

RULE = Privacy(clip=1.0, epsilon=1000.0, delta=1e-5, noise=2.0, quantile=0.5, bits=0.05)


def learned(said: list[dict[str, float]], clip: float = 1.0) -> float:
    outcome: Any = SimpleNamespace(trained=SimpleNamespace(metrics=said))
    return float(AdaptiveClip(RULE).learn(outcome, {"clip": clip})["clip"])


def test_the_clip_moves_by_the_papers_rule() -> None:
    # C <- C exp(-0.2 (b - 0.5)): eq. 2 of Andrew et al.
    assert learned([{"within": 1.0}, {"within": 1.0}, {"within": 0.0}]) == pytest.approx(math.exp(-0.2 * (2 / 3 - 0.5)))
    assert learned([{"within": 0.5}, {"loss": 3.0}], 4.0) == pytest.approx(4.0)
    assert learned([]) == 1.0


@pytest.mark.parametrize("lie", [1e300, -1e300])
def test_one_that_lies_moves_it_by_a_bounded_step(lie: float) -> None:
    assert math.exp(-0.3) - 1e-9 <= learned([{"within": lie}, {"within": 1.0}]) <= math.exp(0.3) + 1e-9


def said(step: torch.Tensor, rule: Privacy, clip: float | None) -> tuple[dict[str, float], InState]:
    accounts = InState(rule)
    at = Private(Answers((update(step),)), rule, accounts, Recipe(batch_size=10), np.array([40, 50]), 7)
    [reply] = at.exchange(Call(0, [Request(1, (Train(0, 0, START, clip=clip),))]))
    return dict(reply.results[0].metrics), accounts  # type: ignore[union-attr]


def test_clients_say_with_noise_whether_they_were_within_and_are_charged_for_it() -> None:
    short, accounts = said(torch.full((len(START),), 1e-4), RULE, 0.5)
    assert short["within"] == pytest.approx(1.0, abs=0.3)
    assert short["noise"] == 1.0
    assert dict(accounts.of(1).releases) == {Release(2.0): 1, Release(0.05): 1}
    long, _ = said(torch.ones(len(START)), RULE, 0.5)
    assert long["within"] == pytest.approx(0.0, abs=0.3)
    loud, _ = said(torch.ones(len(START)), replace(RULE, bits=4.0), 0.5)
    assert 0.3 < abs(loud["within"]) < 20


def test_a_clip_that_a_server_sends_to_an_account_of_its_own_clip_changes_nothing() -> None:
    fixed = replace(RULE, quantile=None, bits=4.0)
    assert said(torch.ones(len(START)), fixed, 1e9)[0]["noise"] == 2.0
    assert "within" not in said(torch.ones(len(START)), fixed, 1e9)[0]


def test_the_clip_travels_with_the_task_alone() -> None:
    request = Request(1, (Train(0, 0, START, clip=0.25), Ask("stay", {})))
    assert unpack(pack(request)).tasks[0].clip == 0.25  # type: ignore[union-attr]
    assert AdaptiveClip(RULE).sent([request], {"clip": 3.0})[0].tasks[0].clip == 3.0  # type: ignore[union-attr]


def test_a_run_with_it_goes_on_after_a_stop_as_if_there_was_none(tmp_path: Any) -> None:
    private = {"clip": 0.1, "noise": 0.5, "epsilon": 100.0, "delta": 1e-5, "quantile": 0.6}
    experiment = digits(federation={"private": private})
    whole = hanse.run(experiment)
    with pytest.raises(KeyboardInterrupt):
        hanse.run(experiment, out=tmp_path / "cut", observers=[Watch(until=0)])
    assert torch.equal(whole.table.rows, hanse.resume(tmp_path / "cut").table.rows)
    assert len({line["fit/noise"] for line in whole.clients}) == 3  # it moved from round to round


def test_it_is_for_whole_clients() -> None:
    with pytest.raises(hanse.UserError, match=r"quantile: 0.5.*'sample'"):
        Privacy(clip=1.0, epsilon=8.0, delta=1e-5, quantile=0.5, unit="sample")
