"""What the federation is given: disjoint shares, the server's sets, synthetic clients on demand, the spec; and the
fingerprint of it.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hanse.base.errors import UserError
from hanse.data import Dataset, DataSpec, Samples, build, parse_spec
from hanse.data.federated import SplitData
from hanse.data.fingerprint import differences, fingerprint
from hanse.data.shares import Cuts, Partition
from hanse.data.synthetic import GeneratedData, Synthetic


def test_shares_are_disjoint_and_make_up_each_client() -> None:
    whole = build(DataSpec(clients=12, seed=4))
    cut = build(DataSpec(clients=12, seed=4, client_test=0.25, client_validation=0.1))
    everyone = range(12)
    own = whole.pool(everyone)[1]
    shares = {s: cut.pool(everyone, s)[1] for s in ("train", "validation", "test")}
    for client in everyone:
        n = len(own[client])
        parts = [shares[s][client] for s in shares]
        assert [len(p) for p in parts] == [n - n // 4 - int(n * 0.1), int(n * 0.1), n // 4]
        assert torch.equal(torch.cat(parts).sort().values, own[client])
        assert len(parts[0]) == cut.sizes[client]
    assert torch.equal(cut.pool([7], "test")[1][0], shares["test"][7])


def test_the_servers_sets_are_stratified_disjoint_and_seeded() -> None:
    data = build(DataSpec(clients=3, validation=0.4))
    validation, test = data.server_validation, data.server_test
    assert (len(validation), len(test)) == (200, 300)
    assert (torch.bincount(validation.y) / 200 - torch.bincount(test.y) / 300).abs().max() < 0.01
    assert len(torch.unique(torch.cat([validation.x, test.x]).flatten(1), dim=0)) >= 499  # two digits may look alike
    assert not torch.equal(build(DataSpec(clients=3, validation=0.4, seed=1)).server_validation.x, validation.x)
    bare = build(DataSpec(clients=3, validation=0.0))
    assert bare.server_validation is None
    assert len(bare.server_test) == 500


def test_synthetic_makes_only_the_clients_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    data = build(
        DataSpec(source={"name": "synthetic", "samples_per_client": 30, "alpha": 1.0, "beta": 1.0}, clients=20_000)
    )
    made: list[int] = []
    client = Synthetic.client

    def spy(self: Synthetic, k: int, size: int) -> Any:
        made.append(k)
        return client(self, k, size)

    monkeypatch.setattr(Synthetic, "client", spy)
    assert data.num_clients == 20_000
    assert data.sizes.sum() == 600_000
    pool, index = data.pool([19_999, 5, 19_999])
    assert made == [19_999, 5]
    assert len(pool) == 60
    assert torch.equal(index[0], index[2])
    again, own = data.pool([5])
    assert made == [19_999, 5]  # kept
    assert torch.equal(again.x[own[0]], pool.x[index[1]])
    assert data.class_counts() is None


def test_synthetic_does_not_depend_on_order_or_on_the_number_of_clients() -> None:
    few = build(DataSpec(source="synthetic", clients=120, seed=3))
    many = build(DataSpec(source="synthetic", clients=5_000, seed=3))
    assert np.array_equal(few.sizes, many.sizes[:120])
    many.pool([7])
    a, (i,) = few.pool([100])
    b, (_, j) = many.pool([4, 100])
    assert torch.equal(a.x[i], b.x[j])
    assert torch.equal(a.y[i], b.y[j])
    assert torch.equal(few.server_test.x, many.server_test.x)
    cut = build(DataSpec(source="synthetic", clients=120, seed=3, client_test=0.2, client_validation=0.1))
    rows = [cut.pool([100], share)[0].x for share in ("train", "validation", "test")]
    assert torch.equal(torch.cat(rows), a.x[i])
    assert cut.class_counts().sum(axis=1).tolist() == cut.sizes.tolist()
    other, (k,) = build(DataSpec(source="synthetic", clients=120, seed=4)).pool([100])
    assert not torch.equal(other.x[k][:20], a.x[i][:20])


def test_synthetic_inputs_follow_the_paper() -> None:
    x = Synthetic(0.0, 0.0).client(0, 20_000).x.double()
    assert x.std(dim=0).numpy() == pytest.approx(np.arange(1, 61) ** -0.6, rel=0.03)
    # a client's mean is around its B_k with variance 1; B_k has variance beta
    near = torch.stack([Synthetic(0.0, 0.0).client(k, 50).x.mean() for k in range(150)])
    far = torch.stack([Synthetic(0.0, 4.0).client(k, 50).x.mean() for k in range(150)])
    assert float(near.var()) == pytest.approx(1 / 60, rel=0.5)
    assert float(far.var()) == pytest.approx(4.0, rel=0.5)
    sizes = Synthetic(1.0, 1.0).sizes(5_000)
    assert sizes.min() >= 50
    assert float(np.log(sizes - 49).mean()) == pytest.approx(4.0, abs=0.15)


def test_unknown_shares_and_clients_are_refused() -> None:
    for data in (build(DataSpec(clients=3)), build(DataSpec(source="synthetic", clients=3))):
        with pytest.raises(UserError, match="'tset'"):
            data.pool([0], "tset")
        for client in (-1, 3):
            with pytest.raises(UserError, match=rf"{client}.*0\.\.2"):
                data.pool([client])


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"clients": 0}, "data.clients: 0: input should be greater than or equal to 1"),
        ({"partition": {"alpha": float("nan")}}, "data.partition.alpha: nan: "),
        ({"source": "synthetic", "partition": "iid"}, "data.partition: 'iid'"),
        ({"alpha": 0.1}, "data.alpha: no such key: an option of data.partition"),
        ({"source": {"name": "digits", "scale": "unit"}}, "data.source.scale"),
        ({"partition": {"name": "natural", "min_samples": 5}}, "per_owner_alpha"),
        ({"partition": {"name": "irid"}}, "data.partition: 'irid'"),
        ({"source": "synthetic", "augment": "crop-flip"}, "augment: 'crop-flip'"),
    ],
)
def test_mistakes_in_the_spec_name_field_value_and_what_is_allowed(values: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as error:
        parse_spec(values)
    assert len(error.value.lines) == 1
    assert line in str(error.value)


def test_all_mistakes_are_listed_and_a_spec_survives_a_round_trip() -> None:
    with pytest.raises(UserError) as error:
        parse_spec({"clients": 0, "seed": -1, "partitoin": "iid"})
    assert len(error.value.lines) == 3
    for spec in (DataSpec(), DataSpec(source="synthetic", clients=7)):
        assert parse_spec(spec.model_dump(exclude_none=True)) == spec
    assert all(f"\n        {key}: " in str(DataSpec.__doc__) for key in DataSpec.model_fields)


def made_data(seed: int = 0) -> SplitData:
    """Four clients of 25 samples each."""
    draw = torch.Generator().manual_seed(seed)
    x, y = torch.randn(160, 3, generator=draw), torch.randint(0, 3, (160,), generator=draw)
    dataset = Dataset("made_data", Samples(x[:100], y[:100]), Samples(x[100:], y[100:]), 3, (3,))
    parts, cuts = [part.numpy() for part in torch.arange(100).split(25)], Cuts(client_test=0.2, client_validation=0.2)
    return SplitData.of(dataset, Partition.dealt(parts, dataset, cuts), cuts)


def of_labels(data: SplitData, y: torch.Tensor) -> SplitData:
    return replace(data, train=Samples(data.train.x, y))


def a_bit(data: SplitData, at: torch.Tensor) -> SplitData:
    x = data.train.x.clone()
    x[at, 1] = torch.nextafter(x[at, 1], torch.tensor(9.0))
    return replace(data, train=Samples(x, data.train.y))


def test_what_differs_is_named_by_share_and_client() -> None:
    data = made_data()
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
        [digest] = fingerprint(replace(made_data(), server_test=Samples(x, torch.zeros(len(x), 2))))["server test"]
        assert len(digest) == 16
    same = replace(made_data(), server_test=Samples(columns.contiguous(), torch.zeros(4, 2)))
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
