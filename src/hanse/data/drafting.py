"""Drafts a schema from tables (``hanse schema``); people review it before anybody agrees to it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from hanse.base.errors import collected, nearest
from hanse.data.doubts import no_shared, of_classes, of_means
from hanse.data.encoding import MOST_KINDS, TableColumn
from hanse.data.kinds import FEW, LIKE, LISTED, NUMBER, alike, natural_order, written, written_gaps
from hanse.data.remedies import BY_SCHEMA
from hanse.data.schema import CsvTable, Schema, UnfitTableError, doubts, fitted, joined
from hanse.data.units import NONE

_AS_THESE = "write them as 1000.5 and 2024-03-31"
_ROLES = ("target", "client_column", "group", "time")  # columns of a schema that are no features


def draft(
    tables: Sequence[CsvTable],
    said: Mapping[str, Any],
    leave_out: Sequence[str] = (),
    statistics: Literal["agreed", "own"] = "agreed",
    gaps: Sequence[str] = (),
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
        gaps: further words that say that there is no value, as "n/d" or "-9".

    Raises:
        UserError: a column is not in all tables, or its values cannot be told. There is a line for each.
    """
    roles = {key: said[key] for key in _ROLES if said.get(key) not in (None, "", NONE if key == "group" else "")}
    others = [*roles.values()]
    names, asked = dict.fromkeys(name for one in tables for name in one.columns if name), [*others, *leave_out]
    lines = [f"column {name!r}: no table has it{nearest(name, names)}" for name in asked if name not in names]
    twice = [(one, key, "left out (--leave-out)") for key, one in roles.items() if one in leave_out]
    twice += [(one, "target", key) for key, one in roles.items() if key != "target" and one == said["target"]]
    lines += [f"column {one!r}: is both {first} and {second}: say one of them" for one, first, second in twice]
    respelt = _respelt([[name for name in one.columns if name and name not in leave_out] for one in tables], others)
    for name, better in respelt.items():
        where = ", ".join(dict.fromkeys(str(one.path) for one in tables if name in one.columns))
        lines.append(f"{where}: column {name!r}: another table calls it {better!r}: rename it here")
    for one in tables:
        held = {*respelt, *leave_out, *(respelt.get(name, name) for name in one.columns)}
        for name in [name for name in names if name not in held]:
            remedy = "call it as there" if name in others else BY_SCHEMA.leave_out
            lines.append(f"{one.path}: column {name!r}: is not there, and another table has it: {remedy}")
    if lines:
        raise UnfitTableError("column", *dict.fromkeys(lines))
    read = [name for name in names if name not in leave_out]
    texts = {name: {text for one in tables for text in one.columns[name].tolist()} for name in read}
    gaps = written_gaps(texts.values(), gaps)
    columns = dict[str, TableColumn]()
    for name in [name for name in texts if name not in others]:
        found, missing = sorted(texts[name] - {*gaps}), not texts[name].isdisjoint(gaps)
        kind, unit, odd = written(found)
        coded = any(re.match(r"[+-]?0\d*$", one) for one in found)
        if found and kind == "words" and not (odd or coded) and all(map(LIKE.fullmatch, found)):
            lines.append(
                f"column {name!r}: holds text of numbers or dates, such as {_places(tables, [name], found[:1])}: "
                f"{_AS_THESE}, or {BY_SCHEMA.leave_out}"
            )
        elif odd:
            columns[name] = TableColumn("words", words=found, gaps=missing)
        else:
            values = np.array(found if kind == "words" else [*map(TableColumn(kind, unit).value, found)])
            with collected(lines):
                columns[name] = TableColumn.drafted(kind, values, missing, f"column {name!r}", BY_SCHEMA, unit)
    lines += [f"{line}, or --leave-out the column" for line, many in _otherwise(tables, columns) if many]
    answers = sorted(texts[said["target"]] - {*gaps}, key=natural_order)
    if len(answers) < 2:
        told = f"all rows say {answers[0]!r}" if answers else "has no value in any row"
        lines.append(f"column {said['target']!r}: {told}, so there is nothing to learn: is --target the right column?")
    if len(answers) > FEW and (odd := written(answers)[2]):
        told = _places(tables, [said["target"]], odd)
        lines.append(f"column {said['target']!r}: numbers but for {told}: leave these rows out, or write numbers")
    numbers = len(answers) > FEW and all(map(NUMBER.fullmatch, answers))
    numbers |= any(re.fullmatch(r"[+-]?\d*\.\d*[1-9]\d*", one) for one in answers)
    if lines:
        raise UnfitTableError("value", *lines)
    made = Schema(1, columns=columns, labels=[] if numbers else answers, gaps=gaps or [""], **said)
    sites = fitted(tables, made)
    for name, column in columns.items():
        if column.kind != "words" and statistics == "agreed":
            trained = np.concatenate([one.columns[name][one.shares == 0] for one in sites])
            columns[name] = column.agreed(*column.of(trained))
    return reviewed(replace(made, columns=columns), tables)


