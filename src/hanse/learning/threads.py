"""PyTorch's intra-op threads, set for a block of code and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["intra_op"]


@contextmanager
def intra_op(threads: int | None) -> Iterator[None]:
    """Run a block with this number of intra-op threads; None keeps the setting."""
    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
