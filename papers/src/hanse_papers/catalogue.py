"""The catalogue for ``hanse reproduce``: papers, their tables, the data that each needs, and whether the data are here.

:func:`find_table` finds a table from the command line; :func:`list_papers` and :func:`printed_papers` list all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table as RichTable

from hanse.base.errors import UserError, gated, nearest
from hanse.data.sources import cache_dir, is_here
from hanse_papers.computed import COMPUTED
from hanse_papers.tables import AMISS, RECIPES, SCALES, Paper, PaperTable, load_paper, read_table, sources_of

PAPERS: Mapping[str, Paper] = {name: load_paper(name, COMPUTED) for name in ("greedyfed", "gtflat", "ipfl", "pifl")}
"""The papers by the names that the command line knows. Only their own file is read here, not those of their tables."""


def _unknown(paper: str) -> list[str]:
    """Return the line that refuses a paper of another name; nothing if there is such a paper."""
    return [] if paper in PAPERS else [f"reproduce {paper}: no such paper{nearest(paper, PAPERS)}"]


def find_table(paper: str, table: str, scale: str, recipe: str = "paper") -> PaperTable:
    """Return a paper's table at a scale by a recipe.

    Args:
        paper: one of :data:`PAPERS`.
        table: one of the paper's tables, such as "table2".
        scale: "smoke", "small" or "paper" (see :mod:`hanse_papers.tables`).
        recipe: "paper" to follow the text, or "authors" to follow the authors' public code.

    Raises:
        UserError: a name does not exist. The message suggests the nearest one. All mistakes are reported together, but
            in an unknown paper the table is not checked.
    """
    lines = _unknown(paper)
    if not lines and table not in PAPERS[paper].tables:
        lines.append(f"reproduce {paper} {table}: no such table{nearest(table, PAPERS[paper].tables)}")
    chosen = next((s for s in SCALES if s == scale), None)
    if chosen is None:
        lines.append(f"--scale {scale}: no such scale{nearest(scale, SCALES)}")
    by = next((r for r in RECIPES if r == recipe), None)
    if by is None:
        lines.append(f"--recipe {recipe}: no such recipe{nearest(recipe, RECIPES)}")
    if lines or chosen is None or by is None:
        raise UserError(*lines)
    with gated(f"{paper}/{table}.toml", AMISS):
        return PAPERS[paper].tables[table](chosen, by)


# sources that are put together from the files of others
MADE_OF = {
    "mixed_finance": ("fiqa", "tfns", "nwgi"),
    "finance_code": ("nwgi", "code_alpaca"),
}


def available(source: str) -> bool:
    """Return whether all files of a source are here, in the usual folders or as ``<source>.train.*`` in ``HANSE_DATA``
    or the cache.
    """
    folders = [Path(os.environ["HANSE_DATA"]).expanduser()] if "HANSE_DATA" in os.environ else []
    return source == "instructions" or all(
        is_here(part) or any(any(folder.glob(f"{part}.train.*")) for folder in (*folders, cache_dir()))
        for part in MADE_OF.get(source, (source,))
    )


def list_papers(paper: str | None = None) -> list[dict[str, Any]]:
    """Return all papers and tables as plain values.

    Args:
        paper: the only paper to list. None: all are listed.

    Returns:
        One ``{paper, citation, tables}`` for each paper. A table is ``{table, title, data}``. For each scale, ``data``
        has the sources that the table needs by either recipe, and whether each source's files are here.

    Raises:
        UserError: there is no such paper.
    """
    if paper is not None and (lines := _unknown(paper)):
        raise UserError(*lines)
    known: dict[str, bool] = {}
    return [_one(one, known) for one in PAPERS.values() if paper in (None, one.name)]


def _one(paper: Paper, known: dict[str, bool]) -> dict[str, Any]:
    """Return one paper's entry. ``known`` collects which sources are here, so each is looked for once."""
    tables = []
    for name in sorted(paper.tables):
        with gated(f"{paper.name}/{name}.toml", AMISS):
            title = read_table(paper.name, name, "paper")["title"]
            needed = {
                scale: list(dict.fromkeys(s for recipe in RECIPES for s in sources_of(paper.name, name, scale, recipe)))
                for scale in SCALES
            }
        known |= {source: available(source) for sources in needed.values() for source in sources if source not in known}
        data = {scale: {source: known[source] for source in sources} for scale, sources in needed.items()}
        tables.append({"table": name, "title": title, "data": data})
    return {"paper": paper.name, "citation": paper.citation, "tables": tables}


def printed_papers(papers: Sequence[dict[str, Any]]) -> list[RichTable]:
    """Return one terminal table for each paper.

    Args:
        papers: what :func:`list_papers` returned.
    """
    shown = []
    for paper in papers:
        table = RichTable(title=f"{paper['paper']}: {paper['citation']}", title_justify="left", title_style="bold")
        for name in ("table", "title", "data of --scale small", "data of --scale paper"):
            table.add_column(name, overflow="fold")
        for line in paper["tables"]:
            table.add_row(line["table"], line["title"], *(_said(line["data"][scale]) for scale in ("small", "paper")))
        shown.append(table)
    return shown


def _said(data: dict[str, bool]) -> str:
    """Return the sources that are here, and then those that are not."""
    here, away = ([source for source, there in data.items() if there is wanted] for wanted in (True, False))
    missing = [f"not here: {', '.join(away)}"] if away else []
    return "; ".join([*([", ".join(here)] if here else []), *missing]) or "none"
