"""A paper's tables as files: ``<paper>/paper.toml`` has what they share, ``<paper>/<table>.toml`` is one of them.

Read, a table is cells, each with the published number and the experiments that it is made of. A cell names one
algorithm in one setting; its variants are the hyper-parameters that the paper tried, of which it reports the best. A
variant is an experiment as nested plain values, without seeds.

A table is a grid: ``groups`` (the blocks of the printed table), ``columns`` and ``rows``, each a list of entries; a
cell is one of each. An entry is a table with a ``name``, or a name that ``[group.NAME]``, ``[column.NAME]`` or
``[row.NAME]`` explains, or a table that is ``like`` such a name but for what it says itself. It may have:

* ``experiment``: settings of the cell's experiment. They are laid over one another in the order file, group, column,
  row, variant; ``without`` lists keys (``"data.alpha"``) that are taken away first.
* ``values``: what stands for ``"{name}"`` in settings, names and figures. ``"none"`` leaves a setting out.
* ``scales``, ``recipes``: at which scales, and under which recipes, it is there; ``if_here``, ``unless_here``: only
  with, or without, this data set's file (``missing``: what is then said of it).
* ``columns``, ``rows``: the only ones that a group or row has; ``changes``: what its presence changes.
* ``metric``, ``factor`` or ``over`` (a divisor), ``at``, ``measure``, ``against`` (a row), ``ranked``, ``tags``: see
  :class:`Cell`; ``printed``: its name in ``[published]``, false for a column that has none.
* ``variants`` (rows): the hyper-parameters that were tried, entries themselves.

``[published.GROUP]`` has a list a row, in the order of the group's printed columns: a number, ``[mean, sd]``, or "-".
``published_over`` divides what is printed. A whole file may have ``without``, ``metric``, ``factor``, ``measure``,
``at`` and ``ranked``, too.

Anything may be written ``{ paper = 400, small = 40, smoke = 6 }``: a scale that is not named has the paper's; if that
is not named either, the entry is not there. ``like = "table2"`` starts from another file. A list of ``notes`` or
``changes`` may hold ``"..."``, which stands for the paper's. ``computed`` names the function that gives the cells'
numbers where no experiment is needed (:mod:`hanse.lab.papers.computed`).

Two *recipes*: "paper" is what the text says, and what it does not say as ``paper.toml`` reads it; "authors" is what the
authors' public code does. ``<paper>/authors.toml`` has the same keys as ``paper.toml`` and is laid over it; a table's
``[authors]`` has the same keys as the table's file and is laid over that. ``[[differences]]`` in ``authors.toml`` names
each setting in which the two differ (``setting``, a dotted key of the experiment, ``paper``, ``authors``, ``source``;
``also``: settings that change with it; ``missing`` says why it could not be had), for ``docs/papers.md``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, Literal, get_args

from hanse.base.errors import UserError, nearest
from hanse.data.sources import is_here

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Recipe = Literal["paper", "authors"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
Measure = Literal["at", "best", "rounds", "improvement"]


@dataclass(frozen=True)
class Printed:
    """A printed number and its printed deviation, in the table's unit; None: nothing is printed."""

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Variant:
    """One choice of hyper-parameters: its name ("" if it is the only one) and the experiment's sections, no seeds.

    ``against``: the sections of the experiment that it is compared with, for a cell that measures rounds.
    """

    name: str
    sections: Mapping[str, Any]
    against: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One algorithm in one setting: ``group`` is the block of the printed table (a data set), ``column`` its column.

    ``at``: after how many rounds the number is read; ``ranked``: whether it takes part in the order of the algorithms
    (an upper bound does not); ``tags``: the words that ``--only`` knows it by. ``measure``: the figure "at" that round,
    the "best" so far, or the effective "rounds" and their "improvement" against another run (see ``compare.py``);
    ``computed``: the number itself, for a cell that no experiment is needed for (None: it cannot be had here).
    ``metric`` and ``factor`` replace the table's; of several metrics it is the mean. ``place``: group, column and row
    as the file calls them, which are the same at every scale.
    """

    group: str
    column: str
    algorithm: str
    variants: tuple[Variant, ...]
    at: int
    published: Printed | None = None
    ranked: bool = True
    tags: frozenset[str] = frozenset()
    measure: Measure = "at"
    computed: float | None = None
    metric: str | tuple[str, ...] = ""
    factor: float | None = None
    place: tuple[str, str, str] = ("", "", "")

    @property
    def setting(self) -> str:
        """The group and the column as one name."""
        return f"{self.group}, {self.column}"


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table at one scale, by one recipe.

    ``seeds``: how many by default; ``changes``: what it changes against its recipe beside the settings that
    :func:`hanse.lab.papers.changes.changed` finds by comparing; ``notes``: how the numbers are to be read; ``metric``
    and ``factor``: which recorded figure the cells are, and what it is multiplied with; ``figures``: what is drawn of
    it (see ``figures.py``); ``absent``: words that ``--only`` could have, and why their cells are not there; ``only``:
    the filters that it was cut down by.
    """

    paper: str
    name: str
    title: str
    scale: Scale
    cells: tuple[Cell, ...]
    recipe: Recipe = "paper"
    seeds: int = 5
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    metric: str = "test/accuracy"
    factor: float = 100.0
    unit: str = "test accuracy %"
    figures: tuple[Mapping[str, Any], ...] = ()
    absent: Mapping[str, str] = field(default_factory=dict)
    only: tuple[str, ...] = ()


