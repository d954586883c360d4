"""The libraries of the extra ``llm``, imported when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from hanse.errors import UserError

__all__ = ["library"]


def library(name: str, what: str) -> Any:
    """Return a library of the extra. Raises UserError, which names ``what`` needs it, if it is not installed."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] != name:
            raise  # it is there, and something else is missing
        raise UserError(f"{what} needs {name}, which is not installed: pip install 'hanse[llm]'") from None
