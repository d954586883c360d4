"""What a server that chooses the models learns of a member's samples under secure sums: by tests, by training that
fails, and by sums over changing groups.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("cryptography", reason="needs the extra 'flower'")

from hanse.core.port import Ask, Call, Reply, Request, Test, Train, Trained
from hanse.data.samples import Samples
from hanse.federation.codec import Message, WireError, pack, unpack
from hanse.federation.node import Assignment, ClientData, Node
from hanse.learning.loop import Loop
from hanse.ledger.witness import Witness
from hanse.wings.private.masked_sums import MaskedSums
from hanse.wings.private.masker import Trusted
from hanse.wings.private.secure_sums import Secured, SecureSums

SEED = 5


def samples(x: Sequence[float], y: Sequence[int]) -> Samples:
    return Samples(torch.tensor(x, dtype=torch.float32)[:, None], torch.tensor(y))


def member(folder: Path, data: ClientData, client: int = 0, clients: int = 3, **more: Any) -> Node:
    names = {"name": "logistic"}
    job = Assignment("run", client, clients, 0, names, more.pop("train", {"lr": 0.1}), metrics=["accuracy"])
    return Node(data, job, folder, **more)


def step_at(node: Node, place: float) -> torch.Tensor:
    """Return a model that takes numbers above ``place`` for class 1, and the others for class 0."""
    row = torch.zeros(node.problem.layout.size)
    for name, part in node.problem.layout.unflatten(row).items():
        if name.endswith("weight"):
            part.copy_(torch.tensor([[-500.0], [500.0]]) if part.shape[0] == 2 else torch.full_like(part, 1000.0))
        else:
            part.copy_(
                torch.tensor([500.0, -500.0]) * place if len(part) == 2 else torch.full_like(part, -1000 * place)
            )
    return row


def told(message: Message) -> bytes:
    """Return all that a message says, without what its arrays are called."""
    return message.header.encode() + b"".join(a.tobytes() for a in message.arrays.values())


def bisected(node: Node, sample: int, tests: int) -> tuple[float, bytes]:
    """Return where the note's attack places a test sample: it asks whether the sample lies above one point after the
    other, by the accuracy without the sample, else by what the answer's bytes are.
    """
    low, high, said = 0.0, 1.0, hashlib.sha256()
    for at in range(tests):
        answer = node.answer(at, pack(Request(0, (Test("test", step_at(node, (low + high) / 2)),))))
        said.update(told(answer))
        [result] = unpack(answer).results
        if result.without_block is not None and result.accuracy is not None and result.num_samples > 1:
            n = result.num_samples
            right = result.accuracy * n - float(result.without_block[sample]) * (n - 1)
            above = round(right) == 1
        else:
            above = bool(said.digest()[0] & 1)
        low, high = ((low + high) / 2, high) if above else (low, (low + high) / 2)
    return (low + high) / 2, said.digest()


def test_tests_of_chosen_models_place_a_sample_without_members_and_say_nothing_under_masks(tmp_path: Path) -> None:
    x = np.random.default_rng(SEED).uniform(size=4)
    data = ClientData(samples(x, [0, 1, 0, 1]), samples(x, [1, 1, 1, 1]), num_classes=2)
    bare = member(tmp_path / "bare", data)
    placed = [bisected(bare, i, 8)[0] for i in range(4)]
    np.testing.assert_allclose(sorted(placed), sorted(x), atol=2.0**-8)
    masked = member(tmp_path / "masked", data, trusted=Trusted(frozenset()))
    assert len({bisected(masked, i, 8)[0] for i in range(4)}) == 1  # the same for every sample


@settings(max_examples=10, deadline=None)
@given(drawn=st.data())
def test_two_members_with_other_samples_answer_all_tests_alike(
    drawn: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What is the same for all samples has no information on any."""
    folder, answers = tmp_path_factory.mktemp("members"), set[bytes]()
    for name in ("one", "other"):
        count = drawn.draw(st.integers(0, 6))
        numbers = drawn.draw(st.lists(st.floats(-3, 3, width=32), min_size=count, max_size=count))
        classes = drawn.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))
        train = samples([0.1, 0.9], [0, 1])
        tested = samples(numbers, classes) if count else None
        node = member(folder / name, ClientData(train, tested, num_classes=2), trusted=Trusted(frozenset()))
        answers.add(bisected(node, 0, 5)[1])
    assert len(answers) == 1


# ---- training


