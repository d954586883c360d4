"""What a table at a smaller scale changes against its recipe at full size.

The list is found by comparing the experiments themselves, setting by setting, so that it is complete by construction
and cannot fall behind the files. :func:`changed` returns it for the page above a table, :func:`unfinished` says what of
a table has no number yet, and :func:`differing` compares the two recipes for :mod:`hanse.lab.papers.recipes`.

A run's place in a table is its group, column, row and variant, which have the same names at every scale; runs at the
same place are compared.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from hanse.base.errors import UserError
from hanse.base.toml import flat
from hanse.data.sources import split_note
from hanse.lab.papers.tables import Cell, PaperTable, Variant
from hanse.runs.config import Experiment

Place = tuple[str, str, str, str]
"""A run's group, column, row and variant, as the table's file calls them."""
Names = Mapping[str, str]
"""How a name of the table's file is told, where it is told otherwise."""
_SAME_RESULT = ("engine.train", "engine.threads", "engine.workers", "engine.device", "data.path", "data.download")
_SEEDS = ("data.seed", "run.seed")
_EXAMPLES = 2  # runs that are named where a difference concerns neither whole groups nor columns nor rows
_AXES = ("group", "column", "row")


def changed(table: PaperTable, full: PaperTable) -> list[str]:
    """Return everything that a table changes against its recipe at full size.

    Every setting of an experiment is compared, with its default where nothing is said. Left out are the settings on
    which no result depends (threads, which engine, where files lie) and the seeds that only repeat a run; a seed that
    the table itself fixes is compared.

    Args:
        table: the table at its own scale.
        full: the same table, by the same recipe, at scale "paper".

    Returns:
        Lines in this order: what the table's file says in words (``changes``); groups, columns, rows, variants and
        cells that are left out or added; settings that differ, one line for each set of runs that share them; and data
        files whose split is not the official one. None if nothing differs.
    """
    ours, theirs = _runs(table), _runs(full)
    both = [place for place in ours if place in theirs]
    found: dict[tuple[str, str], list[Place]] = {}
    for place in both:
        for name, new, old in _differences(*ours[place], *theirs[place]):
            found.setdefault((name, f"{new} instead of {old}"), []).append(place)
    names = _told(table, full)
    lines: dict[str, list[str]] = {}
    for (name, said), places in found.items():
        lines.setdefault(_where(places, both, names), []).append(f"{name} {said}")
    settings = [f"{where}{', '.join(said)}" for where, said in lines.items()]
    return [*table.changes, *_left_out(ours, theirs, names), *settings, *_files(table)]


def unfinished(table: PaperTable, whole: PaperTable) -> list[str]:
    """Return which groups, columns, rows and variants have no number yet, a line for each kind.

    Args:
        table: the part of the table that has numbers.
        whole: the whole table at the same scale.
    """
    return _left_out(_runs(table), _runs(whole), _told(table, whole))


def differing(table: PaperTable, other: PaperTable) -> set[str]:
    """Return the settings in which runs at the same place of two tables differ, as dotted keys.

    Where the name of a part differs ("mechanism.name"), its options are not compared, since they are options of
    different things. A variant that only ``table`` has is compared with the first variant of ``other`` in that cell.

    Args:
        table: the table whose places are gone through.
        other: the table that it is compared with; places that it lacks are passed over.
    """
    ours, theirs = _runs(table), _runs(other)
    first = {place[:3]: runs for place, runs in reversed(theirs.items())}
    found: set[str] = set()
    for place, run in ours.items():
        its = theirs.get(place, first.get(place[:3]))
        names = {name for name, _, _ in _differences(*run, *its)} if its is not None else set()
        renamed = tuple(name.removesuffix("name") for name in names if name.endswith(".name"))
        found |= {name for name in names if not name.startswith(renamed) or name.endswith(".name")}
    return found


def _runs(table: PaperTable) -> dict[Place, tuple[Cell, Variant]]:
    """Return a table's runs by their places."""
    return {(*cell.place, variant.name): (cell, variant) for cell in table.cells for variant in cell.variants}


def _told(*tables: PaperTable) -> Names:
    """Return how names that say nothing by themselves are told: a column that the file leaves open ("T={rounds}") by
    what it becomes, and a group that is numbered by its columns.
    """
    cells = [cell for table in tables for cell in table.cells]
    columns: dict[str, list[str]] = {}
    for cell in cells:
        group, column, _ = cell.place
        for name in (column,) * ("{" in column) + (group,) * (group != cell.group and group.startswith(cell.group)):
            columns.setdefault(name, []).append(cell.column)
    told = {name: list(dict.fromkeys(shown)) for name, shown in columns.items()}
    return {n: " or ".join(shown) if "{" in n else f"{n} ({', '.join(shown)})" for n, shown in told.items()}


def _differences(cell: Cell, variant: Variant, full: Cell, its: Variant) -> list[tuple[str, str, str]]:
    """Return each setting that differs, as its dotted key, our value and the full table's.

    The round at which the number is read counts as a setting, unless both are read at the end of their runs: then the
    number of rounds says it already.
    """
    ours, theirs = _settings(variant.sections), _settings(its.sections)
    found = [
        (name, _value(ours, name), _value(theirs, name))
        for name in [*theirs, *(name for name in ours if name not in theirs)]
        if ours.get(name) != theirs.get(name)
    ]
    at_end = (cell.at, full.at) == (ours["run.rounds"], theirs["run.rounds"])
    return found if cell.at == full.at or at_end else [*found, ("read after round", str(cell.at), str(full.at))]