@dataclass(frozen=True)
class Paper:
    """A paper: its name on the command line, its citation, and a builder for each table."""

    name: str
    citation: str
    tables: Mapping[str, Callable[[Scale, Recipe], PaperTable]]


def filtered(table: PaperTable, only: Sequence[str]) -> PaperTable:
    """Return the table with the cells that one of the ``only`` filters lets through; all of them if there is none.

    A filter is words with spaces or commas between them, and a cell passes if it has them all as tags. Raises
    UserError for a word that no cell has, or if nothing is left.
    """
    if not only:
        return table
    filters = [frozenset(text.lower().replace(",", " ").split()) for text in only]
    if not all(filters):
        raise UserError("--only: there are no words in it, which would be every cell")
    known = frozenset().union(*(cell.tags for cell in table.cells))
    wrong = sorted({word for words in filters for word in words if word not in known})
    if wrong:
        words = {word.strip("()") for word in known}
        reasons = (table.absent.get(w, f"{table.name} has no such setting{nearest(w, words)}") for w in wrong)
        raise UserError(*(f"--only {word}: {why}" for word, why in zip(wrong, reasons, strict=True)))
    cells = tuple(cell for cell in table.cells if any(words <= cell.tags for words in filters))
    if not cells:
        raise UserError(f"--only {' '.join(only)}: {table.name} has each of these words, but no cell with all of them")
    asked = tuple(" ".join(text.replace(",", " ").split()) for text in only)
    said = f"only the cells of {' or '.join(asked)}"
    return replace(table, cells=cells, changes=(*table.changes, said), only=asked)


def on_device(table: PaperTable, device: str) -> PaperTable:
    """Return the table with its training on another device, where the engine is measured and chosen; "cpu" changes
    nothing.
    """
    if device == "cpu":
        return table
    engine = {"train": "auto", "device": device}

    def moved(variant: Variant) -> Variant:
        against = None if variant.against is None else {**variant.against, "engine": engine}
        return replace(variant, sections={**variant.sections, "engine": engine}, against=against)

    cells = tuple(replace(cell, variants=tuple(map(moved, cell.variants))) for cell in table.cells)
    return replace(table, cells=cells, changes=(*table.changes, f"trained on {device}"))


def with_seeds(table: PaperTable, seeds: int | None, published: int) -> PaperTable:
    """Return the table with this number of seeds (None: its own), said among its changes if the paper has another."""
    seeds = table.seeds if seeds is None else seeds
    said = () if seeds == published else (f"{seeds} seed{'' if seeds == 1 else 's'} instead of {published}",)
    return replace(table, seeds=seeds, changes=(*said, *table.changes))


ENTRY = {
    "name", "like", "experiment", "without", "values", "scales", "recipes", "if_here", "unless_here", "missing",
    "columns", "rows", "changes", "metric", "factor", "over", "published_over", "at", "measure", "against", "ranked",
    "tags", "printed", "variants",
}  # fmt: skip
FILE = {
    "citation", "tables", "title", "like", "seeds", "unit", "figure", "computed", "by", "groups", "columns", "rows",
    "group", "column", "row", "experiment", "without", "values", "published", "changes", "notes", "absent", "metric",
    "factor", "measure", "at", "ranked", "authors", "differences",
}  # fmt: skip
Document = dict[str, Any]
Computed = Callable[[Sequence[Cell], Mapping[str, Any]], Sequence[float]]
"""From a table's cells and its file's ``values`` to the cells' numbers; none if they cannot be had here."""


