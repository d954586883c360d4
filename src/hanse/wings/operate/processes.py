"""Processes that outlive the command that started them.

:class:`Processes` starts them with a log and a file that holds their process id (pid), so that a later command can
find and stop them; ``hanse network up`` and ``down`` work in this way. :func:`stream` runs a command, waits for it, and
passes on hanse's own lines of its output as they come.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hanse.base.files import private_folder
from hanse.flower.narrator import MARK

PATIENCE_S = 10.0  # how many seconds a process has to end before it is killed


@dataclass(frozen=True)
class Processes:
    """Named processes, with ``NAME.log`` and ``NAME.process`` in ``folder``.

    Each process leads its own process group, so whatever it starts is stopped with it. ``NAME.process`` holds the pid
    and the time at which the process began: after a restart of the machine, another process may have the same pid, and
    must be left alone. It is no pid file, since ``kill $(cat ...)`` would take the time for pids, too.

    Attributes:
        folder: the folder of these files, which only its user can read.

    Examples:
        >>> processes = Processes(Path("logs"))
        >>> number = processes.start("sleeper", ["sleep", "60"], dict(os.environ), Path())
        >>> processes.pid("sleeper") == number, processes.names()
        (True, ['sleeper'])
        >>> processes.stop("sleeper")  # the names of those that were not running
        []
    """

    folder: Path

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> int:
        """Start a process in the background and return its pid.

        Args:
            name: the process; a later start under the same name appends to its log.
            command: the command and its arguments.
            env: all of its environment variables.
            cwd: the folder that it works in.
        """
        private_folder(self.folder)
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                # files that it makes (logs, keys, models) are its user's alone
                start_new_session=True, umask=0o077,
            )  # fmt: skip
        self._path(name).write_text(f"{process.pid} {begun(process.pid)}\n")
        _CHILDREN[process.pid] = process
        return process.pid

    def names(self) -> list[str]:
        """Return the names of the processes that were started here and not stopped since, ascending."""
        return sorted(p.stem for p in self.folder.glob("*.process"))

    def pid(self, name: str) -> int | None:
        """Return the pid of a process, or None if it is not running."""
        if not self._path(name).exists():
            return None
        number, _, when = self._path(name).read_text().strip().partition(" ")
        # a child that has ended keeps its pid until it is waited for: poll does that
        child = _CHILDREN.get(int(number))
        if child is not None and child.poll() is not None:
            return None
        return int(number) if when and begun(int(number)) == when else None

    def stop(self, *names: str, kill: bool = False) -> list[str]:
        """Stop processes, with all that they started, and remove the files with their pids.

        Args:
            names: the processes to stop.
            kill: end them at once (SIGKILL) instead of asking them first (SIGTERM).

        Returns:
            The names of those that were not running.
        """
        alive = {name: pid for name in names if (pid := self.pid(name)) is not None}
        for pid in alive.values():
            _signal(pid, signal.SIGKILL if kill else signal.SIGTERM)
        end = time.monotonic() + PATIENCE_S
        while any(self.pid(name) is not None for name in alive) and time.monotonic() < end:
            time.sleep(0.05)
        for pid in alive.values():
            _signal(pid, signal.SIGKILL)  # what is left of its group, also where its head has gone
            if (child := _CHILDREN.pop(pid, None)) is not None:
                child.wait()
        for name in names:
            self._path(name).unlink(missing_ok=True)
        return [name for name in names if name not in alive]

    def below(self, *names: str) -> dict[int, str]:
        """Return the processes that those of these names have started, directly or not: when each began, by pid.

        Flower starts some of them, such as a run's processes, in groups of their own. :meth:`stop` does not reach
        these.
        """
        there = running()
        found = {pid for name in names if (pid := self.pid(name)) is not None}
        heads, size = set(found), 0
        while size < len(found):
            size = len(found)
            found |= {pid for pid, (parent, _) in there.items() if parent in found}
        return {pid: begun for pid, (_, begun) in there.items() if pid in found - heads}

    def log(self, name: str) -> str:
        """Return everything that a process has printed so far; empty if it has no log."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _path(self, name: str) -> Path:
        """Return the path of the file with a process's pid."""
        return self.folder / f"{name}.process"


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}  # started by this very process, which must wait for them


def running() -> dict[int, tuple[int, str]]:
    """Return the parent of each process of this machine, and when it began (to the second), by pid."""
    shown = subprocess.run(["ps", "-eo", "pid=,ppid=,lstart="], capture_output=True, text=True, check=True).stdout
    lines = (line.split(maxsplit=2) for line in shown.splitlines())
    return {int(pid): (int(parent), begun.strip()) for pid, parent, begun in lines}


def begun(pid: int) -> str:
    """Return when a process began, as ``ps`` prints it; empty if there is no such process."""
    return running().get(pid, (0, ""))[1]


def end(processes: Mapping[int, str]) -> None:
    """End those of these processes that still run (SIGKILL).

    Args:
        processes: when each began, by pid, as :meth:`Processes.below` gives them.
    """
    there = running()
    for pid, when in processes.items():
        if pid in there and there[pid][1] == when:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _signal(group: int, number: int) -> None:
    """Send a signal to a process group, if it still exists."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def stream(call: Sequence[str], env: Mapping[str, str], cwd: Path, log: Path, heard: Callable[[str], None]) -> int:
    """Run a command, pass on hanse's lines of its output as they come, and return its exit code.

    Args:
        call: the command and its arguments.
        env: all of its environment variables.
        cwd: the folder that it works in.
        log: a file that is made anew for the command's output.
        heard: a function that gets each line that begins with ``MARK``, without the mark.
    """
    log.unlink(missing_ok=True)
    # no pipe: one ends when all have closed it that the command has started, and some of them may go on
    with (
        log.open("xb", 0) as out,
        log.open("rb") as said,
        subprocess.Popen(call, env=dict(env), cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as child,
    ):
        try:
            ended, rest = False, b""
            while not ended:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(0.05)
                ended = child.poll() is not None  # before the last look
                *whole, rest = (rest + said.read()).split(b"\n")
                for line in [*whole, rest] if ended else whole:
                    text = line.decode(errors="replace").rstrip("\r")
                    if text.startswith(MARK):
                        heard(text.removeprefix(MARK))
        except BaseException:
            child.terminate()
            raise
    return child.returncode
