"""A rehearsal gives every part of every mechanism what it needs to be called by hand."""

from typing import Any

import pytest
from rotation import rotating

from hanse.base.errors import UserError
from hanse.data.partitions import Dirichlet, Niid
from hanse.mechanisms.baselines import fedavg
from hanse.mechanisms.registry import MECHANISMS
from hanse.runs.rehearsal import Rehearsal, rehearse, small_experiment

POOLED = {"centralised": {"data": {"partition": "pooled"}}}
DECIDES = {"select": "select", "train": "seats", "value": "value", "settle": "settle", "deploy": "deploy"}


@pytest.mark.parametrize("case", rotating([(name, rounds) for rounds in (1, 3) for name in MECHANISMS], 4))
def test_every_part_can_be_called_with_what_it_was_shown(case: tuple[str, int]) -> None:
    name, rounds = case
    small = rehearse(name, rounds, **POOLED.get(name, {}))
    slots = small.setup.mechanism.slots()
    called = {slot for slot, _ in small.shown}
    assert slots.keys() - called <= {"weigh"}  # in which nothing happens where every row has its own client
    for slot, stage in small.shown:
        part, view, state = small.before(slot, stage)
        assert part is slots[slot]
        assert view.stage == stage
        decided(slot, part, small, view, state)
        part.asks(view, state)
        part.figures(state)
        part.learn(small.view, state)


def decided(slot: str, part: Any, small: Rehearsal, view: Any, state: Any) -> None:
    if view.stage == "close" and slot in ("train", "weigh"):
        if hasattr(part, "aggregate") and slot == "weigh":
            assert [part.aggregate(group, state) for group in view.groups()]
        else:
            part.weigh(view, state)
        return
    found, after = getattr(part, DECIDES[slot])(view, state)
    assert after.keys() == state.keys()
    was = {"select": small.view.choice, "train": small.view.seats, "value": small.view.values}.get(slot)
    assert was is None or type(found) is type(was)


def test_listening_leaves_the_parts_as_they_were() -> None:
    mechanism = fedavg()
    kinds = {slot: type(part) for slot, part in mechanism.slots().items()}
    small = rehearse(mechanism)
    assert {slot: type(part) for slot, part in mechanism.slots().items()} == kinds
    assert {slot: type(part) for slot, part in small.setup.mechanism.slots().items()} == kinds


def test_a_part_is_shown_nothing_of_what_came_later() -> None:
    small = rehearse("greedyfed")
    _, view, _ = small.before("select")
    assert (view.stage, view.choice, view.seats, view.updates, view.mix, view.values) == ("open", *[None] * 5)
    _, view, _ = small.before("value")
    assert view.mix is not None
    assert view.values is None
    assert small.view.values is not None


def test_a_payment_rule_is_shown_the_books_from_before_it() -> None:
    small = rehearse("ipfl")
    part, view, state = small.before("settle")
    kinds = {one.kind for one in view.posted}
    settlement, _ = part.settle(view, state)  # type: ignore[attr-defined]
    assert kinds == {"grant"}
    assert settlement.transactions == small.view.posted[len(view.posted) :]
    view.book.post(view.round, settlement.transactions)


def test_a_slot_without_a_part_is_named() -> None:
    with pytest.raises(KeyError, match="settle"):
        rehearse("fedavg").before("settle")


@pytest.mark.parametrize(
    ("data", "choice"),
    [
        ({}, "partition"),
        ({"partition": "iid"}, "partition"),
        ({"partition": {"alpha": 0.1}, "source": {"name": "mnist"}}, "partition"),
        ({"source": "fedsoft_linear"}, "partition"),
        ({"source": "synthetic"}, "source"),
    ],
)
def test_clients_have_few_samples_where_that_can_be_said(data: dict[str, Any], choice: str) -> None:
    assert getattr(small_experiment(data=data).data, choice).samples_per_client == 30


def test_other_partitions_are_as_they_were_given() -> None:
    assert small_experiment(data={"partition": "niid"}).data.partition == Niid()
    assert small_experiment(data={"partition": {"samples_per_client": 9}}).data.partition == Dirichlet(
        samples_per_client=9
    )
    with pytest.raises(UserError, match=r"data\.partition\.alfa.*'alpha'"):
        small_experiment(data={"partition": {"alfa": 1.0}})
