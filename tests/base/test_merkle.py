"""Merkle trees against RFC 9162: its definition by recursion, and every proof of every small tree."""

import hashlib

import pytest

from hanse.base.merkle import Tree, leaf_hash, verify_consistency, verify_inclusion

LEAVES = [bytes([i]) for i in range(20)]


def by_definition(leaves: list[bytes]) -> bytes:
    """RFC 9162, 2.1.1."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return hashlib.sha256(b"\1" + by_definition(leaves[:k]) + by_definition(leaves[k:])).digest()


def test_known_roots() -> None:
    # the hashes of the empty tree and of the empty leaf, as published for Certificate Transparency
    assert Tree().root().hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert Tree([b""]).root().hex() == "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"
    assert leaf_hash(b"") == Tree([b""]).root()


@pytest.mark.parametrize("size", range(len(LEAVES) + 1))
def test_roots_and_proofs_of_every_tree(size: int) -> None:
    tree = Tree(LEAVES[:size])
    root = tree.root()
    assert root == by_definition(LEAVES[:size])
    for i in range(size):
        proof = tree.inclusion(i)
        assert verify_inclusion(LEAVES[i], i, size, proof, root)
        for other in range(size):
            if other != i:
                assert not verify_inclusion(LEAVES[other], i, size, proof, root)
                assert not verify_inclusion(LEAVES[i], other, size, proof, root)
        assert not verify_inclusion(LEAVES[i], i, size, (*proof, root), root)
        assert not proof or not verify_inclusion(LEAVES[i], i, size, proof[:-1], root)
    for first in range(1, size + 1):
        proof = tree.consistency(first)
        before = by_definition(LEAVES[:first])
        assert verify_consistency(first, size, proof, before, root)
        assert not verify_consistency(first, size, proof, by_definition(LEAVES[: first - 1]), root)
        assert not verify_consistency(first, size, (*proof, root), before, root)
        assert not proof or not verify_consistency(first, size, proof[:-1], before, root)
