"""What is loaded once for many runs: the same samples for all of them, and nothing else than without it."""

import pytest
import torch

from hanse.data import DataSpec, build, load
from hanse.data.fingerprint import fingerprint
from hanse.data.sources import keeping


def test_a_source_is_loaded_once_whatever_the_seed() -> None:
    alone = load("digits")
    with keeping():
        first = load("digits", seed=0)
        assert load("digits", seed=9) is first
        with keeping():
            assert load("digits") is first
        assert load("digits") is first  # the inner block does not end the outer one
    assert torch.equal(first.train.x, alone.train.x)
    assert torch.equal(first.test.y, alone.test.y)
    assert load("digits") is not first


def test_a_source_that_draws_has_each_seed_s_samples() -> None:
    with keeping():
        drawn = [load("fedsoft_linear", seed=seed).train.x for seed in (0, 1)]
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[1], load("fedsoft_linear", seed=1).train.x)


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_data_and_fingerprints_are_the_same(partition: str) -> None:
    specs = [
        DataSpec(clients=6, partition=partition, seed=seed, client_test=0.2, client_validation=0.1) for seed in (0, 1)
    ]
    alone = [fingerprint(build(spec)) for spec in specs]
    with keeping():
        assert [fingerprint(build(spec)) for spec in (*specs, *specs)] == alone * 2
    assert alone[0] != alone[1]
