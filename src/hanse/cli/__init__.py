"""The ``hanse`` command: one module a subcommand."""

from hanse.cli.entry import app, main

__all__ = ["app", "main"]