def load_paper(name: str, computed: Mapping[str, Computed]) -> Paper:
    """Return a paper that has a folder beside this module, and ``computed`` by the names that its files use."""
    shared = _file(name, "paper")
    tables = {table: partial(build_table, name, table, computed=computed) for table in shared["tables"]}
    return Paper(name, shared["citation"], tables)


@cache
def _file(paper: str, name: str) -> Document:
    return tomllib.loads((files(__package__) / paper / f"{name}.toml").read_text())


def differences(paper: str) -> list[dict[str, Any]]:
    """Return what the authors' code does otherwise than the text: ``{setting, paper, authors, source}`` each, ``also``
    (settings that change with it) and ``missing`` where it is not built here.
    """
    found: list[dict[str, Any]] = _authors(paper).get("differences", [])
    return found


def _authors(paper: str) -> Document:
    return _file(paper, "authors") if (files(__package__) / paper / "authors.toml").is_file() else {}


def read_table(paper: str, name: str, scale: Scale, recipe: Recipe = "paper") -> Document:
    """Return a table's file as it reads at a scale by a recipe, with what it takes over from other files."""
    own: Document = _at_scale(_file(paper, name), scale)
    shared: Document = _at_scale(_file(paper, "paper"), scale)
    if recipe == "authors":
        shared = _over(shared, _at_scale(_authors(paper), scale), shared)
    below = read_table(paper, own["like"], scale, recipe) if "like" in own else shared
    merged = _over(below, own, shared)
    return _over(merged, own["authors"], shared) if recipe == "authors" and "authors" in own else merged


def _over(below: Document, own: Document, shared: Document) -> Document:
    """Return a file's settings laid over those that it takes over; "..." stands for the paper's own list."""
    for key in own.get("without", ()):
        below = below | {"experiment": _without(below["experiment"], key.split("."))}
    merged = below | own
    for key in ("experiment", "values", "group", "column", "row"):
        merged[key] = _laid(below.get(key, {}), own.get(key, {}))
    for key in ("notes", "changes"):
        merged[key] = [line for text in merged.get(key, ()) for line in (shared[key] if text == "..." else (text,))]
    return merged


def _at_scale(value: Any, scale: Scale) -> Any:
    """Return a value of a file with every choice of scale made; None is a value that is not there."""
    if isinstance(value, list):
        return [_at_scale(item, scale) for item in value]
    if not isinstance(value, dict):
        return value
    if value and value.keys() <= set(SCALES):
        return _at_scale(value.get(scale, value.get("paper")), scale)
    return {k: chosen for k, v in value.items() if (chosen := _at_scale(v, scale)) is not None}


def _laid(below: Mapping[str, Any], above: Mapping[str, Any]) -> Document:
    """Return nested settings with others laid over them."""
    both = dict(below)
    for key, value in above.items():
        nested = isinstance(value, Mapping) and isinstance(both.get(key), Mapping)
        both[key] = _laid(both[key], value) if nested else value
    return both


def build_table(
    paper: str, name: str, scale: Scale, recipe: Recipe = "paper", *, computed: Mapping[str, Computed]
) -> PaperTable:
    """Return a table at a scale by a recipe. Raises UserError if its file has words that mean nothing."""
    document = {**read_table(paper, name, scale, recipe), "recipe": recipe}
    every = _entries(document, "group")
    text = document if recipe == "paper" else read_table(paper, name, scale)
    _check(f"{paper}/{name}.toml", document, every, [row["name"] for row in _entries(text, "row")])
    groups = [group for group in every if _stands(group, scale, recipe)]
    cells = tuple(cell for group in _numbered(groups) for cell in _cells(document, group, scale))
    if "computed" in document:
        found = computed[document["computed"]](cells, document.get("values", {}))
        numbers: Sequence[float | None] = found or [None] * len(cells)
        cells = tuple(
            replace(cell, computed=number, variants=(), at=0) for cell, number in zip(cells, numbers, strict=False)
        )
    absent = {
        word: why for g in every if (why := _left_out(g, scale, recipe)) is not None for word in _words(document, g)
    }
    said = [*document["changes"], *(line for group in groups for line in group.get("changes", ()))]
    said += [group["missing"] for group in every if group.get("missing") in absent.values()]
    options = {key: document[key] for key in ("metric", "factor", "unit") if key in document}
    return PaperTable(
        paper=paper,
        name=name,
        title=document["title"],
        scale=scale,
        recipe=recipe,
        cells=cells,
        seeds=document["seeds"],
        changes=tuple(dict.fromkeys(said)),
        notes=tuple(document["notes"]),
        absent=document.get("absent", {}) | absent,
        figures=tuple(document.get("figure", ())),
        **options,
    )


