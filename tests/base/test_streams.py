"""Keyed streams: a draw depends on its key alone."""

import numpy as np

from hanse.base.streams import stream, torch_seed


def test_same_key_same_numbers_whatever_was_drawn_before() -> None:
    first = stream(3, "batches", round=7, client=2, start=1).random(5)
    stream(3, "batches", round=8, client=2, start=1).random(100)
    np.testing.assert_array_equal(first, stream(3, "batches", round=7, client=2, start=1).random(5))


def test_every_part_of_the_key_matters() -> None:
    keys = [
        (3, "a", 0, 0, 0), (4, "a", 0, 0, 0), (3, "b", 0, 0, 0), (3, "a", 1, 0, 0), (3, "a", 0, 1, 0),
        (3, "a", 0, 0, 1), (3, "a", -1, -1, -1), (31, "a", 0, 0, 0),
    ]  # fmt: skip
    draws = [stream(s, p, round=r, client=c, start=k).random() for s, p, r, c, k in keys]
    seeds = [torch_seed(s, p, round=r, client=c, start=k) for s, p, r, c, k in keys]
    assert len(set(draws)) == len(set(seeds)) == len(keys)
    assert all(0 <= seed < 2**63 for seed in seeds)
