"""The process around a run: settings of PyTorch and NumPy, and its global random generators.

hanse itself uses keyed streams (:mod:`hanse.base.streams`). A user's code may draw from the global generators
(Python's, NumPy's and PyTorch's), so they are seeded before it runs and restored afterwards.
"""

from __future__ import annotations

import platform
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np

from hanse.base.pytorch import torch


@contextmanager
def undisturbed() -> Iterator[None]:
    """Run a block of code, or a decorated function, as in a fresh process, and then restore the caller's settings.

    A run must not depend on what a notebook has set before: default type, default device, gradients off, automatic
    mixed precision, and NumPy's handling of floating-point errors. The state of PyTorch's random numbers is restored
    too.

    Examples:
        >>> torch.set_default_dtype(torch.float64)
        >>> with undisturbed():
        ...     print(torch.zeros(1).dtype)
        torch.float32
        >>> torch.get_default_dtype()
        torch.float64
        >>> torch.set_default_dtype(torch.float32)
    """
    dtype, seeded = torch.get_default_dtype(), torch.get_rng_state()
    with ExitStack() as stack:
        stack.enter_context(np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.callback(torch.set_default_dtype, dtype)
        stack.callback(torch.set_rng_state, seeded)
        torch.set_default_dtype(torch.float32)
        yield


def restorer() -> Callable[[], None]:
    """Return what puts back the process's settings of now: the type of new tensors, whether repeats must be exact, and
    the number of the calling thread's intra-op threads.
    """
    dtype, threads, exact = torch.get_default_dtype(), torch.get_num_threads(), torch.get_deterministic_debug_mode()

    def restore() -> None:
        torch.set_default_dtype(dtype)
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(exact)

    return restore


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


def processor() -> str:
    """Return the processor's model as the system names it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
