"""``hanse audit`` checks runs and members.

It checks whether a market kept its promises, whether values and payments follow from what clients sent, and whether a
member has the samples that it claims.

The checks of a run are in :mod:`hanse.reports.audit` and :mod:`hanse.runs.recompute`; ``hanse audit size`` is a wing's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from click import Context
from rich.table import Table as RichTable
from rich.text import Text
from typer.core import TyperGroup

from hanse.base.errors import UserError
from hanse.base.plain_text import quantity
from hanse.base.wings import absent
from hanse.cli.options import RunFolder, Trust, err, out, print_json, say, trusting

if TYPE_CHECKING:
    from hanse.reports.audit import Audit
    from hanse.runs.recompute import Recomputed


class RunByDefault(TyperGroup):
    """``hanse audit DIR`` is ``hanse audit run DIR``, also where DIR is ``run``, a project's own."""

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        """Return the remaining words, with the subcommand "run" if none is named."""
        if args[:1] == ["size"] and "size" not in self.commands:
            raise UserError(f"audit size: needs a wing{absent()}")
        if args == ["run"] or (args and args[0] not in (*self.commands, "--help")):
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=RunByDefault,
    help="Check a run that pays, or recompute its values. 'hanse audit DIR' is 'hanse audit run DIR'; with --trust it "
    "also imports a payment rule of your own, and calls it again.",
    epilog="Examples:\n\nhanse audit runs/market\n\nhanse audit recompute runs/market",
    no_args_is_help=True,
    rich_markup_mode="rich",
)


@app.command(name="run")
def audit(
    folder: RunFolder,
    trust: Trust = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Check a run that pays: whether books and records are right, and whether a market kept its rules.

    The payment rule is called again with what it was shown in each round, and must post what the ledger has. Checks
    that do not use it look at prices, deliveries, sums and limits. Only the run directory is needed; a payment rule of
    your own is imported only with --trust. It prints a line for each check, also where it could not be made ("not
    checked"), and a line for each further fact (who traded nothing). It exits with 1 if a check fails. What each client
    paid and gained says 'hanse facts'.

    Use 'hanse attack' to search for cheats that would have paid.

    Examples:
        hanse audit run runs/market
    """
    from hanse.reports.audit import audit_run
    from hanse.runs.observers import counting

    with counting("checks", err) as told, trusting(trust):
        result = audit_run(folder, told, trust)
    if as_json:
        print_json(result.as_json())
    else:
        _print(result, folder.resolve().name)
    if not result.holds:
        raise typer.Exit(1)


@app.command(name="recompute")
def recompute_run(
    folder: RunFolder,
    validation: Annotated[
        Path | None,
        typer.Option(
            "--validation", metavar="FILE", help="The validation set with its salts; default: RUN.audit/validation.npz."
        ),
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(
            "--floor",
            help="Share of the largest number of its kind by which numbers may differ; default 0 on a like machine.",
        ),
    ] = None,
    trust: Trust = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Replay a run from its clients' answers, and name the first value, weight or payment that differs.

    The run must have been played with run.recomputable = true. It then committed to its validation set, its settings
    and hanse's code before the first round, and kept what clients sent. The operator gives the auditor copies of the
    run directory and of the folder RUN.audit next to it, with the validation set and the clients' answers.

    Every round is played by the mechanism's own code. On the same kind of machine every bit must agree; elsewhere
    numbers may differ by --floor. It exits with 1 if something differs. Nothing that the run names is imported without
    --trust.

    Examples:
        hanse audit recompute runs/exp
        hanse audit recompute runs/exp --validation exp-validation.npz
    """
    from hanse.runs.recompute import recompute

    if floor is not None and not 0 <= floor < 1:
        raise UserError(f"--floor {floor}: must be at least 0 and less than 1")
    with trusting(trust):
        result = recompute(folder, validation, floor)
    if as_json:
        print_json({**vars(result), "taken": sorted(result.taken)})
    else:
        _tell(result)
    if result.unlike is not None:
        raise typer.Exit(1)


def _tell(found: Recomputed) -> None:
    """Print what came of playing a run again."""
    for note in found.notes:
        say(f"note: {note}")
    if found.unlike is not None:
        say(f"Not as recorded: {found.unlike}", style="red")
        return
    how = "bit for bit" if not found.floor else f"up to {found.deviation:.2g} of the largest (allowed: {found.floor:g})"
    counts = (
        f"{quantity(found.values, 'value')} and {quantity(found.transactions, 'transaction')} of "
        f"{quantity(found.rounds, 'round')}"
    )
    say(f"All as recorded, {how}: {counts}, with weights and models.")
    say(f"Taken as clients sent it: {', '.join(sorted(found.taken)) or 'nothing'}.")


def _print(found: Audit, name: str) -> None:
    """Print the checks and the facts."""
    title = f"{quantity(found.markets, 'market')} of {name}" if found.markets else name
    table = RichTable("", "check", "", title=title, title_justify="left")
    for check in found.checks:
        table.add_row(Text("holds", "green") if check.holds else Text("FAILS", "red"), check.name, check.said)
    for fact in found.facts:
        table.add_row(Text("not checked" * fact.unchecked, "yellow"), fact.name, fact.said)
    out.print(table)
