"""Random streams by key: a random draw depends on its purpose, never on when or where it is made.

Every draw of a run comes from a stream keyed by ``(seed, purpose, round, client, start row)``. It therefore does not
depend on the order of work, batching, restarts, or the client's machine. Give every use its own ``purpose``: two uses
with the same key draw the same numbers.
"""

from __future__ import annotations

import hashlib
import random
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hanse.base.pytorch import torch


def _key(seed: int, purpose: str, round: int, client: int, start: int) -> bytes:
    """Return 16 bytes that stand for the key, by hashing its five parts as text."""
    text = f"{seed}|{purpose}|{round}|{client}|{start}".encode()
    return hashlib.blake2b(text, digest_size=16).digest()


def stream(seed: int, purpose: str, *, round: int = -1, client: int = -1, start: int = -1) -> np.random.Generator:
    """Return the random generator keyed by ``(seed, purpose, round, client, start)``.

    Two calls with the same key give the same numbers, on any machine and in any order. Different keys give independent
    streams. The generator is numpy's Philox, whose 128-bit key is a hash of the five parts.

    Args:
        seed: the run's seed.
        purpose: what the draw is for, such as ``"score"`` or ``"bid"``.
        round: the round, if each round draws anew, or -1 for a draw that is made once per run.
        client: the client's id, if each client has its own draw, or -1 otherwise.
        start: a seat's start row, or any other number that distinguishes draws; else -1.

    Examples:
        >>> [int(stream(0, "dice", round=3).integers(1, 7)) for _ in range(3)]  # the first throw, three times
        [6, 6, 6]
    """
    words = np.frombuffer(_key(seed, purpose, round, client, start), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=words))


def torch_seed(seed: int, purpose: str, *, round: int = -1, client: int = -1, start: int = -1) -> int:
    """Return a 63-bit seed for ``torch.Generator.manual_seed``, from the same key as :func:`stream`.

    Args:
        seed: the run's seed.
        purpose: what the draw is for.
        round: the round's number.
        client: the client for which the seed is. -1: for no client.
        start: any third number that distinguishes draws.
    """
    # PyTorch takes seeds up to 2^64 - 1, but other users of the number may read it as a signed integer
    return int.from_bytes(_key(seed, purpose, round, client, start)[:8], "little") >> 1


def drawn_so_far(device: torch.device | None = None) -> tuple[Any, ...]:
    """Return the state of all global generators, which changes with any draw or seeding.

    Args:
        device: a CUDA device's generator is looked at, too. None: only those of the processor.
    """
    _, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    cuda = b"" if device is None or device.type != "cuda" else torch.cuda.get_rng_state(device).numpy().tobytes()
    numpy = np.asarray(words).tobytes(), *rest
    return random.getstate(), numpy, torch.get_rng_state().numpy().tobytes(), cuda


@lru_cache(maxsize=8)
def places(seed: int, purpose: str, num_clients: int) -> NDArray[np.int64]:
    """Return each client's place 0..N-1 in a random order, ``[N]`` int64. All clients of a run see the same order.

    With these places, behaviours agree on which clients are the stragglers or free riders without communicating: those
    whose place is below the number wanted.

    Args:
        seed: the run's seed.
        purpose: the name of the order. Each purpose has its own order.
        num_clients: how many clients there are, N.
    """
    return np.argsort(stream(seed, purpose).permutation(num_clients))
