"""Faster matrix products, for processors whose full vector width PyTorch's usual library does not use.

On AMD processors with AVX-512, the MKL in PyTorch's wheels uses half the vector width. The oneDNN in the same wheels
uses all of it, which makes large products twice as fast. PyTorch can call oneDNN for float32 through an operator that
its own compiler emits. :func:`wide_vectors` says whether that works and is faster here. Where it does not,
:func:`product` is the ordinary product.
"""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

_SMALL = 1 << 19  # multiplications below which a call costs more than it gains


def processor(field: str = "model name") -> str:
    """Return a field of Linux's processor information, such as "vendor_id".

    Other systems give Python's own information.
    """
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(field):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor()


@cache
def wide_vectors() -> bool:
    """Return whether oneDNN's float32 product is faster on this machine, and gives the right numbers."""
    if "AMD" not in processor("vendor_id") or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        draw = torch.Generator().manual_seed(0)
        a, b = torch.randn((5, 7), generator=draw), torch.randn((6, 7), generator=draw)
        c = torch.randn((7, 6), generator=draw).t()
        return all(torch.allclose(direct_product(a, w), a @ w.t(), atol=1e-5) for w in (b, c))
    except Exception:  # an operator of PyTorch's inner workings, which may be missing or take other arguments
        return False


def direct_product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b.T`` of ``a [m, k]`` and ``b [n, k]`` by oneDNN. Use it only if :func:`wide_vectors` is true."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, None, "none", [], "")
    return product


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a @ b.T`` of ``a [m, k]`` and ``b [n, k]`` the fastest way, without gradients.

    Either matrix may be a transposed view.
    """
    if (
        a.dtype == torch.float32
        and a.device.type == "cpu"
        and a.shape[0] * b.shape[0] * a.shape[1] >= _SMALL
        and wide_vectors()
    ):
        return direct_product(a, b)
    return torch.mm(a, b.t())
