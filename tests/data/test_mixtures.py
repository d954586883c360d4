"""Mixtures of distributions: PI-FL's laws, exact counts, disjoint shares, what is held out for the server."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_forms import dataset_of

from hanse.base.errors import UserError
from hanse.data import Dataset, DataSpec, FederatedData, build, load, parse_spec
from hanse.data.dataset import Distributions
from hanse.data.mixtures import MixturePartition, by_rotation, inverse, mixes
from hanse.data.shares import Cuts
from hanse.data.synthetic import fedsoft_weights

KINDS: dict[int, Distributions] = {}  # of the data sets made here


def made(mixture: dict[str, Any] | None = None, **values: Any) -> FederatedData:
    spec = DataSpec(**{"partition": {"name": "mixture", **(mixture or {})}, **values})
    data, dataset = build(spec), load(spec.source.name, seed=spec.seed)
    KINDS[id(data)] = spec.partition.prepared(dataset, spec.clients, spec.seed).distributions  # type: ignore[assignment]
    return data


def counts(data: FederatedData, share: str = "train") -> np.ndarray[Any, Any]:
    """How many samples of each distribution each client has."""
    kinds, positions = KINDS[id(data)], data.pool(range(data.num_clients), share)[1]
    return np.stack([np.bincount(kinds.train[own], minlength=len(kinds.names)) for own in positions])


def test_the_papers_laws() -> None:
    assert mixes("10:90", 100, 2, seed=0)[[0, 49, 50, 99]].tolist() == [[0.9, 0.1]] * 2 + [[0.1, 0.9]] * 2
    assert mixes("30:70", 4, 2, seed=0).tolist() == [[0.7, 0.3]] * 2 + [[0.3, 0.7]] * 2
    linear = mixes("linear", 100, 2, seed=0)  # client k: (0.5 + k) % and (99.5 - k) %
    assert linear[:, 0] == pytest.approx((0.5 + np.arange(100)) / 100)
    assert linear[:, 1] == pytest.approx((99.5 - np.arange(100)) / 100)
    four = mixes("10:90", 8, 4, seed=0)
    assert four.argmax(axis=1).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert four[0] == pytest.approx([0.9, 1 / 30, 1 / 30, 1 / 30])
    path = mixes("linear", 6, 4, seed=0)  # place 2.75, 2.25, 1.75, ... on the way from the last to the first
    assert path[:2] == pytest.approx(np.array([[0, 0, 0.25, 0.75], [0, 0, 0.75, 0.25]]))
    assert path[-1] == pytest.approx([0.75, 0.25, 0, 0])
    assert inverse(linear) == pytest.approx(1 - linear)


def test_random_mixtures_are_uniform_spacings() -> None:
    drawn = mixes("random", 4_000, 3, seed=1)
    assert drawn.sum(axis=1) == pytest.approx(np.ones(4_000))
    # each of S spacings is Beta(1, S - 1): mean 1/3, variance 2/36
    assert drawn.mean(axis=0) == pytest.approx([1 / 3] * 3, abs=0.015)
    assert drawn.var(axis=0) == pytest.approx([1 / 18] * 3, abs=0.004)
    assert np.array_equal(drawn, mixes("random", 4_000, 3, seed=1))
    assert not np.array_equal(drawn, mixes("random", 4_000, 3, seed=2))


def of_distributions(stock: list[int]) -> Dataset:
    """A data set with so many samples of each distribution, one distribution after another."""
    of = np.repeat(np.arange(len(stock)), stock)
    return dataset_of(of, len(stock), distributions=Distributions(tuple(map(str, stock)), of, np.zeros(0, np.int64)))


@settings(max_examples=40, deadline=None)
@given(
    stock=st.lists(st.integers(40, 300), min_size=2, max_size=4), clients=st.integers(1, 8),
    law=st.sampled_from(["10:90", "30:70", "0:100", "linear", "random"]), seed=st.integers(0, 2**31),
    shares=st.sampled_from([(0.0, 0.0), (0.3, 0.0), (0.2, 0.15)]), sizes=st.sampled_from(["equal", "power"]),
)  # fmt: skip
def test_mixtures_are_met_and_no_sample_is_dealt_twice(
    stock: list[int], clients: int, law: str, seed: int, shares: tuple[float, float], sizes: Any
) -> None:
    ends, mix = np.cumsum([0, *stock]), mixes(law, clients, len(stock), seed=seed)
    partition, cuts = MixturePartition(law, "inverse", sizes=sizes, min_samples=2), Cuts(*shares, seed=seed)
    found = partition.split(of_distributions(stock), clients, cuts)
    assert np.array_equal(found.groups, mix.argmax(axis=1))
    used = np.concatenate([index for own in found.shares for index in own])
    assert len(np.unique(used)) == len(used)
    for own, a, b in zip(found.shares, mix, inverse(mix), strict=True):
        for index, wanted in zip(own, (a, b, b), strict=True):
            assert (np.diff(index) > 0).all()
            got = np.bincount(np.searchsorted(ends, index, side="right") - 1, minlength=len(stock))
            assert np.abs(got - wanted * len(index)).max() < 1
    # some distribution is used up but for rounding: more clients' worth of samples could not be dealt
    left = np.array(stock) - np.bincount(np.searchsorted(ends, used, side="right") - 1, minlength=len(stock))
    assert left.min() <= 4 * clients + 1


def test_inverse_test_mixtures_and_what_the_server_holds() -> None:
    data = made({"mix": "10:90", "test_mix": "inverse"}, clients=10, client_test=0.2, client_validation=0.2, seed=3)
    train, validation, test = (counts(data, share) for share in ("train", "validation", "test"))
    assert (train.argmax(axis=1) == [0] * 5 + [1] * 5).all()
    assert (test.argmax(axis=1) == [1] * 5 + [0] * 5).all()
    assert np.array_equal(validation, test)  # papers.md P23: the validation share follows the test mixture
    n, t = train[0].sum(), test[0].sum()
    assert train[0].tolist() == [n - round(n * 0.1), round(n * 0.1)]
    assert test[0].tolist() == [round(t * 0.1), t - round(t * 0.1)]
    assert data.groups.tolist() == [0] * 5 + [1] * 5
    pool, _ = data.pool([0])
    for client in range(10):
        for share, row in (("train", train), ("test", test)):
            assert int((pool.y[data.pool([client], share)[1][0]] < 5).sum()) == row[client, 0]
    held = dict(zip(KINDS[id(data)].names, data.server_tests, strict=True))
    assert list(held) == ["classes 0-4", "classes 5-9"]
    assert held["classes 0-4"].y.max() == 4
    assert held["classes 5-9"].y.min() == 5
    assert sum(len(s) for s in held.values()) == len(data.server_test)
    same = made({"mix": "10:90"}, clients=10, client_test=0.2, seed=3)
    assert (counts(same, "test").argmax(axis=1) == [0] * 5 + [1] * 5).all()


def test_validation_may_be_drawn_by_either_mixture() -> None:
    dataset, cuts, found = of_distributions([1000, 1000]), Cuts(client_test=0.2, client_validation=0.1), {}
    for law in ("test", "train"):
        partition = MixturePartition("10:90", "inverse", law, samples_per_client=100)  # type: ignore[arg-type]
        found[law] = [[int((part < 1000).sum()) for part in own] for own in partition.split(dataset, 2, cuts).shares]
    # train 70, validation 10, test 20 of each client's 100, of which in the first distribution:
    assert found == {"test": [[63, 1, 2], [7, 9, 18]], "train": [[63, 9, 2], [7, 1, 18]]}


def test_rotations_turn_each_image_once() -> None:
    plain = load("digits")
    turned = by_rotation(plain, 4, seed=5)
    told = turned.distributions
    for i in range(0, 1297, 13):
        assert torch.equal(turned.train.x[i], torch.rot90(plain.train.x[i], int(told.train[i]), (1, 2)))
    sizes = np.bincount(told.train)
    assert np.ptp(sizes) <= 1
    for d in range(4):  # the same share of each class in each
        gap = np.bincount(plain.train.y.numpy()[told.train == d], minlength=10) / sizes[d]
        assert np.abs(gap - np.bincount(plain.train.y.numpy(), minlength=10) / 1297).max() < 0.01
    data = made({"distributions": "rotation", "num_distributions": 4}, clients=4)
    assert KINDS[id(data)].names == ("turned by 0", "turned by 90", "turned by 180", "turned by 270")
    assert np.ptp([len(s) for s in data.server_tests]) <= 4


def test_fedsoft_regression_is_made_of_two_linear_models() -> None:
    mixture = {"samples_per_client": 300, "mix": "0:100"}
    data = made(mixture, source="fedsoft_linear", clients=20, client_test=0.1, seed=4)
    assert (data.num_classes, data.class_counts(), KINDS[id(data)].names) == (None, None, ("model A", "model B"))
    assert counts(data)[[0, 19]].tolist() == [[270, 0], [0, 270]]
    pool, each = data.pool([0, 19])
    for index, weights in zip(each, fedsoft_weights(4), strict=True):
        x, y = pool.x[index].double().numpy(), pool.y[index].double().numpy()
        found, rest, *_ = np.linalg.lstsq(x, y, rcond=None)
        assert found == pytest.approx(weights, abs=0.3)
        assert rest[0] / len(y) == pytest.approx(1.0, abs=0.25)
    assert [len(s) for s in data.server_tests] == [500, 500]
    assert np.concatenate([fedsoft_weights(s) for s in range(400)]).var() == pytest.approx(10.0, rel=0.05)
    assert counts(made(source="fedsoft_linear", partition="iid", clients=5)).sum(axis=0).tolist() == [50_000, 50_000]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"mix": "90:10"}, "data.partition.mix: '90:10'"),
        ({"mix": "10:80"}, "data.partition.mix: '10:80'"),
        ({"num_distributions": 1}, "data.partition.num_distributions: 1: "),
        ({"test_mix": "inverse"}, "data.partition.test_mix: 'inverse'"),
        ({"num_distributions": 11}, "num_distributions = 11"),
        ({"distributions": "rotation", "num_distributions": 5}, "num_distributions"),
        ({"distributions": "source"}, "distributions = 'source'"),
        ({"samples_per_client": 300, "mix": "0:100"}, "1500 samples of distribution 1"),
        ({"min_samples": 200}, "min_samples = 200"),
    ],
)  # fmt: skip
def test_what_cannot_be_mixed_is_refused(values: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as error:
        build(parse_spec({"partition": {"name": "mixture", **values}, "clients": 10}))
    assert len(error.value.lines) == 1
    assert line in str(error.value)
