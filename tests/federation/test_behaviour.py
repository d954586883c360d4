"""What clients do to what they send: laws, keys, and that it acts at the port."""

from typing import Any

import numpy as np
import pytest
import torch

from hanse.core.port import Reply, Request, Train, Trained
from hanse.core.recipe import Recipe
from hanse.federation.behaviour import DropOut, Me, Noisy, Straggler

P, N = 2000, 10


def me(client: int, **recipe: Any) -> Me:
    return Me(client, N, seed=3, recipe=Recipe(**{"epochs": 5, **recipe}), num_parameters=P - 100)


def request(client: int, *, private: bool = False, row: int = 0) -> Request:
    return Request(client, (Train(0, row, torch.zeros(P), private=private),))


def reply(client: int) -> Reply:
    return Reply(client, (Trained(0, torch.zeros(P), 1.0, 0.1, 1),))


def work_of(part: Straggler, client: int, round: int, **recipe: Any) -> int | None:
    [task] = part.on_request(me(client, **recipe), round, request(client)).tasks
    return task.work


def test_the_right_fraction_straggles_and_always_the_same_clients() -> None:
    part = Straggler(fraction=0.3)
    slow = {c for c in range(N) if work_of(part, c, 0) is not None}
    assert len(slow) == 3
    assert slow == {c for c in range(N) if work_of(part, c, 7) is not None}
    assert all(work_of(Straggler(fraction=0.0), c, 0) is None for c in range(N))
    assert all(work_of(Straggler(fraction=1.0), c, 0) is not None for c in range(N))


def test_stragglers_do_one_to_all_epochs_uniformly_or_steps_where_those_count() -> None:
    part = Straggler(fraction=1.0)
    counts = np.bincount([work_of(part, c, r) for c in range(N) for r in range(200)], minlength=6)
    assert counts[0] == 0
    assert counts.sum() == counts[1:6].sum() == 2000
    assert abs(counts[1:6] - 400).max() < 5 * np.sqrt(400)
    assert {work_of(part, c, r, steps=3) for c in range(N) for r in range(20)} == {1, 2, 3}


def test_noise_levels_are_a_permutation_of_k_sigma_over_n() -> None:
    part = Noisy(sigma=0.5)
    found = []
    for client in range(N):
        [result] = part.on_reply(me(client), 0, request(client), reply(client)).results
        assert torch.equal(result.row[P - 100 :], torch.zeros(100))  # buffers are not parameters
        found.append(float(result.row[: P - 100].std()))
    np.testing.assert_allclose(sorted(found), np.arange(N) * 0.5 / N, rtol=0.1, atol=1e-12)


def test_noise_depends_on_round_and_start_row_and_not_on_the_order() -> None:
    part = Noisy(sigma=1.0)
    client = next(c for c in range(N) if part.on_reply(me(c), 0, request(c), reply(c)) is not reply(c))

    def row(round: int, start: int) -> torch.Tensor:
        [result] = part.on_reply(me(client), round, request(client, row=start), reply(client)).results
        return result.row  # type: ignore[union-attr]

    assert torch.equal(row(0, 0), row(0, 0))
    assert not torch.equal(row(0, 0), row(1, 0))
    assert not torch.equal(row(0, 0), row(0, 1))


def test_a_private_row_is_never_sent_and_so_never_noisy() -> None:
    part = Noisy(sigma=1.0)
    for client in range(N):
        [result] = part.on_reply(me(client), 0, request(client, private=True), reply(client)).results
        assert torch.equal(result.row, torch.zeros(P))  # type: ignore[union-attr]


@pytest.mark.parametrize(("rate", "low", "high"), [(0.0, 0, 0), (0.25, 400, 600), (1.0, 2000, 2000)])
def test_drop_outs_are_silent_at_their_rate(rate: float, low: int, high: int) -> None:
    part = DropOut(rate)
    assert low <= sum(part.on_request(me(c), r, request(c)) is None for c in range(N) for r in range(200)) <= high
