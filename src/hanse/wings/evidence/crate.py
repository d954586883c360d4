"""``hanse crate``: a run as a Federated Learning RO-Crate, for tools that know research objects but not hanse.

:func:`write_crate` writes ``ro-crate-metadata.json`` next to hanse's own record, from ``crate.json.j2``. The file
follows the profile of flwrCrate (eScienceLab, v0.1). It has one ``CreateAction``. The action's instruments are the
software and the strategy with its settings, its objects are the run's configuration, and its results are the model and
the log of the rounds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.resources import files as resources
from pathlib import Path
from typing import Annotated, Any

import typer

from hanse.base.files import read_json, table, write_whole
from hanse.base.toml import flat
from hanse.cli.options import RunFolder, say
from hanse.core.entry import LOG

# files of a run directory that are listed as results, if they are there: what is in them, and their media type
FILES: Mapping[str, tuple[str, str]] = {
    "metrics.jsonl": ("the rounds: counts, tests, values, seconds", "application/json-lines"),
    "clients.jsonl": ("every reply: its weight, loss, value, or why it was refused", "application/json-lines"),
    "config.toml": ("the experiment with every default", "application/toml"),
    "environment.json": ("the machine and the packages", "application/json"),
    LOG: ("every posting of the books", "application/json-lines"),
    "report.html": ("hanse's report", "text/html"),
}
MODEL = ("the last checkpoint, a safetensors file", "application/octet-stream")
FIGURES = ("test", "client", "value", "train")  # of the last round, by the first part of their names
SECTIONS = ("mechanism", "clients", "ledger", "run")  # of the experiment, which are listed as parameters
NAMES = {"hanse": "hanse", "flwr": "Flower", "torch": "torch", "numpy": "numpy"}  # of packages, which are listed


def crate(
    folder: RunFolder,
    author: Annotated[str | None, typer.Option("--author", help="Who ran it: a name, or an ORCID address.")] = None,
    license: Annotated[str | None, typer.Option("--license", help="Of the record: an address or a name.")] = None,
) -> None:
    """Write ro-crate-metadata.json into a run directory, by the Federated Learning RO-Crate profile.

    The file describes software, data, settings and results as linked data that archives and other tools can read.
    Nothing else in the directory is changed.

    Examples:
        hanse crate runs/app --author 'A. Name' --license https://spdx.org/licenses/CC-BY-4.0
    """
    from hanse.ledger.run_ledger import has_books
    from hanse.runs.replay import wrong_books
    from hanse.runs.run_record import edited_settings

    if edited := edited_settings(folder):
        say(f"warning: {edited}")
    if has_books(folder) and (wrong := wrong_books(folder)) not in (None, edited):
        say(f"warning: the books of this run do not hold: {wrong}")
    say(f"wrote {write_crate(folder, author=author, license=license)}")
    if license is None:
        say("note: an RO-Crate must name a license; --license names one")


def write_crate(path: str | Path, *, author: str | None = None, license: str | None = None) -> Path:
    """Write ``ro-crate-metadata.json`` into a run directory and return its path. Nothing else there is touched.

    Args:
        path: the run directory.
        author: who made the run, as a name or an ORCID address; None names nobody.
        license: an address or a name; None names none.

    Raises:
        UserError: ``path`` is not a run directory.
        OSError: the file cannot be written.
    """
    from hanse.reports.facts import facts_of
    from hanse.reports.words import environment
    from hanse.runs.chance import is_number
    from hanse.runs.run_record import load_run

    run = load_run(path)
    environ, mechanism = run.path / "environment.json", table(run.config, "mechanism")
    told = read_json(environ) if environ.is_file() else {}
    packages = {**table(told, "packages")} if isinstance(told, Mapping) else {}
    packages |= {"flwr": mechanism["flower"]} if mechanism.get("flower") else {}
    of = "flwr" if mechanism.get("flower") else "hanse"
    name, version = str(mechanism.get("strategy") or run.mechanism), str(packages.get(of, "unknown"))
    own, config = mechanism.get("settings"), flat({k: v for k, v in run.config.items() if k in SECTIONS})
    worths = {row.client: row.value for row in facts_of(run).clients if row.value is not None}
    worth = f"{run.about.measure.name} of {{}}, summed over its rounds"
    numbers = {
        "settings": _numbers("strategy", own.items() if isinstance(own, Mapping) else ()),
        "parameters": _numbers("param", (one for one in config if not one[0].startswith("mechanism.settings."))),
        "figures": _numbers("metric", ((k, v) for k, v in run.metrics[-1].items()
                                       if is_number(v) and k.split("/")[0] in FIGURES)),
        "values": {f"#value-client-{c}": (worth.format(run.client_label(c)), one) for c, one in worths.items()},
    }  # fmt: skip
    last = sorted((run.path / "checkpoints").glob("*.safetensors"))[-1:]
    made = {f"checkpoints/{one.name}": ("the final model", *MODEL) for one in last}
    made |= {one: (one, *about) for one, about in FILES.items() if (run.path / one).is_file()}
    text = resources("hanse.wings.evidence").joinpath("crate.json.j2").read_text("utf-8")
    crate = environment().from_string(text)
    graph = crate.render(
        run=run,
        now=datetime.now(UTC).isoformat(timespec="seconds"),
        license=_named(license),
        author=_named(author),
        software=[(f"#software-{one}", NAMES[one], str(packages[one])) for one in packages if one in NAMES],
        strategy={"name": name, "version": version, "of": of},
        files={one: (*about, (run.path / one).stat().st_size) for one, about in made.items()},
        status=f"{'Completed' if len(run.metrics) >= run.rounds_planned else 'Failed'}ActionStatus",
        numbers={id: one for kind in numbers.values() for id, one in kind.items()},
        **numbers,
    )
    file = run.path / "ro-crate-metadata.json"
    write_whole(file, json.dumps(json.loads(graph), indent=4) + "\n")
    return file


def _numbers(kind: str, values: Iterable[tuple[str, Any]]) -> dict[str, tuple[str, Any]]:
    """Return named values by their addresses in the crate; lists and tables as JSON text."""
    return {
        f"#{kind}-{_slug(name)}": (name, one if isinstance(one, str | int | float) else json.dumps(one, default=str))
        for name, one in values
    }


def _named(name: str | None) -> dict[str, str] | None:
    """Return what has a name with its address, which may be the name itself; None without a name."""
    return None if name is None else {"name": name, "id": name if "://" in name else f"#{_slug(name)}"}


def _slug(name: str) -> str:
    """Return a name as part of an address within the crate."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"
