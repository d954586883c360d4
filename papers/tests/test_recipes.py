"""What the authors' recipe does otherwise stands in authors.toml, and on the page that people read."""

from collections.abc import Iterator

import pytest
from rotation import rotating

from hanse_papers import changes
from hanse_papers.catalogue import PAPERS
from hanse_papers.tables import Paper, PaperTable, differences


def undocumented(paper: Paper) -> list[str]:
    """Return the settings in which the two recipes differ at full size and that ``authors.toml`` does not name.

    A setting is named as ``setting`` of an entry, or among those that change with it (``also``). A name covers the
    settings below it: "mechanism.weigh" covers "mechanism.weigh.eps".

    Args:
        paper: the paper, all of whose tables are compared.

    Returns:
        Dotted keys in alphabetical order; none if everything is documented.
    """
    said = [name for line in differences(paper.name) for name in (line["setting"], *line.get("also", ())) if name]
    return sorted(name for name in set(_different(paper)) if not any(_covers(line, name) for line in said))


def without_effect(paper: Paper) -> list[str]:
    """Return the settings that ``authors.toml`` names and in which the two recipes do not differ.

    Entries that say why they are not built (``missing``) do not count. Groups whose data are not here have no
    experiments, so a setting that only they change is returned as well.

    Args:
        paper: the paper, all of whose tables are compared.
    """
    found = set(_different(paper))
    built = [line["setting"] for line in differences(paper.name) if line["setting"] and "missing" not in line]
    return sorted(setting for setting in built if not any(_covers(setting, name) for name in found))


def _covers(setting: str, name: str) -> bool:
    """Return whether two dotted keys are the same or one lies below the other; "x.name" counts as "x"."""
    setting, name = setting.removesuffix(".name"), name.removesuffix(".name")
    return name == setting or name.startswith(f"{setting}.") or setting.startswith(f"{name}.")


def _different(paper: Paper) -> Iterator[str]:
    """Yield the settings in which the recipes differ, table by table; a setting may come more than once."""
    for build in paper.tables.values():
        yield from differing(build("paper", "authors"), build("paper", "paper"))


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
    monkeypatch.setattr("hanse_papers.tables.is_here", lambda source: True)  # with the groups of all data sets
    assert undocumented(PAPERS[paper]) == []
    assert without_effect(PAPERS[paper]) == []


@pytest.mark.parametrize("paper", sorted(PAPERS))
def test_every_line_has_its_source(paper: str) -> None:
    assert differences(paper)
    for line in differences(paper):
        needed = {"setting", "paper", "authors", "source"}
        assert needed <= line.keys() <= needed | {"also", "missing"}
        assert all(line[key].strip() for key in ("paper", "authors", "source"))
