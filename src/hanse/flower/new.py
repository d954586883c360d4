"""``hanse new NAME`` makes a folder with all files for a federation of your own, from the files in ``template/``.

You only have to write the function in ``client_app.py`` that loads a participant's data.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from hanse.base.errors import UserError

EPILOG = "Example:\n\nhanse new harvest && cd harvest && ./up.sh && ./run.sh"
TEMPLATE = Path(__file__).parent / "template"


def new(name: Annotated[str, typer.Argument(metavar="NAME", help="The project's name.", show_default=False)]) -> None:
    """Make a project for a real federation on Flower: server, client, keys, TLS."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    folder, lines = Path(name), []
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", name):
        lines.append(f"NAME: {name!r}: must be lower-case letters, digits and '-', starting with a letter")
    if folder.exists():
        lines.append(f"{folder}: exists already")
    if lines:
        raise UserError(*lines)
    # StrictUndefined: a misspelt variable in a template is an error and not an empty text
    pages = Environment(loader=FileSystemLoader(TEMPLATE), undefined=StrictUndefined, keep_trailing_newline=True)
    folder.mkdir()
    for page in sorted(TEMPLATE.glob("*.j2")):
        plain = page.name.removesuffix(".j2")
        # the template has no dot, or git would obey it here
        target = folder / (".gitignore" if plain == "gitignore" else plain)
        target.write_text(pages.get_template(page.name).render(name=name))
        if target.suffix == ".sh":
            target.chmod(0o755)
    typer.echo(f"made {folder}/: fill in load_data in client_app.py, then ./up.sh && ./run.sh")
