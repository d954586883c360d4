"""What a participant's folder keeps of its agreements: the signed texts, what was asked so far, and the evidence.

``agreements`` in the folder has a file for each agreement, with the operator's signature and the participant's own
(:func:`take` writes it, when the owner hands the agreement over), and a file for each run, in which a
:class:`Binding` counts what was asked. A request that goes beyond the agreement is refused. It is kept in
``evidence.jsonl`` as the operator has signed it, so anyone can verify it.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hanse.base.errors import UserError
from hanse.base.files import AGREEMENTS, private_folder, read_text, write_whole
from hanse.base.lock import flock
from hanse.core.declared import UnsoundError
from hanse.core.port import Task
from hanse.federation.codec import WireError
from hanse.federation.node import EVIDENCE
from hanse.flower.agreement import Agreement, AskedOf, QuestionTally, added, counted
from hanse.ledger.note import cosign, fingerprint, load_key, public_of
from hanse.ledger.witness import KEY, Witness
from hanse.runs.config import Experiment
from hanse.runs.recomputable import code_hash

MOST_EVIDENCE = 1 << 26  # bytes of evidence; with more, nothing is answered until the owner has moved it away


def take(home: Path, note: str, operator: bytes, now: float) -> Agreement:
    """Sign an agreement as a participant and keep it. Only its owner may call this, never a message.

    Args:
        home: the participant's folder.
        note: the agreement as the operator gave it.
        operator: the operator's key that is pinned, 32 bytes.
        now: seconds since 1970.

    Raises:
        UserError: it is not an agreement, another operator has signed it, it has ended, or this release of hanse is
            not among those accepted.
    """
    try:
        found, lines = Agreement.read(note)
    except ValueError as wrong:
        raise UserError(f"--agree: is not an agreement: {wrong}") from None
    if found.operator != operator.hex() or not found.signed(lines):
        raise UserError(f"--agree: is not signed by the operator's key that is pinned here, {fingerprint(operator)}")
    if day_of(now) > found.expires:
        raise UserError(f"--agree: the agreement ended on {found.expires}; ask the operator for another")
    if code_hash() not in found.releases.values():
        accepted = ", ".join(f"{name} ({digest[:16]})" for name, digest in found.releases.items())
        raise UserError(
            f"--agree: this hanse has the code {code_hash()[:16]}; install one that is accepted: {accepted}"
        )
    mine = Witness(home)
    folder = private_folder(home / AGREEMENTS)
    line = cosign(found.text, mine.name, load_key(home / KEY), int(now))
    write_whole(folder / f"{found.hash}.txt", f"{found.text}\n{''.join(lines)}{line}", durable=True, private=True)
    return found


def agree(
    experiment: Experiment, key: Ed25519PrivateKey, run: str, network: str, homes: Iterable[Path], app: str = ""
) -> Agreement:
    """Write an agreement and let the nodes of these folders sign it, which are the operator's own.

    Args:
        experiment: the experiment.
        key: the operator's key.
        run: the run's name.
        network: what the operator calls the network.
        homes: the nodes' folders.
        app: SHA-256 of the Flower app that the nodes may run. "": none.
    """
    public, now = public_of(key), time.time()
    made = Agreement.of(experiment, run=run, network=network, operator=public, day=day_of(now), app=app)
    for home in homes:
        take(home, made.note(key), public, now)
    return made


@dataclass(frozen=True)
class Binding:
    """An agreement that a participant has signed, and what its operator has asked under it.

    Get one with :meth:`find`.

    Attributes:
        home: the participant's folder.
        agreement: the agreement.
        cosignature: the line with the participant's signature.
        statement: what the operator has signed of the present request.
        signature: that signature, in hexadecimal digits.
    """

    home: Path
    agreement: Agreement
    cosignature: str
    statement: str = ""
    signature: str = ""

    @staticmethod
    def find(home: Path, name: object, operator: bytes) -> Binding | None:
        """Return the agreement of this name (its hash) that the participant has signed with this operator, or None.

        Raises:
            WireError: the file is damaged.
        """
        text = str(name)
        path = home / AGREEMENTS / f"{text}.txt"
        if len(text) != 64 or not text.isalnum() or not path.exists():
            return None
        try:
            found, lines = Agreement.read(read_text(path))
        except (ValueError, UserError) as wrong:
            raise WireError(f"{path}: is damaged ({wrong}); hand the agreement over again") from None
        if found.hash != text or found.operator != operator.hex():
            return None
        return Binding(home, found, lines[-1])

    def check(self, asked: AskedOf) -> None:
        """Raise WireError and keep a request as evidence if it goes beyond the agreement. Nothing is counted.

        Where no more evidence can be kept, every request is refused: one that fills it could hide the next.
        """
        evidence(self.home)
        why = self.agreement.allows(asked, self._tally())
        if why is None:
            return
        keep(self.home, why, self.agreement.hash, self.signature, self.statement)
        raise WireError(f"beyond the agreement {self.agreement.hash[:16]}: {why}")

    def count(self, asked: AskedOf, tasks: Sequence[Task] = ()) -> None:
        """Compare a request and its questions with the agreement, and write down what it asks.

        Raises:
            WireError: it goes beyond the agreement. Nothing is counted.
        """
        full = replace(asked, questions=counted(tasks), adds=added(tasks))
        path = self._path()
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as lock:
            flock(lock)
            self.check(full)
            lock.seek(0)  # in one write, and never empty: what is left of a longer one stands behind the first line
            lock.write(json.dumps(asdict(self._tally().after(full, self.agreement))) + "\n")

    def _path(self) -> Path:
        return self.home / AGREEMENTS / f"{self.agreement.run}.json"

    def _tally(self) -> QuestionTally:
        """Return what was asked so far. Raises WireError if the file is damaged: nothing is asked anew for that."""
        path = self._path()
        text = path.read_text().partition("\n")[0] if path.exists() else ""
        try:
            return QuestionTally.read(text) if text else QuestionTally()
        except UnsoundError as wrong:
            raise WireError(f"{path}: is damaged ({wrong}): restore it from a copy") from None


def evidence(home: Path) -> Path:
    """Return the file of evidence in a participant's folder. Raises WireError if no more can be kept there."""
    path = home / EVIDENCE
    found = path.lstat() if os.path.lexists(path) else None
    if found and not (stat.S_ISREG(found.st_mode) and found.st_size < MOST_EVIDENCE and os.access(path, os.W_OK)):
        what = f"has {found.st_size} bytes ({MOST_EVIDENCE} are the most), or is a link, a folder or read-only"
        raise WireError(f"{path}: {what}: nothing is answered until it is moved away")
    return path


def keep(home: Path, why: str, agreement: str, signature: str, statement: str) -> None:
    """Keep a request as evidence: why it was refused, the agreement's hash, and what the operator has signed."""
    said = {"why": why, "agreement": agreement, "signature": signature, "statement": statement}
    with os.fdopen(os.open(evidence(home), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a") as file:
        file.write(json.dumps(said) + "\n")


def agreements(home: Path) -> list[Agreement]:
    """Return the agreements in a participant's folder, the one signed last at the end, without those that this release
    cannot read.
    """
    found = list[Agreement]()
    for path in sorted((home / AGREEMENTS).glob("*.txt"), key=lambda path: path.stat().st_mtime_ns):
        with suppress(ValueError):
            found.append(Agreement.read(read_text(path))[0])
    return found


def day_of(now: float) -> str:
    """Return the day (UTC) of a time."""
    return time.strftime("%Y-%m-%d", time.gmtime(now))
