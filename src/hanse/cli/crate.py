"""``hanse crate``: a run as a research object that other tools can read."""

from __future__ import annotations

from typing import Annotated

import typer

from hanse.cli.options import RunFolder, say


def crate(
    folder: RunFolder,
    author: Annotated[str | None, typer.Option("--author", help="Who ran it: a name, or an ORCID address.")] = None,
    license: Annotated[str | None, typer.Option("--license", help="Of the record: an address or a name.")] = None,
) -> None:
    """Write ro-crate-metadata.json into a run directory, by the Federated Learning RO-Crate profile.

    The file describes software, data, settings and results as linked data that archives and other tools can read.
    Nothing else in the directory is changed.

    Needs the library rocrate: pip install '.[crate]' in a clone of hanse.

    Examples:
        hanse crate runs/app --author 'A. Name' --license https://spdx.org/licenses/CC-BY-4.0
    """
    from hanse.reports.crate import write_crate
    from hanse.runs.checkpoint import edited_settings
    from hanse.runs.replay import wrong_books

    if edited := edited_settings(folder):
        say(f"warning: {edited}")
    if (folder / "ledger.json").exists() and (wrong := wrong_books(folder)):
        say(f"warning: the books of this run do not hold: {wrong}")
    say(f"wrote {write_crate(folder, author=author, license=license)}")
    if license is None:
        say("note: an RO-Crate must name a license; --license names one")
