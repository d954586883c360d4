"""What travels beside a training task, by a payload that no mechanism of ours has: a term that is linear in the model.

Its oracle is the task's own tilt, which adds the same term to the gradient.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hanse
from hanse.core.part import Context, State, TrainPart, View
from hanse.core.port import Between, Declaration, Like, Payload, Reply, Request, Term, Train
from hanse.core.table import Block, Ints, Layout, Seats, Table
from hanse.federation.check import refusal, room
from hanse.federation.codec import pack, unpack, unpack_reply
from hanse.federation.node import Assignment, ClientData, Node
from hanse.learning.client_payloads import register
from hanse.mechanisms.train import SharedModel
from hanse.runs.round import Played, first_state, play_round
from hanse.runs.setup import Session, build

NAME = "leaning"


@dataclass(frozen=True)
class Leaning:
    """The client's half: adds ``strength <direction, theta>``, and reports how many samples were met, by parity."""

    numbers: ClassVar[Mapping[str, Between]] = {"strength": Between(0, 10), "size": Between(1, whole=True)}

    def declares(self, numbers: Mapping[str, int | float]) -> Declaration:
        return Declaration({"direction": Like((int(numbers["size"]),))}, {"met": Like((2,), torch.int64, 0)})

    def unfit(self, payload: Payload, layout: Layout) -> str | None:
        size = payload.numbers["size"]
        return None if size == layout.size else f"a direction of {size} numbers for a model of {layout.size}"

    def term(self, payload: Payload, key: tuple[int, int, int, int], module: nn.Module, layout: Layout) -> Term | None:
        parts = layout.unflatten(payload.tensors["direction"])

        def loss(outputs: Tensor, y: Tensor) -> Tensor:
            return payload.numbers["strength"] * sum((parts[n] * p).sum() for n, p in module.named_parameters())

        return loss

    def reports(self, payload: Payload, y: Tensor, plan: np.ndarray) -> Mapping[str, Tensor]:
        return {"met": torch.bincount(y[plan[plan >= 0]] % 2, minlength=2)}


register(NAME, Leaning())


@dataclass(frozen=True)
class Leans(TrainPart):
    """As FedAvg, with the payload; ``mistake`` says what is wrong with it."""

    mistake: str = ""

    def blocks(self, context: Context) -> Sequence[Block]:
        return SharedModel().blocks(context)

    def home(self, table: Table, context: Context) -> Ints:
        return SharedModel().home(table, context)

    def seats(self, view: View, state: State) -> tuple[Seats, State]:
        return SharedModel().seats(view, state)

    def sends(self, view: View, state: State) -> Payload:
        sound = leaning(view.context.layout.size)
        return WRONG[self.mistake][0](sound) if self.mistake else sound


def leaning(size: int) -> Payload:
    return Payload(NAME, {"direction": torch.linspace(-1, 1, size)}, {"strength": 0.25, "size": size})


def with_tensors(**tensors: Any) -> Any:
    return lambda payload: replace(payload, tensors=tensors)


def with_numbers(**numbers: Any) -> Any:
    return lambda payload: replace(payload, numbers={**payload.numbers, **numbers})


WRONG: dict[str, tuple[Any, str]] = {  # and what the refusal names
    "shape": (with_tensors(direction=torch.zeros(649)), "'direction'"),
    "dimensions": (with_tensors(direction=torch.zeros(650, 1)), "'direction'"),
    "type": (with_tensors(direction=torch.zeros(650, dtype=torch.float64)), "'direction'"),
    "missing tensor": (with_tensors(), "'direction'"),
    "another tensor": (with_tensors(direction=torch.zeros(650), more=torch.zeros(1)), "'more'"),
    "NaN": (with_tensors(direction=torch.full((650,), torch.nan)), "'direction'"),
    "NaN number": (with_numbers(strength=float("nan")), "'strength'"),
    "bound": (with_numbers(strength=11), "'strength'"),
    "part of a number": (with_numbers(size=650.0), "'size'"),
    "another number": (with_numbers(other=1), "'other'"),
    "missing number": (lambda payload: replace(payload, numbers={"size": 650}), "'strength'"),
    "another model's": (lambda _: leaning(651), "651"),
}


