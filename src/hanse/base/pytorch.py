"""PyTorch, imported when something of it is first used: commands that only read runs do not wait for it.

``from hanse.base.pytorch import Tensor, nn, torch`` stands for the imports from torch, in every module that also those
need that train nothing.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["F", "Tensor", "nn", "torch"]

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F  # noqa: N812
    from torch import Tensor, nn
else:

    class _Later:
        """A module that is imported when one of its names is used."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            module = import_module(self._name)
            vars(self).update(vars(module))  # so that this is asked once
            return getattr(module, name)

    class _IsTensor(type):
        """Whether an object is a tensor, which nothing can be before PyTorch is imported."""

        def __instancecheck__(cls, instance: object) -> bool:
            return "torch" in sys.modules and isinstance(instance, torch.Tensor)

    class Tensor(metaclass=_IsTensor):
        """``torch.Tensor`` in annotations and for ``isinstance``; tensors are made by ``torch``."""

    torch, nn, F = _Later("torch"), _Later("torch.nn"), _Later("torch.nn.functional")
