"""Federated learning as an economy: who trains, whose model counts, what each contribution is worth, who pays whom."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hanse.config import Experiment
    from hanse.errors import UserError
    from hanse.experiment import Run, resume, run

__all__ = ["Experiment", "Run", "UserError", "resume", "run"]
__version__ = "0.1.0"

_HOMES = {
    "Experiment": "hanse.config",
    "Run": "hanse.experiment",
    "UserError": "hanse.errors",
    "resume": "hanse.experiment",
    "run": "hanse.experiment",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``hanse --help`` does not wait for torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'hanse' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
