"""What the authors' recipe does otherwise stands in authors.toml, and on the page that people read."""

import pytest
from rotation import rotating

from hanse_papers import changes
from hanse_papers.catalogue import PAPERS
from hanse_papers.tables import PaperTable, differences


def _covers(setting: str, name: str) -> bool:
    """Return whether two dotted keys are the same or one lies below the other; "x.name" counts as "x"."""
    setting, name = setting.removesuffix(".name"), name.removesuffix(".name")
    return name == setting or name.startswith(f"{setting}.") or setting.startswith(f"{name}.")


def differing(table: PaperTable, other: PaperTable) -> set[str]:
    """Return the settings in which runs at the same place of two tables differ, as dotted keys.

    Where the name of a part differs, its options are not compared, since they are options of different things. A
    variant that only ``table`` has is compared with the first variant of ``other`` in that cell.
    """
    ours, theirs = changes.runs_of(table), changes.runs_of(other)
    first = {place[:3]: runs for place, runs in reversed(theirs.items())}
    found: set[str] = set()
    for place, run in ours.items():
        its = theirs.get(place, first.get(place[:3]))
        names = {name for name, _, _ in changes.differences(*run, *its)} if its is not None else set()
        renamed = tuple(name.removesuffix("name") for name in names if name.endswith(".name"))
        found |= {name for name in names if not name.startswith(renamed) or name.endswith(".name")}
    return found


@pytest.mark.parametrize("paper", rotating(sorted(PAPERS), 4))
def test_every_difference_between_the_recipes_is_written_down_and_has_an_effect(
    paper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name covers the settings below it: "mechanism.weigh" covers "mechanism.weigh.eps". Entries that say why they
    are not built (``missing``) need no effect.
    """
    monkeypatch.setattr("hanse_papers.tables.is_here", lambda source: True)  # with the groups of all data sets
    lines, found = differences(paper), set[str]()
    for build in PAPERS[paper].tables.values():
        found |= differing(build("paper", "authors"), build("paper", "paper"))
    said = [name for line in lines for name in (line["setting"], *line.get("also", ())) if name]
    assert [name for name in found if not any(_covers(line, name) for line in said)] == []
    built = [line["setting"] for line in lines if line["setting"] and "missing" not in line]
    assert [setting for setting in built if not any(_covers(setting, name) for name in found)] == []


@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_every_line_has_its_source(paper: str) -> None:
    assert differences(paper)
    for line in differences(paper):
        needed = {"setting", "paper", "authors", "source"}
        assert needed <= line.keys() <= needed | {"also", "missing"}
        assert all(line[key].strip() for key in ("paper", "authors", "source"))
