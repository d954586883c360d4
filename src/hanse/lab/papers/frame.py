"""What a paper's table is: cells, each with the published number and the experiments that it is made of.

A table is data, read from a file (:mod:`hanse.lab.papers.tables`). A cell names one algorithm in one setting; its
variants are the hyper-parameters that the paper tried, of which it reports the best. A variant is an experiment as
nested plain values, without seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from hanse.base.errors import UserError, nearest

__all__ = [
    "SCALES",
    "Cell",
    "Measure",
    "Paper",
    "PaperTable",
    "Printed",
    "Scale",
    "Variant",
    "filtered",
    "on_device",
    "with_seeds",
]

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
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
    ``computed``: the number itself, for a cell that no experiment is needed for. ``metric`` and ``factor`` replace the
    table's; of several metrics it is the mean.
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

    @property
    def setting(self) -> str:
        """The group and the column as one name."""
        return f"{self.group}, {self.column}"


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table at one scale.

    ``seeds``: how many by default; ``changes``: what this scale changes against the paper; ``notes``: how the numbers
    are to be read; ``metric`` and ``factor``: which recorded figure the cells are, and what it is multiplied with;
    ``curves``: whether the cells' curves over the rounds are drawn; ``absent``: words that ``--only`` could have, and
    why their cells are not there.
    """

    paper: str
    name: str
    title: str
    scale: Scale
    cells: tuple[Cell, ...]
    seeds: int = 5
    changes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    metric: str = "test/accuracy"
    factor: float = 100.0
    unit: str = "test accuracy %"
    curves: bool = False
    absent: Mapping[str, str] = field(default_factory=dict)

    def settings(self) -> list[str]:
        """Return the settings in the order of the table."""
        return list(dict.fromkeys(cell.setting for cell in self.cells))


@dataclass(frozen=True)
class Paper:
    """A paper: its name on the command line, its citation, and a builder for each table."""

    name: str
    citation: str
    tables: Mapping[str, Callable[[Scale], PaperTable]]


def filtered(table: PaperTable, only: Sequence[str]) -> PaperTable:
    """Return the table with the cells that one of the ``only`` filters lets through; all of them if there is none.

    A filter is words with spaces or commas between them, and a cell passes if it has them all as tags. Raises
    UserError for a word that no cell has, or if nothing is left.
    """
    if not only:
        return table
    filters = [frozenset(text.lower().replace(",", " ").split()) for text in only]
    known = frozenset().union(*(cell.tags for cell in table.cells))
    wrong = sorted({word for words in filters for word in words if word not in known})
    if wrong:
        words = {word.strip("()") for word in known}
        reasons = (table.absent.get(w, f"{table.name} has no such setting{nearest(w, words)}") for w in wrong)
        raise UserError(*(f"--only {word}: {why}" for word, why in zip(wrong, reasons, strict=True)))
    cells = tuple(cell for cell in table.cells if any(words <= cell.tags for words in filters))
    if not cells:
        raise UserError(f"--only {' '.join(only)}: {table.name} has each of these words, but no cell with all of them")
    said = f"only the cells of {' or '.join(' '.join(text.split()) for text in only)}"
    return replace(table, cells=cells, changes=(*table.changes, said))


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
