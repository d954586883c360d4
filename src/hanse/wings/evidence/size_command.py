"""``hanse audit size``: an auditor looks whether a member has the samples that it claims."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import typer

from hanse.base.errors import UserError, gated
from hanse.base.imports import import_path
from hanse.cli.options import NodeConfig, parsed_node_config, say, trusting

if TYPE_CHECKING:
    from hanse.federation.node import ClientData


def size(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The member's folder of the run, such as ~/.hanse/NAME/client-3.")
    ],
    data: Annotated[str, typer.Option("--data", metavar="MODULE:FUNCTION", help="What loads the member's samples.")],
    key: Annotated[Path, typer.Option("--key", metavar="FILE", help="The auditor's private key (Ed25519).")],
    node_config: NodeConfig = "",
) -> None:
    """Check a member's number of samples, at the place where they are, and sign what was found.

    The auditor runs this on the member's premises, after the server has asked. Each sample that the server drew must be
    among those that load_data returns, and at its place in the tree to which the member committed. If all are, the
    signature is left in the folder, and the node sends it when asked again. If anything is wrong, nothing is signed and
    the exit code is 2.

    This counts distinct records, not their worth: the auditor must see whether they are real.

    Examples:
        hanse audit size ~/.hanse/clinics/client-3 --data client_app:load_data --key auditor.pem
    """
    from hanse.data.commitment import commit
    from hanse.federation.node import own_secret
    from hanse.flower.agreement import agreements
    from hanse.ledger.note import load_key, public_of
    from hanse.wings.evidence.audits import AuditFolder, tag_key

    number = folder.name.removeprefix("client-")
    if not folder.is_dir() or not number.isdecimal():
        raise UserError(f"{folder}: is no member's folder of a run; it is called client-NUMBER")
    if not key.is_file():
        raise UserError(f"--key {key}: there is no such file")
    place = folder.resolve()
    asked, signing = AuditFolder(place), load_key(key)
    asked.question()  # before anything is loaded: was anything asked?
    agreed = [one.experiment["sizes"] for one in agreements(place.parent.parent) if one.run == place.parent.name]
    if agreed and public_of(signing).hex() not in agreed[-1]["auditors"]:
        raise UserError(f"--key {key}: is not the key of an auditor whom the members named (sizes.auditors): no bond "
                        "comes back by its signature")  # fmt: skip
    tags = tag_key(own_secret(place.parent.parent), place.parent.name, int(number))
    question = asked.sign(commit(_held(data, node_config).train, tags), tags, signing)
    opened = min(question["leaves"], question["size"])
    say(f"{opened} of {question['size']} samples opened, all there; signed in {folder}")


def _held(data: str, node_config: str) -> ClientData:
    """Return what a member's load_data returns. Raises UserError if it returns none, or does not return."""
    from hanse.federation.node import ClientData

    if ":" not in data:
        raise UserError(f"--data {data!r}: must be MODULE:FUNCTION, such as client_app:load_data")
    config = parsed_node_config(node_config)
    # the auditor named the module
    with gated(f"--data {data}: the samples were not loaded"), trusting(True):
        returned = import_path(data, "--data", ())(SimpleNamespace(node_config=config, node_id=0))
    if not isinstance(returned, ClientData):
        raise UserError(f"--data {data}: returned {type(returned).__name__}: must be a hanse.flower.ClientData")
    return returned
