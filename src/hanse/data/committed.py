"""A validation set under salted hashes, which an operator commits to and gives to an auditor.

Each sample has a salt of 32 random bytes, and SHA-256 of salt and sample (and its unit, if there is one) is its
*commitment*. The commitments are the leaves of a Merkle tree (RFC 9162), whose root is published. Without the salt, a
commitment reveals nothing about its sample.
"""

from __future__ import annotations

import hashlib
import io
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import gated
from hanse.base.files import read_arrays, write_whole
from hanse.base.pytorch import torch
from hanse.data.commitment import sample_bytes
from hanse.data.samples import Inputs, Samples

SALT = 32  # bytes


@dataclass(frozen=True)
class CommittedSet:
    """A validation set with its salts.

    Attributes:
        samples: the samples.
        salts: ``[n, 32]`` bytes.

    Examples:
        >>> held = CommittedSet.of(Samples(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 1])))
        >>> held.wrong(held.commitments[1:])
        'has 3 samples; 2 were committed to'
    """

    samples: Samples
    salts: NDArray[np.uint8]

    @staticmethod
    def of(samples: Samples) -> CommittedSet:
        """Return samples with new salts."""
        return CommittedSet(
            samples, np.frombuffer(secrets.token_bytes(SALT * len(samples)), np.uint8).reshape(-1, SALT)
        )

    @property
    def commitments(self) -> list[bytes]:
        """The commitment of each sample, 32 bytes."""
        of = self.samples.units
        units = [b""] * len(self.samples) if of is None else [one.tobytes() for one in of.numpy().astype("<i8")]
        salted = zip(self.salts, sample_bytes(self.samples), units, strict=True)
        return [hashlib.sha256(salt.tobytes() + one + unit).digest() for salt, one, unit in salted]

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
        blob = io.BytesIO()
        x, y = (t.detach().cpu().numpy() for t in (self.samples.x, self.samples.y))
        units: dict[str, Any] = {} if self.samples.units is None else {"units": self.samples.units.numpy()}
        np.savez(blob, x=x, y=y, salts=self.salts, **units)
        write_whole(file, blob.getvalue(), private=True)

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
            x, y, salts = (arrays[name] for name in ("x", "y", "salts"))
            units = torch.from_numpy(arrays["units"].astype(np.int64)) if "units" in arrays else None
            made = CommittedSet(Samples(torch.from_numpy(x), torch.from_numpy(y), inputs, units), salts)
            if not len(made.commitments):  # which arrays that do not belong together lack
                raise ValueError("its arrays do not belong together")
        return made
