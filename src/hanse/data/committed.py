"""A validation set under salted hashes, which an operator commits to and gives to an auditor.

Each sample has a salt of 32 random bytes, and SHA-256 of salt and sample (and its unit, if there is one) is its
*commitment*. The commitments are the leaves of a Merkle tree (RFC 9162), whose root is published. Without the salt, a
commitment reveals nothing about its sample. So a sample can be erased together with its salt, while the others are
still provable (:meth:`CommittedSet.without`).
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError, gated
from hanse.base.files import as_npz, read_arrays, write_whole
from hanse.base.merkle import Tree
from hanse.base.pytorch import torch
from hanse.data.commitment import sample_bytes
from hanse.data.samples import Inputs, Samples

SALT = 32  # bytes


@dataclass(frozen=True)
class CommittedSet:
    """A validation set with its salts.

    Attributes:
        samples: the samples. Erased ones are zeros.
        salts: ``[n, 32]`` bytes.
        erased: ``[k]``, the positions of erased samples.
        kept: ``[k, 32]`` bytes, the commitments of the erased samples.

    Examples:
        >>> held = CommittedSet.of(Samples(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 1])))
        >>> held.without([1]).root == held.root  # the proof of the others stands
        True
    """

    samples: Samples
    salts: NDArray[np.uint8]
    erased: NDArray[np.int64]
    kept: NDArray[np.uint8]

    @staticmethod
    def of(samples: Samples) -> CommittedSet:
        """Return samples with new salts."""
        salts = np.frombuffer(secrets.token_bytes(SALT * len(samples)), np.uint8).reshape(-1, SALT)
        return CommittedSet(samples, salts, np.zeros(0, np.int64), np.zeros((0, SALT), np.uint8))

    @property
    def commitments(self) -> list[bytes]:
        """The commitment of each sample, 32 bytes."""
        of = self.samples.units
        units = [b""] * len(self.samples) if of is None else [one.tobytes() for one in of.numpy().astype("<i8")]
        salted = zip(self.salts, sample_bytes(self.samples), units, strict=True)
        hashes = [hashlib.sha256(salt.tobytes() + one + unit).digest() for salt, one, unit in salted]
        for place, commitment in zip(self.erased.tolist(), self.kept, strict=True):
            hashes[place] = commitment.tobytes()
        return hashes

    @property
    def root(self) -> bytes:
        """The root of the tree over the commitments."""
        return Tree(self.commitments).root()

    def without(self, places: Collection[int]) -> CommittedSet:
        """Return the set without these samples and their salts. Only the commitments to them stay.

        Args:
            places: the samples' places, counted from 0.

        Raises:
            UserError: there is no such sample.
        """
        if odd := [place for place in places if not 0 <= place < len(self.samples)]:
            raise UserError(f"places: {odd[0]}: must be from 0 to {len(self.samples) - 1}")
        gone = np.array(sorted({*self.erased.tolist(), *places}), np.int64)
        before = self.commitments
        kept = np.frombuffer(b"".join(before[i] for i in gone.tolist()), np.uint8).reshape(-1, SALT)
        x, y, salts = self.samples.x.clone(), self.samples.y.clone(), self.salts.copy()
        x[gone], y[gone], salts[gone] = 0, 0, 0
        units = None if self.samples.units is None else self.samples.units.clone()
        if units is not None:
            units[gone] = -1
        return CommittedSet(Samples(x, y, self.samples.inputs, units), salts, gone, kept)

    def wrong(self, commitments: Sequence[bytes]) -> str:
        """Return which sample does not match its commitment, or ""."""
        mine = self.commitments
        if len(mine) != len(commitments):
            return f"has {len(mine)} samples; {len(commitments)} were committed to"
        for place, (digest, due) in enumerate(zip(mine, commitments, strict=True)):
            if digest != due:
                there = f"; it is number {commitments.index(digest) + 1}" if digest in commitments else ""
                return f"sample {place + 1} of {len(mine)} is not the one that was committed to{there}"
        return ""

    def write(self, file: Path) -> None:
        """Write samples, labels and salts into a file that others cannot read. Nothing in it is pickled."""
        x, y = (t.detach().cpu().numpy() for t in (self.samples.x, self.samples.y))
        units: dict[str, Any] = {} if self.samples.units is None else {"units": self.samples.units.numpy()}
        kept = {"x": x, "y": y, "salts": self.salts, "erased": self.erased, "kept": self.kept, **units}
        write_whole(file, as_npz(kept), private=True)

    @staticmethod
    def read(file: Path, inputs: Inputs = Inputs()) -> CommittedSet:  # noqa: B008
        """Read a file written by :meth:`write`.

        Args:
            file: the file, which may be a stranger's.
            inputs: the layout of several inputs in a sample's row.

        Raises:
            UserError: the file was not written by :meth:`write`.
        """
        arrays = {
            name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in read_arrays(file).items()
        }
        with gated(f"{file}: is no validation set with salts"):
            x, y, salts, erased, kept = (arrays[name] for name in ("x", "y", "salts", "erased", "kept"))
            units = torch.from_numpy(arrays["units"].astype(np.int64)) if "units" in arrays else None
            made = CommittedSet(Samples(torch.from_numpy(x), torch.from_numpy(y), inputs, units), salts, erased, kept)
            if not len(made.commitments) or len(erased) != len(kept):  # which arrays that do not belong together lack
                raise ValueError("its arrays do not belong together")
        return made
