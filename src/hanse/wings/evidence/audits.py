"""A member's side of proved sizes: what it commits to, and what it shows when it is audited.

Samples never cross the port. A server that asks (:class:`hanse.core.port.AuditSize`) gets hashes. Whether the samples
behind them exist is for an auditor to say, who inspects the samples where they are. On a network the members name the
auditor: the node notes the question in its folder (:class:`AuditFolder`), and the auditor runs ``hanse audit size``
there and signs. A simulation inspects the samples itself.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from pydantic import Field
from typing_extensions import TypedDict

from hanse.base.errors import UserError
from hanse.base.files import read_text, write_whole
from hanse.core.declared import Count, Declared, Digest
from hanse.core.entry import KEPT, RETURNED
from hanse.core.port import AuditSize, CommitSize, SizeAudited, SizeCommitted
from hanse.data.commitment import Committed, SampleCommitment, attested, drawn, fault, packed
from hanse.federation.local import LocalFederation, NoAnswerError
from hanse.ledger.note import PrivateKey, public_of
from hanse.ledger.receipts import read_receipts

QUESTION, SIGNED = "audit.json", "audit-signed.json"


class AuditFaultError(NoAnswerError):
    """The member cannot pass an audit, or not yet. The message becomes its refusal."""


def tag_key(secret: bytes, run: str | int, client: int) -> bytes:
    """Return the 32-byte key of a member's tags. It is different for each run, so that nobody can link its samples.

    Args:
        secret: the member's secret; empty in a simulation.
        run: the run's name, or in a simulation its seed.
        client: the member's number.
    """
    return hashlib.blake2b(f"size tags {run} {client}".encode(), key=secret, digest_size=32).digest()


def open_leaves(
    task: AuditSize, held: Committed, key: bytes, attest: Callable[[AuditSize], tuple[str, str]] | None
) -> SizeAudited:
    """Return what a member answers to an audit.

    Args:
        task: the question.
        held: the member's commitment, made anew from the samples that it has.
        key: the key of the member's tags.
        attest: a function that returns the auditor's key and signature, in hexadecimal digits. None: a simulation
            inspects the samples itself.

    Raises:
        AuditFaultError: the samples are not those that the member committed to, the seed draws other leaves, a sample
            is missing, or no auditor has signed.
    """
    told, seed = SampleCommitment(bytes.fromhex(task.root), task.size), bytes.fromhex(task.seed)
    if held.commitment != told:
        raise AuditFaultError("its samples are not those that it committed to")
    if not task.leaves or list(task.leaves) != drawn(told, seed, len(task.leaves)):
        raise AuditFaultError("the leaves that were asked for are not those that the seed draws")
    shown = [held.open(leaf) for leaf in task.leaves]
    auditor, signature = "", ""
    if attest is not None:
        auditor, signature = attest(task)
    elif wrong := next(filter(None, (fault(told, key, i, one) for i, one in zip(task.leaves, shown, strict=True))), ""):
        raise AuditFaultError(f"the auditor found: {wrong}")
    hashes = torch.from_numpy(packed([one.path for one in shown]))
    return SizeAudited(task.name, hashes, auditor, signature)


def commits(here: LocalFederation, client: int, task: CommitSize) -> SizeCommitted:
    """Return what a client answers when it is asked to commit to its samples."""
    claim = here.claim(client, tag_key(here.secret, here.run or here.seed, client)).commitment
    return SizeCommitted(task.name, claim.root.hex(), claim.size)


def opens(here: LocalFederation, client: int, task: AuditSize) -> SizeAudited:
    """Return what a client answers to an audit. Raises AuditFaultError as :func:`open_leaves`."""
    key = tag_key(here.secret, here.run or here.seed, client)
    attest = None if here.folder is None else AuditFolder(here.folder).attest
    return open_leaves(task, here.claim(client, key), key, attest)


class Question(TypedDict):
    """What a node notes of an audit, for the auditor. ``leaves`` is the number of leaves to open."""

    root: Digest
    size: Count
    seed: Digest
    leaves: Annotated[int, Field(ge=1, le=10**6)]


class Signed(TypedDict):
    """What an auditor leaves behind: the question that was answered, the auditor's public key, and the signature."""

    question: Question
    auditor: Digest
    signature: Annotated[str, Field(pattern="^[0-9a-f]{128}$")]


_QUESTION, _SIGNED = Declared[Question](Question), Declared[Signed](Signed)


@dataclass(frozen=True)
class AuditFolder:
    """The folder in which a node and an auditor on its premises meet.

    Attributes:
        path: the participant's folder of one run.
    """

    path: Path

    def attest(self, task: AuditSize) -> tuple[str, str]:
        """Note the question, and return the key and the signature of an auditor who has answered it.

        Raises:
            AuditFaultError: no auditor has answered. The member is asked again.
        """
        asked = Question(root=task.root, size=task.size, seed=task.seed, leaves=len(task.leaves))
        write_whole(self.path / QUESTION, json.dumps(asked) + "\n", private=True)
        file = self.path / SIGNED
        said = _SIGNED.read(read_text(file, 1 << 16), AuditFaultError, f"{SIGNED}: {{}}") if file.exists() else None
        if said is None or said["question"] != asked:
            raise AuditFaultError("no auditor has signed yet; 'hanse audit size' on its premises does")
        return said["auditor"], said["signature"]

    def question(self) -> Question:
        """Return what the server asked. Raises UserError if it has not asked, the file is damaged, or the member's
        receipts say that its bond is settled.
        """
        file = self.path / QUESTION
        if not file.exists():
            raise UserError(f"{self.path}: nobody has asked for an audit here ({QUESTION} is not there)")
        for receipt in read_receipts(self.path / "receipts", besides=True):
            if f'"{KEPT}/' in receipt.statement or f'"{RETURNED}/' in receipt.statement:
                raise UserError(f"{self.path}: too late: the bond was lost or came back in round {receipt.round}")
        return _QUESTION.of_file(file, 1 << 16)

    def sign(self, held: Committed, tags: bytes, key: PrivateKey) -> Question:
        """As the auditor, open the leaves that were asked for, sign if all samples are there, and return the question.

        Args:
            held: the commitment to the samples that the auditor was shown.
            tags: the key of the tags.
            key: the private key of the auditor.

        Raises:
            UserError: nothing was asked, the samples are not those that the member committed to, or a sample is
                missing.
        """
        asked = self.question()
        told, seed = SampleCommitment(bytes.fromhex(asked["root"]), asked["size"]), bytes.fromhex(asked["seed"])
        if held.commitment != told:
            raise UserError(
                f"{self.path}: these are {held.commitment.size} distinct samples with another root than the "
                f"{told.size} that the member committed to: nothing is signed"
            )
        for leaf in drawn(told, seed, asked["leaves"]):
            if wrong := fault(told, tags, leaf, held.open(leaf)):
                raise UserError(f"{self.path}: {wrong}: nothing is signed")
        signature = key.sign(attested(told, seed, asked["leaves"])).hex()
        said = Signed(question=asked, auditor=public_of(key).hex(), signature=signature)
        write_whole(self.path / SIGNED, json.dumps(said) + "\n", private=True)
        return asked