def sources_of(paper: str, name: str, scale: Scale, recipe: Recipe = "paper") -> list[str]:
    """Return the data sets of a table at a scale by a recipe, those that it would leave out here, too."""
    groups = _entries(read_table(paper, name, scale, recipe), "group")
    asked = [g for g in groups if scale in g.get("scales", SCALES) and recipe in g.get("recipes", RECIPES)]
    here = [g for g in asked if "missing" in g or _stands(g, scale, recipe)]
    found = (group.get("experiment", {}).get("data", {}).get("source") for group in here)
    return list(dict.fromkeys(source for source in found if source is not None))


def _numbered(groups: Sequence[Document]) -> Iterator[Document]:
    """Yield groups with their ``place``: the printed name, and which one it is where several make up one block."""
    seen: dict[str, int] = {}
    for group in groups:
        name: str = group.get("printed") or group["name"]
        seen[name] = seen.get(name, 0) + 1
        yield {**group, "place": name if seen[name] == 1 else f"{name} ({seen[name]})"}


def _check(where: str, document: Document, groups: Sequence[Document], printed_rows: Sequence[str]) -> None:
    """Refuse words that mean nothing, which would be passed over in silence: keys, and names of published numbers.

    ``printed_rows``: rows of the paper's recipe, whose numbers are printed whether or not another recipe has them.
    """
    columns, rows = _entries(document, "column"), _entries(document, "row")
    entries = [*groups, *columns, *rows, *(variant for row in rows for variant in row.get("variants", ()))]
    wrong: list[tuple[str, Iterable[str]]] = [(key, FILE) for key in document.keys() - FILE - {"recipe"}]
    wrong += [(key, ENTRY) for entry in entries for key in entry.keys() - ENTRY]
    printed = {*document["group"], *(group.get("printed", group["name"]) for group in groups)}
    names = [*(row["name"] for row in rows), *printed_rows]
    for group, lines in document.get("published", {}).items():
        wrong += [(group, printed)] if group not in printed else []
        wrong += [(row, names) for row in lines if row not in names]
    if wrong:
        raise UserError(*(f"{where}: {word}: there is no such name{nearest(word, known)}" for word, known in wrong))


def _entries(document: Document, kind: str) -> list[Document]:
    """Return the entries of the list of groups, columns or rows, with what they take from the named ones."""
    named = document[kind]

    def whole(item: str | Document) -> Document:
        if isinstance(item, str):
            return whole({"name": item, **named[item]})
        return _laid(whole(item["like"]), item) if "like" in item else item

    return [whole(item) for item in document[f"{kind}s"]]


def _stands(entry: Document, scale: Scale, recipe: Recipe) -> bool:
    """Say whether an entry is there at this scale, by this recipe, with the data that are here."""
    there = "if_here" not in entry or is_here(entry["if_here"])
    wanted = "unless_here" not in entry or not is_here(entry["unless_here"])
    return scale in entry.get("scales", SCALES) and recipe in entry.get("recipes", RECIPES) and there and wanted


def _left_out(group: Document, scale: Scale, recipe: Recipe) -> str | None:
    """Return why a group of the paper is not in the table; None if it is there."""
    scales, recipes = group.get("scales", SCALES), group.get("recipes", RECIPES)
    if recipe not in recipes:
        return f"is part of --recipe {' and '.join(recipes)} only"
    if scale in scales:
        return None if _stands(group, scale, recipe) else group.get("missing")
    return f"is part of --scale {' and '.join(scales)} only" if "paper" in scales else None


