"""A table of texts (:class:`TextTable`), for a page, a terminal, LaTeX and Markdown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

_BREAKS = r"(?<=[ ,/=_:-])|(?<=\.)(?=\D)"  # where a name such as "mechanism.name=local,train.lr=0.05" may go on below
_LEAST = 14  # the width that names have at least


@dataclass(frozen=True)
class TextTable:
    """A table of texts.

    Attributes:
        headings: ``[n]``.
        rows: ``[n]`` texts each: a name, and then numbers.
        title: what stands above it, if anything.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print it on a terminal. Where that is narrow, names fold, and columns that have no room follow below."""
        room = options.max_width - 2 - max(_LEAST, *(_Name(row[0]).least for row in self.rows or [self.headings]))
        blocks, left = list[list[int]]([[]]), room
        for column, heading in enumerate(self.headings[1:], start=1):
            words = (*fill(heading, 10).splitlines(), *(row[column] for row in self.rows))
            width = max(map(cell_len, words)) + 3
            if blocks[-1] and width > left:
                blocks.append([])
                left = room
            blocks[-1].append(column)
            left -= width
        for block in blocks:
            title = self.title if block is blocks[0] else ""
            table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
            table.add_column(self.headings[0], overflow="fold", min_width=_LEAST)
            for column in block:
                table.add_column(fill(self.headings[column], 10), justify="right", no_wrap=True)
            for row in self.rows:
                table.add_row(_Name(row[0]), *(row[column] for column in block))
            yield table

    def markdown(self) -> str:
        """Return it as Markdown."""
        lines = [self.headings, ("---", *["---:"] * (len(self.headings) - 1)), *self.rows]
        return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)

    def latex(self) -> str:
        """Return it as LaTeX's ``tabular``, for the package ``booktabs``."""
        head, *body = (" & ".join(map(_in_latex, line)) + r" \\" for line in (self.headings, *self.rows))
        columns = "l" + "r" * (len(self.headings) - 1)
        rows = [r"\toprule", head, r"\midrule", *body, r"\bottomrule"]
        return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *rows, r"\end{tabular}", ""])


@dataclass(frozen=True)
class _Name:
    """A name in a terminal's table: where it is too long for its column, it goes on below, after a whole word."""

    text: str

    @property
    def _words(self) -> list[str]:
        return re.split(_BREAKS, self.text)

    @property
    def least(self) -> int:
        """The width of the longest word."""
        return max(map(cell_len, self._words))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.least, cell_len(self.text))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for word in self._words:
            if lines[-1] and cell_len(lines[-1] + word) > options.max_width:
                lines.append("")
            lines[-1] += word
        yield Text("\n".join(lines), overflow="fold")


def _in_latex(text: str) -> str:
    """Return a text as LaTeX reads it."""
    plain = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "±": r"$\pm$"}
    return "".join(plain.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
