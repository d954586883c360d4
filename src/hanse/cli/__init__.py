"""The ``hanse`` command: one module per subcommand."""

from hanse.cli.entry import app, main

__all__ = ["app", "main"]
