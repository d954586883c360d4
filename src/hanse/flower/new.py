"""``hanse new NAME`` makes a folder with all files for a federation of your own, from the files in ``template/``.

You only have to write the function in ``client_app.py`` that loads a participant's data, or none if the data are tables
and ``hanse schema`` has made their schema.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from click.core import ParameterSource

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.base.plain_text import quantity

EPILOG = "Example:\n\nhanse new harvest && cd harvest && ./up.sh && ./run.sh"
SCHEMA_EPILOG = (
    "Example:\n\nhanse schema basel.csv kiel.csv visby.csv --target ill --group patient\n\n"
    "hanse schema basel.toml kiel.toml\n\n"
    "hanse new harvest --schema schema.toml --table basel.csv --table kiel.csv --table visby.csv"
)
TEMPLATE = Path(__file__).parent / "template"


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project's name.", show_default=False)],
    schema: Annotated[
        Path | None, typer.Option(help="The schema of the participants' tables, which is copied.")
    ] = None,
    table: Annotated[list[Path] | None, typer.Option(help="A table of a trial here, a node each; repeat it.")] = None,
) -> None:
    """Make a project for a real federation on Flower: server, client, keys, TLS."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder, lines = Path(name), []
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", name):
        lines.append(f"NAME: {name!r}: must be lower-case letters, digits and '-', starting with a letter")
    if folder.exists():
        lines.append(f"{folder}: exists already")
    if table and schema is None:
        lines.append("--table: needs --schema, as 'hanse schema' makes it")
    if lines:
        raise UserError(*lines)
    # StrictUndefined: a misspelt variable in a template is an error and not an empty text
    pages = Environment(loader=FileSystemLoader(TEMPLATE), undefined=StrictUndefined, keep_trailing_newline=True)
    tables = [str(path.resolve()) for path in table or ()]
    known = {"name": name, "schema": "", "tables": tables, "nodes": len(tables) or 3}
    if schema is not None:
        from hanse.data.schema import CsvTable, Schema, digest, fitted

        fitted([CsvTable.read(path) for path in table or ()], Schema.read(schema))
        known["schema"] = digest(schema)
    folder.mkdir()
    try:
        if schema is not None:
            write_whole(folder / "schema.toml", schema.read_bytes())
        for page in sorted(TEMPLATE.glob("*.j2")):
            plain = page.name.removesuffix(".j2")
            # the template has no dot, or git would obey it here
            target = folder / (".gitignore" if plain == "gitignore" else plain)
            write_whole(target, pages.get_template(page.name).render(known))
            if target.suffix == ".sh":
                target.chmod(0o755)
    except BaseException:
        shutil.rmtree(folder)
        raise
    typer.echo(f"made {folder}/: {'' if schema else 'fill in load_data in client_app.py, then '}./up.sh && ./run.sh")


def schema(
    ctx: typer.Context,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="CSV files, one a site or of all; drafts; or a schema and CSV files."),
    ],
    target: Annotated[str, typer.Option(help="The column to be predicted.")] = "",
    client: Annotated[str, typer.Option(help="The column with the site of each row, in a file of all.")] = "",
    group: Annotated[str, typer.Option(help="The column with the patient of each row; none: each is its own.")] = "",
    time: Annotated[str, typer.Option(help="The column that says when a row was observed.")] = "",
    leave_out: Annotated[list[str] | None, typer.Option(help="A column that is no feature; may be repeated.")] = None,
    gap: Annotated[list[str] | None, typer.Option(help="How a gap is written, as n/d or -9; may be repeated.")] = None,
    statistics: Annotated[
        str,
        typer.Option(
            help="Means and deviations: agreed, in the file, which lost least on three tables; or each site's own."
        ),
    ] = "agreed",
    test: Annotated[float, typer.Option(help="The share of its rows that a site keeps for testing.")] = 0.2,
    validation: Annotated[float, typer.Option(help="The share of its rows that a site keeps for validation.")] = 0.0,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write.")] = Path("schema.toml"),
) -> None:
    """Draft the schema of tables: what each column is, for people to review and agree on.

    The file says of each column whether it holds numbers (in which unit), words (which ones) or dates, whether it has
    gaps, and by which mean and deviation numbers are scaled; and what is predicted, what a row is of, and when it was
    observed. Nothing is guessed of the last two: what looks like several rows of one person is said.

    Where nobody may see another's table, each member drafts a schema of its own, and the drafts make one. A schema
    with tables is looked at again, so that its warnings are those of today.
    """
    from hanse.data.drafting import draft, merged, reviewed
    from hanse.data.schema import Schema, digest, read_sites

    if statistics not in ("agreed", "own"):
        raise UserError(f"--statistics: {statistics!r}: must be agreed or own")
    if out.exists():
        raise UserError(f"{out}: exists already: give another --out, or move it away")
    said: dict[str, Any] = {"target": target, "client_column": client, "group": group, "time": time, "test": test}
    tables, drafts = [], [path for path in files if path.suffix == ".toml"]
    csvs = [path for path in files if path not in drafts]
    if drafts:
        fixed = [one for one in ctx.command.params if one.name not in ("files", "out")]
        if told := [
            one.opts[0] for one in fixed if ctx.get_parameter_source(one.name or "") is ParameterSource.COMMANDLINE
        ]:
            raise UserError(
                *(f"{option}: is for tables; of a schema it is in the file: leave it out" for option in told)
            )
        made = merged([Schema.read(path) for path in drafts], [path.stem for path in drafts])
        if csvs:
            tables = read_sites(csvs, made.client_column)
            made = reviewed(made, tables)
    elif not target:
        raise UserError("--target: is needed for tables: the column to be predicted")
    else:
        tables = read_sites(csvs, client)
        said["validation"] = validation
        made = draft(tables, said, leave_out or (), "own" if statistics == "own" else "agreed", gap or ())
    write_whole(out, made.text)
    typer.echo(made.text)
    for line in made.warnings:
        typer.echo(f"warning: {line}")
    rows = [f"{one.name} {quantity(f'{len(one.rows):,}', 'row')}" for one in tables]
    sizes = ", ".join(rows) or quantity(len(files), "draft")
    typer.echo(f"wrote {out} of {sizes}; review it; SHA-256 {digest(out)}")
