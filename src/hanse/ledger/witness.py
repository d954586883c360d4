"""Witnesses: participants to whom each head of the operator's log is shown.

They cosign it if it continues the last head that they have seen.

An operator might show each participant a different log, or an earlier state of it. :class:`Witness` is a participant's
defence. It keeps every head that it has cosigned. It accepts a new head only with a proof that the new log begins with
the old one (RFC 9162), and then signs that it has seen it (C2SP tlog-cosignature). A head that is signed by the
operator and contradicts an earlier one is evidence: it is written into ``alarm.jsonl`` and never cosigned.
:class:`Prover` is the operator's side, and :func:`cosigned` counts who has cosigned a head.

One witness alone sees only that the log shown to it grows. If more than half of the participants have cosigned one
head, all see the same log: two logs cannot both have so many cosignatures unless some witness signs both.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import unicodedata
from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError, gated
from hanse.base.files import cut_torn, json_lines, private_folder, write_whole
from hanse.base.lock import flock
from hanse.base.merkle import Tree, as_text, hashes_of, verify_consistency
from hanse.base.plain_text import is_plain, quantity
from hanse.core.entry import leaf
from hanse.ledger.log import LogHead
from hanse.ledger.note import PrivateKey, cosign, cosigned_at, fingerprint, is_weak, own_key, public_of
from hanse.ledger.receipts import newest
from hanse.ledger.store import Ledger

KEY, PUBLIC, HEADS, ALARM = "witness.key", "witness.pub", "heads", "alarm.jsonl"  # in a participant's folder
LARGEST = 1 << 14  # characters of a head or of a proof that are read
MOST_ALARMS = 1 << 24  # bytes of alarm.jsonl, behind which no more is written: one alarm convicts as well as many


class UnprovenError(ValueError):
    """A head comes without a proof that it continues the last head that was seen.

    Attributes:
        count: how many transactions the last head has. The proof must begin there.
    """

    def __init__(self, count: int) -> None:
        seen = quantity(count, "transaction")
        super().__init__(f"the head comes without a proof that it goes on from that of {seen}")
        self.count = count


class SplitViewError(ValueError):
    """A head that the operator has signed contradicts a head that was seen before."""


class Witness:
    """What a participant has seen of its operator's logs.

    Args:
        folder: the participant's own folder. ``witness.key`` is made in it if there is none, and ``witness.pub``, the
            public half in 64 hexadecimal digits.

    Examples:
        >>> from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        >>> operator = Ed25519PrivateKey.from_private_bytes(bytes(32))
        >>> ledger = Ledger.open("transactions.jsonl", book="town", key=operator)
        >>> prover, witness = Prover(ledger), Witness(Path("mine"))
        >>> for round in (0, 1):
        ...     _ = ledger.close_round(round)
        ...     head = prover.head()
        ...     line = witness.see(head.note(), round, prover.proof(round), public_of(operator), now=0)
        >>> cosigned(head, [line], {witness.name: witness.public})
        ['...']
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = _witness_key(folder / KEY)

    @property
    def public(self) -> bytes:
        """The public half of the witness's key, 32 bytes."""
        return public_of(self._key)

    @property
    def name(self) -> str:
        """The name of the witness's key, which follows from the key."""
        return name_of(self.public)

    def sign(self, statement: bytes) -> bytes:
        """Return the witness's signature (Ed25519, 64 bytes) under a statement that cannot be mistaken for a head."""
        return self._key.sign(statement)

    def see(self, note: str, since: int, proof: str, operator: bytes, now: int) -> str:
        """Take in a head, and return the line with the cosignature under it.

        Args:
            note: the head as the operator shows it.
            since: how many transactions the earlier head has. The proof leads from there to this head.
            proof: the proof's hashes, one after the other in base64.
            operator: the operator's key (32 bytes), which must have signed the head.
            now: seconds since 1970.

        Raises:
            UnprovenError: the proof does not lead from the last head that was seen.
            SplitViewError: the head contradicts the last one: it has fewer transactions or another root, or the proof
                does not lead from one to the other. The evidence is written into ``alarm.jsonl``, and nothing is
                cosigned.
            ValueError: the text is not a head, or the operator has not signed it.
        """
        if max(len(note), len(proof)) > LARGEST:
            raise ValueError("a head or its proof is too long")
        head = LogHead.read(note)
        if not head.by(operator):
            raise ValueError(
                f"the head is not signed by the operator's key that is pinned here, {fingerprint(operator)}"
            )
        private_folder(self.folder / HEADS)
        path = self._seen(head)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as file:
            flock(file)
            cut_torn(file)
            last, told = _last(path), self._told(head)  # receipts have heads, too, and may be newer
            before = max((one for one in (last, told) if one is not None), key=lambda one: one.count, default=None)
            if before is not None and (why := _against(before, head, since, proof)):
                raise self._alarm(before, head, why)
            line = cosign(head.text, self.name, self._key, now)
            if last is None or head.count > last.count:
                file.write(json.dumps({"head": note, "cosignature": line}).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
        return line

    def compare(self, head: LogHead) -> None:
        """Compare a head that arrived in another way, for instance in a receipt, with those already seen.

        Args:
            head: the head, which the operator has signed.

        Raises:
            SplitViewError: the head contradicts one that was seen (:meth:`LogHead.contradicts`). The evidence is
                written into ``alarm.jsonl``.
        """
        path = self._seen(head)
        for number, fields in enumerate(json_lines(path), 1):
            seen = _head(path, number, fields)
            if why := seen.contradicts(head):
                raise self._alarm(seen, head, why)

    def _told(self, head: LogHead) -> LogHead | None:
        """Return the newest head of a log that a receipt in the participant's folder has; None if none has one."""
        kept = (newest(path) for path in self.folder.glob("*/client-*/receipts/*.jsonl"))
        return max((r.note for r in kept if r is not None and r.book == head.book), key=lambda h: h.count, default=None)

    def _seen(self, head: LogHead) -> Path:
        """Return the file with the heads of a log that were seen."""
        return self.folder / HEADS / f"{hashlib.sha256(head.origin.encode()).hexdigest()[:32]}.jsonl"

    def _alarm(self, last: LogHead, head: LogHead, why: str) -> SplitViewError:
        """Write down two heads that contradict each other, and return the error that says so."""
        said = json.dumps({"why": why, "seen": last.note(), "shown": head.note()})
        with os.fdopen(os.open(self.folder / ALARM, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
            if file.tell() < MOST_ALARMS:
                file.write(said + "\n")
        return SplitViewError(f"{why}; both heads are in {self.folder / ALARM}")


def alarms(folder: Path) -> list[str]:
    """Return a line for each alarm that a participant's node has raised.

    Args:
        folder: the participant's own.
    """
    path = folder / ALARM
    if not path.is_file():
        return []
    with gated(f"{path}: cannot be read"):
        return [str(json.loads(line)["why"]) for line in path.read_text().splitlines()]


def name_of(public: bytes) -> str:
    """Return the name of a witness's key."""
    return f"hanse-witness/{hashlib.sha256(public).hexdigest()[:16]}"


def cosigned(head: LogHead, lines: Iterable[str], witnesses: Mapping[str, bytes]) -> list[str]:
    """Return the names of the witnesses that have cosigned a head, sorted.

    Args:
        head: the head.
        lines: cosignatures under any heads.
        witnesses: the public keys of those who count (32 bytes each), by any names.
    """
    lines = list(lines)
    return sorted(
        who
        for who, key in witnesses.items()
        if any(cosigned_at(head.text, line, name_of(key), key) is not None for line in lines)
    )


def majority(file: Path, witnesses: Mapping[str, bytes]) -> tuple[dict[str, str], LogHead | None, int]:
    """Return the heads that witnesses have cosigned, and the newest one that more than half of them have cosigned.

    Args:
        file: a run's ``cosigned.jsonl``, which may be forged. Only lines with a valid cosignature count.
        witnesses: the public keys of those who count (32 bytes each), by any names.

    Returns:
        Three results: the root of each head that somebody has cosigned, in hexadecimal digits, and who has; the newest
        head that more than half have cosigned (None: there is none); and the most cosignatures that any head has.
    """
    by_text: dict[str, list[str]] = {}
    for fields in json_lines(file):
        if isinstance(fields.get("head"), str) and isinstance(fields.get("cosignature"), str):
            by_text.setdefault(fields["head"], []).append(fields["cosignature"])
    said, newest, most = dict[str, str](), None, 0
    for text, lines in by_text.items():
        try:
            head = LogHead.read(text)
        except ValueError:
            continue
        who = cosigned(head, lines, witnesses)
        if who:
            said[head.root.hex()] = f"cosigned by {', '.join(who)}"
        most = max(most, len(who))
        if 2 * len(who) > len(witnesses) and (newest is None or head.count > newest.count):
            newest = head
    return said, newest, most


def read_witnesses(file: Path, option: str = "--witnesses ") -> dict[str, bytes]:
    """Return the public keys in a file by name; each line has a NAME and 64 hexadecimal digits.

    Args:
        file: the file.
        option: the option that error messages name before the file.

    Raises:
        UserError: the file cannot be read, a line is malformed, a name or a key occurs twice, a name has characters
            that cannot be seen, or with a key anybody could sign.
    """
    found: dict[str, bytes] = {}
    try:
        lines = file.read_text("utf-8-sig").split("\n")  # splitlines would split at characters that nobody sees, too
    except (OSError, UnicodeDecodeError) as wrong:
        raise UserError(f"{option}{file}: cannot be read: {wrong}") from None
    for number, line in enumerate(lines, 1):
        form = re.fullmatch(r"(\S+)[ \t]+([0-9a-f]{64})[ \t\r]*", line)
        if form is None and not line.strip(" \t\r"):
            continue
        if form is None:
            raise UserError(f"{option}{file}: line {number}: must be a name and a key of 64 hexadecimal digits")
        name, key = unicodedata.normalize("NFKC", form[1]), bytes.fromhex(form[2])  # as it is seen
        if not is_plain(name):
            raise UserError(f"{option}{file}: line {number}: the name {name!a} has characters that nobody sees")
        if is_weak(key):
            raise UserError(f"{option}{file}: line {number}: the key of {name} is one with which anybody can sign")
        if name in found or key in found.values():
            raise UserError(f"{option}{file}: line {number}: its name or its key stands in a line above already")
        found[name] = key
    if not found:
        raise UserError(f"{option}{file}: names nobody")
    return found


def _against(last: LogHead, head: LogHead, since: int, proof: str) -> str:
    """Return why a head does not go on from the last one; "" if it does. Raises UnprovenError if the
    proof begins elsewhere."""
    book = f"the book '{head.book}'"
    if head.count < last.count:
        seen = quantity(last.count, "transaction was", "transactions were")
        return f"{book} was rolled back: {seen} seen, and {head.count} shown"
    if head.count == last.count or last.contradicts(head):
        return last.contradicts(head)
    if since != last.count:
        raise UnprovenError(last.count)
    try:
        hashes = hashes_of(proof)
    except ValueError:
        hashes = []
    if verify_consistency(last.count, head.count, hashes, last.root, head.root):
        return ""
    return f"{book} of {quantity(head.count, 'transaction')} is not shown to begin with the {last.count} that were seen"


def _head(path: Path, number: int, fields: Mapping[str, Any]) -> LogHead:
    """Return the head in a line of a file. Raises UserError if it is damaged."""
    try:
        return LogHead.read(fields["head"])
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: line {number} is damaged; bring back a backup of it") from None


def _last(path: Path) -> LogHead | None:
    """Return the last head in a file; None if there is none. Raises UserError if it is damaged."""
    last = deque(enumerate(json_lines(path), 1), 1)  # of each request: only this one is read as a head
    return _head(path, *last[0]) if last else None


def _witness_key(path: Path) -> PrivateKey:
    """Return a witness's key, which is made if there is none. Raises UserError if others can read it."""
    if not path.exists():
        private_folder(path.parent)
        write_whole(path.with_name(PUBLIC), public_of(own_key(path)).hex() + "\n", durable=True, private=True)
    return own_key(path)


class Prover:
    """The operator's side: the heads of a growing log, and the proofs that later heads continue earlier ones.

    Args:
        ledger: the log. Every line is read once, and its hash is kept (about 200 bytes per line).
    """

    def __init__(self, ledger: Ledger) -> None:
        self._walk = ledger.walk()
        self._tree = Tree()

    def head(self) -> LogHead | None:
        """Return the newest head, or None if nothing was posted yet."""
        for record in self._walk.records():
            self._tree.append(leaf(record.number, record.round, record.transaction))
        return self._walk.head

    def proof(self, first: int) -> str:
        """Return the proof that the log of the newest head begins with its first lines, in base64.

        Args:
            first: how many lines. The proof is empty for 0, for all lines, and for more lines than the log has.
        """
        if not 0 < first < len(self._tree):
            return ""
        return as_text(*self._tree.consistency(first))