def experiment(**sections: Any) -> hanse.Experiment:
    given: dict[str, Any] = {
        "data": {"clients": 5},
        "model": {"name": "logistic"},
        "mechanism": {"name": "fedavg", "clients_per_round": 3, "train": f"{__name__}:Leans"},
        "train": {"steps": 6, "batch_size": 16, "lr": 0.05},
        "engine": {"train": "sequential", "threads": 1, "workers": 1},
        "run": {"rounds": 2},
    }
    return hanse.Experiment(**(given | sections))


@pytest.fixture(scope="module")
def here() -> Session:
    return build(experiment())


def task_of(here: Session, payload: Payload | None = None, **more: Any) -> Train:
    start = here.context.initial(0)
    assert start.shape == (650,)
    return Train(0, 0, start, payload=leaning(650) if payload is None else payload, **more)


def ask(here: Session, task: Train, client: int = 1) -> Reply:
    [reply] = here.federation.exchange(0, [Request(client, (task,))], None, None)
    return reply


def node_of(here: Session, folder: Path, client: int = 1) -> Node:
    made = experiment()
    train = made.train.recipe
    job = Assignment("run", client, 5, made.run.seed, {"name": "logistic"}, vars(train))
    return Node(ClientData.of(here.data, client), job, folder)


# ---- it trains


def test_it_adds_its_term_to_the_loss_of_every_batch_and_reports_what_it_declares(here: Session) -> None:
    reply = ask(here, task_of(here))
    tilted = replace(task_of(here), payload=None, tilt=0.25 * torch.linspace(-1, 1, 650))
    [got], [want] = reply.results, ask(here, tilted).results
    torch.testing.assert_close(got.row, want.row)
    assert (got.row - ask(here, replace(tilted, tilt=None)).results[0].row).abs().max() > 0.05
    assert got.extras["met"].sum() == 6 * 16
    assert want.extras == {}
    assert refusal(Request(1, (task_of(here),)), reply, 650) is None


def test_through_messages_a_node_makes_the_same_bits(here: Session, tmp_path: Path) -> None:
    request = Request(1, (task_of(here),))
    [want] = ask(here, task_of(here)).results
    message = node_of(here, tmp_path).answer(0, pack(request))
    [got] = unpack_reply(message, room(request)).results
    assert torch.equal(got.row, want.row)
    assert torch.equal(got.extras["met"], want.extras["met"])
    assert room(request).tensors == 650 * 4 + 2 * 8


def play(world: Session, rounds: int) -> list[Played]:
    state, played = first_state(world), []
    for _ in range(rounds):
        played.append(play_round(world, state))
        state = played[-1].state
    return played


def test_a_mechanism_that_sends_it_finds_the_extras_beside_the_updates() -> None:
    first, second = play(build(experiment()), 2)
    plain = play(build(experiment(mechanism={"name": "fedavg", "clients_per_round": 3})), 1)[0]
    assert first.view.trained.extras["met"].shape == (3, 2)
    assert second.view.trained.extras["met"].sum(1).tolist() == [96, 96, 96]
    assert first.bytes_down - plain.bytes_down == 3 * 650 * 4
    assert first.bytes_up - plain.bytes_up == 3 * 2 * 8
    assert not torch.equal(first.state.table.rows, plain.state.table.rows)


# ---- it is held against what its client's half declares


@pytest.mark.parametrize("mistake", WRONG)
def test_a_client_refuses_a_wrong_one_with_the_reason(mistake: str, here: Session, tmp_path: Path) -> None:
    make, named = WRONG[mistake]
    task = task_of(here, make(leaning(650)))
    reason = ask(here, task).refused
    assert named in reason
    reply = unpack(node_of(here, tmp_path).answer(0, pack(Request(1, (task,)))))
    assert (reply.refused, reply.results) == (reason, ())
