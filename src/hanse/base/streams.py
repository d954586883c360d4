"""Counter-based random streams: a draw depends on what it is for, never on when or where it is made."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


def _key(seed: int, purpose: str, round: int, client: int, start: int) -> bytes:
    text = f"{seed}|{purpose}|{round}|{client}|{start}".encode()
    return hashlib.blake2b(text, digest_size=16).digest()


def stream(seed: int, purpose: str, *, round: int = -1, client: int = -1, start: int = -1) -> np.random.Generator:
    """Return the random generator keyed by ``(seed, purpose, round, client, start)``.

    Two calls with the same key give the same numbers, on any machine and in any order; different keys give
    independent streams (Philox, a 128-bit key hashed from the five parts).
    """
    words = np.frombuffer(_key(seed, purpose, round, client, start), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words))


def torch_seed(seed: int, purpose: str, *, round: int = -1, client: int = -1, start: int = -1) -> int:
    """Return a 63-bit seed for ``torch.Generator.manual_seed`` from the same key as :func:`stream`."""
    return int.from_bytes(_key(seed, purpose, round, client, start)[:8], "little") >> 1


@lru_cache(maxsize=8)
def places(seed: int, purpose: str, num_clients: int) -> NDArray[np.int64]:
    """Return each client's place 0..N-1 in a random order that all clients of a run share, ``[N]``."""
    return np.argsort(stream(seed, purpose).permutation(num_clients))
