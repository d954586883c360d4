"""What travels beside a training task: tensors and numbers by name, and what the client's half of it must say.

A mechanism may send its clients a :class:`Payload` with their training. The *client's half* (:class:`ClientHalf`) makes
of it an extra term of each batch's loss, and says what is reported beside the update. It declares what the payload and
the report must look like; both ends hold them against that (:mod:`hanse.learning.halves`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hanse.core.table import Layout

_CROSSING = (torch.float32, torch.float64, torch.int64)  # the types that a message carries

Term = Callable[[Tensor, Tensor], Tensor]
"""A batch's extra loss (a number): from the model's outputs ``[n, ...]`` and the targets ``y [n, ...]``."""


@dataclass(frozen=True)
class Payload:
    """``tensors`` and ``numbers`` by name, and the ``name`` of the client's half that uses them."""

    name: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Like:
    """What a tensor must be: its ``shape``, its ``dtype`` (float32, float64 or int64), finite, each entry from ``low``
    to ``high``. Bounds of integers are integers. Raises ValueError for a type that cannot be sent.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _CROSSING:
            raise ValueError(f"type {_short(self.dtype)}: must be float32, float64 or int64, which can be sent")

    @property
    def num_bytes(self) -> int:
        """What such a tensor weighs."""
        return math.prod(self.shape) * self.dtype.itemsize

    def wrong(self, tensor: Any) -> str | None:
        """Return why a value is no such tensor, or None."""
        if not isinstance(tensor, Tensor) or tuple(tensor.shape) != self.shape or tensor.dtype != self.dtype:
            is_one = isinstance(tensor, Tensor)
            came = f"{_short(tensor.dtype)} of shape {tuple(tensor.shape)}" if is_one else type(tensor).__name__
            return f"{came}: must be {_short(self.dtype)} of shape {self.shape}"
        if not bool(torch.isfinite(tensor).all()):
            return "has NaN or infinite entries"
        if self.low is not None and bool((tensor < self.low).any()):
            return f"must be at least {self.low:g} everywhere"
        if self.high is not None and bool((tensor > self.high).any()):
            return f"must be at most {self.high:g} everywhere"
        return None


@dataclass(frozen=True)
class Between:
    """What a number must be: finite, from ``low`` to ``high``, an integer if it is ``whole``."""

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False

    def wrong(self, value: Any) -> str | None:
        """Return why a value is no such number, or None."""
        kinds = int if self.whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value):
            return f"{value!r}: must be a {'whole' if self.whole else 'finite'} number"
        if not self.low <= value <= self.high:
            return f"{value!r}: must be from {self.low:g} to {self.high:g}"
        return None


@dataclass(frozen=True)
class Declaration:
    """The tensors of a payload with certain numbers, and the ``extras`` that every answer to it must have."""

    tensors: Mapping[str, Like] = field(default_factory=dict)
    extras: Mapping[str, Like] = field(default_factory=dict)


class ClientHalf(Protocol):
    """How a client uses one kind of payload. Pure: what it draws comes from a stream of the seat's ``key``."""

    @property
    def numbers(self) -> Mapping[str, Between]:
        """The payload's numbers."""

    def declares(self, numbers: Mapping[str, int | float]) -> Declaration:
        """Return what goes with these numbers, which lie in their bounds."""

    def unfit(self, payload: Payload, layout: Layout) -> str | None:
        """Return why a payload that is as declared cannot be used on a model laid out so, or None."""

    def term(self, payload: Payload, key: tuple[int, int, int, int], module: nn.Module, layout: Layout) -> Term | None:
        """Return the extra loss of one seat's batches, or None for plain training.

        ``key`` is the seat's ``(seed, round, client, start row)``; ``module`` is in training, so that its parameters
        are those of each step.
        """

    def reports(self, payload: Payload, y: Tensor, plan: NDArray[Any]) -> Mapping[str, Tensor]:
        """Return the extras of a seat's update: ``y [n, ...]`` are its targets, ``plan`` the positions into them that
        its batches took, a row a step, padded with -1.
        """


def mismatch(what: str, given: Mapping[str, Any], declared: Mapping[str, Like | Between]) -> str | None:
    """Return the first way in which values by name are not as declared, or None; ``what`` is what one is called."""
    if unknown := sorted(set(given) - set(declared)):
        return f"{what} '{unknown[0]}': not one of those declared ({', '.join(sorted(declared)) or 'none'})"
    for name, like in declared.items():
        if name not in given:
            return f"{what} '{name}': missing"
        if (wrong := like.wrong(given[name])) is not None:
            return f"{what} '{name}': {wrong}"
    return None


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