def _words(document: Document, *entries: Document) -> frozenset[str]:
    """Return the words that ``--only`` knows entries by: of their names, their tags, and their data sets."""
    texts = [_filled(entry["name"], _values(document, *entries)) for entry in entries]
    words = " ".join(texts).lower().replace(",", " ").split()
    sources = [source for e in entries if (source := e.get("experiment", {}).get("data", {}).get("source"))]
    tags = [tag for entry in entries for tag in entry.get("tags", ())]
    return frozenset({word.strip("():") for word in words} | {*tags, *sources})


def _values(document: Document, *entries: Document) -> Document:
    return {k: v for entry in (document, *entries) for k, v in entry.get("values", {}).items()}


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a value of a file with its "{names}" filled in; a text that is one name alone becomes what it names."""
    if isinstance(value, str) and "{" in value:
        alone = value[1:-1]
        return values[alone] if value == f"{{{alone}}}" else value.format_map(values)
    if isinstance(value, list):
        return [_filled(item, values) for item in value]
    if isinstance(value, Mapping):
        filled = {key: _filled(item, values) for key, item in value.items()}
        return {k: v for k, v in filled.items() if v != "none" or value[k] == "none"}
    return value


def _cells(document: Document, group: Document, scale: Scale) -> Iterator[Cell]:
    """Yield the cells of a group, column by column, or row by row if the file says ``by = "row"``."""
    recipe: Recipe = document["recipe"]
    columns, rows = (
        [
            e
            for e in _entries(document, kind)
            if _stands(e, scale, recipe) and e["name"] in group.get(f"{kind}s", (e["name"],))
        ]
        for kind in ("column", "row")
    )
    if document.get("by") == "row":
        places = [(column, row) for row in rows for column in columns]
    else:
        places = [(column, row) for column in columns for row in rows]
    printed = [column["name"] for column in columns if column.get("printed", True)]
    for column, row in places:
        if column["name"] in row.get("columns", (column["name"],)):
            numbers = document.get("published", {}).get(group.get("printed", group["name"]), {}).get(row["name"])
            by_column = dict(zip(printed, numbers or [], strict=bool(numbers)))
            yield _cell(document, (group, column, row), by_column.get(column["name"], "-"), scale)


def _cell(document: Document, place: Sequence[Document], number: Any, scale: Scale) -> Cell:
    group, column, row = place
    values, said = _values(document, *place), _laid(_laid(group, column), row)
    against = None
    if "against" in said:
        [base] = _entries({**document, "rows": [said["against"]]}, "row")
        against = _experiment(document, (group, column, base))
    factor = said.get("factor") if "over" not in said else 1.0 / said["over"]
    metric = _filled(said.get("metric", ""), values)
    runs = tuple(
        Variant(v["name"], _experiment(document, (*place, v)), against)
        for v in row.get("variants", [{"name": ""}])
        if _stands(v, scale, document["recipe"])
    )
    rounds = runs[0].sections["run"]["rounds"]
    return Cell(
        group=_filled(group["name"], values),
        column=_filled(column["name"], values),
        algorithm=_filled(row["name"], values),
        variants=runs,
        at=_filled(said.get("at", document.get("at", rounds)), values),
        published=_published(number, said.get("published_over", 1)),
        ranked=all(entry.get("ranked", True) for entry in (document, *place)),
        tags=_words(document, *place),
        measure=said.get("measure") or document.get("measure", "at"),
        metric=tuple(metric) if isinstance(metric, list) else metric,
        factor=factor,
        place=(group["place"], column["name"], row["name"]),
    )


def _experiment(document: Document, layers: Sequence[Document]) -> Document:
    """Return an experiment: the file's settings, and those of the layers over them."""
    sections = document["experiment"]
    for layer in layers:
        for key in layer.get("without", ()):
            sections = _without(sections, key.split("."))
        sections = _laid(sections, layer.get("experiment", {}))
    found: Document = _filled(sections, _values(document, *layers))
    return found


def _without(sections: Mapping[str, Any], path: Sequence[str]) -> Document:
    first, *rest = path
    if rest and first in sections:
        return {**sections, first: _without(sections[first], rest)}
    return {key: value for key, value in sections.items() if key != first}


def _published(number: Any, over: float) -> Printed | None:
    if number == "-":
        return None
    return Printed(*(float(x) / over for x in (number if isinstance(number, list) else [number])))
