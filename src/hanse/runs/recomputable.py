"""What a run that can be recomputed (``[run] recomputable``) commits to, and what it keeps of its clients' answers.

``committed.json`` in the run directory holds the commitments to the validation set (:mod:`hanse.data.commitment`), and
hashes of the configuration and of hanse's code. The first line of the log commits to all of it. The validation set
itself, its salts and the clients' answers are for the auditor only. They are kept in ``RUN.audit``, outside the run
directory, because the run directory may be given away.

:class:`RoundAnswers` notes who was present in a round, who was asked, and every reply, as messages of the network's
codec. The round's record has the hash of each message, and the book has the hash of the record. No answer can therefore
be changed later. :class:`ReplayedAnswers` gives the answers to the mechanism's own code (:mod:`hanse.runs.recompute`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from safetensors.numpy import load, save

from hanse.base import toml
from hanse.base.errors import UserError, gated
from hanse.base.files import opened, write_whole
from hanse.base.merkle import Tree, as_text, hashes_of
from hanse.core.declared import Count, Declared, Digest, UnsoundError
from hanse.core.entry import COMMIT, Transaction
from hanse.core.port import Call, ClientInfo, Federation, Reply, Request, Roster
from hanse.data.commitment import CommittedSet
from hanse.federation.codec import Message, WireError, hash_of, pack, unpack
from hanse.runs.comparison import UnlikeError
from hanse.runs.config import Experiment
from hanse.runs.sections import config_hash

FILE = "committed.json"


def audit_folder(folder: Path) -> Path:
    """Return the folder, next to a run directory, that only an auditor may see."""
    folder = folder.absolute()
    return folder.with_name(f"{folder.name}.audit")


def validation_file(folder: Path) -> Path:
    """Return the path of a run's validation set with its salts."""
    return audit_folder(folder) / "validation.npz"


