"""Follows a run of Flower's from the terminal that started it: its log as it grows, how it ended, one at a time."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from hanse.errors import UserError

__all__ = ["MARK", "alone", "last_error", "stream"]

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


@contextmanager
def alone(path: Path, what: str, log: Path) -> Iterator[None]:
    """Hold ``path`` while something runs of which there can be one. Raises UserError that says who holds it.

    A process that is killed leaves no lock behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise UserError(f"{what}: {file.read().strip() or 'another process'} plays here already") from None
        file.truncate(0)
        file.write(f"process {os.getpid()}, since {time.strftime('%Y-%m-%d %H:%M:%S')}, log {log}\n")
        file.flush()
        yield
