"""The house does not grow unseen: ceilings of code by room, docstrings that say something, public names."""

import ast
import importlib
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def house() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        return importlib.import_module("house")


def test_no_room_is_above_its_ceiling(house: ModuleType) -> None:
    """If this fails: delete as much elsewhere in the room. ``house.toml`` says what else may pay."""
    ceilings = tomllib.loads((ROOT / "house.toml").read_text())
    lines = house.lines_of_rooms()
    over = house.above(lines, ceilings)
    outside = {room: n for room, n in over.items() if not room.startswith("src/")}
    assert not outside, f"lines of code above `now` in house.toml: {outside}"
    reserve = ceilings["reserve"]["lines"]
    used = sum(over.values())
    assert used <= reserve, f"{used} lines of code above `now`, the reserve in house.toml is {reserve}: {over}"
    assert set(lines) <= set(ceilings["rooms"]), "a new room needs a ceiling in house.toml"


def test_every_public_name_says_what_it_is(house: ModuleType) -> None:
    paths = [*(ROOT / "src" / "hanse").rglob("*.py"), *(ROOT / "papers" / "src").rglob("*.py")]
    found = [public for path in paths for public in house.publics(ast.parse(path.read_text()), path.name)]
    assert [public.name for public in found if not public.doc] == []
    measured = [public.says for public in found if public.measured]
    assert sum(measured) >= 0.8 * len(measured)
