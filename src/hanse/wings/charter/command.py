"""``hanse charter``: rehearse an experiment under its charter, and amend a charter."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hanse.base.errors import UserError
from hanse.base.files import on_network, write_whole
from hanse.cli.options import Changes, ExperimentFile, err, say

app = typer.Typer(
    help="A consortium's charter: rehearse it, amend it.",
    epilog="Examples:\n\nhanse charter rehearse exp.toml\n\nhanse charter amend charter.toml new.toml --round 20",
    no_args_is_help=True,
)
SAID = {"amends", "first_round", "before", "signed"}  # what an amendment says of itself
Charters = Annotated[Path, typer.Argument(metavar="CHARTER", help="The charter, or an amendment in force.")]


@app.command()
def rehearse(
    experiment: ExperimentFile,
    changes: Changes = None,
    most: Annotated[int, typer.Option("--members", "-k", min=1, max=5, help="The most members that act together.")] = 2,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Also write the page, as Markdown.")] = None,
) -> None:
    """Play an experiment under its charter: who gains, who could capture it, what a leaver lacks.

    Examples:
        hanse charter rehearse exp.toml --out rehearsal.md
    """
    from hanse.runs.config import Experiment
    from hanse.wings.charter.rehearse import rehearsed

    with err.status("playing"):
        introduction, tables = rehearsed(Experiment.read(experiment, changes or ()), most)
    say(introduction, wrap=True)
    for table in tables:
        say(table)
    if out is not None:
        page = "\n".join(f"## {table.title}\n\n{table.markdown()}" for table in tables)
        write_whole(out, f"# Rehearsal\n\n{introduction}\n\n{page}")


@app.command()
def amend(
    old: Charters,
    new: Annotated[Path | None, typer.Argument(metavar="[NEW]", help="The charter that it is to become.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The amendment, to be written or signed.")] = Path(
        "amendment.txt"
    ),
    first: Annotated[int, typer.Option("--round", min=0, help="The first round under it.")] = 0,
    sign: Annotated[
        list[Path] | None, typer.Option("--sign", metavar="KEY", help="Sign with a member's private key; repeatable.")
    ] = None,
    run: Annotated[Path | None, typer.Option("--run", help="Let this run go on under it.")] = None,
) -> None:
    """Draft an amendment, sign it, and let a run go on under it.

    With NEW, the amendment is drafted. Each member then signs the file with its key. It holds once a quorum of the
    charter that it amends has signed. Who has not signed is asked nothing that the old charter did not allow.

    Examples:
        hanse charter amend charter.toml new.toml --round 20
        hanse charter amend charter.toml --sign north.pem
        hanse charter amend charter.toml --run runs/exp && hanse resume runs/exp
    """
    from hanse.ledger.note import load_key
    from hanse.runs.run_record import differences
    from hanse.wings.charter import amendment
    from hanse.wings.charter.charter import Charter

    charter = amendment.read(old)
    if new is not None:
        if out.exists():
            raise UserError(f"{out}: exists already, and may have signatures: give another --out, or move it away")
        if charter.stuck:
            raise UserError(f"{old}: {charter.stuck}")
        write_whole(out, amendment.drafted(charter, Charter.read(new), first))
    text, lines = amendment.read_note(out)
    before, after = amendment.both_in(text, str(out))
    if before.hash != charter.hash:
        raise UserError(f"{out}: amends {before.hash[:16]}, and {old} is {charter.hash[:16]}")
    plain = (one.model_dump(mode="json", exclude=SAID, exclude_none=True) for one in (before, after))
    for key, was, now in differences(*plain):
        say(f"{key}: {was}, now {now}", wrap=True)
    if missing := [key for key in sign or () if not key.is_file()]:
        raise UserError(f"--sign {missing[0]}: there is no such file")
    lines = amendment.signed(text, lines, charter, [load_key(key) for key in sign or ()])
    write_whole(out, "\n".join([text, *lines]) + "\n" if lines else text)
    by = amendment.signers(text, lines, charter, str(out))
    lack = charter.lacks({*by})
    say(f"{out}: from round {after.first_round}, signed by {', '.join(by) or 'nobody'}: {lack or 'it holds'}")
    if run is not None:
        command = amendment.go_on(run, out)
        anew = f"name {out} in experiment.toml, 'hanse network up', hand out agreement.txt; " * on_network(run)
        say(f"{run}: is under it from round {after.first_round}; {anew}go on with '{command}'")
