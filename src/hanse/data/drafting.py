"""Drafts a schema from tables (``hanse schema``); people review it before anybody agrees to it."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from hanse.base.errors import nearest
from hanse.data.kinds import FEW, GAPS, NUMBER, natural_order
from hanse.data.preparing import DAY, MOST_KINDS, TableColumn
from hanse.data.schema import NONE, CsvTable, Schema, UnfitTableError, fitted, number, seconds


def draft(
    tables: Sequence[CsvTable],
    said: Mapping[str, Any],
    leave_out: Sequence[str] = (),
    statistics: Literal["agreed", "own"] = "agreed",
) -> Schema:
    """Return the schema that tables seem to have.

    A column whose values are all numbers holds numbers, with a unit if all have the same; one of dates as 2024-03-31
    dates; any other one words. A target of more than 20 different numbers, or of fractions, is a number, else classes.

    Args:
        tables: the sites' tables.
        said: what only people know, by the names of :class:`Schema`: the target, the group, the time, shares.
        leave_out: columns that become no features.
        statistics: whether means and deviations over all sites' train rows, rounded, are written into the
            schema ("agreed"), or each site takes those of its own train rows ("own").

    Raises:
        UserError: a column is not in all tables, or its values cannot be told. There is a line for each.
    """
    names = dict.fromkeys(name for one in tables for name in one.columns if name)
    others = [
        said[key] for key in ("target", "client_column", "group", "time") if said.get(key) not in (None, "", NONE)
    ]
    asked = [*others, *leave_out]
    lines = [f"column {name!r}: no table has it{nearest(name, names)}" for name in asked if name not in names]
    for one in tables:
        odd = [name for name in names if name not in one.columns and name not in leave_out]
        lines += [
            f"{one.path}: column {name!r}: is not there, and another table has it: --leave-out it" for name in odd
        ]
    if lines:
        raise UnfitTableError("column", *dict.fromkeys(lines))
    texts = {
        name: {text for one in tables for text in np.unique(one.columns[name]).tolist()}
        for name in names
        if name not in leave_out
    }
    gaps = sorted({text for own in texts.values() for text in own if text.casefold() in GAPS})
    comma = any(one.comma for one in tables)
    columns = dict[str, TableColumn]()
    for name in [name for name in texts if name not in others]:
        try:
            columns[name] = _column(texts[name], gaps, comma)
        except ValueError as wrong:
            lines.append(f"column {name!r}: {wrong}")
    answers = sorted(texts[said["target"]] - {*gaps}, key=natural_order)
    numbers = len(answers) > FEW and all(map(NUMBER.fullmatch, answers))
    numbers |= any(re.fullmatch(r"[+-]?\d*\.\d*[1-9]\d*", one) for one in answers)
    if lines:
        raise UnfitTableError("value", *lines)
    made = Schema(1, columns=columns, labels=[] if numbers else answers, gaps=gaps or [""], **said)
    if statistics == "own":
        return made
    sites = fitted(tables, made)
    for name, column in columns.items():
        if column.kind != "words":
            of = column.of(np.concatenate([one.columns[name][one.shares == 0] for one in sites]))
            mean, deviation = _rounded(*of)
            columns[name] = replace(column, mean=mean, deviation=deviation)
    return replace(made, columns=columns)


def merged(drafts: Sequence[Schema]) -> Schema:
    """Return the schema of members who have drafted one each, since nobody may see another's table.

    Words, classes and gaps are those of any draft. Means and deviations are those of a mixture of all members in equal
    parts, so nobody's number of rows is needed.

    Args:
        drafts: two or more drafts with the same columns.

    Raises:
        UnfitTableError: they name other columns, or hold other kinds or units. There is a line for each.
    """
    first, columns, lines = drafts[0], dict[str, TableColumn](), list[str]()
    for key in ("target", "client_column", "group", "time", "test", "validation", "seed"):
        if len(found := {str(getattr(one, key)) for one in drafts}) > 1:
            lines.append(f"schema.{key}: must be the same in all drafts, and is {' and '.join(sorted(found))}")
    if len({bool(one.labels) for one in drafts}) > 1:
        lines.append("schema.labels: must be there in all drafts, or in none if the target is a number")
    of_sites = [(site, of) for one in drafts for site, of in one.sites.items()]
    lines += [f"sites.{site}: must be the same in all drafts" for site, of in of_sites if dict(of_sites)[site] != of]
    for name in dict.fromkeys(name for one in drafts for name in one.columns):
        parts = [one.columns[name] for one in drafts if name in one.columns]
        if len(parts) < len(drafts) or len({(one.kind, one.unit) for one in parts}) > 1:
            lines.append(f"columns.{name}: must be in all drafts, with the same kind and unit")
            continue
        of = [(one.mean, one.deviation) for one in parts if one.mean is not None and one.deviation is not None]
        mean, deviation = None, None
        if len(of) == len(drafts):
            middle = sum(m for m, _ in of) / len(of)
            spread = math.sqrt(sum(d**2 + (m - middle) ** 2 for m, d in of) / len(of))
            mean, deviation = _rounded(middle, spread)
        words = sorted({word for one in parts for word in one.words})
        gaps, clock = (any(getattr(one, key) for one in parts) for key in ("gaps", "clock"))
        columns[name] = TableColumn(parts[0].kind, parts[0].unit, words, gaps, clock, mean, deviation)
    if lines:
        raise UnfitTableError("schema", *lines)
    labels, gap_words = ({word for one in drafts for word in getattr(one, key)} for key in ("labels", "gaps"))
    ordered = sorted(labels, key=natural_order)
    return replace(first, columns=columns, labels=ordered, gaps=sorted(gap_words), sites=dict(of_sites))


def _rounded(mean: float, deviation: float) -> tuple[float, float]:
    """Return a mean and a deviation as all members see them: the deviation to three digits, and the mean to the same
    place, so that numbers far from 0 are not moved by deviations.
    """
    shown = float(f"{deviation:.3g}")
    return round(mean, 2 - math.floor(math.log10(shown))), shown


def _column(texts: set[str], gaps: Sequence[str], comma: bool) -> TableColumn:
    """Return what a column of these texts seems to hold. Raises ValueError, with a remedy, if that cannot be told."""
    found = sorted(texts - {*gaps})
    missing = len(found) < len(texts)
    if not found:
        raise ValueError("has no value in any row: --leave-out it")
    unit = re.sub(rf"^({NUMBER.pattern})?[\d.,]*\s*", "", found[0].replace(",", ".") if comma else found[0])
    for of in ("numbers", "dates"):
        try:
            if of == "numbers":
                _ = [number(one, unit, comma) for one in found]
                if not any(re.match(r"[+-]?0\d", one) for one in found):  # codes, of which a number would lose the 0
                    return TableColumn("numbers", unit, gaps=missing)
            else:
                clock = any(seconds(one) % DAY for one in found)
                return TableColumn("dates", gaps=missing, clock=clock)
        except ValueError:
            continue
    if len(found) > MOST_KINDS:
        raise ValueError(
            f"{len(found)} different words, such as {found[0]!r}; at most {MOST_KINDS} become columns: name it as "
            "--group if it says of whom each row is, else put words together, or --leave-out it"
        )
    return TableColumn("words", words=found, gaps=missing)
