"""Commitments to samples: to a member's number of distinct ones, with audits that detect false ones, and to a server's
validation set.

A member tags each of its samples with a key that it keeps (HMAC-SHA256), and sorts the tags. It publishes their number
and the root of their Merkle tree: a :class:`SampleCommitment`. Nobody can guess or link the tags. Later a public seed
draws ``k`` of the leaves (:func:`drawn`). For each leaf, the member shows the auditor the sample and the binary search
for its tag (:meth:`Committed.open`). :func:`fault` then checks that the tag is the sample's, that the search ends at
its leaf, and that everything shown is in the tree.

Whatever list was committed to, the leaves that pass form a strictly increasing sequence of tags of real samples. So at
most as many leaves can pass as there are distinct samples. A claim of x times the samples survives with probability at
most ``x^-k``, and an honest member always passes. The audit counts distinct records, not their worth: generated data,
public data and slightly noisy copies pass.

Only the auditor sees the opened samples: the audit takes place where the data are. The server gets only the search
paths (:func:`packed`), which it checks with :func:`unpacked` and :func:`misplaced`, and the auditor's signature under
:func:`attested`.

An operator commits to its validation set (:class:`CommittedSet`), and gives it to an auditor. Each sample has a salt of
32 random bytes, and SHA-256 of salt and sample (and its unit, if there is one) is its *commitment*. The commitments are
the leaves of a Merkle tree (RFC 9162), whose root is published. Without the salt, a commitment reveals nothing about
its sample, which can be erased together with it while the others are still provable (:meth:`CommittedSet.without`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.errors import UserError, gated
from hanse.base.files import as_npz, read_arrays, write_whole
from hanse.base.merkle import Tree, path_length, verify_inclusion
from hanse.base.pytorch import torch
from hanse.data.samples import Inputs, Samples

KEY_BYTES = 32
SALT = 32  # bytes


@dataclass(frozen=True)
class SampleCommitment:
    """A member's published commitment to its samples. :class:`Committed` makes it; :func:`fault` and :func:`misplaced`
    check openings against it.

    Attributes:
        root: the root hash of the tree of the samples' tags, 32 bytes.
        size: how many there are.
    """

    root: bytes
    size: int


@dataclass(frozen=True)
class ShownLeaf:
    """A leaf of the tree, shown on the search path to another leaf. :meth:`Committed.open` makes it; :func:`fault` and
    :func:`misplaced` check its proof.

    Attributes:
        index: the leaf's place.
        tag: the leaf's tag.
        proof: the proof that the tag is at this place of the tree.
    """

    index: int
    tag: bytes
    proof: tuple[bytes, ...]


@dataclass(frozen=True)
class Opening:
    """A member's opening of one drawn leaf.

    Attributes:
        sample: the sample's bytes, as :func:`sample_bytes` gives them.
        path: the leaves that a binary search for its tag visits, in order. The last one is the drawn leaf.
    """

    sample: bytes
    path: tuple[ShownLeaf, ...]


class Committed:
    """The member's side: its samples in the order of their tags, and their tree.

    Args:
        samples: the samples' bytes, in the order of ``tags``.
        tags: ``size`` tags of 32 bytes. Honest members get them from :func:`commit`; audits detect any other list.
    """

    def __init__(self, samples: Sequence[bytes], tags: Sequence[bytes]) -> None:
        self._samples, self._tags = samples, tags
        self._tree = Tree(tags)

    @property
    def commitment(self) -> SampleCommitment:
        """The commitment to publish."""
        return SampleCommitment(self._tree.root(), len(self._tags))

    def sample(self, index: int) -> bytes:
        """Return the sample at a leaf."""
        return self._samples[index]

    def open(self, index: int) -> Opening:
        """Return the opening of the leaf at ``index``."""
        path = [ShownLeaf(i, self._tags[i], self._tree.inclusion(i)) for i in _search(index, len(self._tags))]
        return Opening(self._samples[index], tuple(path))

    def with_invented(self, more: int) -> Committed:
        """Return a commitment to ``more`` nonexistent samples, for experiments with liars."""
        made = {hashlib.sha256(b"invented" + self.commitment.root + struct.pack("<Q", i)).digest() for i in range(more)}
        pairs = sorted([*zip(self._tags, self._samples, strict=True), *((tag, b"") for tag in made)])
        return Committed([sample for _, sample in pairs], [tag for tag, _ in pairs])


def sample_bytes(samples: Samples) -> list[bytes]:
    """Return each sample, inputs and target, as bytes: shape and values in the machine's little-endian form."""
    x, y = (t.detach().cpu().contiguous().numpy() for t in (samples.x, samples.y))
    x, y = (a.astype(a.dtype.newbyteorder("<"), copy=False).reshape(len(samples), -1) for a in (x, y))
    return [
        struct.pack("<II", row.nbytes, target.nbytes) + row.tobytes() + target.tobytes()
        for row, target in zip(x, y, strict=True)
    ]


