"""Masks that cancel in the sum of a group, after Bonawitz et al., "Practical Secure Aggregation" (CCS 2017).

Member i of a group has a vector x_i of whole numbers modulo 2^64 and sends

    y_i = x_i + PRG(b_i) + sum_{j > i} PRG(s_ij) - sum_{j < i} PRG(s_ij)        (eq. 1)

where only i and j know s_ij, and only i knows b_i. Both b_i and i's private key are split among the group as Shamir
shares. Any ``least`` shares recover them. In the sum over the members whose y_i came, the masks between any two of them
cancel. Two kinds of masks remain: those towards members that dropped out, whose keys are recovered from shares, and the
b_i of the members that did not drop out. For each other member, a member reveals a share of b_i or of the key, never of
both. With both, a server could unmask y_i.

This module has the primitives: sharing, agreement, sealing, and the key stream. :mod:`hanse.wings.private.masker` is a
node's side of the protocol, :mod:`hanse.wings.private.masked_sums` the server's. They use the package ``cryptography``.
Flower's own (``flwr.common.secure_aggregation``) are not used, for two reasons: they fold the seed of a mask into 32
bits, for a generator that is not made for secrets; and they trust the public keys that the server hands out.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

Words = NDArray[np.uint64]
"""Whole numbers modulo 2^64."""
PRIME = 2**521 - 1
"""Shares are numbers modulo this Mersenne prime."""
SECRET = 32
"""Bytes of a secret that is shared."""
SHARE = 66
"""Bytes of a share."""


# ---- secrets in shares


def split(secret: bytes, least: int, members: Collection[int]) -> dict[int, bytes]:
    """Return a share of a secret for each member. Any ``least`` shares recover it, and fewer reveal nothing.

    A share is the value of a random polynomial of degree ``least - 1`` at the member's number plus 1 (Shamir 1979).

    Args:
        secret: 32 bytes.
        least: how many shares are needed.
        members: the members' numbers, from 0.

    Examples:
        >>> shares = split(bytes(range(32)), 2, [0, 4, 7])
        >>> joined({4: shares[4], 7: shares[7]}) == bytes(range(32))
        True
    """
    coefficients = [int.from_bytes(secret), *(secrets.randbelow(PRIME) for _ in range(least - 1))]
    at = {i: sum(c * pow(i + 1, k, PRIME) for k, c in enumerate(coefficients)) % PRIME for i in members}
    return {i: value.to_bytes(SHARE) for i, value in at.items()}


def joined(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret that shares encode, by Lagrange's interpolation at 0.

    Raises:
        ValueError: these are not shares of one secret of 32 bytes. (Too few or wrong shares are not always noticed.
            Compare the result with what is known of the secret.)
    """
    total = 0
    for i, share in shares.items():
        over, under = 1, 1
        for j in shares:
            if j != i:
                over, under = over * (j + 1) % PRIME, under * (j - i) % PRIME
        total += int.from_bytes(share) * over * pow(under, -1, PRIME)
    found = total % PRIME
    if found >= 1 << 8 * SECRET:
        raise ValueError("the shares do not belong together")
    return found.to_bytes(SECRET)


# ---- keys


def public(private: bytes) -> bytes:
    """Return the public half of a private key (X25519), 32 bytes each."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, peer: bytes, purpose: bytes) -> bytes:
    """Return the 32-byte key that two parties share for a purpose (X25519, then HKDF with SHA-256).

    Args:
        private: this party's private key.
        peer: the other party's public key.
        purpose: what the key is for. Both parties must give the same purpose.

    Raises:
        ValueError: the peer's key is not a key, or is one that gives everybody the same result.
    """
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(peer))
    return HKDF(SHA256(), 32, salt=None, info=b"hanse masks 1 " + purpose).derive(shared)


def is_key(peer: bytes) -> bool:
    """Return whether 32 bytes are a public key that gives each party its own shared key, not everybody the same."""
    try:
        agreed(bytes(SECRET), peer, b"")
    except ValueError:
        return False
    return True


def seal(key: bytes, plain: bytes) -> bytes:
    """Return a message sealed with a key (ChaCha20-Poly1305) that seals no other message."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), plain, None)


def unseal(key: bytes, sealed: bytes) -> bytes:
    """Return the message that was sealed. Raises ValueError if it was changed, or sealed with another key."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, None)
    except InvalidTag:
        raise ValueError("was changed on its way, or sealed with another key") from None


# ---- masks


def stream(key: bytes, size: int) -> Words:
    """Return ``size`` words of the key stream of ChaCha20: the PRG of eq. 1."""
    made = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * size))
    return np.frombuffer(made, "<u8").astype(np.uint64)


def between(private: bytes, peer: bytes, me: int, other: int, size: int) -> Words:
    """Return the mask that member ``me`` adds for a pair: the pair's key stream, negated for the later member.

    Args:
        private: the key of ``me``, or of ``other`` if it is recovered.
        peer: the public key of the other member of the pair.
        me: the number of the member that adds the mask.
        other: the number of the other member.
        size: how many words.
    """
    low, high = sorted((me, other))
    mask = stream(agreed(private, peer, f"mask {low} {high}".encode()), size)
    return mask if me < other else np.negative(mask)


def weights(keys: Sequence[bytes], size: int) -> Words:
    """Return the weights of a checksum over ``size`` words: odd numbers that follow from the group's public keys."""
    return stream(hashlib.sha256(b"hanse checksum " + b"".join(sorted(keys))).digest(), size) | np.uint64(1)


def checked(words: Words, keys: Sequence[bytes]) -> Words:
    """Return words with their checksum at the end. It is linear: a sum's checksum is the sum of the checksums."""
    with np.errstate(over="ignore"):
        return np.append(words, np.sum(words * weights(keys, len(words)), dtype=np.uint64))
