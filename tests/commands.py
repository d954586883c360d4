"""Commands of hanse for tests, in this process: importing torch takes longer than most of what they do."""

import contextlib
import io
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from typer.testing import CliRunner

from hanse.cli import app, main

WIDE = {"COLUMNS": "200"}


def hanse(*args: object, cwd: str | Path = ".", env: Mapping[str, str] = WIDE) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder, and return its exit code and what it printed."""
    words: list[str] = ["hanse", *map(str, args)]
    code: Any = 0
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
        patch("sys.argv", words),
        patch.dict(os.environ, env),
    ):
        try:
            main()
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(words, int(code or 0), out.getvalue(), err.getvalue())


def run_hanse(*args: object) -> tuple[int, str, str]:
    """Run a command here, and return its exit code, what it printed, and its errors."""
    done = hanse(*args)
    return done.returncode, done.stdout, done.stderr


def invoke(*args: object, **how: Any) -> Any:
    """Run a command here without what :func:`hanse.cli.main` does around it: what it raises is in the result."""
    return CliRunner().invoke(app, [str(word) for word in args], **how)
