"""``hanse facts``: the facts of runs as a table or JSON, and the check that pages say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hanse.base.errors import UserError
from hanse.cli.options import Dirs, each_run, out, say

_FORMS = ("json", "markdown", "latex", "csv")


def facts(
    dirs: Dirs,
    table: Annotated[str, typer.Option("--table", help="clients, rounds, runs or notes.")] = "clients",
    form: Annotated[str, typer.Option("--format", "-f", help="json (all), markdown, latex or csv.")] = "markdown",
    check: Annotated[
        list[Path] | None, typer.Option(help="A statement, invoice or report to hold against the facts; repeatable.")
    ] = None,
) -> None:
    """Print the facts of runs: what each client gave, gained, paid and earned, with errors, and notes on them.

    Every page is made of these numbers. --check makes pages again from the run's files, and exits with 1 if a page
    differs in more than white space, its date and hanse's version.

    Examples:
        hanse facts runs/exp
        hanse facts runs/exp --format json
        hanse facts runs/exp --check runs/exp/statements/client-3.html
    """
    from hanse.reports.facts import KINDS
    from hanse.reports.facts import facts as make

    for option, given, allowed in (("--format", form, _FORMS), ("--table", table, tuple(KINDS))):
        if given not in allowed:
            raise UserError(f"{option} '{given}': must be one of {', '.join(allowed)}")
    if check:
        from hanse.reports.report import check as held_against

        wrong = {page: held_against(each_run(dirs), page) for page in check}
        for page, lines in wrong.items():
            say(f"{page}: {f'differences: {len(lines)}' if lines else 'agrees with the facts'}")
            for line in lines:
                say(f"  {line}")
        raise typer.Exit(1 if any(wrong.values()) else 0)
    found = make(*each_run(dirs))
    made = found.to_json() if form == "json" else getattr(found, f"to_{form}")(table)
    out.print(made, markup=False, highlight=False, soft_wrap=True, end="")
    for note in found.notes if form == "markdown" and table != "notes" else ():
        say(f"{note.level}: {note.said}")
