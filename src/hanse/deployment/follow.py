"""Follows a run of Flower's from the terminal that started it: its log as it grows, and how it ended."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

__all__ = ["MARK", "last_error", "stream"]

MARK = "hanse: "  # what the lines begin with that a server of ours prints for the operator
POLL_S = 0.2  # how often a log is looked at


def stream(call: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, heard: Callable[[str], None]) -> int:
    """Run a command whose output goes into a new file ``log``, hand over our lines as they come, return its status.

    A file of that name is left to whoever still writes into it.
    """
    log.unlink(missing_ok=True)
    with log.open("xb") as out, log.open("rb") as file:
        child = subprocess.Popen(list(call), env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        rest = b""
        try:
            while True:
                ended = child.poll() is not None
                *lines, rest = (rest + file.read()).split(b"\n")
                for line in lines:
                    text = line.decode(errors="replace").rstrip("\r")
                    if text.startswith(MARK):
                        heard(text.removeprefix(MARK))
                if ended:
                    return child.returncode
                time.sleep(POLL_S)
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()


def last_error(said: str) -> str | None:
    """Return the last line of the last traceback in a log; None if there is none."""
    found = re.findall(r"^(?:[\w.]*(?:Error|Exception|Interrupt|Exit)\b.*)$", said, re.MULTILINE)
    return found[-1][:300] if found and "Traceback" in said else None
