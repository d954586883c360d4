"""A schema: what each column of a table is, in one file that members agree on, and how a table becomes samples by it.

``hanse schema`` drafts one from tables (:mod:`hanse.data.drafting`), and people review it. By it a participant's table
becomes the same samples in a rehearsal and on a network, bit for bit: everything that depends on other members' tables
(classes, words, gaps, agreed means) is in the schema, and the rest depends on the participant's own rows alone.

Tables are CSV files in UTF-8, with a row of names. Columns that the schema does not name are not read.
"""

from __future__ import annotations

import csv
import hashlib
import io
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.base.factories import Count, PartShare, call
from hanse.base.files import given_path
from hanse.base.pytorch import torch
from hanse.data.dataset import Dataset
from hanse.data.doubts import Coded, of_clients, of_column, of_columns, of_near_rows
from hanse.data.encoding import DATE, TableColumn, encoded
from hanse.data.kinds import ALIKE, GAPS, LISTED, NUMBER, alike, held_text, lost, natural_order, values_of
from hanse.data.remedies import BY_SCHEMA
from hanse.data.samples import Samples
from hanse.data.units import NONE, SHARES, Divisible, at_several, numbered


class UnfitTableError(UserError):
    """A table, or a schema, that cannot be used. The lines are for the table's owner.

    Attributes:
        code: what others may be told: "file", "schema", "empty", "column", "value" or "rows".
    """

    def __init__(self, code: str, *lines: str) -> None:
        super().__init__(*lines)
        self.code = code


def _content(path: str | Path, code: str) -> bytes:
    """Return what is in a file. Raises UnfitTableError, of this code, if it cannot be read."""
    try:
        return given_path(code, path).expanduser().read_bytes()
    except OSError as wrong:
        raise UnfitTableError(code, f"{path}: cannot be read: {(wrong.strerror or 'no file').lower()}") from None


@dataclass(frozen=True)
class CsvTable:
    """A CSV file as text.

    Attributes:
        name: the file's name without its ending, for the site's name.
        path: the file, for messages.
        columns: the text of each column ``[n]`` by name, without blanks around it.
        rows: ``[n]``, the rows' numbers in the file, where the first is 1 and those without any value, which are left
            out, count.
    """

    name: str
    path: Path
    columns: Mapping[str, NDArray[Any]]
    rows: NDArray[np.int64]

    @staticmethod
    def read(path: str | Path) -> CsvTable:
        """Return the table of a file. Raises UnfitTableError if it is no table, or has no rows."""
        path = given_path("file", path)
        text = _content(path, "file").decode("utf-8-sig", "replace")
        if odd_letter := re.search("[\0\ufffd]", text):
            lines = text[: odd_letter.end()].splitlines()
            line = f"{path}: row {len(lines)}: {lines[-1][-20:]!r}: is no text in UTF-8"
            raise UnfitTableError("file", f"{line}: save it as CSV UTF-8, or write it with encoding='utf-8'")
        text = unicodedata.normalize("NFC", text)  # what looks the same is the same word
        first, numbered = text.partition("\n")[0], list[tuple[int, list[str]]]()

        def columns_by(letter: str) -> int:
            """Return how many columns the row of names has with a letter between them; a quoted name may hold it."""
            return len(next(csv.reader(io.StringIO(text[: 1 << 20], newline=""), delimiter=letter), ()))

        try:
            between = max(",;\t", key=columns_by)
            for k, row in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=between, strict=True), 1):
                if any(map(str.strip, row)):
                    numbered.append((k, row))
        except csv.Error as wrong:
            line = f"{path}: after row {numbered[-1][0] if numbered else 0}: is no CSV file that can be read: {wrong}"
            remedy = 'is a quote (") left open, or not doubled within a text in quotes?'
            raise UnfitTableError("file", f"{line}: {remedy}") from None
        if first.startswith("sep="):
            raise UnfitTableError("file", f"{path}: row 1: {first.strip()!r}: is no row of names: delete it")
        if len(numbered) < 2:
            raise UnfitTableError("empty", f"{path}: has no rows; a CSV file has a row of names and a row a sample")
        at, rows = zip(*numbered, strict=True)
        names = [name.strip() for name in rows[0]]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise UnfitTableError("column", f"{path}: two columns are called {twice!r}: rename one")
        if odd := next((k for k, row in enumerate(rows) if len(row) != len(names)), None):
            line = f"{path}: row {at[odd]}: has {len(rows[odd])} values, and row {at[0]}, of names, {len(names)}"
            raise UnfitTableError("file", f"{line}: must be as many; a value that holds {between!r} stands in quotes")
        # as objects: an array of texts would take the longest one's memory for each
        columns = {name: np.array([row[k].strip() for row in rows[1:]], object) for k, name in enumerate(names)}
        if between == ";":
            columns = {name: _with_points(column) for name, column in columns.items()}
        return CsvTable(path.stem, path, columns, np.array(at[1:], np.int64))

    def take(self, rows: NDArray[np.bool_], name: str) -> CsvTable:
        """Return some rows, ``[n]`` true or false, as the table of a site of this name."""
        columns = {key: column[rows] for key, column in self.columns.items()}
        return replace(self, name=name, columns=columns, rows=self.rows[rows])

    def called(self, words: Mapping[str, Mapping[str, str]]) -> CsvTable:
        """Return the table with other words in the place of those that it has, by column and word."""
        columns = {**self.columns}
        for name in words.keys() & columns.keys():
            columns[name] = np.array([words[name].get(text, text) for text in columns[name].tolist()], object)
        return replace(self, columns=columns)