def reviewed(schema: Schema, tables: Sequence[CsvTable]) -> Schema:
    """Return a schema with the warnings that it gives now: what people have settled, in it or in tables, is gone.

    Args:
        schema: the schema.
        tables: the sites' tables.

    Raises:
        UnfitTableError: a table does not fit. There is a line for each value.
    """
    seen, words = joined(fitted(tables, schema), "tables", *doubts(tables, schema)), _otherwise(tables, schema.columns)
    told = [f"data: {one.path}: a column has no name and is not read: name it" for one in tables if "" in one.columns]
    told += [f"data: {line}; until then these are words" for line, many in words if not many]
    told += [_twins(name, one.words) for name, one in {**schema.columns, schema.target: schema.answers}.items()]
    return replace(schema, warnings=[*filter(None, [*told, *seen.notes, seen.doubt])])


def merged(drafts: Sequence[Schema], names: Sequence[str] = ()) -> Schema:
    """Return the schema of members who have drafted one each, since nobody may see another's table.

    Words, classes, gaps and warnings are those of any draft; that drafts share no word, or one alone has a class, is a
    further warning. Means and deviations are those of a mixture of all members in equal parts, so nobody's number of
    rows is needed.

    Args:
        drafts: two or more drafts with the same columns.
        names: what warnings call the drafts. Empty: by number.

    Raises:
        UnfitTableError: they name other columns, or hold other kinds or units. There is a line for each.
    """
    first, columns, lines = drafts[0], dict[str, TableColumn](), list[str]()
    called = names or [f"draft {k}" for k in range(1, len(drafts) + 1)]
    warnings = [f"{name}: {line}" for name, one in zip(called, drafts, strict=True) for line in one.warnings]
    for key in (*_ROLES, "test", "validation", "seed"):
        if len(found := {str(getattr(one, key)) for one in drafts}) > 1:
            lines.append(f"schema.{key}: must be the same in all drafts, and is {' and '.join(sorted(found))}")
    if len({bool(one.labels) for one in drafts}) > 1:
        lines.append("schema.labels: must be there in all drafts, or in none if the target is a number")
    of_sites = [(site, of) for one in drafts for site, of in one.sites.items()]
    lines += [f"sites.{site}: must be the same in all drafts" for site, of in of_sites if dict(of_sites)[site] != of]
    respelt = _respelt([one.columns for one in drafts])
    lines += [f"columns.{name}: another draft calls it {better!r}: rename it" for name, better in respelt.items()]
    for name in dict.fromkeys(respelt.get(name, name) for one in drafts for name in one.columns):
        parts = [of for one in drafts for column, of in one.columns.items() if respelt.get(column, column) == name]
        if len(parts) < len(drafts) or len({(one.kind, one.unit) for one in parts}) > 1:
            lines.append(f"columns.{name}: must be in all drafts, with the same kind and unit")
            continue
        words = sorted({word for one in parts for word in one.words})
        gaps, clock = (any(getattr(one, key) for one in parts) for key in ("gaps", "clock"))
        columns[name] = TableColumn(parts[0].kind, parts[0].unit, words, gaps, clock)
        of = [(one.mean, one.deviation) for one in parts if one.mean is not None and one.deviation is not None]
        if len(of) == len(drafts):
            middle = sum(m for m, _ in of) / len(of)
            spread = math.sqrt(sum(d**2 + (m - middle) ** 2 for m, d in of) / len(of))
            columns[name] = columns[name].agreed(middle, spread)
            warnings.append(of_means(dict(zip(called, of, strict=True)), f"data: column {name!r}"))
    if lines:
        raise UnfitTableError("schema", *lines)
    labels, gap_words = ({word for one in drafts for word in getattr(one, key)} for key in ("labels", "gaps"))
    ordered = sorted(labels, key=natural_order)
    held = np.array([[label in one.labels for label in ordered] for one in drafts], np.int64)
    warnings += of_classes(held, called, ordered, "data", BY_SCHEMA.same.format(first.target), rows=False)
    for name in columns:
        by_draft = {draft: {*one.columns[name].words} for draft, one in zip(called, drafts, strict=True)}
        warnings.append(no_shared(by_draft, f"data: column {name!r}", BY_SCHEMA.same.format(name)))
        warnings.append(_twins(name, columns[name].words))
    warnings.append(_twins(first.target, ordered))
    made = replace(first, columns=columns, labels=ordered, gaps=sorted(gap_words), sites=dict(of_sites))
    return replace(made, warnings=[*filter(None, warnings)])


