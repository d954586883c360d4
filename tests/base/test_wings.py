"""A wing that was deleted: the core works, and an error about a name of its says how to get it."""

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch
from mistaken import mistakes

from hanse.base import wings
from hanse.base.errors import UserError
from hanse.base.imports import import_path
from hanse.data.samples import Samples
from hanse.federation.node import ACCOUNT, Assignment, ClientData, Node

GONE = "hanse.wings.of_a_deleted_folder:WING"


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    """Return the entry points that are found."""
    found: list[EntryPoint] = []
    monkeypatch.setattr(wings, "entry_points", lambda group: found)
    wings._found.cache_clear()
    yield found
    wings._found.cache_clear()


def test_a_deleted_wing_is_left_out_and_named_where_a_name_is_unknown(points: list[EntryPoint]) -> None:
    assert (wings.wings(), wings.absent()) == ((), "")
    lines = mistakes(import_path, "deviant", "behaviour", wings.Names({"liar": 1}, "behaviours"))
    points.append(EntryPoint("pirate", GONE, wings.GROUP))
    wings._found.cache_clear()
    assert wings.wings() == ()
    assert "pirate" in mistakes(import_path, "deviant", "behaviour", wings.Names({"liar": 1}, "behaviours"))[0]
    assert "pirate" not in lines[0]


def test_a_wing_that_cannot_be_imported_is_an_error(points: list[EntryPoint]) -> None:
    points.append(EntryPoint("broken", "hanse.base.wings:no_such_wing", wings.GROUP))
    with pytest.raises(AttributeError) as caught:
        wings.wings()
    assert "wing 'broken'" in caught.value.__notes__[0]


def test_a_wing_brings_only_kinds_that_there_are() -> None:
    with pytest.raises(ValueError, match="names: 'selcet': no such kind"):
        wings.Wing("mine", names={"selcet": {"mine": "mine:Mine"}})


def test_an_account_without_its_wing_answers_nothing(points: list[EntryPoint], tmp_path: Path) -> None:
    (tmp_path / ACCOUNT).write_text("{}")
    mine, job = Samples(torch.zeros(2, 3), torch.tensor([0, 1])), Assignment("a", 0, 4, 0, {"name": "logistic"}, {})
    with pytest.raises(UserError, match=ACCOUNT):
        Node(ClientData(mine, num_classes=2), job, tmp_path)
