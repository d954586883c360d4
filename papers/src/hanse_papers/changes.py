"""Finds what a table at a smaller scale changes from the same recipe at full size, by comparing the experiments.

A run's place in a table is its group, column, row and variant, which have the same names at every scale. Runs at the
same place are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hanse.base.errors import UserError
from hanse.base.factories import named_choice
from hanse.base.toml import flat
from hanse.data.sources import split_note
from hanse.runs.config import Experiment
from hanse_papers.tables import Cell, PaperTable, Variant

Place = tuple[str, str, str, str]
"""A run's group, column, row and variant, as the table's file calls them."""
_SAME_RESULT = ("engine.train", "engine.threads", "engine.workers", "engine.device", "data.path", "data.download")
_SEEDS = ("data.seed", "run.seed")


def changed(table: PaperTable, full: PaperTable) -> list[str]:
    """Return all differences of a table from its recipe at full size.

    Every setting of an experiment is compared, with its default if it is not given. Two things are ignored: settings
    that affect no result (threads, engine, file locations), and seeds that only repeat a run. A seed that the table
    fixes is compared.

    Args:
        table: the table at its own scale.
        full: the table that the same recipe gives at scale "paper".

    Returns:
        Lines in this order: what the table's file says in words (``changes``); groups, columns, rows and variants that
        are left out or added; settings that differ, each with the number of runs concerned; and data files whose split
        is not the official one. None if nothing differs.
    """
    ours, theirs = runs_of(table), runs_of(full)
    lines = list(table.changes)
    for axis, kind in enumerate(("group", "column", "row", "variant")):
        here, there = ({place[axis]: None for place in places if place[axis]} for places in (ours, theirs))
        for word, names in (("without", there.keys() - here.keys()), ("with", here.keys() - there.keys())):
            named = [name for name in (there if word == "without" else here) if name in names]
            lines += [f"{word} the {kind}{'s' if len(named) > 1 else ''} {'; '.join(named)}"] if named else []
    both = [place for place in ours if place in theirs]
    if len(both) < len(theirs):
        lines.append(f"{len(both)} of {len(theirs)} cells and variants")
    settings: dict[str, int] = {}
    for place in both:
        for name, new, old in differences(*ours[place], *theirs[place]):
            said = f"{name} {new} instead of {old}"
            settings[said] = settings.get(said, 0) + 1
    lines += [said if n == len(both) else f"{said} ({n} of {len(both)} runs)" for said, n in settings.items()]
    sources = dict.fromkeys(
        named_choice(v.sections["data"].get("source"), "digits") for cell in table.cells for v in cell.variants
    )
    return [*lines, *(f"{source}: {note}" for source in sources if (note := split_note(source)))]


def runs_of(table: PaperTable) -> dict[Place, tuple[Cell, Variant]]:
    """Return a table's runs by their places."""
    return {(*cell.place, variant.name): (cell, variant) for cell in table.cells for variant in cell.variants}


def differences(cell: Cell, variant: Variant, full: Cell, its: Variant) -> Iterator[tuple[str, str, str]]:
    """Yield each setting that differs, as its dotted key, our value and the full table's value.

    The round at which the number is read counts as a setting. It does not if both numbers are read at the end of their
    runs, because the number of rounds then already shows it.
    """
    ours, theirs = _settings(variant.sections), _settings(its.sections)
    for name in (*theirs, *(name for name in ours if name not in theirs)):
        if ours.get(name) != theirs.get(name):
            yield name, _value(ours, name), _value(theirs, name)
    if cell.at != full.at and (cell.at, full.at) != (ours["run.rounds"], theirs["run.rounds"]):
        yield "read after round", str(cell.at), str(full.at)


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
