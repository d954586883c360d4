"""The state of a process that user code may change: random generators, and settings of PyTorch and NumPy.

Everything here is plain data. PyTorch is ignored in a process that has not imported it.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

_SHORTEST, _LONGEST = 0.05, 1.0  # bounds on the seconds for which a generator is watched


def states() -> dict[str, Any]:
    """Return the state of each global random generator by name: Python's, NumPy's, PyTorch's on all devices in use."""
    kind, words, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    found = {"random": random.getstate(), "numpy": (kind, np.asarray(words).tobytes(), *rest)}
    if (torch := sys.modules.get("torch")) is not None:
        found["torch"] = torch.get_rng_state().numpy().tobytes()
        if torch.cuda.is_initialized():
            found["cuda"] = tuple(one.numpy().tobytes() for one in torch.cuda.get_rng_state_all())
    return found


def put_states(known: Mapping[str, Any]) -> None:
    """Put generators back into states that :func:`states` has returned; PyTorch's only if it is imported."""
    if "random" in known:
        random.setstate(known["random"])
    if "numpy" in known:
        kind, words, *rest = known["numpy"]
        np.random.set_state((kind, np.frombuffer(words, np.uint32), *rest))  # noqa: NPY002
    if (torch := sys.modules.get("torch")) is None:
        return

    def tensor(state: bytes) -> Any:
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)

    if "torch" in known:
        torch.set_rng_state(tensor(known["torch"]))
    if "cuda" in known:
        torch.cuda.set_rng_state_all([tensor(one) for one in known["cuda"]])


def settings() -> dict[str, Any]:
    """Return the settings of PyTorch and NumPy that change what a process computes."""
    found: dict[str, Any] = {"numpy": np.geterr()}
    if (torch := sys.modules.get("torch")) is not None:
        found |= {
            "dtype": str(torch.get_default_dtype()).removeprefix("torch."),
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
            "threads": torch.get_num_threads(),
            "grad": torch.is_grad_enabled(),
        }
    return found


def put_settings(known: Mapping[str, Any]) -> None:
    """Restore settings that :func:`settings` has returned. PyTorch's are restored only if it is imported."""
    np.seterr(**known["numpy"])
    if (torch := sys.modules.get("torch")) is not None and "dtype" in known:
        torch.set_default_dtype(getattr(torch, known["dtype"]))
        torch.use_deterministic_algorithms(known["deterministic"], warn_only=known["warn_only"])
        torch.set_num_threads(known["threads"])
        torch.set_grad_enabled(known["grad"])


@dataclass
class Kept:
    """Restores what user code called by hanse has changed: the generators from which it drew, and settings.

    A generator that other threads also draw from is never put back, because they would draw the same numbers twice.
    When a generator is first found changed and there are other threads, it is watched for as long as the user code
    took, at most a second. If it changes in that time, others draw from it.

    Attributes:
        shared: names of generators that other threads draw from.
        ours: names of generators that only the user code draws from.

    Examples:
        >>> drawn = random.getstate()
        >>> kept = Kept()
        >>> with kept.as_before():
        ...     _ = random.random()
        >>> random.getstate() == drawn, kept.ours, kept.shared
        (True, {'random'}, set())
    """

    shared: set[str] = field(default_factory=set)
    ours: set[str] = field(default_factory=set)

    @contextmanager
    def as_before(self) -> Iterator[None]:
        """Run a block, and then restore what it changed."""
        before, known, begun = states(), settings(), time.perf_counter()
        try:
            yield
        finally:
            now = states()
            changed = {name for name in before if now[name] != before[name]} - self.shared
            self._told_apart(changed - self.ours, now, time.perf_counter() - begun)
            put_states({name: before[name] for name in changed - self.shared})
            if settings() != known:
                put_settings(known)

    def _told_apart(self, new: set[str], now: Mapping[str, Any], took: float) -> None:
        """Find out whether others draw from generators that were found changed for the first time."""
        if new and threading.active_count() > 1:
            time.sleep(min(max(took, _SHORTEST), _LONGEST))
            later = states()
            self.shared |= {name for name in new if later[name] != now[name]}
        self.ours |= new - self.shared
