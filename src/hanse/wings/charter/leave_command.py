"""``hanse leave``: a client leaves a run, with a receipt; ``hanse audit leave``: whether such a receipt holds."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hanse.base.errors import UserError
from hanse.base.files import read_text
from hanse.base.merkle import Tree, as_text
from hanse.base.plain_text import quantity
from hanse.cli.options import AsJson, Client, print_json, say
from hanse.reports.digits import called

if TYPE_CHECKING:
    from hanse.wings.charter.leaving import Leaving


def leave(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Run directory; with --sign a participant's.", show_default=False)
    ],
    client: Client = None,
    sign: Annotated[
        bool, typer.Option("--sign", help="As the owner of a node: sign that it leaves, with its own key.")
    ] = False,
    left: Annotated[str, typer.Option("--run", help="With --sign, of several runs: the one that it leaves.")] = "",
    signed: Annotated[
        Path | None, typer.Option("--signed", help="On a network: the member's signed word, if its node is gone.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would leave behind; change nothing.")] = False,
    key: Annotated[
        Path | None, typer.Option("--key", help="The operator's private key, where heads of the book are signed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let a client leave a run: ask nothing more of it, state its account, say which models hold its updates.

    The client's receipt is DIR/leaving/client-N.json. It verifies without the run, by 'hanse audit leave'. The models
    stay as they are: docs/leaving.md says what leaving cannot do.

    A run that somebody plays is refused, except on a network: there the server is told to ask the client nothing more,
    and the same command settles once the run has ended.

    On a network the member signs first: its owner gives its folder (~/.hanse) with --sign. From then on the node trains
    no more, and tells the server so.

    What the others lose is in the receipt if 'hanse report DIR --retrain --without N' has measured it before.

    Examples:
        hanse leave runs/market --client 3 --dry-run
        hanse leave runs/market --client 3
        hanse leave ~/.hanse --sign
    """
    if sign:
        return _sign(folder, left)
    if client is None:
        raise UserError("--client: must name the client that leaves, as in --client 3, or --sign be given by its owner")
    from hanse.flower.leave import place_of
    from hanse.wings.charter.leaving import check_signed, leave_run, named, only_expelled, would_leave

    run, number = named(folder, client)
    if dry_run:
        return _say(would_leave(run, number), None, as_json)
    check_signed(run, number, signed)
    if only_expelled(run):
        then = "once the run has ended, or a server that waits for it is stopped, the same with --key makes its receipt"
        return say(f"{called(run.client_label(number))} is asked nothing more from the next exchange on; {then}.")
    _say(leave_run(run, number, key), place_of(folder, number), as_json)


def _sign(home: Path, left: str) -> None:
    """Sign that a participant leaves a run; without its name the only one whose agreement it has signed."""
    from hanse.flower.agreement import agreements
    from hanse.flower.leave import sign_leave

    runs = list(dict.fromkeys(one.run for one in agreements(home)))
    if not runs:
        raise UserError(f"{home}: is no participant's folder: it has signed no agreement that could be left")
    if (run := left or runs[-1]) not in runs or (not left and len(runs) > 1):
        raise UserError(f"--run {left or '(not given)'}: must be the run that it leaves, of {', '.join(runs)}")
    say(f"signed that it leaves run {run}: {sign_leave(home, run)}; keep a copy")
    say("Its node trains no more, and tells the server so. With a copy, 'hanse ledger verify' finds a book without it.")


