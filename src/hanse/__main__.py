"""Runs the command line as ``python -m hanse``, where the command ``hanse`` is not on the path."""

from hanse.cli import main

if __name__ == "__main__":
    main()
