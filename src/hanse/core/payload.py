"""Extra inputs of a training task (tensors and numbers by name), and what the client must report for them.

A mechanism may send its clients a :class:`Payload` with their training. The *client's half* (:class:`ClientHalf`) turns
it into an extra loss term for each batch, and reports results along with the update. A declaration
(:class:`Declaration`) fixes the form of payload and report, and server and client both check them against it. The
client's half is registered by name in :mod:`hanse.learning.client_payloads`.
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
    """Extra inputs that the server sends with a training task.

    Attributes:
        name: the client's half that uses it.
        tensors: tensors by name, of float32, float64 or int64.
        numbers: numbers by name.

    Examples:
        What FedGen sends with its training tasks:

        >>> from hanse.runs.rehearsal import rehearse
        >>> part, view, state = rehearse("fedgen", model={"name": "mlp", "hidden": [8]}, rounds=2).before("train")
        >>> payload = part.sends(view, state)
        >>> payload.name, sorted(payload.tensors)
        ('generator', ['labels', 'row'])
    """

    name: str
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    numbers: Mapping[str, int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class Like:
    """The required shape, type and range of a tensor. Entries must be finite and from ``low`` to ``high``.

    Attributes:
        shape: the tensor's shape.
        dtype: float32, float64 or int64, the types that a message can carry.
        low: the smallest entry allowed; an integer for int64. None: no bound.
        high: the largest entry. None: no bound.

    Raises:
        ValueError: a type that cannot be sent.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.dtype not in _CROSSING:
            raise ValueError(f"type {_short(self.dtype)}: must be float32, float64 or int64: no other can be sent")

    @property
    def num_bytes(self) -> int:
        """How many bytes such a tensor takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def wrong(self, tensor: Any) -> str | None:
        """Return why a value is not a tensor of this kind, or None if it is one."""
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
    """The required range of a number. It must be finite and from ``low`` to ``high``.

    Attributes:
        low: the least value.
        high: the largest value.
        whole: whether it must be an integer.
    """

    low: float = -math.inf
    high: float = math.inf
    whole: bool = False

    def wrong(self, value: Any) -> str | None:
        """Return why a value is not a number within these bounds, or None if it is one."""
        kinds = int if self.whole else (int, float)
        if not isinstance(value, kinds) or isinstance(value, bool) or not math.isfinite(value):
            return f"{value!r}: must be a {'whole' if self.whole else 'finite'} number"
        if not self.low <= value <= self.high:
            return f"{value!r}: must be from {self.low:g} to {self.high:g}"
        return None


@dataclass(frozen=True)
class Declaration:
    """The tensors that belong to a payload with given numbers.

    Attributes:
        tensors: the tensors that the payload must have.
        extras: the tensors that every answer must report, called extras.
    """

    tensors: Mapping[str, Like] = field(default_factory=dict)
    extras: Mapping[str, Like] = field(default_factory=dict)


class ClientHalf(Protocol):
    """How a client uses one kind of payload.

    All methods are pure; random numbers come from a stream with the seat's key.
    """

    @property
    def numbers(self) -> Mapping[str, Between]:
        """The numbers that the payload must have, with their bounds."""

    def declares(self, numbers: Mapping[str, int | float]) -> Declaration:
        """Return the tensors and extras for these numbers, which were checked against their bounds."""

    def unfit(self, payload: Payload, layout: Layout) -> str | None:
        """Return why a payload that fits its declaration does not suit a model of this layout, or None if it does."""

    def term(self, payload: Payload, key: tuple[int, int, int, int], module: nn.Module, layout: Layout) -> Term | None:
        """Return the extra loss of one seat's batches, or None for plain training.

        Args:
            payload: what was sent.
            key: the seat's ``(seed, round, client, start row)``, for its random streams.
            module: the model during training. Its parameters change with each step.
            layout: where each tensor of the model is in a row.
        """

    def reports(self, payload: Payload, y: Tensor, plan: NDArray[Any]) -> Mapping[str, Tensor]:
        """Return what the client reports with a seat's update, as declared.

        Args:
            payload: what was sent.
            y: ``[n, ...]``, the seat's targets.
            plan: which samples the seat's batches took, as positions in ``y``. There is one row per step, padded with
                -1.
        """


def mismatch(what: str, given: Mapping[str, Any], declared: Mapping[str, Like | Between]) -> str | None:
    """Return the first way in which values by name differ from what is declared, or None if they fit.

    Args:
        what: the word for one of these values in messages, such as ``"extra"``.
        given: the values by name.
        declared: what each value must be.
    """
    if unknown := sorted(set(given) - set(declared)):
        return f"{what} '{unknown[0]}': not one of those declared ({', '.join(sorted(declared)) or 'none'})"
    for name, like in declared.items():
        if name not in given:
            return f"{what} '{name}': missing"
        if (wrong := like.wrong(given[name])) is not None:
            return f"{what} '{name}': {wrong}"
    return None


def _short(dtype: torch.dtype) -> str:
    """Return a type's name without the prefix "torch."."""
    return str(dtype).removeprefix("torch.")
