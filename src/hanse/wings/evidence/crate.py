"""``hanse crate``: a run as a Federated Learning RO-Crate, for tools that know research objects but not hanse.

:func:`write_crate` writes ``ro-crate-metadata.json`` next to hanse's own record. The
file follows the profile of flwrCrate (eScienceLab, v0.1). It has one ``CreateAction``. The action's instruments are the
software and the strategy with its settings, its objects are the run's configuration, and its results are the model and
the log of the rounds. The profile has no words for each client's value and for the ledger. These are added as plain
schema.org.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hanse.base.errors import UserError, library
from hanse.base.files import in_order, read_json, table
from hanse.base.toml import flat
from hanse.cli.options import RunFolder, say
from hanse.core.entry import LOG

if TYPE_CHECKING:
    from hanse.runs.run_record import RunRecord

PROFILE = "https://esciencelab.org.uk/federated-learning-ro-crate-profile/federated-learning-profile.html"
# files of a run directory that are listed as results, if they are there: what is in them, and their media type
FILES: Mapping[str, tuple[str, str]] = {
    "metrics.jsonl": ("the rounds: counts, tests, values, seconds", "application/json-lines"),
    "clients.jsonl": ("every reply: its weight, loss, value, or why it was refused", "application/json-lines"),
    "config.toml": ("the experiment with every default", "application/toml"),
    "environment.json": ("the machine and the packages", "application/json"),
    LOG: ("every posting of the books", "application/json-lines"),
    "report.html": ("hanse's report", "text/html"),
}
FIGURES = ("test", "client", "value", "train")  # of the last round, by the first part of their names
SECTIONS = ("mechanism", "clients", "ledger", "run")  # of the experiment, which are listed as parameters
PACKAGE = "https://pypi.org/project/{}/"
SCHEMA = "http://schema.org/"


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
    from hanse.ledger.run_ledger import has_books
    from hanse.runs.replay import wrong_books
    from hanse.runs.run_record import edited_settings

    if wrong := wrong_books(folder) if has_books(folder) else edited_settings(folder):
        say(f"warning: {wrong}")
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
        UserError: ``folder`` is not a run directory, the file cannot be written, or the library ``rocrate`` is not
            installed.
    """
    from hanse.runs.run_record import load_run

    made = library("rocrate.rocrate", "hanse crate: needs rocrate; pip install '.[crate]' in a clone of hanse")
    entity = library("rocrate.model.contextentity", "hanse crate: needs rocrate").ContextEntity
    run, crate = load_run(path), made.ROCrate()
    crate.name = f"{run.name}: a federated learning run"
    crate.description = f"{run.label}; rounds: {len(run.metrics)}, clients: {run.num_clients}; kept by hanse."

    def add(address: str, kind: str | list[str], /, **properties: Any) -> dict[str, str]:
        """Add an entity of a schema.org type to the crate and return the reference to it."""
        return {"@id": crate.add(entity(crate, address, properties={"@type": kind, **properties})).id}

    def numbers(kind: str, values: Iterable[tuple[str, Any]]) -> list[dict[str, str]]:
        """Add named values to the crate and return the references to them."""
        return [add(f"#{kind}-{_slug(one)}", "PropertyValue", name=one, value=_plain(of)) for one, of in values]

    profile = {"name": "Federated Learning RO-Crate profile v0.1", "url": PROFILE}
    crate.root_dataset["conformsTo"] = add(PROFILE, ["CreativeWork", "Profile"], **profile)
    if license is not None:
        known = license if "://" in license else f"#{_slug(license)}"
        told = {"name": license, "description": "the license of this record"}
        crate.root_dataset["license"] = add(known, "CreativeWork", **told)
    settings = flat({k: v for k, v in run.config.items() if k in SECTIONS})
    action: dict[str, Any] = {
        "name": "Federated learning training run",
        "instrument": _instruments(run, add, numbers),
        "object": numbers("param", (one for one in settings if not one[0].startswith("mechanism.settings."))),
        "result": _results(run, crate, numbers),
    }
    status = f"{'Failed' if run.unfinished else 'Completed'}ActionStatus"
    action["actionStatus"] = add(f"{SCHEMA}{status}", "ActionStatusType", name=status)
    if author is not None:
        known = author if "://" in author else f"#{_slug(author)}"
        action["agent"] = crate.root_dataset["author"] = add(known, "Person", name=author)
    crate.root_dataset["mentions"] = add("#fl-run", "CreateAction", **action)
    file = run.folder / "ro-crate-metadata.json"
    try:
        crate.metadata.write(run.folder)
    except OSError as wrong:
        raise UserError(f"{file}: cannot be written: {wrong.strerror}") from None
    return file


