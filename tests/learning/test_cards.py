"""What a card needs, without one: PyTorch's device without values stands in for it."""

from __future__ import annotations

import torch

from hanse.data.samples import Samples
from hanse.learning.cards import Resident, same_bits
from hanse.learning.local import Trainer
from hanse.learning.models import build_problem

CPU, ELSEWHERE = torch.device("cpu"), torch.device("meta")


def some(n: int = 3) -> Samples:
    return Samples(torch.zeros(n, 2), torch.zeros(n, dtype=torch.long))


def test_samples_travel_once_and_the_two_last_sets_are_kept() -> None:
    kept, first, second, third = Resident(ELSEWHERE), some(), some(4), some(5)
    there = kept.of(first)
    assert there.x.device == there.y.device == ELSEWHERE
    assert len(there) == 3
    assert kept.of(second) is not there
    assert kept.of(first) is there
    kept.of(third)
    assert kept.of(first) is not there
    assert len(kept.of(third)) == 5
    kept.clear()
    assert kept._kept == []


def test_on_the_processor_samples_are_handed_back_as_they_are() -> None:
    pool = some()
    assert Resident(CPU).of(pool) is pool
    assert pool.to(CPU) is pool


def test_samples_are_taken_by_positions_that_lie_elsewhere() -> None:
    assert some().to(ELSEWHERE).take(torch.tensor([0, 2])).x.shape == (2, 2)


def test_the_settings_of_convolutions_stay_as_they_are_without_a_card() -> None:
    cudnn = torch.backends.cudnn
    before = (cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark)
    same_bits(CPU)
    assert (cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark) == before


def test_a_module_that_draws_is_found_and_the_generator_put_back() -> None:
    problem, _ = build_problem(
        lambda shape, classes: torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout()), (2,), 3, 0
    )
    before = torch.get_rng_state()
    assert Trainer(problem, CPU).draws(some())
    assert torch.equal(before, torch.get_rng_state())
