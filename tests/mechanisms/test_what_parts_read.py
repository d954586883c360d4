"""The methods of parts say in their texts which fields of the view, or of the group, they read."""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

import pytest

from hanse.base.errors import UserError
from hanse.core.part import Group, Part, View
from hanse.mechanisms.feedback import Feedback
from hanse.mechanisms.registry import MECHANISMS, PARTS
from hanse.runs.rehearsal import Rehearsal, rehearse

Reads = dict[str, set[str]]
BASES = ("fedavg", "greedyfed", "pifl", "ipfl", "fedsoft", "fedamp", "s_fedavg")
POOLED: Mapping[str, Any] = {"data": {"partition": "pooled"}}
HERE = __name__
# what every view and every group has, and says nothing about the round
ALWAYS, OF_GROUPS = {"context", "view"}, {"at", "row"}
read: set[str] = set()


def note(name: str) -> None:
    """Note a name if somebody outside of the module of views has asked for it."""
    asked_by = sys._getframe(2).f_globals["__name__"]
    if not name.startswith("__") and asked_by not in ("hanse.core.part", "dataclasses", HERE):
        read.add(name)


class SeenView(View):
    def __getattribute__(self, name: str) -> Any:
        note(name)
        return super().__getattribute__(name)


class SeenGroup(Group):
    def __getattribute__(self, name: str) -> Any:
        note(name)
        return super().__getattribute__(name)


def seen(view: View) -> SeenView:
    return SeenView(**{one.name: getattr(view, one.name) for one in fields(View)})


def call(found: Reads, part: Part, method: str, given: Any, state: Any) -> None:
    defined = getattr(type(part), method, None)
    if defined is None or defined.__module__ == Part.__module__:
        return
    read.clear()
    getattr(part, method)(given, state)
    found[f"{defined.__module__}:{defined.__qualname__}"] |= read


def trace(small: Rehearsal, found: Reads) -> None:
    for slot, stage in small.shown:
        part, view, state = small.before(slot, stage)
        decides = {"select": "select", "train": "seats"}.get(slot, slot)
        if stage == "close" and slot in ("train", "weigh"):
            for group in view.groups():
                call(found, part, "aggregate", SeenGroup(group.row, group.at, seen(view), group.shrunk), state)
            decides = "weigh"
        with suppress(KeyError):  # a rule that also fills rows which this table does not have
            call(found, part, decides, seen(view), state)
        if slot == "train" and stage == "open":
            call(found, part, "sends", seen(view), state)
        call(found, part, "asks", seen(view), state)
        call(found, part, "learn", seen(small.view), state)


def rehearsals() -> Iterator[Rehearsal]:
    for name in MECHANISMS:
        yield rehearse(name, 2, **(POOLED if name == "centralised" else {}))
    for slot, names in PARTS.items():
        for name in names:
            for base in BASES:  # the first mechanism that the part goes with
                try:
                    yield rehearse({"name": base, slot: name}, data={"root": 0.2})
                    break
                except UserError:
                    continue


@pytest.fixture(scope="module")
def reads() -> Reads:
    found: Reads = defaultdict(set)
    for small in rehearsals():
        trace(small, found)
    small = rehearse("greedyfed", 2, clients={"told": True})
    for method in ("asks", "learn"):
        call(found, Feedback(), method, seen(small.view), small.played.state.states["feedback"])
    return found


def said_of(method: str) -> str:
    module, _, name = method.partition(":")
    found: Any = sys.modules[module]
    for word in name.split("."):
        found = getattr(found, word)
    return found.__doc__ or ""


def test_the_methods_of_parts_say_what_they_read(reads: Reads) -> None:
    assert len(reads) > 60
    silent = {}
    for method, names in sorted(reads.items()):
        told = names - ALWAYS - (OF_GROUPS if method.endswith(".aggregate") else set())
        said = said_of(method)
        lacking = sorted(name for name in told if not re.search(rf"``(\w+\.)?{name}\b[^`]*``", said))
        silent |= {method: lacking} if lacking else {}
    assert silent == {}