def _instruments(run: RunRecord, add: Any, numbers: Any) -> list[dict[str, str]]:
    """Return references to the software and to the strategy that made the run, the latter with its settings."""
    file = run.folder / "environment.json"
    said = read_json(file) if file.is_file() else {}
    packages = table(said, "packages") if isinstance(said, Mapping) else {}
    mechanism = table(run.config, "mechanism")
    if mechanism.get("flower"):
        packages = {**packages, "flwr": mechanism["flower"]}
    found = []
    for name in (one for one in packages if one in ("hanse", "flwr", "torch", "numpy")):
        number = {"softwareVersion": str(packages[name]), "version": str(packages[name])}
        about = {"name": {"flwr": "Flower"}.get(name, name), "url": PACKAGE.format(name), **number}
        found.append(add(f"#software-{_slug(name)}", "SoftwareApplication", **about))
    settings = mechanism.get("settings")
    parameters = numbers("strategy", settings.items() if isinstance(settings, Mapping) else ())
    name, of = str(mechanism.get("strategy") or run.mechanism), "flwr" if mechanism.get("flower") else "hanse"
    known = {"version": str(packages.get(of, "unknown")), "url": PACKAGE.format(of), "additionalProperty": parameters}
    return [*found, add("#fl-strategy", "SoftwareApplication", name=name, **known)]


def _results(run: RunRecord, crate: Any, numbers: Any) -> list[dict[str, str]]:
    """Return references to what came out: the last checkpoint with its figures, the files, and each client's value."""
    from hanse.runs.chance import is_number

    def file(place: str, name: str, description: str, form: str, **more: Any) -> dict[str, str]:
        """Add a file to the crate and return the reference to it."""
        size = str((run.folder / place).stat().st_size)
        about = {"name": name, "description": description, "encodingFormat": form, "contentSize": size, **more}
        return {"@id": crate.add_file(dest_path=place, properties=about).id}

    found = []
    for model in in_order(run.folder / "checkpoints", ".safetensors")[-1:]:
        shown = ((k, v) for k, v in run.metrics[-1].items() if is_number(v) and k.split("/")[0] in FIGURES)
        what = "the final model", "the last checkpoint, a safetensors file", "application/octet-stream"
        found.append(file(f"checkpoints/{model.name}", *what, additionalProperty=numbers("metric", shown)))
    found += [file(name, name, *about) for name, about in FILES.items() if (run.folder / name).is_file()]
    totals = defaultdict[int, float](float)
    for seat in run.clients:
        if seat.value is not None:
            totals[seat.client] += seat.value
    for client, total in sorted(totals.items()):
        named = f"{run.about.measure.name} of {run.client_label(client)}, summed over its rounds"
        found += numbers(f"value-client-{client}", [(named, total)])
    return found


def _plain(value: Any) -> Any:
    """Return a setting as a value that a property may have; lists and tables become JSON text."""
    return value if isinstance(value, str | int | float | bool) else json.dumps(value, default=str)


def _slug(name: str) -> str:
    """Return a name as part of an address within the crate."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "x"