def _settings(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment's settings by dotted key, without those that make no difference.

    Defaults are included. An experiment that is not valid here (its data set may be missing) is taken as it is written.
    """
    try:
        whole: Mapping[str, Any] = Experiment(**sections).sections()
    except UserError:
        whole = sections
    fixed = {name for name, _ in flat(sections)}  # a seed that the table itself fixes is a setting, not a repetition
    drawn = [name for name in _SEEDS if name not in fixed]
    return {name: value for name, value in flat(whole) if name not in (*_SAME_RESULT, *drawn)}


def _value(settings: Mapping[str, Any], name: str) -> str:
    """Return a setting as it stands in a line, without the trailing digits of a float."""
    value = settings.get(name)
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _where(places: Sequence[Place], every: Sequence[Place], told: Names) -> str:
    """Return which runs a line is about, to be put in front of it.

    Nothing if it is about all runs; the names of groups, columns or rows if it is about all runs of these; else the
    first two runs and how many more there are.
    """
    if len(places) == len(every):
        return ""
    for axis in range(len(_AXES)):
        names = dict.fromkeys(place[axis] for place in places)
        if len(places) == sum(place[axis] in names for place in every):
            return f"{', '.join(told.get(name, name) for name in names)}: "
    named = [", ".join(told.get(name, name) for name in place if name) for place in places[:_EXAMPLES]]
    more = f" and {len(places) - _EXAMPLES} more" if len(places) > _EXAMPLES else ""
    return f"{'; '.join(named)}{more}: "


def _left_out(ours: Collection[Place], theirs: Collection[Place], told: Names) -> list[str]:
    """Return lines on the groups, columns, rows, cells and variants that only one of two tables has.

    ``ours`` and ``theirs`` are the places of the table and of the full one, ``told`` how their names are told.
    """
    lines = []
    for axis, kind in enumerate(_AXES):
        here, there = (dict.fromkeys(place[axis] for place in places) for places in (ours, theirs))
        gone, new = (
            [told.get(name, name) for name in _once([n for n in one if n not in other], one, told)]
            for one, other in ((there, here), (here, there))
        )
        lines += [f"without the {kind}{'s' if len(gone) > 1 else ''} {_list(gone)}"] if gone else []
        lines += [f"with the {kind}{'s' if len(new) > 1 else ''} {_list(new)}, not in the full table"] if new else []
    lines += _holes(ours, theirs, told)
    # a row that is missing altogether was named above
    tried = _by_row(ours), _by_row(theirs)
    for row, full in tried[1].items():
        missing = [name for name in full if name not in tried[0].get(row, full)]
        lines += [f"{row} without {', '.join(missing)}"] if missing else []
    return lines


def _once(missing: Sequence[str], every: Collection[str], told: Names) -> list[str]:
    """Return names that only one table has, a block of several numbered groups by its own name if all of it is missing.

    Args:
        missing: the names.
        every: all names of the table that has them.
        told: how names are told; a number behind a name that is told otherwise is no part of it.
    """
    block = {name: re.sub(r" \(\d+\)$", "", name) if name in told else name for name in every}
    whole = {block[name] for name in missing} - {block[name] for name in every if name not in missing}
    return [name for name in missing if name == block[name] or block[name] not in whole]


def _list(names: Sequence[str]) -> str:
    """Return names one after another, apart by semicolons where a name has a comma of its own."""
    return ("; " if any("," in name for name in names) else ", ").join(names)


def _holes(ours: Collection[Place], theirs: Collection[Place], told: Names) -> list[str]:
    """Return lines on the cells that are missing although their group, column and row are there.

    Columns of a group that lack the same rows share a line, and so do groups whose columns lack the same. A
    numbered group names its columns itself (:func:`_told`).
    """
    here, there = (dict.fromkeys(place[:3] for place in places) for places in (ours, theirs))
    known = [{place[axis] for place in here} for axis in range(3)]
    gone: dict[tuple[str, str], list[str]] = {}
    for place in there:
        if place not in here and all(name in known[axis] for axis, name in enumerate(place)):
            gone.setdefault((place[0], place[1]), []).append(place[2])
    alike: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (group, column), names in gone.items():
        alike.setdefault((group, tuple(names)), []).append(column)
    same: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (group, rows), columns in alike.items():
        same.setdefault((tuple(columns), rows), []).append(group)
    of = {group: {place[1] for place in there if place[0] == group} for group in known[0]}
    lines = []
    for (places, rows), groups in same.items():
        named = all(g in told and of[g] == set(places) for g in groups)
        where = "" if named else f" in {', '.join(told.get(column, column) for column in places)}"
        lines.append(f"{_list([told.get(g, g) for g in groups])}: without {'; '.join(rows)}{where}")
    return lines


def _by_row(places: Collection[Place]) -> dict[str, list[str]]:
    """Return the names of each row's variants, in order of appearance."""
    found: dict[str, list[str]] = {}
    for place in places:
        if place[3] not in found.setdefault(place[2], []):
            found[place[2]].append(place[3])
    return found


def _files(table: PaperTable, note: Callable[[str], str] = split_note) -> list[str]:
    """Return a line for each data source whose file here has another split than the official one."""
    sources = dict.fromkeys(v.sections["data"]["source"] for cell in table.cells for v in cell.variants)
    return [f"{source}: {said}" for source in sources if (said := note(source))]
