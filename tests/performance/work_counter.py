"""Counts work instead of time: calls of kernels, arithmetic, bytes, forward passes. A count does not depend on who else
is using the machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

# no kernel runs: these only say where a tensor begins and how it steps
_VIEWS = {
    *("view", "t", "transpose", "unsqueeze", "squeeze", "slice", "select", "expand", "permute", "as_strided", "alias"),
    *("detach", "unbind", "split", "_unsafe_view", "_reshape_alias", "split_with_sizes", "unfold", "lift_fresh"),
}
_PICKING = {"index_select", "index", "gather"}
_BATCHED_IN_PLACE = {"baddbmm_", "addmm_", "addbmm_"}


@dataclass
class Work:
    """What was done: kernel calls by name, multiplications and additions, bytes read and written by kernels."""

    kernels: Counter[str] = field(default_factory=Counter)
    flops: int = 0
    bytes: int = 0

    @property
    def calls(self) -> int:
        return sum(self.kernels.values())


class _Mode(TorchDispatchMode):
    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work = work

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if name in _VIEWS or not any(isinstance(leaf, Tensor) for leaf in tree_leaves((args, kwargs, result))):
            return result
        self.work.kernels[name] += 1
        self.work.flops += _flops(func, name, args, kwargs, result)
        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        known = {id(leaf) for leaf in read}
        if name in _PICKING:  # reads what it returns, not all that it picks from
            read = [result, *read[1:]]
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and id(leaf) not in known]
        self.work.bytes += sum(leaf.numel() * leaf.element_size() for leaf in (*read, *made))
        return result


def _flops(func: Any, name: str, args: Any, kwargs: Any, result: Any) -> int:
    if name in _BATCHED_IN_PLACE:
        return 2 * prod(args[1].shape) * args[2].shape[-1]
    counted = flop_registry.get(func.overloadpacket)
    return int(counted(*args, **kwargs, out_val=result)) if counted is not None else 0


@contextmanager
def counting() -> Iterator[Work]:
    """Count what this thread does in a block. Set one thread and one worker: other threads are not seen."""
    work = Work()
    with _Mode(work):
        yield work


@contextmanager
def same_everywhere() -> Iterator[None]:
    """Use one thread: with several, operators are cut into other parts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
