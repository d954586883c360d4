"""What clients claim and send, and what users ask for, to make a rule break, lie or stand still."""

from dataclasses import dataclass, replace
from itertools import combinations
from math import factorial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hanse
from hanse.base.errors import UserError
from hanse.core.part import Aggregated
from hanse.core.port import Reply, Request, Scored
from hanse.core.table import mix
from hanse.federation.behaviour import Me, OfSome, with_updates
from hanse.reports.audit import audit_run
from hanse.runs.config import Experiment
from hanse.runs.refusals import enough_replies
from hanse.runs.round import Played


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


@dataclass(frozen=True)
class HardlyMoves(OfSome):
    """The clients send what they trained, shrunk to this share of the way."""

    share: float = 1e-5

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        if me.id not in self.clients:
            return reply
        return with_updates(
            request, reply, lambda task, one: replace(one, row=task.start + self.share * (one.row - task.start))
        )


class Watch:
    def __init__(self) -> None:
        self.rounds: list[Played] = []

    def on_round(self, metrics: Any, played: Played) -> None:
        self.rounds.append(played)


def experiment(weigh: Any, rounds: int = 2, **more: Any) -> Experiment:
    sections: dict[str, Any] = {
        "data": {"clients": 5, "partition": {"samples_per_client": 40}, "validation": 0.3, "root": 0.2},
        "model": {"name": "logistic"},
        "mechanism": {"name": "fedavg", "clients_per_round": 5, "weigh": weigh, **more.pop("parts", {})},
        "engine": {"train": "sequential", "threads": 1},
        "run": {"rounds": rounds},
    }
    return Experiment(**{**sections, **more})


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


def test_values_of_fltrust_are_exact_beside_an_update_that_hardly_moves() -> None:
    # its weight is thousands, and the old row's as far below 0: float32 sums lose what the others made
    watch = Watch()
    lazy = {f"{__name__}:HardlyMoves": {"clients": [0]}}
    hanse.run(experiment("fltrust", 1, parts={"value": "exact"}, behaviour=lazy), observers=[watch])
    view = watch.rounds[0].view
    told = view.get(Aggregated)
    assert view.mixed.W[0, 0] > 1000
    updates, old = view.trained.rows, view.table.rows

    def model(members: tuple[int, ...]) -> torch.Tensor:
        if not members:
            return old[0]
        said = told.again[0](np.array(members))
        assert said.weights is not None
        return mix(np.append(said.weights, said.old)[None], updates[list(members)], old)[0]

    every = [members for size in range(6) for members in combinations(range(5), size)]
    worth = dict(zip(every, -view.judge.score(torch.stack([model(m) for m in every])).loss, strict=True))
    values = [
        sum(
            factorial(len(m)) * factorial(4 - len(m)) / 120 * (worth[tuple(sorted((*m, i)))] - worth[m])
            for m in every
            if i not in m
        )
        for i in range(5)
    ]
    np.testing.assert_allclose(view.values.per_seat, values, atol=1e-6)


@pytest.mark.parametrize(
    ("weigh", "line"),
    [
        (
            {"name": "fedadam", "of": {"name": "krum", "f": 2}},
            "mechanism.weigh: 'krum' with f = 2 needs 7 updates a round, 2f + 3, and a round may have 5",
        ),
        (
            {"name": "fedavgm", "of": {"name": "clipped", "of": {"name": "multi_krum", "f": 3}}},
            "mechanism.weigh: 'multi_krum' with f = 3 needs 9 updates a round, 2f + 3, and a round may have 5",
        ),
        (
            {"name": "multi_krum", "keep": 100},
            "mechanism.weigh: 'multi_krum' keeps 100 updates, and of the 5 that a round may have 1 may be bad: "
            "keep must be at most 4",
        ),
        (
            {"name": "multi_krum", "f": 1, "keep": 5},
            "mechanism.weigh: 'multi_krum' with f = 1 keeps 5 updates, and of the 5 that a round may have 1 may "
            "be bad: keep must be at most 4",
        ),
    ],
)
def test_a_rule_that_cannot_withstand_what_is_asked_is_refused_wherever_it_stands(weigh: Any, line: str) -> None:
    with pytest.raises(UserError) as refused:
        hanse.run(experiment(weigh))
    assert list(refused.value.lines) == [line]


def test_keep_without_bad_updates_may_be_all() -> None:
    assert len(hanse.run(experiment({"name": "multi_krum", "f": 0, "keep": 5}, 1)).metrics) == 1


@pytest.mark.parametrize(("share", "seats", "want"), [(0.55, 20, 11), (0.07, 100, 7), (0.5, 5, 3), (1e-12, 5, 1)])
def test_a_share_of_the_seats_is_not_rounded_up_by_what_floats_lose(share: float, seats: int, want: int) -> None:
    assert enough_replies(experiment("samples", federation={"enough": share}), seats) == want


@pytest.mark.parametrize("enough", ["3", "0.5", True, 1.0, float("nan")])
def test_a_wrong_enough_is_one_line_that_names_the_key(enough: Any) -> None:
    with pytest.raises(UserError) as refused:
        experiment("samples", federation={"enough": enough})
    [line] = refused.value.lines
    assert line.startswith(f"federation.enough: {enough!r}: must be a whole number from 1 on, or a share between 0 and")


def test_an_audit_does_not_hold_where_hashes_or_checkpoints_are_gone(tmp_path: Path) -> None:
    run = hanse.run(experiment("median"), out=tmp_path / "run")
    assert run.path is not None
    [_, check] = audit_run(run.path).checks
    assert (check.holds, check.said) == (
        True,
        "2 were recorded by their hashes, and the last checkpoint has those of round 1",
    )
    last = run.path / "rounds" / "00001.npz"
    with np.load(last) as arrays:
        bare = {name: array for name, array in arrays.items() if not name.startswith("made_")}
    np.savez(last, **bare)
    [_, check] = audit_run(run.path).checks
    assert (check.holds, check.said) == (False, "row 0 of the table was recorded neither by weights nor by its hash")
    for file in (run.path / "checkpoints").iterdir():
        file.unlink()
    [_, check] = audit_run(run.path).checks
    assert (check.holds, check.said) == (
        False,
        "1 were recorded by their hashes, and there is no checkpoint to compare them with",
    )


def test_nothing_is_clipped_where_nobody_moved() -> None:
    watch, still = Watch(), {f"{__name__}:HardlyMoves": {"clients": [0, 1, 2, 3, 4], "share": 0.0}}
    run = hanse.run(experiment("clipped", 1, behaviour=still), observers=[watch])
    assert run.metrics[0]["weigh/clipped"] == 0.0
    assert torch.equal(watch.rounds[0].state.table.rows, watch.rounds[0].view.table.rows)
    with pytest.raises(UserError, match=r"mechanism\.weigh\.tau: 1e-30"):
        experiment({"name": "fedadam", "tau": 1e-30})
