"""A rehearsal gives every part of every mechanism what it needs to be called by hand."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from rotation import rotating

from hanse.mechanisms.registry import MECHANISMS
from hanse.runs.rehearsal import Rehearsal, rehearse
from hanse.runs.round import play_round

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


TRUSTED = {"name": "fedavg", "weigh": "fltrust"}  # its server trains, too


@pytest.mark.parametrize("mechanism", [TRUSTED, *rotating(sorted(MECHANISMS.keys() - {"centralised"}), 7)])
def test_a_round_depends_on_its_state_alone(mechanism: Any) -> None:
    """The same round of another state, played between, leaves nothing behind in the session."""
    small = rehearse(mechanism, rounds=2, data={"root": 0.1} if mechanism == TRUSTED else {})
    other = replace(small.start.table, rows=small.start.table.rows * 1.5)
    play_round(small.session, replace(small.start, table=other))
    first, again = small.played, play_round(small.session, small.start)
    assert (first.bytes_down, first.bytes_up) == (again.bytes_down, again.bytes_up)
    assert first.bytes_down > 0 or mechanism == "local"
    assert torch.equal(first.state.table.rows, again.state.table.rows)
    assert first.view.posted == again.view.posted
