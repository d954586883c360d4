"""What every partition must hold: no sample twice, sizes and classes as asked, the same for the same seed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from own_forms import dataset_of
from scipy.special import log_softmax

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data import Dataset, DataSpec, Partition, build, parse_spec
from hanse.data.partitions import (
    Cluster,
    Dirichlet,
    Iid,
    Natural,
    Niid,
    Pathological,
    Skew,
    _log_softmax,
    client_sizes,
    cluster_of,
    label_mixes,
    power_weights,
)
from hanse.data.shares import Cuts

Labels = NDArray[np.int64]
laws = st.sampled_from(["power", "equal"])


def made_labels(n: int, classes: int = 10, seed: int = 0) -> Labels:
    return stream(seed, "test-labels").integers(0, classes, n)


def balanced(per_class: int) -> Labels:
    return np.repeat(np.arange(10), per_class)


def counts_of(parts: Any, labels: Any) -> Any:
    """How many samples of each of ten classes each client has, ``[clients, 10]``; no sample is used twice."""
    used = np.concatenate(parts)
    assert len(np.unique(used)) == len(used)
    return np.stack([np.bincount(labels[part], minlength=10) for part in parts])


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(20, 400), clients=st.integers(1, 20), log_alpha=st.floats(-30, 30), seed=st.integers(0, 2**31),
    law=laws, classes=st.integers(1, 12),
)  # fmt: skip
def test_dirichlet_uses_every_sample_once_and_meets_its_sizes(
    n: int, clients: int, log_alpha: float, seed: int, law: Any, classes: int
) -> None:
    labels = made_labels(n, classes, seed)
    parts = Dirichlet(10.0**log_alpha, sizes=law, min_samples=1).deal(labels, clients, seed, classes)
    assert [len(p) for p in parts] == client_sizes(n, clients, seed=seed, law=law, min_samples=1).tolist()
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 500), data=st.data(), seed=st.integers(0, 2**31), law=laws)
def test_sizes_sum_and_keep_the_least(n: int, data: st.DataObject, seed: int, law: Any) -> None:
    clients = data.draw(st.integers(1, n))
    least = data.draw(st.integers(1, n // clients))
    total = data.draw(st.integers(clients * least, n))
    sizes = client_sizes(n, clients, seed=seed, law=law, min_samples=least, total=total)
    assert sizes.sum() == total
    assert sizes.min() >= least


@settings(max_examples=30, deadline=None)
@given(clients=st.integers(3, 12), clusters=st.integers(1, 3), seed=st.integers(0, 2**31))
def test_the_other_partitions_use_every_sample_once_and_again_the_same(clients: int, clusters: int, seed: int) -> None:
    labels = balanced(60)
    by_number = Iid(min_samples=1), Iid(sizes="power", min_samples=1)
    for split in (*by_number, Niid(1.0, min_samples=1), Cluster(clusters, 1.0, 5.0, 1), Skew(), Pathological(10)):
        parts, groups = split.deal(labels, clients, seed, 10), split.groups(clients, 10)
        assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(600))
        assert all((np.diff(p) > 0).all() for p in parts)
        assert all(map(np.array_equal, parts, split.deal(labels, clients, seed, 10)))
        assert not all(map(np.array_equal, parts, split.deal(labels, clients, seed + 1, 10)))
        if groups is not None:
            assert np.ptp(np.bincount(groups)) <= 1


def test_a_true_small_alpha_gives_single_classes() -> None:
    mixes = np.exp(label_mixes(300, 10, 1e-4, seed=0))
    assert (mixes.max(axis=1) > 0.999).mean() > 0.99
    # each class is as likely as another: 300 clients, 30 +- 5.2 a class
    assert np.bincount(mixes.argmax(axis=1), minlength=10).min() > 10
    labels = balanced(2_000)
    parts = Dirichlet(1e-4, samples_per_client=20).deal(labels, 100, 0, 10)  # no class runs out
    assert ((counts_of(parts, labels) > 0).sum(axis=1) == 1).all()


def test_the_clamped_sampler_makes_about_half_the_mixes_exactly_uniform() -> None:
    shares, before = [], torch.get_rng_state()
    for seed in range(5):
        mixes = np.exp(label_mixes(300, 10, 1e-4, seed=seed, sampler="float32-clamped"))
        uniform = np.ptp(mixes, axis=1) < 1e-6
        shares.append(uniform.mean())
        assert (mixes[~uniform].max(axis=1) > 0.99).mean() > 0.95
    assert 0.4 < min(shares) < max(shares) < 0.7
    assert torch.equal(before, torch.get_rng_state())  # the global generator is left alone


def test_the_samplers_agree_where_nothing_underflows() -> None:
    # Dirichlet(a): mean 1/C, variance (C - 1) / (C^2 (C a + 1))
    for sampler in ("log", "float32-clamped"):
        mixes = np.exp(label_mixes(4_000, 5, 0.7, seed=0, sampler=sampler))  # type: ignore[arg-type]
        assert mixes.mean(axis=0) == pytest.approx([0.2] * 5, abs=0.015)
        assert mixes.var(axis=0) == pytest.approx([4 / 25 / 4.5] * 5, rel=0.1)


def test_power_sizes_follow_the_law() -> None:
    # pdf 3 q^2: mean 3/4, standard deviation sqrt(3/80); relative to the mean 0.258
    sizes = client_sizes(10_000_000, 10_000, seed=0)
    relative = sizes / sizes.mean()
    assert relative.std() == pytest.approx(np.sqrt(3 / 80) / 0.75, rel=0.03)
    assert relative.max() == pytest.approx(4 / 3, rel=0.01)
    assert np.median(relative) == pytest.approx(0.5 ** (1 / 3) / 0.75, rel=0.01)


def test_scaled_dirichlet_keeps_mixes_and_sizes_and_redraws_both() -> None:
    labels = balanced(2_000)
    parts = Dirichlet(0.5, use_all=False, min_samples=20).deal(labels, 30, 4, 10)
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
    assert 1_950 < counts.sum(axis=0).max() <= 2_000
    for least, smallest in ((1, 29), (32, 32)):
        sizes = [len(p) for p in Dirichlet(100.0, use_all=False, min_samples=least).deal(balanced(500), 60, 0, 10)]
        assert min(sizes) == smallest or (least == 32 and min(sizes) >= 32)


def test_pathological_gives_exactly_k_classes_evenly() -> None:
    labels = made_labels(1_000)
    for clients, k in ((7, 2), (20, 3), (10, 10), (3, 1)):
        counts = counts_of(Pathological(k).deal(labels, clients, 5), labels)
        assert ((counts > 0).sum(axis=1) == k).all()
        assert np.ptp((counts > 0).sum(axis=0)) <= 1
        assert counts.sum() == len(labels) or clients * k < 10


def test_clients_are_alike_inside_a_cluster_and_unlike_between() -> None:
    labels = balanced(500)
    inside, between = [], []
    for seed in range(5):
        parts, groups = Cluster().deal(labels, 9, seed, 10), Cluster().groups(9, 10)
        assert np.array_equal(groups, cluster_of(9, 3))
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
    parts, groups = Skew().deal(labels, 10, 1, 10), Skew().groups(10, 10)
    counts = counts_of(parts, labels)
    assert groups.tolist() == [0] * 5 + [1] * 5
    assert np.ptp(counts[:5, :5]) <= 1
    assert (counts[:5, 5:] == 0).all()
    assert (counts[5:, :5] == 0).all()
    assert np.ptp(counts.sum(axis=1)) <= 1  # the odd samples do not all fall to the first clients
    fifths = build(DataSpec(partition={"name": "skew", "classes_per_client": 2}, clients=5, client_test=0.2))
    assert fifths.groups.tolist() == [0, 1, 2, 3, 4]


def test_natural_owners_and_their_division() -> None:
    ids = np.array([7] * 5 + [3] * 8 + [9] * 5 + [4] * 2)
    assert Natural("largest").owners(ids, 2).tolist() == [3, 7]  # 7 before 9: a tie goes to the lower id
    assert Natural().owners(ids, 4).tolist() == [3, 4, 7, 9]
    whole = dataset_of(ids % 2, 2, client_of=ids)

    def held(partition: Natural, clients: int, seed: int, dataset: Dataset = whole) -> list[Any]:
        return [own.tolist() for own, *_ in partition.split(dataset, clients, Cuts(seed=seed)).shares]

    assert held(Natural(), 2, 0) == [[18, 19], [13, 14, 15, 16, 17]]
    two = Natural("largest", per_owner=2)
    assert [ids[p].tolist() for p in held(two, 4, 1)] == [[3] * 4, [3] * 4, [7] * 3, [7] * 2]
    timed = held(two, 4, 0, replace(whole, ordered=True))
    assert timed == [[5, 6, 7, 8], [9, 10, 11, 12], [0, 1, 2], [3, 4]]
    for wrong, said in ((lambda: two.owners(ids, 3), "allowed: 2"), (lambda: two.owners(ids, 10), "allowed: 2"),
                        (lambda: held(Natural(per_owner=3), 6, 3), "per_owner")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            wrong()


def test_a_partition_of_ones_own_deals_what_its_function_returns() -> None:
    asked = parse_spec({"partition": {"name": "test_partitions:given", "rows": [[5, 3], [4]]}, "clients": 2})
    assert parse_spec(asked.model_dump()) == asked
    assert build(asked).sizes.tolist() == [2, 1]


def given(labels: Any, clients: int, seed: int, rows: list[Any]) -> list[Any]:
    return rows


WRONG = (
    ([[0]], "clients: 1"), ([[0], [0]], "twice"), ([[0], [0.5]], "[1]"), ([[True], [1]], "[0]"), ([[0], [9999]], "[1]"),
)  # fmt: skip
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"partition": {"name": "iid", "min_samples": 1}, "clients": 1298}, "only 1297 samples"),
    ({"partition": {"min_samples": 200}}, "up to 144"),
    ({"partition": {"samples_per_client": 200}}, "1800 samples"),
    ({"partition": {"name": "niid", "alpha": 1e-4, "min_samples": 140}}, "alpha = 0.0001"),
    ({"partition": {"use_all": False, "alpha": 0.1, "min_samples": 99}}, "101 draws"),
    ({"partition": {"name": "pathological", "classes_per_client": 11}}, "10 classes"),
    ({"partition": {"name": "pathological", "classes_per_client": 10}, "clients": 150}, "150 clients"),
    ({"partition": "natural"}, "which client"),
    ({"partition": {"name": "cluster", "clusters": 12}}, "clusters = 12"),
    ({"partition": {"name": "cluster", "alpha_within": 1e-3}, "clients": 30}, "alpha_within"),
    ({"partition": {"name": "skew", "classes_per_client": 3}}, "10 classes"),
    ({"partition": "skew", "clients": 1}, "clusters = 2"),
    *(({"partition": {"name": "test_partitions:given", "rows": rows}, "clients": 2}, said) for rows, said in WRONG),
    ({"partition": "skew", "source": "fedsoft_linear"}, "needs class labels"),
]


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_impossible_requests_are_refused_with_the_numbers(case: int) -> None:
    values, words = REFUSED[case]
    with pytest.raises(UserError) as error:
        build(parse_spec({"clients": 9, **values}))
    assert len(error.value.lines) == 1
    assert words in error.value.lines[0]


@pytest.mark.parametrize("train", [([0, 1], [1]), ([-1, 2],), ([0], []), ([0, 3],), ()])
def test_a_partition_that_contradicts_itself_is_refused(train: Any) -> None:
    with pytest.raises(UserError):
        Partition.dealt([np.array(own, dtype=np.int64) for own in train], dataset_of(np.zeros(3, np.int64), 1), Cuts())


def test_the_servers_halves_and_a_pool_may_follow_the_authors() -> None:
    table = {"source": "digits", "clients": 12, "partition": {"alpha": 0.5, "use_all": False, "min_samples": 1}}
    first, second = (build(parse_spec({**table, "seed": seed, "validation_seed": 7})) for seed in (0, 1))
    assert torch.equal(first.server_validation.x, second.server_validation.x)
    assert first.sizes.tolist() != second.sizes.tolist()
    own = build(parse_spec({**table, "seed": 7}))
    assert torch.equal(own.server_validation.x, first.server_validation.x)
    together = build(parse_spec({**table, "seed": 1, "partition": {"name": "pooled", "of": table["partition"]}}))
    used = np.sort(np.concatenate([index.numpy() for index in second.pool(range(12))[1]]))
    assert [own.tolist() for own in together.pool([0])[1]] == [used.tolist()]
    assert len(used) < len(build(parse_spec({**table, "partition": "pooled"})).pool([0])[1][0])


def test_tests_lent_by_the_server_have_the_clients_mixture() -> None:
    values: dict[str, Any] = {"partition": {"name": "niid", "alpha": 0.3}, "clients": 6, "seed": 2}
    data = build(DataSpec(**values, client_test=0.2, client_test_from="server"))
    assert np.array_equal(data.sizes, build(DataSpec(**values)).sizes)  # nothing is taken from the clients
    tests, index = data.pool(range(6), "test")
    assert tests is data.server_test
    stock = np.bincount(tests.y.numpy(), minlength=10)
    for client, (own, mix) in enumerate(zip(index, data.class_counts(), strict=True)):
        assert (own[1:] > own[:-1]).all()  # sorted, none twice
        got, wanted = np.bincount(tests.y[own].numpy(), minlength=10), mix / mix.sum()
        assert np.abs(got - wanted * len(own)).max() < 1
        room = (stock[wanted > 0] / wanted[wanted > 0]).min()
        assert min(int(data.sizes[client] * 0.2), room) - 2 <= len(own) <= data.sizes[client] * 0.2
    for more in ({"partition": "natural", "source": "synthetic"}, {"partition": "iid", "source": "fedsoft_linear"}):
        with pytest.raises(UserError, match=r"client_test_from(:| =) 'server'"):
            build(parse_spec({**more, "client_test": 0.1, "client_test_from": "server"}))


def test_tests_are_dealt_out_equally() -> None:
    data = build(DataSpec(clients=7, partition={"alpha": 0.1}, client_test_from="equal", validation=0.0))
    pool, index = data.pool(range(7), "test")
    assert data.server_test is pool
    counts = counts_of(index, pool.y.numpy())
    assert (counts == np.bincount(pool.y.numpy(), minlength=10) // 7).all()  # of every class the same number
    assert int(data.sizes.sum()) == 1297  # nothing is cut from the clients' own
    with pytest.raises(UserError, match=r"client_test_from.*'equal'"):
        build(DataSpec(clients=60, partition={"alpha": 1.0}, client_test_from="equal", validation=0.0))


def test_classes_of_the_validation_set_that_nobody_trains_on_are_told() -> None:
    data = build(DataSpec(partition="pathological", clients=3))
    missing = np.flatnonzero(data.class_counts().sum(axis=0) == 0)
    assert len(missing) == 4
    (line,) = data.warnings
    assert f"{', '.join(map(str, missing))}" in line
    assert build(DataSpec(partition="pathological", clients=3, validation=0.0)).warnings == ()


@pytest.mark.parametrize("alpha", [1e-4, 0.3, 100.0])
def test_label_mixes_are_normalised_as_scipy_does_it(alpha: float) -> None:
    mixes = label_mixes(50, 10, alpha, seed=0)
    assert np.array_equal(_log_softmax(7.0 * mixes), log_softmax(7.0 * mixes, axis=-1))
