"""``hanse audit``: whether a market did what it promises. The checks are in :mod:`hanse.reports.audit` and
:mod:`hanse.reports.lies`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table as RichTable

from hanse.base.errors import UserError
from hanse.cli.options import LedgerUrl, RunFolder, Trust, err, out, say, trusting

if TYPE_CHECKING:
    from hanse.reports.audit import Audit
    from hanse.reports.lies import Counterfactual, Fared
    from hanse.runs.record import RunRecord


def audit(
    folder: RunFolder,
    client: Annotated[
        str | None,
        typer.Option("--client", help="Also: would this client (number or name) have gained by lying? Plays it again."),
    ] = None,
    story: Annotated[
        list[str] | None,
        typer.Option("--story", help="Only this lie, such as 'size x2', 'cost x0.5' or 'alone'; may be repeated."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    ledger_url: LedgerUrl = None,
    trust: Trust = False,
) -> None:
    """Check a run that pays: do the books and records hold, and of a market, did anybody lose, and does a lie pay?

    Every round is replayed from its record: a market's prices, who was delivered what, an auction's settlement, and
    what the ledger moved. It needs nothing but the run directory, and prints a line for each check, a line for each
    fact that is neither right nor wrong (who traded nothing, what known cheats earned), and a row for each client. It
    exits with 1 if a check fails.

    With --client the run is played again for each lie that this client might have told (a false size, cost or
    eagerness, an attack, or staying alone), to see whether any of them would have paid. That needs --trust if the run's
    file has import paths. --story plays only some of these lies.

    Examples:
        hanse audit runs/market
        hanse audit runs/market --client 3 --story 'cost x0.5' --story alone
    """
    from hanse.reports.audit import audit_run
    from hanse.reports.lies import counterfactuals, verdict
    from hanse.runs.record import load_run

    if story and client is None:
        raise UserError("--story: needs --client, the one whose lies are tried")
    found = audit_run(folder, ledger_url)
    data, said = found.as_json(), list[str]()
    run = load_run(folder)
    number = None if client is None else run.client_of(client)
    if number is not None:
        with trusting(trust):
            honest, lies = counterfactuals(folder, number, story or (), lambda name: say(f"playing: {name}", err))
        said = verdict(number, honest, lies)
        stories = [asdict(lie) for lie in lies]
        data["counterfactuals"] = {"client": number, "honest": asdict(honest), "stories": stories, "verdict": said}
    if as_json:
        print(json.dumps(data, indent=1, allow_nan=False))
    else:
        _print(found, run)
        if number is not None:
            out.print(_lies(run.client_label(number), honest, lies))
        for line in said:
            say(line)
    if not found.holds:
        raise typer.Exit(1)


def _print(found: Audit, run: RunRecord) -> None:
    """Print the checks, the facts, and each client's sums over all markets in tokens."""
    title = f"{found.markets} markets of {run.name}" if found.markets else run.name
    table = RichTable("", "check", "", title=title, title_justify="left")
    for check in found.checks:
        table.add_row("[green]holds[/green]" if check.holds else "[red]FAILS[/red]", check.name, escape(check.said))
    for fact in found.facts:
        table.add_row("", fact.name, escape(fact.said))
    out.print(table)
    if not found.clients:
        return
    sums = RichTable("client", "utility", "bought", "sold", "rounds traded", "rounds withheld")
    for c in found.clients:
        tokens = (f"{amount:.3f}" for amount in (c.utility, c.bought, c.sold))
        sums.add_row(escape(run.client_label(c.client)), *tokens, str(c.rounds_traded), str(c.rounds_withheld))
    out.print(sums)


def _lies(client: str, honest: Fared, lies: Sequence[Counterfactual]) -> RichTable:
    """Return a table of how the client fared by honesty and would have fared by each lie.

    Its last column is what a lie that pays would still gain if prices were critical ones.
    """
    table = RichTable(f"client {escape(client)}", "utility", "gain", "accuracy %", "gain, critical prices")

    def percent(accuracy: float | None) -> str:
        return "-" if accuracy is None else f"{100 * accuracy:.1f}"

    table.add_row("honest", f"{honest.utility:.3f}", "", percent(honest.accuracy), "")
    for c in lies:
        under = "" if c.gain_under_critical_prices is None else f"{c.gain_under_critical_prices:+.3f}"
        table.add_row(c.story, f"{c.utility:.3f}", f"{c.gain:+.3f}", percent(c.accuracy), under)
    return table
