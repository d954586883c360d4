"""Private rows on a network: an update waits at its owner until the server says that it was accepted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments import digits

from hanse.core.port import Call, Request, Test, Train
from hanse.core.recipe import NEVER
from hanse.data import build as build_data
from hanse.federation.codec import pack, unpack
from hanse.federation.node import Assignment, ClientData, Node, PrivateRow

N, MINE, ROW = 3, 1, 1
FIRST, A, B = (torch.full((2,), x) for x in (0.0, 1.0, 2.0))
WAITS = PrivateRow.first(FIRST).trained(A, 3)


def parts(own: PrivateRow) -> tuple[Any, ...]:
    return own.row.tolist(), own.round, None if own.pending is None else own.pending.tolist()


@pytest.mark.parametrize(
    ("round", "accepted", "after"),
    [
        (3, NEVER, ([0.0, 0.0], NEVER, [1.0, 1.0])),  # its own round goes on
        (3, None, ([0.0, 0.0], NEVER, [1.0, 1.0])),
        (4, 3, ([1.0, 1.0], 3, None)),  # accepted
        (9, 3, ([1.0, 1.0], 3, None)),  # however late it is told
        (4, NEVER, ([0.0, 0.0], NEVER, None)),  # refused, failed, or too late
        (4, 2, ([0.0, 0.0], NEVER, None)),
        (4, None, ([0.0, 0.0], NEVER, None)),  # nothing is said
        (2, NEVER, ([0.0, 0.0], NEVER, None)),  # the server was set back
    ],
)
def test_a_pending_update_counts_when_it_was_accepted(round: int, accepted: int | None, after: tuple[Any, ...]) -> None:
    assert parts(WAITS.told(round, accepted)) == after


@pytest.mark.parametrize(
    ("accepted", "after"),
    [
        (3, ([1.0, 1.0], 3, None)),
        (None, ([1.0, 1.0], 3, None)),
        (NEVER, ([0.0, 0.0], NEVER, None)),  # the round that moved it is undone, or is played again
        (1, ([0.0, 0.0], 1, None)),
    ],
)
def test_a_row_goes_back_with_the_server(accepted: int | None, after: tuple[Any, ...]) -> None:
    moved = WAITS.told(4, 3)
    assert parts(moved.told(4, accepted)) == after
    assert moved.told(4, 3) is moved


# ---- a node


EXPERIMENT = digits({"name": "ditto", "clients_per_round": N}, N, data={"client_test": 0.2}, train={"lr": 0.1})


@dataclass
class Owner:
    """A participant; each message meets a fresh process."""

    folder: Path

    def __post_init__(self) -> None:
        self.data = ClientData.of(build_data(EXPERIMENT.data), MINE)
        self.first = self.node.problem.layout.flatten(self.node.problem.module)

    @property
    def node(self) -> Node:
        job = Assignment("run", MINE, N, 0, {"name": "logistic"}, EXPERIMENT.train.model_dump())
        return Node(self.data, job, self.folder)

    def hears(self, round: int, task: Any, *accepted: tuple[int, int]) -> Any:
        """Return its answer to one task."""
        reply = unpack(self.node.answer(round, pack(Request(MINE, (task,), accepted))))
        assert reply.refused is None
        return reply.results[0]

    def trains(self, round: int, *accepted: tuple[int, int]) -> None:
        trained = self.hears(round, Train(0, ROW, self.first, private=True), *accepted)
        assert trained.row.shape == (0,)  # nothing of it is sent

    def tests(self, round: int, *accepted: tuple[int, int]) -> float:
        return float(self.hears(round, Test("test", self.first, ROW), *accepted).loss)

    def loss_of(self, row: torch.Tensor) -> float:
        [reply] = self.node.federation.exchange(Call(0, [Request(MINE, (Test("test", row),))]))
        return float(reply.results[0].loss)

    @property
    def kept(self) -> PrivateRow:
        return PrivateRow.read(self.folder / "run" / f"client-{MINE}" / f"row-{ROW}.npz")


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path)


def test_an_accepted_update_is_the_row_that_is_tested_and_trained_on(owner: Owner) -> None:
    before = owner.tests(0)
    owner.trains(0)
    assert torch.equal(owner.kept.row, owner.first)
    assert owner.tests(0) == before  # the round goes on
    update = owner.kept.pending
    assert not torch.equal(update, owner.first)
    assert owner.tests(1, (ROW, 0)) == owner.loss_of(update) != before
    assert torch.equal(owner.kept.row, update)
    owner.trains(1, (ROW, 0))
    assert torch.equal(owner.kept.row, update)
    assert not torch.equal(owner.kept.pending, update)  # type: ignore[arg-type]


@pytest.mark.parametrize("others", [(), ((ROW + 1, 1),)])
def test_a_refused_update_leaves_the_old_row(owner: Owner, others: Sequence[tuple[int, int]]) -> None:
    owner.trains(0)
    owner.trains(1, (ROW, 0))
    old = owner.kept.row
    owner.trains(2, (ROW, 0), *others)  # that of round 1 was not accepted
    assert torch.equal(owner.kept.row, old)
    assert (owner.kept.round, owner.kept.pending_round) == (0, 2)


def test_a_round_that_is_played_again_begins_where_it_began(owner: Owner) -> None:
    owner.trains(0)
    owner.trains(1, (ROW, 0))
    first = owner.kept
    owner.tests(2, (ROW, 1))  # the server dies before it has written that down
    assert owner.kept.round == 1
    owner.trains(1, (ROW, 0))
    assert torch.equal(owner.kept.row, first.row)
    assert torch.equal(owner.kept.pending, first.pending)  # type: ignore[arg-type]
