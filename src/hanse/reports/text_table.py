"""A table of texts (:class:`TextTable`), for a page, a terminal, LaTeX and Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import fill

from rich.box import SIMPLE_HEAD
from rich.table import Table


@dataclass(frozen=True)
class TextTable:
    """A table of texts.

    Attributes:
        headings: ``[n]``.
        rows: ``[n]`` texts each: a name, and then numbers.
        title: what stands above it, if anything.
        caption: what stands below it, if anything.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = ""
    caption: str = ""

    def printed(self) -> Table:
        """Return it for a terminal: names fold where that is narrow, numbers never do."""
        table = Table(
            title=self.title, caption=self.caption or None, title_justify="left", caption_justify="left",
            box=SIMPLE_HEAD, pad_edge=False,
        )  # fmt: skip
        table.add_column(self.headings[0], overflow="fold", min_width=14)
        for heading in self.headings[1:]:
            table.add_column(fill(heading, 10), justify="right", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

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


def _in_latex(text: str) -> str:
    """Return a text as LaTeX reads it."""
    plain = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "±": r"$\pm$"}
    return "".join(plain.get(c, f"\\{c}" if c in "&%$#_{}" else c) for c in text)
