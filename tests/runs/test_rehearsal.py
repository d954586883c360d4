"""A rehearsal gives every part of every mechanism what it needs to be called by hand."""

from typing import Any

import pytest
from rotation import rotating

from hanse.mechanisms.registry import MECHANISMS
from hanse.runs.rehearsal import Rehearsal, rehearse

POOLED = {"centralised": {"data": {"partition": "pooled"}}}
DECIDES = {"select": "select", "train": "seats", "value": "value", "settle": "settle", "deploy": "deploy"}


@pytest.mark.parametrize("case", rotating([(name, rounds) for rounds in (1, 3) for name in MECHANISMS], 4))
def test_every_part_can_be_called_with_what_it_was_shown(case: tuple[str, int]) -> None:
    name, rounds = case
    small = rehearse(name, rounds, **POOLED.get(name, {}))
    slots = small.session.mechanism.slots()
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
