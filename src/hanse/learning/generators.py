"""The global random generators of a process: Python's, NumPy's and PyTorch's.

hanse itself uses keyed streams (:mod:`hanse.base.streams`). A user's code may draw from the global generators, so they
are seeded before it runs and restored afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


@contextmanager
def untouched(device: torch.device) -> Iterator[None]:
    """Run a block and then restore all generators."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def seed_all(seed: int, device: torch.device) -> None:
    """Seed every generator, including the device's.

    Args:
        seed: the seed, from 0 to 2^63 - 1. NumPy's generator takes only its last 32 bits.
        device: the device; if it is a CUDA device, its generator is seeded.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)


def drawn_so_far(device: torch.device) -> tuple[Any, ...]:
    """Return the state of all generators, which changes with any draw or seeding."""
    _, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    cuda = torch.cuda.get_rng_state(device).numpy().tobytes() if device.type == "cuda" else b""
    numpy = np.asarray(words).tobytes(), *rest
    return random.getstate(), numpy, torch.get_rng_state().numpy().tobytes(), cuda
