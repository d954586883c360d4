"""iPFL's partitions, tests lent by the server, scaled Dirichlet, and classes that nobody trains on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_forms import counts_of

from hanse.base.errors import UserError
from hanse.data import DataSpec, build, parse_spec
from hanse.data.partitions import cluster, cluster_of, label_mixes, power_weights, scaled_dirichlet, skew


def balanced(per_class: int, classes: int = 10) -> np.ndarray[Any, Any]:
    return np.repeat(np.arange(classes), per_class)


@settings(max_examples=25, deadline=None)
@given(clients=st.integers(3, 12), clusters=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_clusters_use_every_sample_once(clients: int, clusters: int, seed: int) -> None:
    labels = balanced(60)
    parts, groups = cluster(
        labels, clients, clusters=clusters, alpha_between=1.0, alpha_within=5.0, seed=seed, min_samples=1
    )
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(600))
    assert np.array_equal(groups, cluster_of(clients, clusters))
    assert np.ptp(np.bincount(groups)) <= 1


def test_clients_are_alike_inside_a_cluster_and_unlike_between() -> None:
    labels = balanced(500)
    inside, between = [], []
    for seed in range(5):
        parts, groups = cluster(labels, 9, seed=seed)
        mixes = counts_of(parts, labels).astype(float)
        mixes /= mixes.sum(axis=1, keepdims=True)
        gap = np.abs(mixes[:, None] - mixes[None]).sum(axis=2) / 2  # total variation
        alike = groups[:, None] == groups
        inside.append(gap[alike & ~np.eye(9, dtype=bool)].mean())
        between.append(gap[~alike].mean())
    assert max(inside) < 0.3
    assert min(between) > 0.6


def test_skew_gives_every_cluster_its_own_classes_evenly() -> None:
    labels = balanced(203)
    parts, groups = skew(labels, 10, seed=1)
    counts = counts_of(parts, labels)
    assert groups.tolist() == [0] * 5 + [1] * 5
    assert np.ptp(counts[:5, :5]) <= 1
    assert (counts[:5, 5:] == 0).all()
    assert (counts[5:, :5] == 0).all()
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(2_030))
    assert np.ptp(counts.sum(axis=1)) <= 1  # the odd samples do not all fall to the first clients
    data = build(DataSpec(partition="skew", clients=4, client_test=0.2))
    assert data.groups.tolist() == [0, 0, 1, 1]
    fifths = build(DataSpec(partition={"name": "skew", "classes_per_client": 2}, clients=5))
    assert fifths.groups.tolist() == [0, 1, 2, 3, 4]


def test_niid_and_cluster_build_with_groups_and_own_tests() -> None:
    data = build(DataSpec(partition={"name": "cluster", "min_samples": 5}, clients=9, client_test=0.2))
    assert data.groups.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    table = data.class_counts()
    assert table is not None
    whole = build(DataSpec(partition={"name": "cluster", "min_samples": 5}, clients=9)).class_counts()
    assert ((whole > 0) >= (table > 0)).all()
    niid = build(DataSpec(partition={"name": "niid", "alpha": 0.1}, clients=10))
    assert niid.groups is None
    assert niid.sizes.sum() == 1297


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"partition": {"name": "cluster", "clusters": 12}}, "clusters = 12: there are only 9 clients"),
        ({"partition": {"name": "cluster", "alpha_between": 1e-3, "clusters": 14}, "clients": 14}, "alpha_between"),
        ({"partition": {"name": "cluster", "alpha_within": 1e-3}, "clients": 30}, "alpha_within"),
        ({"partition": {"name": "cluster", "min_samples": 200}}, "min_samples = 200"),
        ({"partition": {"name": "skew", "classes_per_client": 3}}, "10 classes"),
        ({"partition": "skew", "clients": 1}, "clusters = 2: there are only 1 clients"),
        ({"partition": "skew", "source": "fedsoft_linear"}, "needs class labels"),
    ],
)
def test_impossible_clusters_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError) as error:
        build(parse_spec({"clients": 9, **values}))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_tests_lent_by_the_server_have_the_clients_mixture() -> None:
    values: dict[str, Any] = {"partition": {"name": "niid", "alpha": 0.3}, "clients": 6, "seed": 2}
    data = build(DataSpec(**values, client_test=0.2, client_test_from="server"))
    plain = build(DataSpec(**values))
    assert np.array_equal(data.sizes, plain.sizes)  # nothing is taken from the clients
    table = data.class_counts()
    tests, index = data.pool(range(6), "test")
    assert data.server_test is not None
    assert tests is data.server_test
    stock = np.bincount(tests.y.numpy(), minlength=10)
    for client, own in enumerate(index):
        assert (own[1:] > own[:-1]).all()  # sorted, none twice
        got = np.bincount(tests.y[own].numpy(), minlength=10)
        wanted = table[client] / table[client].sum()
        assert np.abs(got - wanted * len(own)).max() < 1
        room = (stock[wanted > 0] / wanted[wanted > 0]).min()
        assert min(int(data.sizes[client] * 0.2), room) - 2 <= len(own) <= data.sizes[client] * 0.2
    assert len(data.pool([0], "train")[1][0]) == data.sizes[0]
    again = build(DataSpec(**values, client_test=0.2, client_test_from="server"))
    assert all(torch.equal(a, b) for a, b in zip(index, again.pool(range(6), "test")[1], strict=True))
    off = build(DataSpec(**values, client_test_from="server"))
    assert [len(i) for i in off.pool(range(6), "test")[1]] == [0] * 6
    for source in ("synthetic", "fedsoft_linear"):
        with pytest.raises(UserError, match=r"client_test_from(:| =) 'server'"):
            build(parse_spec({"source": source, "partition": "natural" if source == "synthetic" else "iid",
                              "client_test": 0.1, "client_test_from": "server"}))  # fmt: skip


def test_classes_of_the_validation_set_that_nobody_trains_on_are_told() -> None:
    data = build(DataSpec(partition="pathological", clients=3))
    table = data.class_counts()
    missing = np.flatnonzero(table.sum(axis=0) == 0)
    assert len(missing) == 4
    (line,) = data.warnings
    assert f"{', '.join(map(str, missing))}" in line
    assert build(DataSpec(partition="pathological", clients=3, validation=0.0)).warnings == ()
    assert build(DataSpec(clients=5)).warnings == ()


def test_scaled_dirichlet_keeps_mixes_and_sizes() -> None:
    labels = balanced(2_000)
    parts = scaled_dirichlet(labels, 30, alpha=0.5, seed=4, min_samples=20)
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used) < len(labels)
    counts = counts_of(parts, labels)
    # by hand, from the same draws: the class that runs out first sets how much is used
    q = power_weights(30, 4)
    q /= q.sum()
    for attempt in range(-1, 100):
        mixes = np.exp(label_mixes(30, 10, 0.5, seed=4, attempt=attempt))
        total = (2_000 / (q @ mixes)).min()
        wanted = np.floor(mixes * np.floor(total * q)[:, None])
        if wanted.sum(axis=1).min() >= 20:
            break
    assert np.array_equal(counts, wanted)
    assert counts.sum(axis=0).max() > 1_950
    with pytest.raises(UserError, match=r"101 draws.*min_samples = 60"):
        scaled_dirichlet(balanced(20), 3, alpha=0.1, min_samples=60)
    data = build(DataSpec(clients=8, partition={"alpha": 0.5, "use_all": False, "min_samples": 3, "sizes": "equal"}))
    assert data.sizes.sum() < 1297
    assert np.ptp(data.sizes) <= 10  # equal up to rounding down in each class
