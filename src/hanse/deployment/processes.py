"""Processes that outlive the command which started them: started with a log and a pid file, stopped by pid."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hanse.base.files import private_folder


@dataclass(frozen=True)
class Processes:
    """Named processes, each the head of its own group, with ``NAME.log`` and ``NAME.pid`` in ``folder``.

    A pid file holds the pid and when that process began, so that another process that got the number later is left
    alone.
    """

    folder: Path

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> int:
        """Start a process and return its pid. What it writes, only its user can read."""
        private_folder(self.folder)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, umask=0o077,
            )  # fmt: skip
        self._path(name).write_text(f"{process.pid} {_begun(process.pid)}\n")
        _CHILDREN[process.pid] = process
        return process.pid

    def names(self) -> list[str]:
        """Return the names of all that were started and not stopped here."""
        return sorted(p.stem for p in self.folder.glob("*.pid"))

    def pid(self, name: str) -> int | None:
        """Return the pid of a process that runs, or None."""
        if not self._path(name).exists():
            return None
        number, _, begun = self._path(name).read_text().strip().partition(" ")
        child = _CHILDREN.get(int(number))
        if child is not None and child.poll() is not None:
            return None
        return int(number) if begun and _begun(int(number)) == begun else None

    def stop(self, *names: str, kill: bool = False, patience_s: float = 10.0) -> list[str]:
        """Stop processes with all that they started (with ``kill`` at once); return those that were not running."""
        running = {name: pid for name in names if (pid := self.pid(name)) is not None}
        for pid in running.values():
            _signal(pid, signal.SIGKILL if kill else signal.SIGTERM)
        end = time.monotonic() + patience_s
        while any(self.pid(name) is not None for name in running) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in running.values():
            _signal(pid, signal.SIGKILL)  # what is left of its group, also where its head has gone
            if (child := _CHILDREN.pop(pid, None)) is not None:
                child.wait()
        for name in names:
            self._path(name).unlink(missing_ok=True)
        return [name for name in names if name not in running]

    def log(self, name: str) -> str:
        """Return what a process has printed so far."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.pid"


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}  # those of this process, so that they can be waited for


def _begun(pid: int) -> str:
    """Return when a process began, as the system prints it; empty if there is none."""
    shown = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return shown.stdout.strip()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return


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
