"""What a card needs, without one: PyTorch's device without values stands in for it."""

import torch

from hanse.data.samples import Samples
from hanse.learning.scoring import Resident

ELSEWHERE = torch.device("meta")


def some(n: int = 3) -> Samples:
    return Samples(torch.zeros(n, 2), torch.zeros(n, dtype=torch.long))


def test_samples_travel_once_and_the_four_last_sets_are_kept() -> None:
    kept, first, second, more = Resident(ELSEWHERE), some(), some(4), [some(n) for n in (5, 6, 7)]
    there = kept.of(first)
    assert there.x.device == there.y.device == ELSEWHERE
    assert len(there) == 3
    assert kept.of(second) is not there
    assert kept.of(first) is there
    kept.of(more[0])
    assert kept.of(first) is there
    for pool in more:
        kept.of(pool)
    assert kept.of(first) is not there
    assert len(kept.of(more[0])) == 5
    kept.clear()
    assert kept._kept == []
