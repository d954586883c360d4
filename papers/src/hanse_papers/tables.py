"""Reads a paper's tables from TOML files.

``<paper>/paper.toml`` has what the tables of a paper have in common, and each ``<paper>/<table>.toml`` is one table.
Read this module to add a table or to understand a file. :func:`load_paper` reads a paper, :func:`build_table` one of
its tables as a :class:`PaperTable`: a list of :class:`Cell`, each with the published number and the experiments behind
it. :func:`filtered`, :func:`on_device` and :func:`with_seeds` change a table that was built.

A cell is one algorithm in one setting. Its *variants* are the hyper-parameters that the paper tried. The paper reports
the best one. A variant is an experiment as nested plain values, without seeds.

**The grid.** A file lists ``groups`` (the blocks of the printed table), ``columns`` and ``rows``. A cell belongs to one
of each. An entry of these lists has one of three forms: a table with a ``name``; a name alone, which ``[group.NAME]``,
``[column.NAME]`` or ``[row.NAME]`` explains; or a table that is ``like`` such a name except for what it says itself. An
entry may have:

* ``experiment``: settings of the cell's experiment. Those of the file come first, then those of the group, column, row
  and variant; each overrides the ones before. ``without`` lists keys (``"data.partition.alpha"``) that are taken away
  first.
* ``values``: what replaces ``"{name}"`` in settings, names and figures. ``"none"`` leaves a setting out. * ``scales``,
``recipes``: the only scales and recipes that have this entry. * ``if_here``, ``unless_here``: it exists only with, or
only without, the file of this data set. ``missing`` is the message for a group that is absent for this reason.
* ``columns``, ``rows``: the only columns and rows that a group has (or, for ``columns``, a row has).
* ``changes``: in words, the differences from the paper due to a group.
* ``metric``, ``factor`` or instead ``over`` (a divisor), ``at``, ``measure``, ``against`` (a row), ``tags``: see
  :class:`Cell`.
* ``printed``: the column's name in ``[published]``, or false for a column that is not printed.
* ``variants`` (rows only): the hyper-parameters that were tried, as entries.

**Published numbers.** ``[published.GROUP]`` has a list for each row, in the order of the group's printed columns. Its
items are a number, ``[mean, sd]``, or "-" for none. ``published_over`` divides what is printed. A whole file may also
have ``without``, ``metric``, ``factor``, ``measure`` and ``at``.

**Scales.** Any value may be written ``{ paper = 400, small = 40, smoke = 6 }``. A scale that is not given has the
paper's value. If there is no value for the paper, the key does not exist at this scale. "paper" is the paper's own
size, "small" a stated part of it, and "smoke" takes a minute and needs no data.

**Taking over.** ``like = "table2"`` starts from another file. In ``notes`` and ``changes``, ``"..."`` stands for the
paper's own list. ``computed`` names a function of :mod:`hanse_papers.computed` that gives the cells' numbers if no
experiment is needed.

**Recipes.** "paper" follows the text of the paper. Where the text is silent, ``paper.toml`` decides. "authors" follows
the authors' public code. ``<paper>/authors.toml`` overrides keys of ``paper.toml``, and ``[authors]`` in a table's file
overrides keys of that file. ``[[differences]]`` in ``authors.toml`` names each setting in which the two differ, for
``docs/papers.md``. It has ``setting`` (a dotted key of the experiment), ``paper``, ``authors``, ``source``, ``also``
(settings that change with it) and ``missing`` (why it is not built).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from importlib.resources import files
from typing import Any, Literal, get_args

from hanse.base.errors import UserError, gated, nearest
from hanse.base.factories import named_choice
from hanse.data.sources import is_here

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Recipe = Literal["paper", "authors"]
RECIPES: tuple[Recipe, ...] = get_args(Recipe)
Measure = Literal["at", "best", "rounds", "improvement", "share"]


@dataclass(frozen=True)
class Printed:
    """A published number in the table's unit.

    Attributes:
        mean: the number.
        sd: the printed deviation; None if there is none.
    """

    mean: float
    sd: float | None = None


@dataclass(frozen=True)
class Variant:
    """One choice of hyper-parameters in a cell.

    Attributes:
        name: the variant's name, such as "lr=0.1"; "" if it is the only one.
        sections: the experiment as nested plain values, without seeds unless the table fixes the split.
        against: the experiment with which a cell that measures rounds is compared; otherwise None.
    """

    name: str
    sections: Mapping[str, Any]
    against: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table: one algorithm in one setting.

    Attributes:
        group: the block of the printed table, usually a data set.
        column: the column in that block.
        algorithm: the row, which names the algorithm.
        variants: the hyper-parameters to try; none for a computed cell.
        at: after how many rounds the number is read.
        published: the published number; None if there is none.
        tags: the words by which ``--only`` finds the cell, in lower case.
        measure: what the number is. "at": the figure at round ``at``. "best": the best until then. "rounds": the
            effective rounds; "improvement": their improvement over another run (see :mod:`hanse_papers.compare`).
            "share": the share of the seeds in which a figure of 0 or 1 was 1 at that round.
        computed: the number itself, for a cell that needs no experiment; None if it cannot be computed here.
        metric: the recorded figure that replaces the table's; several figures are averaged. "": the table's figure.
        factor: the factor that replaces the table's. None: the table's factor.
        place: the names of group, column and row in the file, which are the same at every scale.
    """

    group: str
    column: str
    algorithm: str
    variants: tuple[Variant, ...]
    at: int
    published: Printed | None = None
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

    Attributes:
        paper: the paper's name on the command line.
        name: the table's name on the command line, such as "table2".
        title: the title printed above the table.
        scale: the table's size.
        cells: the cells, in the order of the printed table.
        recipe: whether the table follows the text or the authors' code.
        seeds: how many seeds by default.
        changes: differences from the recipe that must be said in words. :func:`hanse_papers.changes.changed` finds
            differences in settings.
        notes: notes on reading the numbers.
        metric: which recorded figure the cells show.
        factor: the factor of that figure, 100 for percent.
        unit: the resulting unit, as shown on an axis.
        figures: the table's pictures (see :mod:`hanse_papers.figures`).
        absent: possible words of ``--only``, each with the reason why its cells are missing.
        only: the ``--only`` filters that were applied.

    Examples:
        A table of one cell, made by hand. (:func:`build_table` makes the papers' tables from their files.)

        >>> digits = {"data": {"source": "digits", "clients": 4}, "mechanism": {"name": "fedavg"}, "run": {"rounds": 2}}
        >>> tried = (Variant("fedavg", digits),)
        >>> tags = frozenset({"fedavg"})
        >>> cell = Cell(group="digits", column="iid", algorithm="FedAvg", variants=tried, at=2, tags=tags)
        >>> table = PaperTable(paper="mine", name="table1", title="One cell", scale="smoke", cells=(cell,))
        >>> len(filtered(table, ["fedavg"]).cells)
        1
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
    """A paper whose tables can be built.

    Attributes:
        name: the paper's name on the command line.
        citation: title, authors and year.
        tables: the function that builds each table, by name. It takes a scale and optionally a recipe, as
            :func:`build_table` does.
    """

    name: str
    citation: str
    tables: Mapping[str, Callable[..., PaperTable]]


def filtered(table: PaperTable, only: Sequence[str]) -> PaperTable:
    """Return the table with only the cells that pass one of the filters.

    Args:
        table: the table.
        only: the filters. Without any, all cells pass. A filter is words separated by spaces or commas, and a cell
            passes if all of them are among its tags.

    Raises:
        UserError: a filter is empty, no cell has one of its words, or no cell is left.
    """
    if not only:
        return table
    filters = [frozenset(text.lower().replace(",", " ").split()) for text in only]
    if not all(filters):
        raise UserError("--only: there are no words in it; leave it out to get every cell")
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
    change = f"only the cells of {' or '.join(asked)}"
    return replace(table, cells=cells, changes=(*table.changes, change), only=asked)


def on_device(table: PaperTable, device: str) -> PaperTable:
    """Return the table with all experiments on another device.

    Args:
        table: the table.
        device: "cpu" returns the table as it is. On any other device (such as "cuda"), hanse's rule chooses the engines
            ("auto"), because the engines that the experiments name may run only on the CPU.
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
    """Return the table with another number of seeds.

    If the paper's number differs, it is listed among the table's changes. (Not if all cells are computed, and so the
    same for every seed.)

    Args:
        table: the table.
        seeds: the number of seeds. None: the table's own number is kept.
        published: how many seeds the paper has.
    """
    seeds = table.seeds if seeds is None else seeds
    same = seeds == published or not any(cell.variants for cell in table.cells)
    changes = () if same else (f"{seeds} seed{'' if seeds == 1 else 's'} instead of {published}",)
    return replace(table, seeds=seeds, changes=(*changes, *table.changes))


# The keys that an entry and a file may have. Any other key is a mistake, which would otherwise be silently ignored.
ENTRY = {
    "name", "like", "experiment", "without", "values", "scales", "recipes", "if_here", "unless_here", "missing",
    "columns", "rows", "changes", "metric", "factor", "over", "published_over", "at", "measure", "against",
    "tags", "printed", "variants",
}  # fmt: skip
FILE = {
    "citation", "tables", "title", "like", "seeds", "unit", "figure", "computed", "by", "groups", "columns", "rows",
    "group", "column", "row", "experiment", "without", "values", "published", "changes", "notes", "absent", "metric",
    "factor", "measure", "at", "authors", "differences",
}  # fmt: skip
Document = dict[str, Any]
AMISS = "a key or an entry that is needed is missing, or a value is of another kind"
"""What can be wrong with a file that cannot be built, said with the reason."""
Computed = Callable[[Sequence[Cell], Mapping[str, Any]], Sequence[float]]
"""Takes a table's cells and its file's ``values``; returns a number for each cell, or an empty list without data."""


def load_paper(name: str, computed: Mapping[str, Computed]) -> Paper:
    """Return a paper from its folder next to this module. Its tables are read when they are built.

    Args:
        name: the folder's name.
        computed: the functions that tables may name as ``computed``.
    """
    with gated(f"{name}/paper.toml", AMISS):
        shared = _file(name, "paper")
        tables = {table: partial(build_table, name, table, computed=computed) for table in shared["tables"]}
        return Paper(name, shared["citation"], tables)


@cache
def _file(paper: str, name: str) -> Document:
    """Return a TOML file of a paper's folder. It is shared by all callers and must not be changed."""
    with gated(f"{paper}/{name}.toml", "must be TOML"):
        return tomllib.loads((files(__package__) / paper / f"{name}.toml").read_text())


def differences(paper: str) -> list[dict[str, Any]]:
    """Return the differences between a paper's text and its authors' code.

    Args:
        paper: the paper's name.

    Returns:
        Entries with ``setting``, ``paper``, ``authors`` and ``source``. Some also have ``also`` (settings that change
        with it), and some ``missing``, which says why a difference is not built here.
    """
    entries: list[dict[str, Any]] = _authors(paper).get("differences", [])
    return entries


def _authors(paper: str) -> Document:
    """Return a paper's ``authors.toml``; empty if it has none."""
    return _file(paper, "authors") if (files(__package__) / paper / "authors.toml").is_file() else {}


def read_table(paper: str, name: str, scale: Scale, recipe: Recipe = "paper") -> Document:
    """Return a table's file for one scale and recipe, with everything that it takes over from other files.

    Args:
        paper: the paper's name.
        name: the table's name.
        scale: the scale.
        recipe: the recipe.
    """
    own: Document = _at_scale(_file(paper, name), scale)
    shared: Document = _at_scale(_file(paper, "paper"), scale)
    if recipe == "authors":
        shared = _over(shared, _at_scale(_authors(paper), scale), shared)
    # paper.toml (or the file that it is like) lies below, then the table's file, then its [authors]
    below = read_table(paper, own["like"], scale, recipe) if "like" in own else shared
    merged = _over(below, own, shared)
    return _over(merged, own["authors"], shared) if recipe == "authors" and "authors" in own else merged


def _over(below: Document, own: Document, shared: Document) -> Document:
    """Return a file laid over the one that it starts from.

    Nested settings are merged, other keys replaced. "..." in ``notes`` and ``changes`` becomes the list of ``shared``.
    """
    for key in own.get("without", ()):
        below = below | {"experiment": _without(below["experiment"], key.split("."))}
    merged = below | own
    for key in ("experiment", "values", "group", "column", "row"):
        merged[key] = _laid(below.get(key, {}), own.get(key, {}))
    for key in ("notes", "changes"):
        merged[key] = [line for text in merged.get(key, ()) for line in (shared[key] if text == "..." else (text,))]
    return merged


def _at_scale(value: Any, scale: Scale) -> Any:
    """Return a value of a file with every choice of scale made; None if it has no value at this scale."""
    if isinstance(value, list):
        return [_at_scale(item, scale) for item in value]
    if not isinstance(value, dict):
        return value
    if value and value.keys() <= set(SCALES):
        return _at_scale(value.get(scale, value.get("paper")), scale)
    return {k: chosen for k, v in value.items() if (chosen := _at_scale(v, scale)) is not None}


def _laid(below: Mapping[str, Any], above: Mapping[str, Any]) -> Document:
    """Return nested settings with others on top, which take precedence.

    A table without a name adds options to a name below it, as ``--set`` does.
    """
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        if isinstance(value, Mapping) and isinstance(under, str) and under != "none" and "name" not in value:
            under = {"name": under}
        both[key] = _laid(under, value) if isinstance(value, Mapping) and isinstance(under, Mapping) else value
    return both


def build_table(
    paper: str,
    name: str,
    scale: Scale,
    recipe: Recipe = "paper",
    *,
    computed: Mapping[str, Computed],
) -> PaperTable:
    """Return a table at a scale by a recipe.

    Groups that the scale or recipe does not have, or whose data are not here, are left out. ``absent`` says why.

    Args:
        paper: the paper's name.
        name: the table's name.
        scale: the scale.
        recipe: the recipe.
        computed: the functions that the table may name as ``computed``.

    Raises:
        UserError: the table's file has an unknown key or name.
    """
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
    changes = [*document["changes"], *(line for group in groups for line in group.get("changes", ()))]
    changes += [group["missing"] for group in every if group.get("missing") in absent.values()]
    options = {key: document[key] for key in ("metric", "factor", "unit") if key in document}
    return PaperTable(
        paper=paper,
        name=name,
        title=document["title"],
        scale=scale,
        recipe=recipe,
        cells=cells,
        seeds=document["seeds"],
        changes=tuple(dict.fromkeys(changes)),
        notes=tuple(document["notes"]),
        absent=document.get("absent", {}) | absent,
        figures=tuple(document.get("figure", ())),
        **options,
    )


def sources_of(paper: str, name: str, scale: Scale, recipe: Recipe = "paper") -> list[str]:
    """Return the data sources that a table needs, including those of groups left out for lack of data.

    Args:
        paper: the paper's name.
        name: the table's name.
        scale: the scale.
        recipe: the recipe.
    """
    groups = _entries(read_table(paper, name, scale, recipe), "group")
    asked = [g for g in groups if scale in g.get("scales", SCALES) and recipe in g.get("recipes", RECIPES)]
    here = [g for g in asked if "missing" in g or _stands(g, scale, recipe)]
    sources = (named_choice(group.get("experiment", {}).get("data", {}).get("source"), "") for group in here)
    return list(dict.fromkeys(source for source in sources if source))


def names_of(table: PaperTable) -> dict[str, list[str]]:
    """Return the names of a table's "groups", "columns" and "rows" in order, including groups whose data are missing.

    Args:
        table: the table.
    """
    document = read_table(table.paper, table.name, table.scale, table.recipe)
    stand = [g for g in _entries(document, "group") if "missing" in g or _stands(g, table.scale, table.recipe)]
    chosen = [g for g in stand if table.scale in g.get("scales", SCALES) and table.recipe in g.get("recipes", RECIPES)]
    groups = [_filled(group["name"], _values(document, group)) for group in chosen]
    return {
        "groups": list(dict.fromkeys([*groups, *(cell.group for cell in table.cells)])),
        "columns": list(dict.fromkeys(cell.column for cell in table.cells)),
        "rows": list(dict.fromkeys(cell.algorithm for cell in table.cells)),
    }


def _numbered(groups: Sequence[Document]) -> Iterator[Document]:
    """Yield groups with their ``place``: the printed name, numbered where several groups make up one printed block."""
    seen: dict[str, int] = {}
    for group in groups:
        name: str = group.get("printed") or group["name"]
        seen[name] = seen.get(name, 0) + 1
        yield {**group, "place": name if seen[name] == 1 else f"{name} ({seen[name]})"}


def _check(where: str, document: Document, groups: Sequence[Document], printed_rows: Sequence[str]) -> None:
    """Raise UserError for keys, and for names of published numbers, that mean nothing and would be silently ignored.

    ``printed_rows`` are the rows of the paper's recipe. Their numbers are printed whether or not this recipe has them.
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
    """Return the list of groups, columns or rows (``kind`` "group", "column", "row"), every entry spelled out."""
    named = document[kind]

    def whole(item: str | Document) -> Document:
        if isinstance(item, str):
            return whole({"name": item, **named[item]})
        return _laid(whole(item["like"]), item) if "like" in item else item

    return [whole(item) for item in document[f"{kind}s"]]


def _stands(entry: Document, scale: Scale, recipe: Recipe) -> bool:
    """Return whether an entry exists at this scale, by this recipe, and with the data that are here."""
    there = "if_here" not in entry or is_here(entry["if_here"])
    wanted = "unless_here" not in entry or not is_here(entry["unless_here"])
    return scale in entry.get("scales", SCALES) and recipe in entry.get("recipes", RECIPES) and there and wanted


def _left_out(group: Document, scale: Scale, recipe: Recipe) -> str | None:
    """Return why a group of the paper is not in the table; None if it is, or if there is nothing to say."""
    scales, recipes = group.get("scales", SCALES), group.get("recipes", RECIPES)
    if recipe not in recipes:
        return f"is part of --recipe {' and '.join(recipes)} only"
    if scale in scales:
        return None if _stands(group, scale, recipe) else group.get("missing")
    return f"is part of --scale {' and '.join(scales)} only" if "paper" in scales else None


def _words(document: Document, *entries: Document) -> frozenset[str]:
    """Return the words by which ``--only`` finds a cell of these entries: those of their names, tags and sources."""
    texts = [_filled(entry["name"], _values(document, *entries)) for entry in entries]
    words = " ".join(texts).lower().replace(",", " ").split()
    given = (e.get("experiment", {}).get("data", {}).get("source") for e in entries)
    sources = [source for one in given if (source := named_choice(one, ""))]
    tags = [tag for entry in entries for tag in entry.get("tags", ())]
    return frozenset({word.strip("():") for word in words} | {*tags, *sources})


def _values(document: Document, *entries: Document) -> Document:
    """Return ``values`` of the file and of entries; later ones take precedence."""
    return {k: v for entry in (document, *entries) for k, v in entry.get("values", {}).items()}


def _filled(value: Any, values: Mapping[str, Any]) -> Any:
    """Return a value of a file with its "{names}" filled in.

    A text that is one name alone becomes the value itself, so numbers and lists stay what they are. A setting that
    becomes "none" is left out.
    """
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
            # strict: a row with a number too few would shift all numbers behind it
            by_column = dict(zip(printed, numbers or [], strict=bool(numbers)))
            yield _cell(document, (group, column, row), by_column.get(column["name"], "-"), scale)


def _cell(document: Document, place: Sequence[Document], number: Any, scale: Scale) -> Cell:
    """Return the cell at a place (group, column and row), ``number`` being what is printed there."""
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
    experiment: Document = _filled(sections, _values(document, *layers))
    return experiment


def _without(sections: Mapping[str, Any], path: Sequence[str]) -> Document:
    """Return nested settings without the one at a path of keys, if it is there, and without a table that it empties."""
    first, *rest = path
    inside = sections.get(first, {})
    if rest and not isinstance(inside, Mapping):
        return dict(sections)
    below = _without(inside, rest) if rest else {}
    return {key: below if key == first else value for key, value in sections.items() if key != first or below}


def _published(number: Any, over: float) -> Printed | None:
    """Return a published number as the file writes it (a number, ``[mean, sd]`` or "-"), divided by ``over``."""
    if number == "-":
        return None
    both = number if isinstance(number, list) else [number]
    mean, *sd = (float(x) / over for x in both)
    return Printed(mean, sd[0] if sd else None)
