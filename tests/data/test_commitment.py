"""Commitments to a number of samples: honest members pass, and inflated claims survive with chance at most x^-k."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some

from hanse.data.commitment import Committed, SampleCommitment, commit, drawn, fault
from hanse.data.samples import Samples

KEY = bytes(range(32))


def samples(n: int, seed: int = 0) -> Samples:
    draw = torch.Generator().manual_seed(seed)
    return Samples(torch.randn(n, 3, generator=draw), torch.randint(0, 5, (n,), generator=draw))


def faults(held: Committed, seed: bytes, k: int) -> list[str]:
    return [fault(held.commitment, KEY, i, held.open(i)) for i in drawn(held.commitment, seed, k)]


@settings(max_examples=30, deadline=None)
@given(some.integers(1, 200), some.integers(1, 60), some.binary(min_size=1, max_size=8))
def test_an_honest_member_always_passes(n: int, k: int, seed: bytes) -> None:
    held = commit(samples(n), KEY)
    assert held.commitment.size == n
    assert faults(held, seed, k) == [""] * min(n, k)


def test_the_same_sample_counts_once_and_order_does_not_matter() -> None:
    one = samples(20)
    twice = one.take(torch.tensor([*range(19, -1, -1), *range(20)]))
    assert commit(twice, KEY).commitment == commit(one, KEY).commitment
    assert commit(one, KEY).commitment != commit(one, KEY[::-1]).commitment


def inflated(n: int, claimed: int, kind: str) -> Committed:
    """Commitments of a member of n samples that claims more."""
    held, draw = commit(samples(n), KEY), np.random.default_rng(7)
    own, tags = list(held._samples), list(held._tags)
    if kind == "doubled":  # every sample several times, in order
        pairs = sorted((tags[i % n], own[i % n]) for i in range(claimed))
    else:  # invented tags between the true ones
        pairs = sorted([*zip(tags, own, strict=True), *((draw.bytes(32), b"") for _ in range(claimed - n))])
    return Committed([sample for _, sample in pairs], [tag for tag, _ in pairs])


@pytest.mark.parametrize("kind", ["doubled", "invented"])
@pytest.mark.parametrize(("x", "k"), [(1.25, 5), (1.25, 10), (2.0, 3)])
def test_a_claim_of_x_times_survives_at_most_as_often_as_promised(kind: str, x: float, k: int) -> None:
    held, trials = inflated(80, int(80 * x), kind), 400
    fine = {i: not fault(held.commitment, KEY, i, held.open(i)) for i in range(held.commitment.size)}
    assert sum(fine.values()) <= 80  # at most as many leaves pass as there are samples
    passed = sum(all(fine[i] for i in drawn(held.commitment, b"%d" % t, k)) for t in range(trials))
    assert passed / trials <= x**-k + 3 * np.sqrt(x**-k * (1 - x**-k) / trials)


def test_each_thing_that_can_be_wrong_is_named() -> None:
    held, at = commit(samples(50), KEY), 17
    told, good = held.commitment, held.open(at)
    assert fault(told, KEY, at, good) == ""
    other, unsorted = SampleCommitment(told.root[::-1], 50), Committed(held._samples[::-1], held._tags[::-1])
    for by, key, leaf, opening, said in (
        (told, KEY, at, replace(good, sample=good.sample + b"x"), "not the tag"),
        (told, KEY[::-1], at, good, "not the tag"),
        (told, KEY, at, replace(good, path=good.path[1:]), "binary search"),
        (told, KEY, at, held.open(18), "binary search"),
        (told, KEY, at, replace(good, path=()), "binary search"),
        (other, KEY, at, good, "not in the tree"),
        (told, KEY, 50, good, "not among"),
        (unsorted.commitment, KEY, 3, unsorted.open(3), "out of order"),
    ):
        assert said in fault(by, key, leaf, opening)
    assert fault(SampleCommitment(told.root, 49), KEY, at, good)
    with pytest.raises(ValueError, match="key"):
        commit(samples(3), b"short")
    with pytest.raises(ValueError, match="k: 0"):
        drawn(told, b"", 0)
