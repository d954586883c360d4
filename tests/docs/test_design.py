"""The page on how hanse works inside names files that exist; the list of words is the code's."""

import pkgutil
import re
import runpy
from contextlib import suppress
from pathlib import Path

import pytest

from hanse.base.wings import absent

ROOT = Path(__file__).parents[2]
DESIGN = (ROOT / "docs" / "design.md").read_text()
ON_THE_MAP = re.findall(r"^\| `([\w/]+)/` \| (.*) \|$", DESIGN, re.MULTILINE)
# without the wings that were deleted
ROOMS = [(room, text) for room, text in ON_THE_MAP if room[:5] != "wings" or (ROOT / "src" / "hanse" / room).is_dir()]


@pytest.mark.parametrize(("room", "text"), ROOMS)
def test_the_map_names_files_that_exist(room: str, text: str) -> None:
    folder = ROOT / "src" / "hanse" / room
    for name in re.findall(r"`([\w*]+(?:\.py|/))`", text):
        assert list(folder.rglob(name)), name


def test_docstrings_name_what_exists() -> None:
    names = re.compile(r":(?:mod|func|class|meth|data|attr):`~?(hanse[\w.]+)`")
    said = {name for file in (ROOT / "src").rglob("*.py") for name in names.findall(file.read_text())}
    assert [name for name in sorted(said) if not _is_there(name)] == [], absent()


def _is_there(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        owner, _, field = name.rpartition(".")  # a dataclass's field without a default
        with suppress(ImportError, AttributeError):
            return field in pkgutil.resolve_name(owner).__annotations__
        return False
    return True


def test_every_room_is_on_the_map() -> None:
    folders = {p.parent.name for p in (ROOT / "src" / "hanse").glob("*/__init__.py")}
    assert {room.partition("/")[0] for room, _ in ROOMS} == folders


def test_the_list_of_words_is_what_the_code_has() -> None:
    """``python docs/hooks/site.py`` writes it anew."""
    pytest.importorskip("hanse.wings.private")
    hook = runpy.run_path(str(ROOT / "docs" / "hooks" / "site.py"))
    assert hook["words"]() == hook["WORDS"].read_text()
