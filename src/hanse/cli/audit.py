"""The ``hanse audit`` command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from hanse.base.looking import looking, own_modules
from hanse.cli.options import LedgerUrl, Trust

if TYPE_CHECKING:
    from hanse.reports.lies import Counterfactual, Outcome

__all__ = ["EPILOG", "audit"]

EPILOG = "Examples:\n\nhanse audit runs/market\n\nhanse audit runs/market --client 3 --story 'cost x0.5' --story alone"


def audit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Run directory.", show_default=False)],
    client: Annotated[
        int | None, typer.Option("--client", help="Also: would this client have gained by lying? Plays the run again.")
    ] = None,
    story: Annotated[
        list[str] | None, typer.Option("--story", help="Only this lie, such as 'size x2', 'cost x0.5' or 'alone'.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    ledger_url: LedgerUrl = None,
    trust: Trust = False,
) -> None:
    """Check a run of a market: did everyone gain, do the books hold, who was isolated, and does a lie pay?

    --client plays the run again, and needs --trust if its file has import paths.
    """
    from hanse.base.errors import UserError
    from hanse.reports.audit import audit_run
    from hanse.reports.lies import counterfactuals, verdict

    out, err = Console(), Console(stderr=True)
    if story and client is None:
        raise UserError("--story: needs --client, the one whose lies are tried")
    found = audit_run(folder, ledger_url)
    honest: Outcome | None = None
    lies: list[Counterfactual] = []
    if client is not None:
        if trust:
            own_modules()
        with looking(trust=trust):
            honest, lies = counterfactuals(
                folder, client, story or (), lambda name: err.print(f"playing: {name}", highlight=False, markup=False)
            )
    if as_json:
        data = found.as_json()
        if client is not None and honest is not None:
            data["counterfactuals"] = {
                "client": client,
                "honest": {"utility": honest.utility, "accuracy": honest.accuracy},
                "stories": [
                    {
                        "story": c.story,
                        "utility": c.outcome.utility,
                        "accuracy": c.outcome.accuracy,
                        "gain": c.gain,
                        "gain_under_critical_prices": c.under_critical,
                    }
                    for c in lies
                ],
                "verdict": verdict(client, honest, lies),
            }
        print(json.dumps(data, indent=1, allow_nan=False))
    else:
        table = RichTable("", "check", "", title=f"{found.rounds} markets of {folder.name}", title_justify="left")
        for check in found.checks:
            table.add_row("[green]holds[/green]" if check.holds else "[red]FAILS[/red]", check.name, check.said)
        out.print(table)
        sums = RichTable("client", "utility", "bought", "sold", "rounds traded", "rounds withheld")
        rows = zip(found.clients, found.utility, found.bought, found.sold, found.traded, found.withheld, strict=True)
        for who, utility, bought, sold, traded, withheld in rows:
            sums.add_row(str(who), f"{utility:.3f}", f"{bought:.3f}", f"{sold:.3f}", str(traded), str(withheld))
        out.print(sums)
        if client is not None and honest is not None:
            _lies(out, client, honest, lies)
            for line in verdict(client, honest, lies):
                out.print(line, markup=False, highlight=False, soft_wrap=True)
    if not found.holds:
        raise typer.Exit(1)


def _lies(out: Console, client: int, honest: Outcome, lies: Sequence[Counterfactual]) -> None:
    table = RichTable("client " + str(client), "utility", "gain", "accuracy %", "gain, critical prices")

    def percent(accuracy: float | None) -> str:
        return "-" if accuracy is None else f"{100 * accuracy:.1f}"

    table.add_row("honest", f"{honest.utility:.3f}", "", percent(honest.accuracy), "")
    for c in lies:
        under = "" if c.under_critical is None else f"{c.under_critical:+.3f}"
        table.add_row(c.story, f"{c.outcome.utility:.3f}", f"{c.gain:+.3f}", percent(c.outcome.accuracy), under)
    out.print(table)
