"""A member's word that it leaves a run on a network: signed with the key of its node, which no operator has.

The word names the run, and no other run can use it: under a run's name a node answers for one book alone
(:class:`hanse.flower.agreement.QuestionTally`), and ``hanse network`` takes a new name for each.

The member's owner signs it (:func:`sign_leave`, ``hanse leave HOME --sign``), and keeps it. From then on the node does
nothing for the run but take letters, and sends the word beside its next answer. The server keeps it in the run
directory and asks the node nothing more (:func:`take_leave`). A leave in the book that no member has signed is found
by whoever verifies the book (:func:`signed_leave`), and one that is missing there by the copy that the member has.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.files import FEDERATION, MEMBERS, private_folder, read_json, read_text, write_whole
from hanse.flower.members import ENDS, LEAVES, Members, Orders, give
from hanse.ledger.accounts import BookSums
from hanse.ledger.note import cosign, cosigned_at, load_key
from hanse.ledger.store import Ledger
from hanse.ledger.witness import KEY, Witness, name_of

FOLDER = "leaving"  # in a run directory: each leaver's word, receipt, statement and lineage
OWN = "leaves"  # in a participant's folder: its word, by run
LONGEST = 1000  # characters of a word


def place_of(folder: Path, client: int, suffix: str = ".json") -> Path:
    """Return the file of a client's receipt; with another suffix of its word ("-signed.txt"), its statement
    ("-statement.json"), its lineage ("-lineage.jsonl") or its page (".html").
    """
    return folder / FOLDER / f"client-{client}{suffix}"


def _said(run: str) -> str:
    """Return the text that a member signs."""
    return f"hanse leave 1\nrun {run}\n"


def signed_at(note: str, run: str, witness: str) -> int | None:
    """Return when a member signed that it leaves a run, in seconds since 1970; None if this is not its signed word.

    Args:
        note: the word, a note with the member's cosignature.
        run: the run's name.
        witness: the public key of the member's witness, 64 hexadecimal digits; "": it has none.
    """
    text, _, line = note.partition("\n\n")
    if not witness or len(note) > LONGEST or text + "\n" != _said(run):
        return None
    public = bytes.fromhex(witness)
    return cosigned_at(text + "\n", line, name_of(public), public)


def sign_leave(home: Path, run: str) -> Path:
    """Sign, as a participant, that it leaves a run, and return the file with its word. Only its owner may call this."""
    text, mine = _said(run), Witness(home)
    file = private_folder(home / OWN) / f"{run}.txt"
    if not file.exists():
        line = cosign(text, mine.name, load_key(home / KEY), int(time.time()))
        write_whole(file, f"{text}\n{line}", durable=True, private=True)
    return file


def own_leave(home: Path, run: str) -> str:
    """Return the word that a participant has signed, or "" if it has signed none."""
    file = home / OWN / f"{run}.txt"
    return read_text(file, LONGEST) if file.exists() else ""


def take_leave(folder: Path, register: Members, client: int, note: str, *, ends: bool = False) -> None:
    """Keep the word of a member that leaves, and order to ask it nothing more. What it has not signed is only logged.

    Args:
        folder: the run directory.
        register: the members.
        client: the client whose node sent the word.
        note: the word.
        ends: whether nobody trains on then, so that the server is ordered to wait.
    """
    if signed_at(note, run_of(folder), register.by_id()[client].witness) is None:
        logging.getLogger(__name__).warning("client %d sent a leave that it has not signed", client)
        return
    if not (file := place_of(folder, client, "-signed.txt")).exists():
        write_whole(file, note, durable=True)
    if Orders.read(folder).expelled.get(client) != LEAVES:
        if ends:  # first: who is expelled already is not waited for by a server that died in between
            give(folder, "pause", ENDS)
        give(folder, "expel", LEAVES, client)


def signed_leave(folder: Path, client: int) -> str:
    """Return the word of a client in a run directory; "" if it has not signed that it leaves this run."""
    file, member = place_of(folder, client, "-signed.txt"), Members.read(folder / MEMBERS).by_id().get(client)
    note = read_text(file, LONGEST) if file.exists() else ""
    return note if member is not None and signed_at(note, run_of(folder), member.witness) is not None else ""


def words_in(folder: Path) -> list[str]:
    """Return the copies of members' words in a folder, ``*.txt`` among other files; whose they are is not checked."""
    return [text for file in sorted(folder.glob("*.txt")) if (text := read_text(file)).startswith("hanse leave 1")]


def missing_leave(folder: Path, words: Sequence[str], ledger: Ledger) -> str:
    """Return which member has signed that it leaves a run and has not left it by the book, or that of a word no member
    of this run has signed it, as where its key or the run's name was changed; or "".

    Args:
        folder: the run directory, of a network.
        words: copies of members' words.
        ledger: the book.
    """
    left, run = BookSums.of(ledger.history()).left, run_of(folder)
    members = Members.read(folder / MEMBERS).by_id()
    for word in words:
        signed = {c: at for c, one in members.items() if (at := signed_at(word, run, one.witness)) is not None}
        if not signed:
            return f"a word that a member leaves is not of run {run}, or signed with no key of a member"
        if here := sorted(signed.keys() - left.keys()):
            who, day = members[here[0]].name, time.strftime("%Y-%m-%d", time.gmtime(signed[here[0]]))
            return f"client {here[0]} ({who}) signed on {day} that it leaves, and the book has no leave of it"
    return ""


def run_of(folder: Path) -> str:
    """Return the name of the run in a directory. Raises UserError if the file that says it is damaged."""
    said = read_json(folder / FEDERATION)
    if not isinstance(said, Mapping) or not isinstance(said.get("run"), str):
        raise UserError(f'{folder / FEDERATION}: is damaged: must name the run, as in {{"run": NAME}}')
    return str(said["run"])
