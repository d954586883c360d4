"""What holds for every value and payment, in random small federations: mechanism x value x payment, sizes, scales,
weights of 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from experiments import digits
from flwr.app import Array, ArrayRecord
from watching import rounds_of

import hanse
from hanse.core.book import Book
from hanse.core.entry import TOKEN, client
from hanse.core.part import Aggregate, AggregatePart, Group, State, View
from hanse.core.port import Reply, Request, Trained
from hanse.core.table import Mix, Seats, Table, Updates
from hanse.federation.behaviour import Me, OfSome, with_updates
from hanse.flower.arrays import ArrayLayout
from hanse.flower.valued.mechanism import OfReplies, ReplyJudge, WatchedRound
from hanse.flower.valued.worth import ByFunction
from hanse.mechanisms.baselines import fedavg, fedprox
from hanse.mechanisms.by_value import ByValue
from hanse.mechanisms.value import GTG, Banzhaf, Exact, FirstOrder, LeaveOneOut, MixtureValue, MonteCarlo, Path
from hanse.runs.round import finish
from hanse.runs.setup import build


@dataclass(frozen=True)
class Scaled(OfSome):
    """Clients whose updates have another length."""

    scale: float = 1.0

    def on_reply(self, me: Me, round: int, request: Request, reply: Reply) -> Reply:
        if me.id not in self.clients:
            return reply
        return with_updates(request, reply, lambda t, r: replace(r, row=t.start + self.scale * (r.row - t.start)))


@dataclass(frozen=True)
class Given(AggregatePart):
    """The average with these weights of the clients, all of whom have one."""

    weights: Sequence[float]

    def __post_init__(self) -> None:
        """Take a list, too, as files give it."""
        object.__setattr__(self, "weights", tuple(self.weights))

    def aggregate(self, group: Group, state: State) -> Aggregate:
        weights = np.array(self.weights)[group.view.trained.seats.client[group.at]]
        return Aggregate(weights / weights.sum() if weights.any() else weights, old=float(not weights.any()))


VALUES = [Exact(), Exact(utility="accuracy"), Exact(game="increment"), GTG(), GTG(stop="mean"), MixtureValue(),
          MixtureValue(game="increment"), MonteCarlo(30), LeaveOneOut(), LeaveOneOut(game="increment"), Banzhaf(),
          Path(), FirstOrder()]  # fmt: skip
SHARED_OUT = (Exact, MonteCarlo, Path)  # whose values sum to the gain


def played(draw: np.random.Generator) -> tuple[Any, list[View], Book]:
    """Return the mechanism of a random federation, its rounds, and the books at the end."""
    n, rounds = int(draw.integers(2, 7)), int(draw.integers(1, 5))
    weights = np.where(draw.random(n) < 0.25, 0.0, draw.integers(1, 100, n) * 10.0 ** draw.integers(-2, 3))
    weigh = Given(tuple(weights.tolist())) if draw.random() < 0.7 else fedavg().weigh
    pay = ByValue(float(10 ** draw.uniform(-1, 2)), float(10 ** draw.uniform(-1, 1)))
    base = replace(fedavg() if draw.random() < 0.7 else fedprox(), select=replace(fedavg().select, clients_per_round=n))
    mechanism = replace(base, weigh=weigh, value=VALUES[draw.integers(len(VALUES))], settle=pay)
    scale = float(draw.choice([0.1, 3.0, 10.0, 50.0]))
    behaviour = {f"{__name__}:Scaled": {"clients": [int(draw.integers(n))], "scale": scale}}
    data = {"partition": str(draw.choice(["iid", "dirichlet"])), "seed": int(draw.integers(100))}
    behaviour = behaviour if draw.random() < 0.7 else {}
    train = {"steps": 3, "lr": float(draw.choice([0.05, 0.3]))}
    engine = {"train": "sequential", "device": "cpu"}
    sections = {"data": data, "behaviour": behaviour, "train": train, "engine": engine}
    setup = build(digits(mechanism, n, rounds, **sections, run={"seed": int(draw.integers(100))}))
    played = list(rounds_of(setup, rounds))
    return mechanism, [one.view for one in played], finish(setup, played[-1].state).state.book


def holds(seed: int) -> None:
    """Draw a federation and check what must hold."""
    mechanism, views, book = played(np.random.default_rng(seed))
    said = f"seed {seed}: {mechanism.weigh} {mechanism.value} {mechanism.settle}"
    n = views[0].context.num_clients
    total, most = np.zeros(n), 0.0
    for view in views:
        values, weights = view.values, view.weights
        if values is None:
            continue
        assert np.isfinite(values.per_seat).all(), said
        assert not values.per_seat[weights == 0].any(), said
        for known in (values.standard_errors, values.without_block):
            assert known is None or not np.nan_to_num(known[weights == 0]).any(), said
        if isinstance(mechanism.value, SHARED_OUT) and getattr(mechanism.value, "utility", "") == "loss":
            rows = torch.stack([view.table.rows[0], view.mixed.rows(view.trained.rows, view.table.rows)[0]])
            before, after = view.judge.score(rows).loss
            left = values.metrics.get("value/residual", 0.0)
            assert values.per_seat.sum() + left == pytest.approx(before - after, rel=1e-4, abs=1e-4), said
        worth = np.zeros(n)
        np.add.at(worth, view.trained.seats.client, values.per_seat)
        total, most = total + worth, max(most, float(np.abs(worth).max()))
        outside(view, mechanism.value, said)
    paid = np.array([book.balance(client(c)) for c in range(n)]) - 100 * TOKEN
    assert paid.sum() == 0, said
    assert np.abs(paid).max() <= len(views) * mechanism.settle.units, said
    for i in range(n):
        for j in range(n):
            if total[i] > total[j] + 1e-9 * most:
                assert paid[i] >= paid[j] - len(views), (said, total, paid)  # a unit a round is rounding


def outside(view: View, value: Any, said: str) -> None:
    """The same updates have the same values by ``hanse.value``, and by ``hanse.valued`` in the game of averages."""
    weights, rows, old = view.weights, view.trained.rows, view.table.rows[0]
    if not isinstance(value, Exact) or value.utility != "loss" or not weights.any():
        return

    def worth(row: Any) -> float:
        return -float(view.judge.score(torch.as_tensor(np.asarray(row), dtype=torch.float32)[None]).loss[0])

    # a lone update of weight 0 has nothing to be averaged with either
    found = hanse.value(rows, worth, weights, "exact", start=old, game=value.game)
    np.testing.assert_allclose(found.values, view.values.per_seat, rtol=1e-3, atol=1e-4, err_msg=said)
    if value.game == "average":
        records = {i: ArrayRecord({"w": Array(row.numpy())}) for i, row in enumerate(rows)}
        before = ArrayRecord({"w": Array(old.numpy())})
        judge = ByFunction(lambda arrays: worth(arrays["w"].numpy()))
        told = WatchedRound(
            ArrayLayout.of(before), judge, before, records=records, made=before, average=True,
            replies={i: Trained(0, row, weights[i], 0.5, 1) for i, row in enumerate(rows)},
        )  # fmt: skip
        S = len(rows)
        ones = np.ones(S)
        updates = Updates(Seats.at(np.arange(S), np.zeros(S, np.int64)), rows, ones, ones, ones.astype(np.int64))
        table = Table.of(old[None])
        kept = Mix.keeping(table, S, np.zeros(S, np.int64))
        mix = replace(kept, W=np.append(weights / weights.sum(), 0.0)[None])
        watched = replace(view, table=table, updates=updates, mix=mix, found={}, judge=ReplyJudge.of(view.judge, told))
        values, _ = OfReplies(Exact(), judge).value(watched, {})
        np.testing.assert_allclose(values.per_seat, view.values.per_seat, rtol=1e-3, atol=1e-4, err_msg=said)


MANY = [pytest.param(range(first, first + 50), marks=pytest.mark.nightly) for first in range(24, 1024, 50)]


@pytest.mark.parametrize("seeds", [*(range(first, first + 6) for first in range(0, 24, 6)), *MANY], ids=str)
def test_random_federations(seeds: range) -> None:
    for seed in seeds:
        holds(seed)
