"""What every partition must hold: no sample twice, sizes as asked, the same for the same seed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from own_forms import counts_of

from hanse.base.errors import UserError
from hanse.base.streams import stream
from hanse.data.build import _options, build
from hanse.data.partitions import (
    Partition,
    client_sizes,
    dirichlet,
    iid,
    label_mixes,
    natural,
    niid,
    pathological,
    pooled,
    scaled_dirichlet,
)
from hanse.data.sources import load
from hanse.data.spec import DataSpec, parse_spec

Labels = NDArray[np.int64]


def made_labels(n: int, classes: int = 10, seed: int = 0) -> Labels:
    return stream(seed, "test-labels").integers(0, classes, n)


def balanced(per_class: int, classes: int = 10) -> Labels:
    return np.repeat(np.arange(classes), per_class)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(20, 400),
    clients=st.integers(1, 20),
    log_alpha=st.floats(-300, 300),
    seed=st.integers(0, 2**31),
    law=st.sampled_from(["power", "equal"]),
    classes=st.integers(1, 12),
)
def test_dirichlet_uses_every_sample_once_and_meets_its_sizes(
    n: int, clients: int, log_alpha: float, seed: int, law: str, classes: int
) -> None:
    labels = made_labels(n, classes, seed)
    parts = dirichlet(labels, clients, alpha=10.0**log_alpha, seed=seed, sizes=law, min_samples=1)  # type: ignore[arg-type]
    wanted = client_sizes(n, clients, seed=seed, law=law, min_samples=1)  # type: ignore[arg-type]
    assert [len(p) for p in parts] == wanted.tolist()
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n))


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 500),
    data=st.data(),
    seed=st.integers(0, 2**31),
    law=st.sampled_from(["power", "equal"]),
)
def test_sizes_sum_and_keep_the_least(n: int, data: st.DataObject, seed: int, law: str) -> None:
    clients = data.draw(st.integers(1, n))
    least = data.draw(st.integers(1, n // clients))
    total = data.draw(st.integers(clients * least, n))
    sizes = client_sizes(n, clients, seed=seed, law=law, min_samples=least, total=total)  # type: ignore[arg-type]
    assert sizes.sum() == total
    assert sizes.min() >= least


@settings(max_examples=30, deadline=None)
@given(n=st.integers(50, 300), clients=st.integers(1, 10), seed=st.integers(0, 2**31))
def test_the_other_partitions_use_every_sample_once(n: int, clients: int, seed: int) -> None:
    labels = made_labels(n, 5, seed)
    everything = np.arange(n)
    for parts in (
        iid(labels, clients, seed=seed),
        iid(labels, clients, seed=seed, sizes="power"),
        niid(labels, clients, alpha=1.0, seed=seed, min_samples=1),
        natural(labels, labels % 3, seed=seed),
        pooled(labels),
    ):
        assert np.array_equal(np.sort(np.concatenate(parts)), everything)
        assert all((np.diff(p) > 0).all() for p in parts)


@pytest.mark.parametrize("alpha", [1e-4, 0.5, 100.0])
@pytest.mark.parametrize("sampler", ["log", "float32-clamped"])
def test_same_seed_same_split_and_another_seed_another(alpha: float, sampler: str) -> None:
    labels = made_labels(500)
    first, again, other = (
        dirichlet(labels, 10, alpha=alpha, seed=s, sampler=sampler)  # type: ignore[arg-type]
        for s in (3, 3, 4)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


def test_the_clamped_sampler_leaves_the_global_generator_alone() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_rng_state()
    first = label_mixes(20, 10, 0.5, seed=1, sampler="float32-clamped")
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(99)
    assert np.array_equal(first, label_mixes(20, 10, 0.5, seed=1, sampler="float32-clamped"))


def test_a_true_small_alpha_gives_single_classes() -> None:
    mixes = np.exp(label_mixes(300, 10, 1e-4, seed=0))
    assert (mixes.max(axis=1) > 0.999).mean() > 0.99
    # each class is as likely as another: 300 clients, 30 +- 5.2 a class
    assert np.bincount(mixes.argmax(axis=1), minlength=10).min() > 10
    labels = balanced(2_000)
    parts = dirichlet(labels, 100, alpha=1e-4, total=2_000)  # no class runs out
    counts = counts_of(parts, labels)
    assert ((counts > 0).sum(axis=1) == 1).all()


def test_the_clamped_sampler_makes_about_half_the_mixes_exactly_uniform() -> None:
    shares = []
    for seed in range(5):
        mixes = np.exp(label_mixes(300, 10, 1e-4, seed=seed, sampler="float32-clamped"))
        uniform = np.ptp(mixes, axis=1) < 1e-6
        shares.append(uniform.mean())
        assert (mixes[~uniform].max(axis=1) > 0.99).mean() > 0.95
    assert 0.4 < min(shares) < max(shares) < 0.7


def test_the_samplers_agree_where_nothing_underflows() -> None:
    exact = np.exp(label_mixes(4_000, 5, 0.7, seed=0))
    torch32 = np.exp(label_mixes(4_000, 5, 0.7, seed=0, sampler="float32-clamped"))
    # Dirichlet(a): mean 1/C, variance (C - 1) / (C^2 (C a + 1))
    for mixes in (exact, torch32):
        assert mixes.mean(axis=0) == pytest.approx([0.2] * 5, abs=0.015)
        assert mixes.var(axis=0) == pytest.approx([4 / 25 / 4.5] * 5, rel=0.1)


@pytest.mark.parametrize("alpha", [1e-300, 1e-12, 1e-4, 1e300])
def test_mixes_are_finite_and_sum_to_one_at_any_alpha(alpha: float) -> None:
    logs = label_mixes(50, 10, alpha, seed=2)
    assert np.exp(logs).sum(axis=1) == pytest.approx(np.ones(50))
    assert not np.isnan(logs).any()


def test_power_sizes_follow_the_law() -> None:
    # pdf 3 q^2: mean 3/4, standard deviation sqrt(3/80); relative to the mean 0.258
    sizes = client_sizes(10_000_000, 10_000, seed=0)
    relative = sizes / sizes.mean()
    assert relative.std() == pytest.approx(np.sqrt(3 / 80) / 0.75, rel=0.03)
    assert relative.max() == pytest.approx(4 / 3, rel=0.01)
    assert np.median(relative) == pytest.approx(0.5 ** (1 / 3) / 0.75, rel=0.01)


def test_pathological_gives_exactly_k_classes_evenly() -> None:
    labels = made_labels(1_000)
    for clients, k in ((7, 2), (20, 3), (10, 10), (3, 1)):
        parts = pathological(labels, clients, classes_per_client=k, seed=5)
        counts = counts_of(parts, labels)
        assert ((counts > 0).sum(axis=1) == k).all()
        assert np.ptp((counts > 0).sum(axis=0)) <= 1
        if clients * k >= 10:
            assert counts.sum() == len(labels)


def test_natural_follows_ids_and_can_take_some() -> None:
    ids = np.array([7, 3, 7, 9, 3, 3])
    assert [p.tolist() for p in natural(ids, ids)] == [[1, 4, 5], [0, 2], [3]]
    some = natural(ids, ids, clients=2, seed=1)
    assert len(some) == 2
    assert all(len(np.unique(ids[p])) == 1 for p in some)
    assert [p.tolist() for p in some] == [p.tolist() for p in natural(ids, ids, clients=2, seed=1)]


LABELS = made_labels(100)
REFUSED = [
    (lambda: iid(LABELS, 101), ["clients = 101", "only 100 samples"]),
    (lambda: dirichlet(LABELS, 20, alpha=1.0, min_samples=6), ["min_samples = 6", "120", "100", "up to 5"]),
    (lambda: dirichlet(LABELS, 5, alpha=1.0, total=200), ["200", "100"]),
    (lambda: dirichlet(LABELS, 5, alpha=1.0, num_classes=3), ["0..2"]),
    (lambda: dirichlet(LABELS / 2, 5, alpha=1.0), ["float64", "integer classes"]),  # type: ignore[arg-type]
    (lambda: niid(LABELS, 30, alpha=1e-4, min_samples=2), ["alpha = 0.0001", "30 clients", "min_samples = 2"]),
    (lambda: pathological(LABELS, 5, classes_per_client=11), ["classes_per_client = 11", "10 classes"]),
    (lambda: pathological(np.array([0, 1, 1, 1]), 3), ["3 clients", "1 samples of class 0"]),
    (lambda: natural(LABELS, LABELS[:99]), ["(99,)", "100"]),
    (lambda: natural(LABELS, LABELS.astype(float)), ["float64"]),
    (lambda: natural(LABELS, LABELS, clients=11), ["clients = 11", "10 natural"]),
    (lambda: pooled(LABELS[:0]), ["0 samples"]),
    (lambda: Partition((np.array([0, 1]), np.array([1]))), ["twice"]),
    (lambda: Partition((np.array([-1, 2]),)), ["-1"]),
    (lambda: Partition((np.array([0]), np.array([], dtype=np.int64))), ["[1]"]),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(REFUSED)))
def test_impossible_requests_are_refused_with_the_numbers(case: int) -> None:
    call, words = REFUSED[case]
    with pytest.raises(UserError) as error:
        call()  # type: ignore[no-untyped-call]
    assert all(word in str(error.value) for word in words), str(error.value)
    assert "\n" not in str(error.value)


def test_the_servers_halves_and_a_pool_may_follow_the_authors() -> None:
    table = {"source": "digits", "clients": 12, "partition": {"alpha": 0.5, "use_all": False, "min_samples": 1}}
    first, second = (build(parse_spec({**table, "seed": seed, "validation_seed": 7})) for seed in (0, 1))
    assert torch.equal(first.server_validation.x, second.server_validation.x)
    assert first.sizes.tolist() != second.sizes.tolist()
    own = build(parse_spec({**table, "seed": 7}))
    assert torch.equal(own.server_validation.x, first.server_validation.x)
    together = build(parse_spec({**table, "seed": 1, "partition": {"name": "pooled", "of": table["partition"]}}))
    assert together.num_clients == 1
    used = np.sort(np.concatenate([index.numpy() for index in second.pool(range(12))[1]]))
    assert together.pool([0])[1][0].tolist() == used.tolist()
    assert len(used) < len(build(parse_spec({**table, "partition": "pooled"})).pool([0])[1][0])


def test_sizes_are_redrawn_with_the_mixes_until_the_smallest_client_has_enough() -> None:
    labels = np.repeat(np.arange(10), 500)
    sizes = [len(part) for part in scaled_dirichlet(labels, 60, alpha=100.0, seed=0, min_samples=1)]
    assert min(sizes) == 29
    again = [len(part) for part in scaled_dirichlet(labels, 60, alpha=100.0, seed=0, min_samples=32)]
    assert min(again) >= 32


def test_a_misspelt_argument_of_a_partition_function_is_an_error() -> None:
    spec, dataset = DataSpec(source="digits", partition="iid"), load("digits")
    with pytest.raises(TypeError, match=r"^iid\(\) has no parameter totl$"):
        _options(iid, spec.partition, dataset, spec, totl=40)
    assert _options(iid, spec.partition, dataset, spec, total=40)["total"] == 40