def _respelt(tables: Sequence[Collection[str]], said: Collection[str] = ()) -> dict[str, str]:
    """Return what columns should be called that other tables write with other cases, blanks or underscores, by what
    they are: as people ``said``, or as most tables have it. Columns of one table differ, however they are written.
    """

    def plainly(name: str) -> str:
        return re.sub(r"[\s_]", "", name).casefold()

    used = Counter(name for one in tables for name in one)
    twice = {key for one in tables for key, many in Counter(map(plainly, one)).items() if many > 1}
    best = {plainly(name): name for name in sorted(used, key=lambda name: (name in said, used[name]))}
    return {name: best[key] for name in used if (key := plainly(name)) not in twice and best[key] != name}


def _otherwise(tables: Sequence[CsvTable], columns: Mapping[str, TableColumn]) -> list[tuple[str, bool]]:
    """Return a line on columns of words that are numbers or dates but for the same few, and whether one has more words
    than become columns; for each such few.
    """
    found, told = dict[tuple[str, ...], list[str]](), list[tuple[str, bool]]()
    for name, one in columns.items():
        if odd := written(one.words)[2]:
            found.setdefault(tuple(odd), []).append(name)
    for few, names in found.items():
        line = f"column {', '.join(map(repr, names))}: numbers or dates but for {_places(tables, names, few)}"
        gap = f"if this says that there is no value, --gap {few[0]!r}; else write it as the others"
        line = f"{line}: {_AS_THESE if all(map(LIKE.fullmatch, few)) else gap}"  # 0,5 and 31/3/2024 are no gaps
        told.append((line, any(len(columns[name].words) > MOST_KINDS for name in names)))
    return told


def _twins(name: str, words: Iterable[str]) -> str:
    """Return a note if words of a column may be one, such as "m" and "M", "" if not."""
    both = alike([(word, 0) for word in sorted(words)], case=lambda _: True)
    same = BY_SCHEMA.same.format(name)
    return f"data: column {name!r}: {both} are different words: are they one?{same}" if both else ""


def _places(tables: Sequence[CsvTable], columns: Sequence[str], words: Sequence[str]) -> str:
    """Return words of columns with the tables that have them, and the first row of each, in words."""
    told = []
    for one in words[:LISTED]:
        where = dict[str, str]()
        for table in tables:
            texts = [table.columns[column] for column in columns if column in table.columns]
            if rows := [table.rows[own == one][0] for own in texts if (own == one).any()]:
                where.setdefault(str(table.path), f"row {min(rows)}")
        told.append(f"{one!r:.80} (in {', '.join(f'{path}, {row}' for path, row in where.items())})")
    return " and ".join(told) + (f" and {len(words) - LISTED} more" if len(words) > LISTED else "")