@dataclass
class Network:
    """Nodes in this process under a server; ``beside`` is asked with each sum."""

    nodes: Mapping[int, Node]

    def exchange(self, call: Call) -> list[Reply]:
        replies = []
        for request in call.requests:
            try:
                replies.append(unpack(self.nodes[request.client].answer(call.round, pack(request))))
            except WireError as wrong:
                replies.append(Reply(request.client, refused=str(wrong)))
        return replies


def network(folder: Path, data: Sequence[ClientData], **more: Any) -> Network:
    homes = [folder / str(c) for c in range(len(data))]
    trusted = Trusted(frozenset(Witness(home).public for home in homes))
    return Network({c: member(homes[c], one, c, len(data), trusted=trusted, **more) for c, one in enumerate(data)})


def asked(here: Network, round: int, model: torch.Tensor, beside: tuple[Any, ...] = ()) -> list[Reply]:
    requests = [Request(c, (Train(c, 0, model), *beside)) for c in here.nodes]
    return list(MaskedSums(here, SecureSums(3, regroup=False), SEED).exchange(Call(round, requests)))


@pytest.mark.parametrize("beside", [(), (Ask("stay", {}),)], ids=["alone", "beside a question"])
@pytest.mark.parametrize("lr", [1e4, 1e30], ids=["too far", "too long"])
def test_whether_training_fails_is_not_seen_of_one_member(lr: float, beside: tuple[Any, ...], tmp_path: Path) -> None:
    """A model may be chosen so that training leaves the bounds of a sum only if a sample lies above some point."""
    mine, others = [0.7, 0.7], [[0.1, 0.2]] * 2
    data = [ClientData(samples(x, [0, 0]), num_classes=2) for x in (mine, *others)]
    here = network(tmp_path, data, train={"lr": lr, "batch_size": 2})
    replies = asked(here, 0, step_at(here.nodes[0], 0.5), beside)
    assert [r.refused for r in replies] == [None] * 3  # all that is said of each member alone is its number of samples
    assert [r.results[0].num_samples for r in replies if isinstance(r.results[0], Trained)] == [2.0] * 3
    failed = asked(here, 1, step_at(here.nodes[0], 0.0), beside)  # of all: this is said of the group
    assert len({r.refused for r in failed}) == 1
    assert "all members" in str(failed[0].refused)


def test_a_loop_that_raises_on_samples_stands_still(tmp_path: Path) -> None:
    def fussy(model: Any, data: Any, round: int) -> None:
        raise ValueError("row 3 is of Mr Smith")

    data = [ClientData(samples([0.1, 0.2], [0, 1]), num_classes=2) for _ in range(3)]
    here = network(tmp_path, data)
    raising = member(tmp_path / "0", data[0], loop=Loop.of(fussy, "loop"), trusted=here.nodes[1].guards[0].trusted)
    here = Network({**here.nodes, 0: raising})
    replies = asked(here, 0, step_at(raising, 0.5))
    assert [r.refused for r in replies] == [None] * 3
    assert replies[0].results[0].loss is None  # type: ignore[union-attr]


# ---- repeated training, and differences of sums over changing groups


@dataclass
class Repeated:
    """Clients that train the same model again and again on all of their samples, so their updates stay the same."""

    updates: torch.Tensor

    def exchange(self, call: Call) -> list[Reply]:
        return [Reply(r.client, (Trained(r.client, self.updates[r.client], 10.0, 0.5, 1),)) for r in call.requests]


@pytest.mark.parametrize("clients", [6, 9])
def test_differences_of_sums_give_an_update_only_if_groups_change(clients: int) -> None:
    """As the threat model says; a member prevents it with ``same=True``."""
    updates = torch.randn(clients, 4, generator=torch.Generator().manual_seed(SEED))
    start = torch.zeros(4)

    def error(regroup: bool) -> float:
        """Return how far the updates are that solve the sums of 20 rounds, as a share of their spread."""
        rule, rows, sums = SecureSums(3, regroup), [], []
        ids = np.arange(clients)
        port = Secured(Repeated(updates), rule, SEED)
        for round in range(20):
            replies = port.exchange(Call(round, [Request(c, (Train(c, 0, start),)) for c in ids.tolist()]))
            for group in rule.groups(SEED, ids, round):
                rows.append(np.isin(ids, group) / len(group))
                [mean] = replies[int(group[0])].results
                sums.append(mean.row.double().numpy())
        found = np.linalg.lstsq(np.array(rows), np.array(sums), rcond=None)[0]
        truth = updates.double().numpy()
        return float(np.linalg.norm(found - truth) / np.linalg.norm(truth - truth.mean(0)))

    assert error(regroup=True) < 1e-5
    assert error(regroup=False) > 0.5
