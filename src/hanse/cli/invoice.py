"""``hanse invoice``: splits one total among the participants of a run (:mod:`hanse.reports.invoice`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hanse.base.files import write_whole
from hanse.base.plain_text import quantity
from hanse.cli.options import RunFolder, out, say, warn


def invoice(
    folder: RunFolder,
    budget: Annotated[str, typer.Option("--budget", metavar="AMOUNT", help="The total, such as 10000 or 99.50.")],
    currency: Annotated[str, typer.Option("--currency", metavar="CODE", help="Three capital letters, such as EUR.")],
    by: Annotated[
        str | None,
        typer.Option("--by", help="value, earned or balance; default: value; of a pot earned; without values balance."),
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the lines as CSV.")] = None,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page to print.")] = None,
) -> None:
    """Split one total among the participants, to the cent: by value, or by what the books say.

    Amounts are in proportion to each participant's value (with a 95 % interval), to what it earned from the others
    after its own payments ("earned"), or to its final balance ("balance"). Anyone below zero gets nothing. Amounts are
    rounded by the largest remainder, so they sum to the total.

    Examples:
        hanse invoice runs/exp --budget 10000 --currency EUR --csv invoice.csv --html invoice.html
    """
    from hanse.core.entry import tokens
    from hanse.reports.invoice import as_csv, as_page
    from hanse.reports.invoice import invoice as make
    from hanse.reports.text_table import TextTable

    made = make(folder, budget, currency, by)
    for file, text in ((csv, as_csv), (html, as_page)):
        if file is not None:
            write_whole(file, text(made))
    warn([note.said for note in made.doubts])
    parties, receive = quantity(len(made.lines), "participant"), "receives" if made.paid == 1 else "receive"
    say(f"A proposal for the sum given; {made.paid} of {parties} {receive} any.", wrap=True)
    by_value = made.by == "value"
    rows = []
    for line in made.lines:
        last = "–" if line.between is None else " to ".join(map(made.told, line.between))
        if not by_value:
            last = "–" if line.units is None else tokens(line.units)
        rows.append((line.name, f"{100 * line.share:.2f} %", made.told(line.amount), last))
    rows.append(("total", "", made.told(made.total), ""))
    headings = ("participant", "share", made.currency, "95 % interval" if by_value else "tokens")
    out.print(TextTable(headings, tuple(rows)))
    for sentence in (note.said for note in made.notes if note.level != "doubt"):
        say(sentence, wrap=True)
