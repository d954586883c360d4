"""Makes a client leave a run: nothing more is asked of it, its account is stated, and it gets a receipt.

The leave is one line of the log, with the hash of what is said of the client. Like a round it is first part of the
checkpoint and then of the log, so that it happens once, whenever the process is killed: the same command completes it.

On a network the server asks nobody who is expelled. While rounds are to come there, leaving is that order; once the run
has ended, it is the line of the log as well.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hanse.base.errors import UserError
from hanse.base.files import MEMBERS, going_on, in_order, on_network, read_text, table, write_whole
from hanse.base.lock import Hold, in_use
from hanse.base.merkle import as_text
from hanse.core.calling import States
from hanse.core.entry import TOKEN
from hanse.flower.leave import LONGEST, place_of, signed_leave, take_leave
from hanse.flower.members import Members, Orders, give
from hanse.flower.operator_key import signing_key
from hanse.flower.receipts import signed_statements
from hanse.ledger.accounts import Account
from hanse.ledger.note import fingerprint, public_of
from hanse.ledger.run_ledger import has_books, open_ledger, verify_run
from hanse.ledger.store import Ledger
from hanse.mechanisms.registry import built_in_parts
from hanse.reports.facts import there_until
from hanse.reports.harm import harms_of
from hanse.reports.money import read_books
from hanse.runs.checkpoint import CorruptCheckpointError, Snapshot, load, store
from hanse.runs.config import Experiment
from hanse.runs.guards import guards_of
from hanse.runs.run_record import RunRecord, load_run
from hanse.runs.sections import ExitSection
from hanse.wings.charter.leave_receipt import STATEMENT, LeaveReceipt, LeaveStatement, hash_of_word, leave_line
from hanse.wings.charter.lineage import Lineage, lineage

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True)
class Leaving:
    """A client that leaves a run, or might.

    Attributes:
        run: the run.
        client: the client's number.
        lineage: the models that hold its updates.
        statement: what is said of it.
    """

    run: RunRecord
    client: int
    lineage: Lineage
    statement: LeaveStatement

    @property
    def text(self) -> str:
        """The statement as a line of JSON."""
        return json.dumps(self.statement, separators=(",", ":"))


def named(folder: Path, name: str) -> tuple[RunRecord, int]:
    """Return a run and the number of the client with this number or name. Raises UserError if there is none."""
    run = load_run(folder)
    number = run.client_of(name)
    if number >= run.num_clients:
        raise UserError(f"--client {number}: no such client; this run has clients 0 to {run.num_clients - 1}")
    return run, number


def check_signed(run: RunRecord, client: int, word: Path | None) -> None:
    """Raise UserError if a client of a network has not signed that it leaves.

    Args:
        run: the run.
        client: the client.
        word: the file with its word, which is kept in the run directory; None: its node has sent it.
    """
    if not on_network(run.folder):
        if word is not None:
            raise UserError(f"--signed {word}: goes with a run on a network; in a simulation nobody has a key")
        return
    if note := signed_leave(run.folder, client) or ("" if word is None else read_text(word, LONGEST)):
        ends = ExitSection.of(run.config).models == "anew"
        take_leave(run.folder, Members.read(run.folder / MEMBERS), client, note, ends=ends)
    if not signed_leave(run.folder, client):
        who = run.client_label(client)
        raise UserError(
            f"--client {client}: '{who}' has not signed that it leaves: its owner does ('hanse leave HOME --sign'), "
            "and its node then says so, or --signed names a copy; 'hanse network expel' does without"
        )


def only_expelled(run: RunRecord) -> bool:
    """Say whether rounds are to come on a network: then who has signed is asked nothing more, and that is all for now.

    If all models are to be made anew (``clients.exit``), no more rounds are to come once nobody plays the run.
    """
    ends = ExitSection.of(run.config).models == "anew"
    return on_network(run.folder) and run.unfinished and (in_use(run.folder) or not ends)


def would_leave(run: RunRecord, client: int) -> Leaving:
    """Return what a client that left now would leave behind. Nothing is changed.

    Raises:
        UserError: the run's records are damaged or of another version of hanse, or its books do not hold.
    """
    return _stated(run, client, _newest(run.folder)[1])[0]


def leave_run(run: RunRecord, number: int, key: Path | None) -> Leaving:
    """Make a client leave a run, or complete a leave that was killed in the middle.

    Args:
        run: the run. Nobody may be playing it.
        number: the client's number.
        key: the operator's private key. None: the file that ``HANSE_OPERATOR_KEY`` names, if heads are signed.

    Raises:
        UserError: the client has left already, the run has no ledger or none that holds, somebody plays it, its records
            are damaged or of another version of hanse, or the key is not the one of its books.
    """
    folder, file = run.folder, place_of(run.folder, number)
    if file.exists():
        raise UserError(f"--client {number}: has left already; its receipt is {file}")
    check_signed(run, number, None)
    if not has_books(folder):
        raise UserError(f"{folder}: has no ledger, in which a leave is written; --dry-run says what holds its updates")
    with Hold(folder) as hold:
        hold.take()
        run, book = load_run(folder), open_ledger(folder)  # others may have played it meanwhile
        signing = _key(book, key)
        ledger = Ledger.open(book.file, book=book.book, floor=book.floor, key=signing)
        if wrong := verify_run(folder, ledger).wrong:
            raise UserError(f"{folder}: {wrong}")
        place, snapshot = _newest(folder)
        _complete(ledger, snapshot)
        if number not in snapshot.state.left:
            leaving, states = _stated(run, number, snapshot)
            snapshot = _left(leaving, states, snapshot, ledger)
            write_whole(place_of(folder, number, "-lineage.jsonl"), b"\n".join([*leaving.lineage.lines, b""]))
            write_whole(place_of(folder, number, "-statement.json"), leaving.text, durable=True)
            store(place, snapshot)  # from here on the client has left
            _complete(ledger, snapshot)
        text = read_text(place_of(folder, number, "-statement.json"))
        receipt = LeaveReceipt.of(ledger, text)
        if signing is not None and not receipt.said["open"]:  # that of the run's end lacks what the leave has moved
            for _, page in signed_statements(folder, [number], signing):
                write_whole(place_of(folder, number, ".html"), page)
        if Orders.read(folder).ends:
            give(folder, "go-on", "it has left: the run is settled")
        write_whole(file, receipt.as_json() + "\n", durable=True)  # last: until then this completes a leave
    covered = read_text(place_of(folder, number, "-lineage.jsonl")).count("\n")
    return Leaving(run, number, _lineage(run, number, snapshot, covered), receipt.said)


def _newest(folder: Path) -> tuple[Path, Snapshot]:
    """Return a run's newest checkpoint, and its file. Raises UserError if there is none, or it is damaged."""
    files = in_order(folder / "checkpoints", ".safetensors")
    if not files:
        raise UserError(
            f"{folder}: has no checkpoint: another version of hanse wrote it, or its models were deleted; nobody can "
            "leave it"
        )
    try:
        return files[-1], load(files[-1], torch.device("cpu"))
    except CorruptCheckpointError as wrong:
        raise UserError(f"{files[-1]}: is damaged ({wrong}); '{going_on(folder)}' mends that") from None


