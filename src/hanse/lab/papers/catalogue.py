"""The papers that can be reproduced, by name."""

from __future__ import annotations

from collections.abc import Mapping

from hanse.base.errors import UserError, nearest
from hanse.lab.papers.computed import COMPUTED
from hanse.lab.papers.frame import SCALES, Paper, PaperTable
from hanse.lab.papers.tables import load_paper

__all__ = ["PAPERS", "find_table"]

PAPERS: Mapping[str, Paper] = {name: load_paper(name, COMPUTED) for name in ("greedyfed", "gtflat", "ipfl", "pifl")}


def find_table(paper: str, table: str, scale: str) -> PaperTable:
    """Return a paper's table at a scale. Raises UserError that names the nearest name of one that does not exist."""
    lines = []
    if paper not in PAPERS:
        lines.append(f"reproduce {paper}: no such paper{nearest(paper, PAPERS)}")
    elif table not in PAPERS[paper].tables:
        lines.append(f"reproduce {paper} {table}: no such table{nearest(table, PAPERS[paper].tables)}")
    chosen = next((s for s in SCALES if s == scale), None)
    if chosen is None:
        lines.append(f"--scale {scale}: no such scale{nearest(scale, SCALES)}")
    if lines or chosen is None:
        raise UserError(*lines)
    return PAPERS[paper].tables[table](chosen)
