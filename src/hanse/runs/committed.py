"""What a run commits to before its first round, if it can be recomputed (``[run] recomputable``).

``committed.json`` in the run directory holds the commitments to the validation set (:mod:`hanse.data.committed`), and
hashes of the configuration and of hanse's code. The first line of the log commits to all of it. The validation set
itself, its salts and the clients' answers are for the auditor only. They are kept in ``RUN.audit``, outside the run
directory, because the run directory may be given away.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from hanse.base import toml
from hanse.base.errors import UserError
from hanse.base.files import read_text, write_whole
from hanse.base.merkle import Tree, as_text, hashes_of
from hanse.core.declared import Count, Declared, Digest, UnsoundError
from hanse.core.entry import COMMIT, Transaction
from hanse.data.committed import CommittedSet
from hanse.runs.config import Experiment

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
        try:
            commitment = _COMMITMENT.read(read_text(folder / FILE))
            _ = commitment.samples
        except (UnsoundError, ValueError) as wrong:
            raise UserError(f"{folder / FILE}: {wrong}") from None
        return commitment


_COMMITMENT = Declared[Commitment](Commitment)


def config_hash(config: dict[str, Any]) -> str:
    """Return the hash of a ``config.toml`` without its number of rounds, which may be raised later."""
    run = {name: value for name, value in config.get("run", {}).items() if name != "rounds"}
    return hashlib.sha256(json.dumps({**config, "run": run}, sort_keys=True).encode()).hexdigest()


@cache
def code_hash() -> str:
    """Return a hash of hanse's code: of all its source files, by their names."""
    root, hasher = Path(__file__).parents[1], hashlib.sha256()
    for file in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".c", ".h")):
        hasher.update(f"{file.relative_to(root).as_posix()} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return hasher.hexdigest()
