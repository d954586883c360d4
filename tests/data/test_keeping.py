"""What is loaded once for many runs: the same samples for all of them, and nothing else than without it."""

import torch

from hanse.data import load
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
