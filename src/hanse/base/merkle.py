"""Merkle trees as in RFC 9162: a root hash for a list, and proofs of inclusion and consistency.

Hashes are SHA-256, of a leaf with the prefix 0, and of an inner node with the prefix 1. Neither can therefore be
mistaken for the other. Any length is allowed: the left half is the largest power of two below it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

__all__ = ["Tree", "grow", "leaf_hash", "path_length", "root_from", "root_of", "verify_consistency", "verify_inclusion"]

EMPTY = hashlib.sha256(b"").digest()
MOST_BITS = 64  # of a tree's size


def leaf_hash(leaf: bytes) -> bytes:
    """Return the hash of a leaf (RFC 9162, 2.1.1)."""
    return hashlib.sha256(b"\0" + leaf).digest()


def _node(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return hashlib.sha256(b"\1" + left + right).digest()


def grow(peaks: list[bytes], count: int, leaf: bytes) -> None:
    """Add a leaf to a tree represented by its peaks: the roots of its largest complete subtrees.

    Args:
        peaks: one hash for each bit of ``count`` that is set, the largest subtree first. It is changed in place.
        count: how many leaves there were before.
        leaf: the leaf itself, not its hash.

    Examples:
        >>> peaks: list[bytes] = []
        >>> for count, leaf in enumerate([b"a", b"b", b"c"]):
        ...     grow(peaks, count, leaf)
        >>> root_of(peaks) == Tree([b"a", b"b", b"c"]).root()
        True
    """
    node = leaf_hash(leaf)
    while count & 1:
        node, count = _node(peaks.pop(), node), count >> 1
    peaks.append(node)


def root_of(peaks: Sequence[bytes]) -> bytes:
    """Return the root hash of the tree with these peaks (see :func:`grow`). Without peaks, the tree is empty."""
    if not peaks:
        return EMPTY
    node = peaks[-1]
    for peak in reversed(peaks[:-1]):
        node = _node(peak, node)
    return node


class Tree:
    """The Merkle tree of a list of leaves.

    Complete subtrees are hashed once, level by level, so a proof takes ``O(log n)``.

    Args:
        leaves: the leaves, in their order.

    Examples:
        >>> tree = Tree([b"a", b"b", b"c"])
        >>> verify_inclusion(b"b", 1, 3, tree.inclusion(1), tree.root())
        True
    """

    def __init__(self, leaves: Sequence[bytes] = ()) -> None:
        self._levels: list[list[bytes]] = [[]]  # of level k: the hashes of the complete subtrees of 2^k leaves
        for leaf in leaves:
            self.append(leaf)

    def __len__(self) -> int:
        """Return the number of leaves."""
        return len(self._levels[0])

    def append(self, leaf: bytes) -> None:
        """Add a leaf at the end."""
        self._levels[0].append(leaf_hash(leaf))
        level = 0
        while len(self._levels[level]) % 2 == 0:
            if level + 1 == len(self._levels):
                self._levels.append([])
            left, right = self._levels[level][-2:]
            self._levels[level + 1].append(_node(left, right))
            level += 1

    def root(self) -> bytes:
        """Return the root hash."""
        return self._hash(0, len(self)) if len(self) else EMPTY

    def _hash(self, start: int, end: int) -> bytes:
        """Return the hash of the leaves from ``start`` to ``end``, at least one."""
        count = end - start
        level = count.bit_length() - 1
        if count == 1 << level and start % count == 0:
            return self._levels[level][start >> level]
        split = start + _split(count)
        return _node(self._hash(start, split), self._hash(split, end))

    def inclusion(self, index: int) -> tuple[bytes, ...]:
        """Return the proof that a leaf is at ``index`` (RFC 9162, 2.1.3.1). Raises ValueError if there is none."""
        if not 0 <= index < len(self):
            raise ValueError(f"index: {index}: must be from 0 to below {len(self)}")
        return tuple(self._hash(start, end) for start, end in _beside(index, len(self)))

    def consistency(self, first: int) -> tuple[bytes, ...]:
        """Return the proof that the tree begins with the tree of its ``first`` leaves (RFC 9162, 2.1.4.1).

        Raises ValueError unless ``0 < first <= len(self)``.
        """
        if not 0 < first <= len(self):
            raise ValueError(f"first: {first}: must be from 1 to {len(self)}")
        return tuple(self._consistency(first, 0, len(self), whole=True))

    def _consistency(self, first: int, start: int, end: int, *, whole: bool) -> list[bytes]:
        """Return the proof for the leaves from ``start`` to ``end``, of which the first ``first`` were there before."""
        if first == end - start:
            return [] if whole else [self._hash(start, end)]
        k = _split(end - start)
        if first <= k:
            return [*self._consistency(first, start, start + k, whole=whole), self._hash(start + k, end)]
        return [*self._consistency(first - k, start + k, end, whole=False), self._hash(start, start + k)]


def path_length(index: int, size: int) -> int:
    """Return how many hashes a proof of inclusion has, for the leaf at ``index`` of ``size`` leaves."""
    return len(_beside(index, size))


def _beside(index: int, size: int) -> list[tuple[int, int]]:
    """Return the leaves, from the first to behind the last, of each subtree beside the way from a leaf to the root."""
    found, start, end = list[tuple[int, int]](), 0, size
    while end - start > 1:
        split = start + _split(end - start)
        found.append((split, end) if index < split else (start, split))
        start, end = (start, split) if index < split else (split, end)
    return found[::-1]


def _split(count: int) -> int:
    """Return the largest power of two below ``count``, which is at least 2."""
    return 1 << ((count - 1).bit_length() - 1)


def root_from(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes | None:
    """Return the root to which a proof leads from a leaf (RFC 9162, 2.1.3.2); None if the proof's length is wrong.

    Args:
        leaf: the leaf itself, not its hash.
        index: the leaf's place.
        size: the number of leaves of the tree.
        proof: as :meth:`Tree.inclusion` makes it.
    """
    if not 0 <= index < size:
        return None
    beside, found = _beside(index, size), leaf_hash(leaf)
    for (start, _), step in zip(beside, proof, strict=False):
        found = _node(step, found) if start < index else _node(found, step)
    return found if len(beside) == len(proof) else None


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> bool:
    """Return whether a proof shows that a leaf is at ``index`` of the tree of ``size`` leaves with this root; see
    :func:`root_from`.
    """
    return root_from(leaf, index, size, proof) == root


def verify_consistency(first: int, size: int, proof: Sequence[bytes], before: bytes, root: bytes) -> bool:
    """Return whether a proof shows that a tree begins with an earlier one (RFC 9162, 2.1.4.2).

    Args:
        first: the number of leaves of the earlier tree.
        size: the number of leaves of the later tree.
        proof: as :meth:`Tree.consistency` makes it.
        before: the earlier root hash.
        root: the later root hash.
    """
    if not 0 < first <= size or size.bit_length() > MOST_BITS:
        return False
    steps = iter(proof)

    def roots(first: int, size: int, *, whole: bool) -> tuple[bytes, bytes]:
        """Return both roots of a subtree, of the earlier tree and of the later; as :meth:`Tree._consistency` goes."""
        if first == size:
            same = before if whole else next(steps)
            return same, same
        k = _split(size)
        if first <= k:
            old, new = roots(first, k, whole=whole)
            return old, _node(new, next(steps))
        old, new = roots(first - k, size - k, whole=False)
        left = next(steps)
        return _node(left, old), _node(left, new)

    try:
        found = roots(first, size, whole=True)
    except StopIteration:  # too short
        return False
    return found == (before, root) and next(steps, None) is None


def decoded(text: str) -> bytes:
    """Return the bytes of a text in base64.

    Raises:
        ValueError: the text is not exactly what :func:`base64.b64encode` writes. Not every bit of the last character
            counts, so other texts would decode to the same bytes.
    """
    try:
        blob = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("is not base64") from None
    if base64.b64encode(blob).decode() != text:
        raise ValueError("is not base64 as it is written")
    return blob


def as_text(*hashes: bytes) -> str:
    """Return a text with hashes of 32 bytes, one after the other, in base64.

    Examples:
        >>> hashes_of(as_text(b"a" * 32, b"b" * 32)) == [b"a" * 32, b"b" * 32]
        True
    """
    return base64.b64encode(b"".join(hashes)).decode()


def hashes_of(text: str) -> list[bytes]:
    """Return the hashes in a text that :func:`as_text` wrote. Raises ValueError if there is anything else."""
    blob = decoded(text)
    if len(blob) % 32:
        raise ValueError("is not a list of hashes")
    return [blob[i : i + 32] for i in range(0, len(blob), 32)]
