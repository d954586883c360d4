"""What clients claim and send, and what users ask for, to make a rule break, lie or stand still."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from watching import Watch

import hanse
from hanse.core.port import Reply, Request, Scored
from hanse.federation.behaviour import Me, OfSome
from hanse.runs.refusals import enough_replies


@dataclass(frozen=True)
class ClaimsLoss(OfSome):
    """The clients say that the model that they start from has this loss on their data."""

    loss: str = "inf"  # options are never NaN, what a client says may be

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        if me.id not in self.clients:
            return reply
        told = [
            replace(one, loss=torch.full_like(one.loss, float(self.loss))) if isinstance(one, Scored) else one
            for one in reply.results
        ]
        return replace(reply, results=tuple(told))


def experiment(weigh: Any, rounds: int = 2, **more: Any) -> hanse.Experiment:
    data = {"partition": {"samples_per_client": 40}, "validation": 0.3, "root": 0.2}
    mechanism = {"name": "fedavg", "clients_per_round": 5, "weigh": weigh}
    return digits(mechanism, 5, rounds, data=data, engine={"train": "sequential"}, **more)


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0, 1e6])
@pytest.mark.parametrize("loss", ["inf", "nan", "3e38", "-1"])
def test_no_claimed_loss_ends_a_run_of_q_fedavg(q: float, loss: str) -> None:
    lies = {f"{__name__}:ClaimsLoss": {"clients": [0], "loss": loss}}
    run = hanse.run(experiment({"name": "q_fedavg", "q": q}, behaviour=lies))
    assert bool(run.table.rows.isfinite().all())
    assert [m["answered"] for m in run.metrics] == [5, 5]


def test_a_start_loss_that_is_no_number_counts_as_the_loss_that_was_trained_at() -> None:
    silent, watch = {f"{__name__}:ClaimsLoss": {"clients": [2], "loss": "inf"}}, Watch()
    hanse.run(experiment({"name": "q_fedavg", "q": 2.0}, 1, behaviour=silent), observers=[watch])
    [played] = watch.rounds
    view = played.view
    F = np.array([float(view.answers[c, "start loss 0"].loss[0]) for c in range(5)])  # type: ignore[union-attr]
    F[2] = view.trained.loss[2]
    L, way = 1 / view.context.recipe.lr_at(0), (view.table.rows[0] - view.trained.rows).double()
    h = 2 * F * (L * L * way.square().sum(1).numpy()) + L * F**2
    np.testing.assert_allclose(view.mixed.W[0, :5], L * F**2 / h.sum(), rtol=1e-6)


@pytest.mark.parametrize(
    ("weigh", "said"),
    [
        ({"name": "fedadam", "of": {"name": "krum", "f": 2}}, "'krum' with f = 2 needs 7"),
        (
            {"name": "fedavgm", "of": {"name": "clipped", "of": {"name": "multi_krum", "f": 3}}},
            "'multi_krum' with f = 3",
        ),
        ({"name": "multi_krum", "keep": 100}, "'multi_krum' keeps 100"),
        ({"name": "multi_krum", "f": 1, "keep": 5}, "'multi_krum' with f = 1 keeps 5"),
    ],
)
def test_a_rule_that_cannot_withstand_what_is_asked_is_refused_wherever_it_stands(weigh: Any, said: str) -> None:
    with pytest.raises(hanse.UserError, match=f"^mechanism.weigh: {said}"):
        hanse.run(experiment(weigh))
    assert len(hanse.run(experiment({"name": "multi_krum", "f": 0, "keep": 5}, 1)).metrics) == 1


@pytest.mark.parametrize(("share", "seats", "want"), [(0.55, 20, 11), (0.07, 100, 7), (0.5, 5, 3), (1e-12, 5, 1)])
def test_a_share_of_the_seats_is_not_rounded_up_by_what_floats_lose(share: float, seats: int, want: int) -> None:
    assert enough_replies(experiment("samples", federation={"enough": share}), seats) == want


def test_nothing_is_clipped_where_nobody_moved() -> None:
    watch, still = Watch(), {"free_rider": {"fraction": 1.0}}
    run = hanse.run(experiment("clipped", 1, behaviour=still), observers=[watch])
    assert run.metrics[0]["weigh/clipped"] == 0.0
    assert torch.equal(watch.rounds[0].state.table.rows, watch.rounds[0].view.table.rows)
