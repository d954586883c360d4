"""The fingerprint of data: what changes it, and what it says differs."""

from dataclasses import replace

import pytest
import torch

from hanse.data import Dataset, Samples
from hanse.data.federated import SplitData
from hanse.data.fingerprint import differences, fingerprint
from hanse.data.partitions import Partition
from hanse.data.shares import Cuts
from hanse.data.synthetic import GeneratedData, Synthetic


def made(seed: int = 0) -> SplitData:
    """Four clients of 25 samples each."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(160, 3, generator=draw), torch.randint(0, 3, (160,), generator=draw)
    dataset = Dataset("made", Samples(x[:100], y[:100]), Samples(x[100:], y[100:]), 3, (3,))
    parts = tuple(part.numpy() for part in torch.arange(100).split(25))
    return SplitData.of(dataset, Partition(parts), Cuts(client_test=0.2, client_validation=0.2))


def of_labels(data: SplitData, y: torch.Tensor) -> SplitData:
    return replace(data, train=Samples(data.train.x, y))


def a_bit(data: SplitData, at: torch.Tensor) -> SplitData:
    x = data.train.x.clone()
    x[at, 1] = torch.nextafter(x[at, 1], torch.tensor(9.0))
    return replace(data, train=Samples(x, data.train.y))


def test_what_differs_is_named_by_share_and_client() -> None:
    data = made()
    y, shares = data.train.y, data.shares
    flipped = y.index_add(0, shares[2][0][:1], torch.ones(1, dtype=torch.int64))
    (train, validation, test), *others = shares
    for changed, said in (
        (of_labels(data, flipped), ["train share of client 2"]),
        (a_bit(data, shares[3][2][0]), ["test share of client 3"]),
        (replace(data, shares=((train, validation.flip(0), test), *others)), ["validation share of client 0"]),
        (replace(data, server_validation=None), ["server's validation set"]),
        (data, []),
        (of_labels(data, 2 - y), [f"{one} shares of clients 0, 1, 2, 3" for one in ("train", "validation", "test")]),
    ):
        assert differences(fingerprint(data), fingerprint(changed)) == [f"the {one}" for one in said]


def test_samples_of_any_type_and_layout_have_one() -> None:
    tokens, halves = torch.arange(12).view(4, 3), torch.ones(4, 2, dtype=torch.bfloat16)
    columns = torch.randn(3, 4).T  # not contiguous
    for x in (tokens, halves, columns, torch.zeros(4, 0), torch.zeros(0, 3)):
        data = replace(made(), server_test=Samples(x, torch.zeros(len(x), 2)))
        [digest] = fingerprint(data)["server test"]
        assert len(digest) == 16
    same = replace(made(), server_test=Samples(columns.contiguous(), torch.zeros(4, 2)))
    assert fingerprint(same) == fingerprint(replace(same, server_test=Samples(columns, torch.zeros(4, 2))))


def test_generated_clients_are_not_made_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    several = ((0, 500), (1, 500), (0, 10_001))
    data, other, many = (GeneratedData.of(Synthetic(1.0, 1.0, seed), n, Cuts()) for seed, n in several)
    monkeypatch.setattr(Synthetic, "client", None)  # making one would fail
    assert len(fingerprint(data)["train"]) == 500
    said = differences(fingerprint(data), fingerprint(other))
    assert said[0] == "the train shares of clients 0, 1, 2, 3, 4 and 495 more"
    assert differences({"train": ["a"] * 9}, {"train": ["a"] * 8}) == ["the train shares: of 8 clients, not 9"]
    assert [len(digests) for digests in fingerprint(many).values()] == [1] * 5
    less = replace(many, ends=many.ends - 1)
    assert differences(fingerprint(many), fingerprint(less))[:2] == ["the train shares", "the validation shares"]