@dataclass(frozen=True)
class Commitment:
    """What was committed to.

    Attributes:
        validation: the commitments to the validation samples, concatenated in base64; "" if there are none.
        clients: how many clients there can be.
        config: SHA-256 of the configuration without its number of rounds.
        hanse: the version of hanse.
        code: SHA-256 of hanse's code.
    """

    validation: str
    clients: Annotated[Count, Field(ge=1, le=10**7)]
    config: Digest
    hanse: Annotated[str, Field(max_length=100)]
    code: Digest

    @staticmethod
    def of(experiment: Experiment, validation: CommittedSet | None, clients: int) -> Commitment:
        """Return the commitment of a run.

        Args:
            experiment: as ``config.toml`` has it.
            validation: the server's validation set. None: there is none.
            clients: how many clients there can be.
        """
        leaves = "" if validation is None else as_text(*validation.commitments)
        return Commitment(leaves, clients, config_hash(toml.loads(experiment.to_toml())), version("hanse"), code_hash())

    @property
    def samples(self) -> list[bytes]:
        """The commitment of each validation sample."""
        return hashes_of(self.validation)

    def transaction(self) -> Transaction:
        """Return the transaction that posts this commitment."""
        root = as_text(Tree(self.samples).root())
        validation = f"validation {root} samples {len(self.samples)} clients {self.clients}"
        return Transaction(COMMIT, COMMIT, (), f"{validation} config {self.config} hanse {self.hanse} code {self.code}")

    def write(self, folder: Path) -> None:
        """Write the commitment into a run directory."""
        write_whole(folder / FILE, json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def read(folder: Path) -> Commitment:
        """Return the commitment in a run directory. Raises UserError if there is none, or it is damaged."""
        if not (folder / FILE).exists():
            raise UserError(f"{folder}: has no {FILE}: it was not played with run.recomputable = true")
        commitment = _COMMITMENT.of_file(folder / FILE)
        with gated(str(folder / FILE)):
            _ = commitment.samples
        return commitment


_COMMITMENT = Declared[Commitment](Commitment)


@cache
def code_hash() -> str:
    """Return a hash of hanse's code: of all its source files and the tables of facts beside them, by their names."""
    root, hasher = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".c", ".h", ".toml")):
        hasher.update(f"{file.relative_to(root).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return hasher.hexdigest()


LARGEST = 1 << 32  # bytes of a file that is read
KINDS = {
    "Trained": "updates and sizes",
    "Scored": "losses on their own data",
    "Counted": "counts on their own data",
    "Derived": "gradients on their own data",
    "Confused": "confusion counts on their own data",
    "Answered": "bids and declarations",
}
ROSTER = -1  # stands for the roster where replies have their clients' numbers


def answers_file(folder: Path, round: int) -> Path:
    """Return where a run directory keeps the answers of a round."""
    return audit_folder(folder) / f"{round:05d}.safetensors"


_CLIENT = Declared[ClientInfo](ClientInfo)


@dataclass
class RoundAnswers:
    """Everything that clients sent to the server in a round; empty when it begins.

    Attributes:
        headers: the roster and every reply as JSON, with the arrays by hash, in the order in which they came.
        clients: the client of each header, :data:`ROSTER` for the roster.
        asked: for each exchange, the clients that were asked and the number of replies.
        arrays: the arrays by content hash.
    """

    headers: list[str] = field(default_factory=list)
    clients: list[int] = field(default_factory=list)
    asked: list[tuple[list[int], int]] = field(default_factory=list)
    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)

    def present(self, roster: Roster) -> None:
        """Keep who was here when the round began."""
        self._keep(ROSTER, list(roster))

    def exchanged(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        """Keep whom an exchange asked, and what they answered."""
        self.asked.append(([request.client for request in requests], len(replies)))
        for reply in replies:
            self._keep(reply.client, reply)

    def _keep(self, client: int, value: Any) -> None:
        """Keep a value of the port. Raises UserError if it cannot be written down."""
        try:
            message = pack(value)
        except WireError as wrong:
            raise UserError(f"run.recomputable: true: the answer of client {client} cannot be kept: {wrong}") from None
        self.headers.append(message.header)
        self.clients.append(client)
        self.arrays |= message.arrays

    def hashes(self) -> dict[str, NDArray[Any]]:
        """Return the arrays for the round's record: ``kept_client [m]`` and ``kept_hash [m]``."""
        hashes = [hashlib.blake2b(header.encode(), digest_size=20).hexdigest() for header in self.headers]
        return {"kept_client": np.array(self.clients, np.int64), "kept_hash": np.array(hashes, np.str_)}

    def packed(self) -> bytes:
        """Return the content of the round's file."""
        header = json.dumps({"headers": self.headers, "clients": self.clients, "asked": self.asked})
        return save(self.arrays, {"answers": header})

    @staticmethod
    def read(file: Path, record: Mapping[str, NDArray[Any]]) -> RoundAnswers:
        """Return the answers in a round's file.

        Args:
            file: the file, which may be a stranger's.
            record: the round's arrays with the hashes. If it is empty, there is no record, and only arrays are checked.

        Raises:
            UnlikeError: an answer is not the one that was recorded.
            UserError: there is no such file, or it is damaged.
        """
        with gated(f"{file}: cannot be read"):
            with opened(file) as blob:
                if os.fstat(blob.fileno()).st_size > LARGEST:
                    raise UserError(f"{file}: has more than {LARGEST:,} bytes")
                data = blob.read()
            said, arrays = _said(data), load(data)
            asked = [([int(c) for c in clients], int(count)) for clients, count in said["asked"]]
            headers, clients = [str(one) for one in said["headers"]], [int(c) for c in said["clients"]]
        found = RoundAnswers(headers, clients, asked, arrays)
        if len(headers) != len(clients) or len(headers) != 1 + sum(count for _, count in asked):
            raise UserError(f"{file}: is damaged: answers: {len(headers)}, clients: {len(clients)}")
        found._sound(record)
        return found

    def _sound(self, record: Mapping[str, NDArray[Any]]) -> None:
        """Raise UnlikeError if an answer, or an array of one, is not the one that was recorded."""
        there = self.hashes()
        broken = {name for name, array in self.arrays.items() if hash_of(array) != name}
        for place, (client, header) in enumerate(zip(self.clients, self.headers, strict=True)):
            kind = "update" if '"$kind":"Trained"' in header else "answer"
            what = "who was present" if client == ROSTER else f"the {kind} of client {client}"
            if any(name in header for name in broken):
                raise UnlikeError(f"{what} has been changed: its numbers are not those of its hash")
            due = [record[name][place : place + 1].tolist() for name in there if name in record]
            if due and due != [[client], [there["kept_hash"][place]]]:
                raise UnlikeError(f"{what} is not the one of which the record has the hash")
        if len(record.get("kept_hash", self.headers)) != len(self.headers):
            raise UnlikeError(f"answers recorded: {len(record['kept_hash'])}, kept: {len(self.headers)}")

    def value(self, place: int) -> Any:
        """Return the roster or reply at a position. Raises UnlikeError if neither is there."""
        try:
            return unpack(Message(self.headers[place], self.arrays), sound=False)
        except (WireError, ValueError, RecursionError, AttributeError, TypeError) as wrong:
            raise UnlikeError(f"the answer of client {self.clients[place]} cannot be read: {wrong}") from None


def kinds_of(answers: RoundAnswers) -> set[str]:
    """Return the kinds of the clients' answers, in words: updates, and claims about data that nobody else sees."""
    return {said for kind, said in KINDS.items() for one in answers.headers if f'"$kind":"{kind}"' in one}


def _said(data: bytes) -> dict[str, Any]:
    """Return what the metadata of a safetensors file say of the answers in it."""
    length = int.from_bytes(data[:8], "little")
    metadata: dict[str, Any] = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["answers"])
    return metadata


@dataclass
class ReplayedAnswers(Federation):
    """A federation that replays recorded answers.

    Attributes:
        kept: the answers of the round.
    """

    kept: RoundAnswers
    _exchange: int = 0
    _place: int = 1

    def present(self, round: int) -> Roster:
        """Return who was present. Raises UnlikeError if the recorded roster is invalid."""
        try:
            return Roster(_CLIENT.check(one) for one in self.kept.value(0))
        except (UnsoundError, TypeError) as wrong:
            raise UnlikeError(f"who was present cannot be read: {wrong}") from None

    def exchange(self, call: Call) -> Sequence[Reply]:
        """Return the replies of the next exchange. Raises UnlikeError if the recorded exchange asked other clients."""
        now = [request.client for request in call.requests]
        if self._exchange >= len(self.kept.asked):
            raise UnlikeError(f"clients {now} would have been asked once more, and were not")
        asked, count = self.kept.asked[self._exchange]
        if list(asked) != now:
            raise UnlikeError(f"clients {now} would have been asked, and clients {list(asked)} were")
        replies = [self.kept.value(place) for place in range(self._place, self._place + count)]
        if odd := [client for client, reply in zip(self.kept.clients[self._place :], replies, strict=False)
                   if not isinstance(reply, Reply)]:  # fmt: skip
            raise UnlikeError(f"what client {odd[0]} sent is no reply")
        self._exchange, self._place = self._exchange + 1, self._place + count
        return replies

    def used_up(self) -> None:
        """Raise UnlikeError if there were further exchanges."""
        if self._exchange < len(self.kept.asked):
            raise UnlikeError(f"clients {list(self.kept.asked[self._exchange][0])} were asked, and should not be")