def commit(samples: Samples, key: bytes) -> Committed:
    """Return a member's commitment to its samples. Duplicate samples count once.

    Args:
        samples: all samples that the member claims.
        key: 32 secret bytes. The auditor needs them, and nobody else may have them.

    Raises:
        ValueError: a key of another length.

    Examples:
        >>> import torch
        >>> held = commit(Samples(torch.arange(12.0).reshape(6, 2), torch.zeros(6, dtype=torch.int64)), b"k" * 32)
        >>> held.commitment.size
        6
        >>> asked = drawn(held.commitment, b"public seed", 3)
        >>> [fault(held.commitment, b"k" * 32, i, held.open(i)) for i in asked]
        ['', '', '']
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"key: {len(key)} bytes: must be {KEY_BYTES}")
    tagged = sorted({_tag(key, one): one for one in sample_bytes(samples)}.items())
    return Committed([one for _, one in tagged], [tag for tag, _ in tagged])


def _tag(key: bytes, sample: bytes) -> bytes:
    """Return the tag of a sample."""
    return hmac.digest(key, sample, "sha256")


def drawn(commitment: SampleCommitment, seed: bytes, k: int) -> list[int]:
    """Return the leaves that an audit opens: ``k`` different places, or all if there are fewer.

    Args:
        commitment: what the member published. The draw depends on it.
        seed: a public seed that nobody could predict before the commitment.
        k: how many leaves, at least 1.
    """
    if k < 1:
        raise ValueError(f"k: {k}: must be at least 1")
    words = hashlib.sha256(seed + commitment.root + struct.pack("<Q", commitment.size)).digest()
    generator = np.random.Generator(np.random.PCG64(int.from_bytes(words, "little")))
    chosen: NDArray[np.int64] = generator.choice(commitment.size, min(k, commitment.size), replace=False)
    return [int(i) for i in chosen]


def _search(index: int, size: int) -> list[int]:
    """Return the places that a binary search looks at which ends at ``index``."""
    low, high, looked = 0, size, []
    while True:
        middle = (low + high) // 2
        looked.append(middle)
        if middle == index:
            return looked
        low, high = (middle + 1, high) if index > middle else (low, middle)


def fault(commitment: SampleCommitment, key: bytes, index: int, opening: Opening) -> str:
    """Return what is wrong with a member's opening of a leaf, or "".

    Args:
        commitment: what the member published.
        key: the member's secret key.
        index: the leaf that was drawn.
        opening: what the member shows.
    """
    if wrong := misplaced(commitment, index, opening.path):
        return wrong
    if opening.path[-1].tag != _tag(key, opening.sample):
        return f"leaf {index} is not the tag of the sample that was shown"
    return ""


def misplaced(commitment: SampleCommitment, index: int, path: Sequence[ShownLeaf]) -> str:
    """Return what is wrong with the search path to a leaf, or "". Needs no sample.

    Args:
        commitment: what the member published.
        index: the leaf that was drawn.
        path: the leaves that the member shows.
    """
    if not 0 <= index < commitment.size:
        return f"leaf {index} is not among the {commitment.size} that were committed to"
    if [shown.index for shown in path] != _search(index, commitment.size):
        return f"the way to leaf {index} is not that of a binary search"
    for shown in path:
        if not verify_inclusion(shown.tag, shown.index, commitment.size, shown.proof, commitment.root):
            return f"leaf {shown.index} is not in the tree that was committed to"
    tag = path[-1].tag
    for shown in path[:-1]:
        if not (shown.tag < tag if shown.index < index else shown.tag > tag):
            return f"a search for leaf {index} leads elsewhere: leaf {shown.index} is out of order"
    return ""


def num_shown(size: int, leaves: Sequence[int]) -> int:
    """Return the number of hashes in the search paths to some leaves: a tag and a proof for each visited leaf."""
    return sum(1 + path_length(i, size) for leaf in leaves for i in _search(leaf, size))


def packed(paths: Sequence[Sequence[ShownLeaf]]) -> NDArray[np.int64]:
    """Return the hashes of search paths, each tag before its proof, ``[4 num_shown]`` with eight bytes per number."""
    hashes = b"".join(b"".join((shown.tag, *shown.proof)) for path in paths for shown in path)
    return np.frombuffer(hashes, "<i8").astype(np.int64)


def unpacked(size: int, leaves: Sequence[int], hashes: NDArray[np.int64]) -> list[tuple[ShownLeaf, ...]]:
    """Return the search paths to ``leaves`` of a tree of ``size`` leaves, from the output of :func:`packed`.

    Raises:
        ValueError: the number of hashes is wrong.
    """
    if hashes.shape != (4 * num_shown(size, leaves),):
        raise ValueError(f"hashes: {list(hashes.shape)}: must be {[4 * num_shown(size, leaves)]}")
    each = iter(hashes.astype("<i8").view("V32").tolist())
    return [
        tuple(
            ShownLeaf(i, next(each), tuple(next(each) for _ in range(path_length(i, size))))
            for i in _search(leaf, size)
        )
        for leaf in leaves
    ]


def attested(commitment: SampleCommitment, seed: bytes, leaves: int) -> bytes:
    """Return the statement that an auditor signs: the samples of all leaves drawn by ``seed`` were there.

    Args:
        commitment: what the member published.
        seed: the seed that draws the questions.
        leaves: how many leaves were asked for.
    """
    statement = {"root": commitment.root.hex(), "seed": seed.hex(), "size": commitment.size, "leaves": leaves}
    return b"hanse size audit 1\n" + json.dumps(statement, sort_keys=True).encode()


# ---- a validation set under salted hashes


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
        arrays = {name: x.astype(x.dtype.newbyteorder("="), copy=False) for name, x in read_arrays(file).items()}
        with gated(f"{file}: is no validation set with salts"):
            x, y, salts, erased, kept = (arrays[name] for name in ("x", "y", "salts", "erased", "kept"))
            units = torch.from_numpy(arrays["units"].astype(np.int64)) if "units" in arrays else None
            made = CommittedSet(Samples(torch.from_numpy(x), torch.from_numpy(y), inputs, units), salts, erased, kept)
            if not len(made.commitments) or len(erased) != len(kept):  # which arrays that do not belong together lack
                raise ValueError("its arrays do not belong together")
        return made
