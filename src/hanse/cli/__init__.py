"""The ``hanse`` command line: :mod:`hanse.cli.entry`, and a module for each group of commands."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hanse.cli.entry import app, main

__all__ = ["app", "main"]


def __getattr__(name: str) -> Any:
    """Import the command line when it is used: the commands of wings, which it loads, import other modules here."""
    if name not in __all__:
        raise AttributeError(f"module 'hanse.cli' has no attribute '{name}'")
    from hanse.cli import entry

    return getattr(entry, name)