def _with_points(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column ``[n]`` of texts with points in the place of decimal commas, unless points stand in it too: then
    1.000 may be a thousand, and what has a comma is no number.
    """
    if any(re.match(r"[+-]?\d*\.\d", one) for one in column.tolist()):
        return column
    return np.array([re.sub(r"^([+-]?\d*),(\d+([eE][+-]?\d+)?\D*)$", r"\1.\2", one) for one in column.tolist()], object)


@dataclass(frozen=True)
class Schema:
    """What each column of a table is.

    Attributes:
        version: the version of this form of schemas.
        target: the column to be predicted.
        columns: the columns of features, in the order of their features.
        labels: the classes, in the order of their numbers. Empty: the target is a number.
        client_column: in a table of several sites, the column with the site of each row. Empty: a file is a site.
        group: the column that says what each row is of, such as its patient; "none": every row is a unit; empty: it is
            not said.
        time: the column that says when a row was observed, a date or a number. Empty: there is none.
        gaps: how gaps are written.
        sites: for a site by name, and a column, what its words mean: ``{"Kiel": {"sex": {"m": "male"}}}``.
        test: the share of a site's rows that it keeps for testing, the latest ones if there is a time.
        validation: the share that it keeps for validation.
        seed: the seed by which they are drawn.
        warnings: what may be meant otherwise than the schema says, as ``hanse schema`` saw it in tables; for people
            alone, who delete what is settled.
    """

    version: Literal[1]
    target: str
    columns: dict[str, TableColumn]
    labels: list[str] = field(default_factory=list)
    client_column: str = ""
    group: str = ""
    time: str = ""
    gaps: list[str] = field(default_factory=lambda: [""])
    sites: dict[str, dict[str, dict[str, str]]] = field(default_factory=dict)
    test: PartShare = 0.2
    validation: PartShare = 0.0
    seed: Count = 0
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        others = [name for name in (self.target, self.client_column, self.group, self.time) if name]
        if both := next((name for name in others if name in self.columns), None):
            raise UserError(f"columns.{both}: is the target, the site, the group or the time, not a feature")
        if len(set(self.labels)) != len(self.labels) or len(self.labels) == 1:
            raise UserError(f"labels: {self.labels!r}: must be two or more different classes, or none for numbers")
        for name, one in self.columns.items():
            if (one.kind == "words") != bool(one.words) or len(set(one.words)) < len(one.words):
                raise UserError(f"columns.{name}: words: {list(one.words)!r}: different ones are for kind = 'words'")
            if one.unit and (found := NUMBER.match(f"1{one.unit}")) and found.end() > 1:
                raise UserError(f"columns.{name}: unit: {one.unit!r}: could be a part of the number before it")
            if (one.mean is None) != (one.deviation is None) or (one.kind == "words" and one.mean is not None):
                raise UserError(f"columns.{name}: mean: comes with a deviation, for numbers and dates, or not at all")
            if (most := max(abs(one.mean or 0.0), one.deviation or 0.0)) > float(np.finfo(np.float32).max):
                raise UserError(f"columns.{name}: mean, deviation: {most:g}: must be at most 3.4e38, as float32 holds")
        worded = {"labels": self.labels, **{f"columns.{name}": one.words for name, one in self.columns.items()}}
        for where, words in worded.items():
            if both := next((one for one in words if one in self.gaps), None):
                raise UserError(f"{where}: {both!r}: is also how gaps are written (gaps): must be one of the two")
        for site, of in self.sites.items():
            for name, meant in of.items():
                known = worded.get("labels" if name == self.target else f"columns.{name}", [])
                if odd := next((word for word in meant.values() if word not in known), None):
                    raise UserError(f"sites.{site}.{name}: {odd!r}: must be one of the column's words ({known})")
        if not (self.test >= 0 and self.validation >= 0 and self.test + self.validation < 1):
            both = f"test: {self.test:g} with validation {self.validation:g}"
            raise UserError(f"{both}: must be 0 or more each, and less than 1 together, to leave some to train on")
        if not self.columns:
            raise UserError("columns: none: must be at least one, of features")

    @staticmethod
    def read(path: str | Path) -> Schema:
        """Return the schema in a file. Raises UnfitTableError with a line for each mistake in it."""
        try:
            found = toml.loads(unicodedata.normalize("NFC", _content(path, "schema").decode("utf-8-sig")))
            columns = {key: call(TableColumn, one, f"columns.{key}") for key, one in found.pop("columns", {}).items()}
            options = {**found.pop("schema", {}), **found, "columns": columns}
            made: Schema = call(Schema, options, f"{path}: schema")
        except UserError as wrong:
            raise UnfitTableError("schema", *wrong.lines) from None
        except (ValueError, AttributeError) as wrong:
            raise UnfitTableError("schema", f"{path}: is no schema: {wrong}") from None
        return made

    @property
    def answers(self) -> TableColumn:
        """What the target holds."""
        return TableColumn("words", words=self.labels) if self.labels else TableColumn("numbers")

    @property
    def text(self) -> str:
        """The schema as a file."""
        apart = ("columns", "sites") if self.warnings else ("columns", "sites", "warnings")
        plain = {key: value for key, value in vars(self).items() if value != "" and key not in apart}
        written = TypeAdapter(dict[str, TableColumn])
        columns = written.dump_python(self.columns, exclude_defaults=True)
        return toml.dumps({"schema": plain, "columns": columns, "sites": self.sites})


def digest(path: str | Path, code: str = "schema") -> str:
    """Return SHA-256 of a file, by which members agree on a schema. Raises UnfitTableError of this code."""
    return hashlib.sha256(_content(path, code)).hexdigest()


@dataclass(frozen=True)
class SiteTable:
    """A site's rows, as its schema says, and the share that each of them is in.

    Attributes:
        schema: the schema.
        name: the site's name.
        columns: what each column of features holds ``[n]``, as :meth:`TableColumn.features` takes it.
        y: the classes by number, int64 ``[n]``; or numbers, float32.
        units: ``[n]``, what each row is of, as text. None: every row is a unit, or it is not said.
        time: ``[n]``, when each row was observed. None: it is not said.
    """

    schema: Schema
    name: str
    columns: Mapping[str, NDArray[Any]]
    y: NDArray[Any]
    units: NDArray[np.str_] | None = None
    time: NDArray[np.float64] | None = None

    @staticmethod
    def of(table: CsvTable, schema: Schema, name: str = "") -> SiteTable:
        """Return the rows of a site's table.

        Args:
            table: the table.
            schema: what its columns are.
            name: the site's name. Empty: that of the table.

        Raises:
            UnfitTableError: with the column, the row, the value and what is allowed, of everything that does not fit.
        """
        name, faults = name or table.name, list[tuple[str, str]]()
        table = table.called(schema.sites.get(name, {}))
        kinds = {**schema.columns, schema.target: schema.answers}

        def read(column: str, one: Callable[[str], Any], allowed: str, gap: Any = ...) -> list[Any]:
            """Return a column's values, and note what is wrong with it. Without ``gap``, none may be missing."""
            if column not in table.columns:
                faults.append(("column", f"column {column!r}: is not there; there are {', '.join(table.columns)}"))
                return []
            texts = table.columns[column].tolist()
            different = dict.fromkeys(texts)
            found = values_of(different.keys() - schema.gaps, one)
            if gap is not ...:
                found |= dict.fromkeys(schema.gaps, gap)
            wrong = [text for text in different if text not in found]
            for text in wrong[:LISTED]:
                rows = table.rows[table.columns[column] == text]
                more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
                line = f"column {column!r}: row {rows[0]}{more}: {text!r:.80}: must be {allowed}"
                if column in kinds and (words := kinds[column].words) and text:
                    meant = next((word for word in words if word.casefold() == text.casefold()), "ONE OF THESE")
                    site = toml.inline({name: {column: {text[:80]: meant}}})[2:-2]
                    line += f"; if it is another name of one of these, say so in the schema: [sites] {site}"
                faults.append(("value", line))
            if len(wrong) > LISTED:
                faults.append(("value", f"column {column!r}: and {len(wrong) - LISTED} more such values"))
            return [] if wrong else [found[text] for text in texts]

        columns, written = dict[str, NDArray[Any]](), " or ".join(map(repr, schema.gaps))
        for column, of in kinds.items():
            words, last = of.kind == "words", f", or a gap, written {written}"
            if column == schema.target:
                last = f"; {written} is a gap: leave such rows out, or write the answer otherwise"
            elif not of.gaps:
                last = "; a gap was not agreed on (gaps = true)"
            values = read(column, of.value, of.allowed + last, (None if words else np.nan) if of.gaps else ...)
            columns[column] = np.array(values, object if words else np.float64)
            if not words and (line := lost(columns[column], fine=column == schema.target)):
                faults.append(("value", f"column {column!r}: {line}"))
        y = columns.pop(schema.target)
        if schema.labels:
            classes = {label: k for k, label in enumerate(schema.labels)}
            y = np.array([classes[label] for label in y.tolist()], np.int64)
        units, time = None, None
        if schema.group not in ("", NONE):
            units = np.array(read(schema.group, str, "what the row is of"), np.str_)
        if schema.time:
            when = TableColumn("numbers" if all(map(NUMBER.fullmatch, table.columns.get(schema.time, []))) else "dates")
            time = np.array(read(schema.time, when.value, f"{DATE}, or all of the column numbers"), np.float64)
        if faults:
            raise UnfitTableError(faults[0][0], *(f"{table.path}: {line}" for _, line in faults))
        return SiteTable(schema, name, columns, y if schema.labels else y.astype(np.float32), units, time)

    @cached_property
    def shares(self) -> NDArray[np.int8]:
        """The share of each row ``[n]``: 0, 1 or 2 for train, validation or test, or -1 for none.

        Raises:
            UnfitTableError: no row is left to train on.
        """
        schema, n = self.schema, len(self.y)
        units = np.arange(n) if self.units is None else numbered(self.units)
        of = Divisible(np.zeros(n, np.int64), self.y if schema.labels else None, units, self.time)
        made = of.shares(schema.test, schema.validation, schema.seed)
        if not (made == 0).any():
            raise UnfitTableError("rows", f"site {self.name!r}: no row is left to train on: too few units or dates")
        return made

    @cached_property
    def samples(self) -> Samples:
        """All rows as samples. Means that are not agreed are those of the site's train rows."""
        x = encoded(self.schema.columns, self.columns, self.shares == 0)
        units = None if self.units is None else torch.from_numpy(numbered(self.units))
        return Samples(torch.from_numpy(x), torch.from_numpy(self.y), units=units)

    def share(self, name: str) -> Samples | None:
        """Return the samples of "train", "validation" or "test"; None if there are none."""
        rows = np.flatnonzero(self.shares == SHARES.index(name))
        return self.samples.take(torch.from_numpy(rows)) if len(rows) else None


def read_sites(files: Sequence[str | Path], client_column: str = "") -> list[CsvTable]:
    """Return the tables of sites in the order of their names: a file each, or one file of all with their column.

    Raises:
        UnfitTableError: a file cannot be used, there is no such column, or two sites have one name.
    """
    tables = [CsvTable.read(file) for file in files]
    if client_column:
        parts = []
        for one in tables:
            if client_column not in one.columns:
                raise UnfitTableError("column", f"{one.path}: column {client_column!r}: is not there")
            sites = one.columns[client_column]
            if odd := next((k for k, site in enumerate(sites.tolist()) if site.casefold() in GAPS), None):
                where = f"{one.path}: column {client_column!r}: row {one.rows[odd]}"
                raise UnfitTableError("value", f"{where}: {sites[odd]!r}: must be the name of a site")
            parts += [one.take(sites == site, site) for site in np.unique(sites)]
        tables = parts
    if not tables:
        raise UnfitTableError("file", "data.source.files: must name the table of each site, or one of all")
    names = [one.name for one in tables]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UnfitTableError("file", f"two tables are of site {twice!r}: a site has one")
    if both := alike((name, 0) for name in names):
        raise UnfitTableError("file", f"sites {both} look the same: {ALIKE}")
    return sorted(tables, key=lambda one: natural_order(one.name))


def joined(sites: Sequence[SiteTable], name: str, notes: Sequence[str] = (), doubt: str = "") -> Dataset:
    """Return the rows of several sites as one data set, in which each site is a client with the shares that it has.

    Raises:
        UnfitTableError: no row is left for a site to train on.
    """
    schema, told, names = sites[0].schema, [*notes], tuple(one.name for one in sites)
    samples = Samples.joined([one.samples for one in sites])
    owner = np.repeat(np.arange(len(sites)), [len(one.y) for one in sites])
    if schema.labels:
        remedy = BY_SCHEMA.same.format(schema.target)
        told += of_clients(samples.x.numpy(), samples.y.numpy(), owner, names, schema.labels, "data", remedy)
    if schema.group not in ("", NONE):
        of_each = [one.units for one in sites if one.units is not None]
        units = numbered(np.concatenate(of_each))
        samples = replace(samples, units=torch.from_numpy(units))
        if several := at_several(units, owner):
            told.append(
                f"data: {several} of {units.max() + 1} units are at several sites: trained on at one and tested on at "
                "another, as on a network, where no site knows; if they are others, put the site's name before"
            )
    if not (doubt or schema.group):
        doubt = of_near_rows(samples.x.numpy(), Coded.of(samples.y.numpy()), "data", BY_SCHEMA)
    none = samples.take(torch.zeros(0, dtype=torch.int64))
    return Dataset(
        name, samples, none, len(schema.labels) or None, (samples.x.shape[1],), client_of=owner, client_names=names,
        shares=np.concatenate([one.shares for one in sites]), notes=tuple(told), doubt=doubt,
    )  # fmt: skip


def fitted(tables: Sequence[CsvTable], schema: Schema) -> list[SiteTable]:
    """Return the rows of several sites. Raises UnfitTableError with what does not fit of all of them."""
    found, unfit = list[SiteTable](), list[UnfitTableError]()
    for table in tables:
        try:
            found.append(SiteTable.of(table, schema))
        except UnfitTableError as wrong:
            unfit.append(wrong)
    if unfit:
        raise UnfitTableError(unfit[0].code, *(line for one in unfit for line in one.lines))
    return found


def doubts(tables: Sequence[CsvTable], schema: Schema) -> tuple[list[str], str]:
    """Return what may be meant otherwise than the schema says, and why rows may be several of one person though nobody
    says so ("" if they look like none); all columns that every table has are looked at.
    """
    owner = np.repeat([one.name for one in tables], [len(one.rows) for one in tables])
    called = [one.called(schema.sites.get(one.name, {})).columns for one in tables]
    notes, coded = list[str](), dict[str, Coded]()
    for name in called[0]:
        if name in (schema.client_column, schema.time) or not all(name in columns for columns in called):
            continue
        texts = [text for columns in called for text in columns[name].tolist()]
        found = held_text(texts, schema.gaps, getattr(schema.columns.get(name), "unit", ""))
        coded[name] = Coded.of(found.values, found.gaps)
        if name in schema.columns:
            column = schema.columns[name]
            agreed = None if column.mean is None else column.of(found.values)
            notes += of_column(name, found, owner, "data", BY_SCHEMA, agreed)
    doubt = "" if schema.group else of_columns(coded, schema.target, owner, "data", BY_SCHEMA)
    return notes, doubt
