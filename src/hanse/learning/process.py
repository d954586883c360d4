"""The caller's process: settings of PyTorch and NumPy that would change a run, set aside while it plays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import numpy as np
import torch


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
