"""Secure sums: what the server is given is the sum of a group, and never an update of one."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from hanse.base.errors import UserError
from hanse.core.port import Arrival, Call, Reply, Request, Train, Trained
from hanse.runs.rehearsal import small_experiment
from hanse.runs.setup import build
from hanse.wings.private.secure_sums import MOST_CHANGE, MOST_MEMBERS, MOST_SAMPLES, Secured, SecureSums

START = torch.linspace(-1, 1, 5)


@dataclass
class Answers:
    """A federation that gives the replies that it was made with."""

    replies: list[Reply]

    def exchange(self, call: Call) -> list[Reply]:
        return self.replies


def update(client: int, samples: int = 10, seed: int | None = None) -> Reply:
    rng = torch.Generator().manual_seed(client if seed is None else seed)
    return Reply(client, (Trained(client, START + torch.randn(5, generator=rng), samples, 0.1 * client, client),))


def seen(replies: list[Reply], deadline: float | None = None, clients: int | None = None) -> list[Reply]:
    asked = [Request(c, (Train(c, 0, START),)) for c in range(len(replies) if clients is None else clients)]
    return list(Secured(Answers(replies), SecureSums(3), 7).exchange(Call(0, asked, deadline)))


def rows(replies: list[Reply]) -> dict[int, torch.Tensor]:
    return {r.client: r.results[0].row for r in replies if r.results}  # type: ignore[union-attr]


@pytest.mark.parametrize(("clients", "group"), [(3, 3), (7, 3), (20, 4), (11, 5)])
def test_groups_have_at_least_their_size_and_everybody(clients: int, group: int) -> None:
    made = [SecureSums(group).groups(1, np.arange(clients), n) for n in range(3)]
    for groups in made:
        assert sorted(np.concatenate(groups).tolist()) == list(range(clients))
        assert all(group <= len(one) < 2 * group for one in groups)
    assert SecureSums(group).groups(1, np.arange(clients)[::-1], 2)[0].tolist() == made[2][0].tolist()


def test_groups_that_stay_the_same() -> None:
    fixed, clients = SecureSums(3, regroup=False), np.arange(20)
    first = [one.tolist() for one in fixed.groups(1, clients, 0)]
    assert [one.tolist() for one in fixed.groups(1, clients, 9)] == first
    assert [one.tolist() for one in SecureSums(3).groups(1, clients, 9)] != first
    values = {"name": "fedavg", "value": "group_path"}
    with pytest.raises(UserError, match=r"regroup: false.*'group_path'"):
        build(small_experiment(values, federation={"secure": {"regroup": False}}))
    sums = {"federation": {"secure": {"group": 3}}}  # and by themselves they change only where values need it
    for mechanism, regroup in (("fedavg", False), (values, True)):
        assert build(small_experiment(mechanism, **sums)).guards["federation.secure"].terms.regroup is regroup


def test_the_average_by_samples_is_the_same_and_no_update_is_seen() -> None:
    sent = [update(c, samples=c + 1) for c in range(10)]
    got = rows(seen(sent))
    assert len(got) == 10
    own = rows(sent)
    weights = {c: (c + 1) / 55 for c in range(10)}
    plain, summed = (sum(w * all_[c] for c, w in weights.items()) for all_ in (own, got))
    torch.testing.assert_close(plain, summed, atol=1e-6, rtol=0)
    assert not any(torch.equal(row, mine) for row in got.values() for mine in own.values())
    assert len({tuple(row.tolist()) for row in got.values()}) == 3  # one for each group


def test_what_else_one_client_says_of_its_training_is_not_seen() -> None:
    sent = [update(c) for c in range(3)]
    sent[0] = replace(sent[0], results=(replace(sent[0].results[0], metrics={"secret": 1.0}),))
    results = [r.results[0] for r in seen(sent)]
    assert [one.steps for one in results] == [1, 1, 1]
    assert [one.loss for one in results] == pytest.approx([0.1] * 3, abs=1e-6)
    assert all(one.metrics == {"sum": 0.0} for one in results)
    assert [one.num_samples for one in results] == [10, 10, 10]


def test_a_group_that_falls_below_its_least_is_never_summed() -> None:
    sent = [update(c) for c in range(9)]
    gone = SecureSums(3).groups(7, np.arange(9), 0)[0].tolist()
    got = seen([r for r in sent if r.client != gone[0]], clients=9)
    refused = {r.client: r.refused for r in got if r.refused}
    assert sorted(refused) == gone[1:]
    assert all("2 of its group of 3 can be summed; it takes 3" in str(why) for why in refused.values())
    assert len(rows(got)) == 6


def test_who_is_late_is_not_in_the_sum() -> None:
    sent = [update(c) for c in range(4)]
    sent[0] = replace(sent[0], arrival=Arrival(seconds=9.0))
    want = START + sum(rows(sent)[c] - START for c in (1, 2, 3)) / 3
    got = seen(sent, deadline=5.0)
    assert "it came after 9 s, and its group is summed after 5" in str(got[0].refused)
    torch.testing.assert_close(rows(got)[1], want, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"row": START + MOST_CHANGE * 1.01}, "changes by 64.64; a sum takes at most 64"),
        ({"num_samples": MOST_SAMPLES + 1}, "8388609 samples; a sum takes at most 8388608"),
    ],
)
def test_what_does_not_fit_is_refused_and_the_others_are_summed(changed: dict[str, object], why: str) -> None:
    sent = [update(c) for c in range(4)]
    sent[2] = replace(sent[2], results=(replace(sent[2].results[0], **changed),))
    got = seen(sent)
    assert [r.client for r in got if r.refused] == [2]
    assert why in str(got[2].refused)
    assert sorted(rows(got)) == [0, 1, 3]


def test_members_that_start_from_different_models_are_refused() -> None:
    asked = [Request(c, (Train(c, 0, START + c),)) for c in range(3)]
    got = Secured(Answers([update(c) for c in range(3)]), SecureSums(3), 7).exchange(Call(0, asked))
    assert all("different models" in str(r.refused) for r in got)


def test_nothing_is_seen_of_a_reply_that_is_not_summed() -> None:
    sent = [update(c) for c in range(5)]
    sent[1] = replace(sent[1], arrival=Arrival(seconds=9.0))
    got = seen(sent, deadline=5.0)
    assert [r.client for r in got if r.refused] == [1]
    sent[2] = replace(sent[2], results=(replace(sent[2].results[0], row=START * float("nan")),))
    got = seen(sent, deadline=5.0)
    assert [r.client for r in got if r.refused] == [0, 1, 2, 3, 4]  # 3 of 5 are too few: see SecureSums.least
    assert all(not r.results for r in got if r.refused)


@pytest.mark.parametrize("size", range(3, 64))
def test_how_many_must_answer(size: int) -> None:
    """More than half, and so many that no views of who answered open a sum of fewer than the least members."""
    for group in range(size // 2 + 1, min(size, MOST_MEMBERS) + 1):
        least = SecureSums(group).least(size)
        assert max(group, size // 2 + 1) <= least <= size
        assert size * (2 * least - size) > (group - 1) * least


def test_groups_that_cannot_stay_the_same_are_said_before_round_0() -> None:
    """With fewer seats than clients, sums of groups that 'stay' tell mean updates as those of new groups do."""

    def warned(seats: int, **mechanism: object) -> bool:
        mechanism = {"name": "fedavg", "clients_per_round": seats, **mechanism}
        made = build(small_experiment(mechanism, federation={"secure": {"group": 3}}))
        return any(line.startswith("warning: federation.secure: 3 of 4 clients") for line in made.said)

    assert warned(3)
    assert not warned(4)
    assert not warned(3, value="group_path")  # its groups are meant to change