def _say(leaving: Leaving, file: Path | None, as_json: bool) -> None:
    """Print what a client leaves behind, and where its receipt is."""
    import numpy as np

    from hanse.core.entry import in_tokens, tokens
    from hanse.wings.charter.lineage import ranges

    said, found, run = leaving.statement, leaving.lineage, leaving.run
    if as_json:
        return print_json({**said, "first": found.first, "given_to": found.given.tolist()})
    who, leaves = called(run.client_label(leaving.client)), "leaves" if file else "would leave"
    say(f"{who} {leaves} after {quantity(said['round'], 'round')}; no update of it came after the first {found.since}.")
    since = "" if found.first is None else f" (the first since round {found.first}): rows {ranges(found.holds)}"
    models, hold = quantity(said["of"], "model"), "holds" if said["rows"] == 1 else "hold"
    say(f"{said['rows']} of {models} {hold} its updates{since}.", wrap=True)
    if said["may"]:
        say(f"What training was drawn towards is not recorded: rows {ranges(found.may)} may hold some, too.", wrap=True)
    given = quantity(said["given"], "other client was", "other clients were")
    say(f"{given} given such a model, and may have kept it.", wrap=True)
    unvested = f", {tokens(said['ungranted'])} of its grant never vested" if said["ungranted"] else ""
    still = " (the run still decides on that)" if said["open"] else ""
    gone = [f", {tokens(said[one])} {one}" for one in ("returned", "lost") if one in said]
    held = in_tokens(said["balance"])
    held += f", {tokens(said['escrow'])} held back{still}{unvested}{''.join(gone)}"
    if run.has("ledger.json"):
        say(f"Its account has {held}.", wrap=True)
    values = run.seats.value[run.seats.client == leaving.client]
    if np.isfinite(values).any():
        worth = f"{np.nansum(values):+.4g} by the run's values"
        say(f"Its updates were worth {worth}: an estimate of what is lost, and a poor one.", wrap=True)
    if (lost := said.get("retrained")) is not None:
        mean, low, high = (-lost[end] for end in ("mean", "high", "low"))
        say(f"Trained anew, the others lose {mean:+.4g} without it (95 %: {low:+.4g} to {high:+.4g}).", wrap=True)
    if file:
        say(f"receipt: {file}")
        if (page := file.with_suffix(".html")).exists():
            say(f"its statement, made anew and signed: {page}")


def check(
    file: Annotated[Path, typer.Argument(metavar="RECEIPT", help="DIR/leaving/client-N.json.", show_default=False)],
    operator: Annotated[
        Path | None, typer.Option("--operator", help="The operator's public key, operator.pub.")
    ] = None,
    signed: Annotated[
        Path | None, typer.Option("--signed", help="On a network: the member's own copy of what it has signed.")
    ] = None,
) -> None:
    """Check the receipt of a client that has left a run; this needs only the file and the operator's public key.

    If anything does not hold, the exit code is 1. What it says of the models follows from the lines of
    client-N-lineage.jsonl: their Merkle root is the receipt's "lineage". If it lies beside the receipt, it is checked.

    Examples:
        hanse audit leave client-3.json --operator operator.pub
    """
    from hanse.flower.operator_key import public_key
    from hanse.wings.charter.leave_receipt import LeaveReceipt, hash_of_word

    receipt, beside = LeaveReceipt.read(file), file.with_name(f"{file.stem}-lineage.jsonl")
    wrong = receipt.wrong(None if operator is None else public_key(operator))
    if not wrong and beside.exists():
        root = as_text(Tree(read_text(beside).encode().splitlines()).root())
        wrong = "" if root == receipt.said["lineage"] else f"{beside.name} is not the lineage that it names"
    if not wrong and signed is not None and receipt.said.get("signed") != hash_of_word(read_text(signed)):
        wrong = f"it is not of the leave that was signed in {signed}"
    if wrong:
        print(f"The receipt does not hold: {wrong}", file=sys.stderr)
        raise typer.Exit(1)
    if operator is not None:
        by = "signed by the operator"
    elif receipt.note.signatures:
        by = "its signature was not looked at: --operator operator.pub"
    else:
        by = "nobody signed it"
    said = receipt.said
    what = f"client {said['client']} left the book {receipt.note.book} after {quantity(said['round'], 'round')}"
    say(f"The receipt holds: {what} ({by}).")
