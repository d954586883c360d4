"""FedGen's payload: what a client refuses, and that a node makes the same bits of it as a client in this process."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments import digits

import hanse
from hanse.core.port import Call, Payload, Reply, Request, Train
from hanse.federation.check import refusal, room
from hanse.federation.codec import WireError, pack, unpack, unpack_reply
from hanse.federation.node import Assignment, ClientData, Node
from hanse.learning.generator import Generator
from hanse.runs.round import first_state, play_round
from hanse.runs.setup import Session, build

SHAPE = Generator(classes=10, latent=64, noise=4, hidden=8)  # for the logistic model on digits
LABELS = torch.full((10,), 0.1, dtype=torch.float64)
SOUND = Payload(torch.linspace(-1, 1, SHAPE.size), LABELS, **vars(SHAPE), batch=8, alpha=1.0, beta=0.5)

WRONG: dict[str, tuple[Callable[[Payload], Payload], str]] = {  # and what the refusal names
    "shape": (lambda p: replace(p, row=p.row[1:]), "row"),
    "dimensions": (lambda p: replace(p, row=p.row[None]), "row"),
    "type": (lambda p: replace(p, row=p.row.double()), "row"),
    "NaN": (lambda p: replace(p, row=p.row * torch.nan), "row"),
    "missing": (lambda p: replace(p, row=None), "row"),
    "few labels": (lambda p: replace(p, labels=LABELS[:9] / 0.9), "labels"),
    "labels": (lambda p: replace(p, labels=LABELS * 0.5), "labels"),
    "label": (lambda p: replace(p, labels=LABELS - 1), "labels"),
    "NaN number": (lambda p: replace(p, alpha=float("nan")), "alpha"),
    "bound": (lambda p: replace(p, beta=-1.0), "beta"),
    "part of a number": (lambda p: replace(p, batch=8.0), "batch"),
    "another model's": (lambda p: replace(p, latent=63, row=p.row[: Generator(10, 63, 4, 8).size]), "63"),
}


TYPES = {"dimensions", "type", "missing", "label", "NaN number", "bound", "part of a number"}


def experiment(**mechanism: Any) -> hanse.Experiment:
    engine = {"train": "sequential", "workers": 1}
    train = {"steps": 6, "batch_size": 16, "lr": 0.05}
    return digits({"name": "fedavg", "clients_per_round": 3, **mechanism}, 5, 2, engine=engine, train=train)


@pytest.fixture(scope="module")
def here() -> Session:
    return build(experiment())


def ask(here: Session, payload: Payload | None) -> tuple[Request, Reply]:
    request = Request(1, (Train(0, 0, here.context.initial(0), payload=payload),))
    [reply] = here.federation.exchange(Call(0, [request]))
    return request, reply


def node_of(here: Session, folder: Path) -> Node:
    made = experiment()
    job = Assignment("run", 1, 5, made.run.seed, {"name": "logistic"}, vars(made.train.recipe))
    return Node(ClientData.of(here.data, 1), job, folder)


def test_through_messages_a_node_makes_the_same_bits(here: Session, tmp_path: Path) -> None:
    request, reply = ask(here, SOUND)
    [want], [plain] = reply.results, ask(here, None)[1].results
    [got] = unpack_reply(node_of(here, tmp_path).answer(0, pack(request)), room(request)).results
    assert torch.equal(got.row, want.row)
    assert torch.equal(got.extras["label_counts"], want.extras["label_counts"])
    assert want.extras["label_counts"].sum() == 6 * 16
    assert not torch.equal(want.row, plain.row)
    assert plain.extras == {}
    assert refusal(request, reply) is None
    assert room(request).tensors == 650 * 4 + 10 * 8


def test_its_bytes_are_counted_both_ways() -> None:
    taught, plain = (build(experiment(**more)) for more in ({"train": "fedgen"}, {}))
    first, other = (play_round(one, first_state(one)) for one in (taught, plain))
    sent = taught.mechanism.train.sends(first.view, first_state(taught).states["train"])
    assert sent is not None
    assert first.view.trained.extras["label_counts"].sum(1).tolist() == [96, 96, 96]
    assert first.bytes_down - other.bytes_down == 3 * (4 * len(sent.row) + 8 * 10)
    assert first.bytes_up - other.bytes_up == 3 * 10 * 8


@pytest.mark.parametrize("mistake", WRONG)
def test_a_client_refuses_a_wrong_one_with_the_reason(mistake: str, here: Session, tmp_path: Path) -> None:
    make, named = WRONG[mistake]
    request, reply = ask(here, make(SOUND))
    assert named in str(reply.refused)
    node = node_of(here, tmp_path)
    if mistake in TYPES:  # a node looks at types when it reads the message
        with pytest.raises(WireError, match=named):
            node.answer(0, pack(request))
    else:
        answer = unpack(node.answer(0, pack(request)))
        assert (answer.refused, answer.results) == (reply.refused, ())