def _key(book: Ledger, key: Path | None) -> Ed25519PrivateKey | None:
    """Return the operator's key, if a book's heads are signed. Raises UserError if it is another one."""
    if book.public is None:
        return None
    found = signing_key(key)
    if public_of(found) != book.public:
        raise UserError(f"--key: the heads of {book.file} are signed by {fingerprint(book.public)}, not by this")
    return found


def _complete(ledger: Ledger, snapshot: Snapshot) -> None:
    """Append those transactions of a checkpoint that its log lacks."""
    ledger.post_rounds(snapshot.books.lacking(ledger.as_book().count))


def _lineage(run: RunRecord, client: int, snapshot: Snapshot, rounds: int) -> Lineage:
    """Return the models that hold a client's updates after so many rounds."""
    train = built_in_parts(run.config).get("train")  # of a part that is not hanse's own, any training may be steered
    steered = train is None or bool(train.adds)
    found = lineage(run.folder, client, snapshot.state.table.owner, rounds, steered)
    # on a network the model table has places that no member took
    return replace(found, given=found.given[found.given < run.num_clients])


def _stated(run: RunRecord, client: int, snapshot: Snapshot) -> tuple[Leaving, States]:
    """Return what is said of a client that leaves before the round of a checkpoint, and the parts' states without
    it.
    """
    state, books = snapshot.state, read_books(run)
    found = _lineage(run, client, snapshot, state.round)
    held = (Account() if books is None else books.accounts.get(client, Account())).totals
    vests, without = table(run.config, "clients").get("vests"), harms_of(run).get(client)
    agreed, back, states = ExitSection.of(run.config), 0, state.states
    for guard in guards_of(Experiment(**run.config)).values() if agreed.bond == "returned" else ():
        more, states = guard.leaves(client, states)
        back += more
    lost = max(0, held["balance"] + back) if agreed.balance == "lost" else 0
    held |= {"balance": held["balance"] + back - lost, "escrow": held["escrow"] - back}
    said: dict[str, Any] = {
        "client": client,
        "round": there_until(run, [client])[client] if client in Orders.read(run.folder).expelled else state.round,
        "since": found.since,
        "open": run.unfinished or not (state.finished or books is None),
        **held,
        "ungranted": round(run.grant * TOKEN) - held["granted"] if isinstance(vests, int) and vests > 1 else 0,
        **{name: units for name, units in (("returned", back), ("lost", lost)) if units},
        "lineage": as_text(found.root),
        "rows": int(found.holds.sum()),
        "may": int(found.may.sum()),
        "of": len(found.holds),
        "given": len(found.given),
    }
    if on_network(run.folder) and (word := signed_leave(run.folder, client)):
        said["signed"] = hash_of_word(word)
    if without is not None:
        said["retrained"] = {name: float(getattr(without, name)) for name in ("mean", "low", "high", "starts")}
    return Leaving(run, client, found, STATEMENT.check(said)), states


def _left(leaving: Leaving, states: States, snapshot: Snapshot, ledger: Ledger) -> Snapshot:
    """Return the checkpoint in which the client has left: it is asked nothing, and what it still trains is dropped."""
    state, client = snapshot.state, leaving.client
    # a round of its own behind the last settlement; before, the round that is played next
    round = ledger.as_book().round + 1 if state.finished else state.round
    line = leave_line(leaving.text)
    flights = {c: flight for c, flight in state.underway.flights.items() if c != client}
    after = replace(
        state,
        states=states,
        left=state.left | {client},
        book=state.book.post(round, [line]),
        underway=replace(state.underway, flights=flights),
    )
    return replace(snapshot, state=after, pending=((round, line),))
