"""One process a run directory: a lock that dies with its process.

``flock`` on the file ``lock`` in the directory. What was weighed:

* A file that names a process id outlives a process that is killed, and its number may be another process's tomorrow.
* POSIX record locks (``lockf``) are dropped as soon as *any* descriptor of the file is closed in the process: a backup
  or a copy of the directory made by the run's own process would open the door. Nor do two threads keep each other out.
* ``flock`` belongs to the open file, so none of that happens; but a child made by ``fork`` shares the open file, and
  would hold the lock after its parent was killed. Children that run another program do not (Python opens files
  close-on-exec); those that do not are made to close it, below.

The lock is the kernel's: nothing has to be cleaned up after ``kill -9`` or a power cut, and the file is no sign of a
lock by itself. Over NFS Linux keeps such locks at the server, so that machines exclude each other, unless the share is
mounted with ``nolock`` or ``local_lock=flock``. Windows has no ``flock``; hanse does not run there.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from types import TracebackType
from weakref import WeakSet

from hanse.base.errors import MachineError, UserError

LOCK = "lock"  # the file in a run directory
_HELD: WeakSet[Hold] = WeakSet()  # by this process


class Hold:
    """The right to write into a run directory, once it is taken. A context manager: it is released at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: int | None = None

    def take(self, patience_s: float = 0.0) -> None:
        """Take the lock of the folder, which must exist; nothing happens if it is taken already.

        A run on a network gives a process that it replaces ``patience_s`` seconds to go down. Raises UserError, with
        who holds it, if it is another's, and MachineError if the folder cannot be written.
        """
        end = time.monotonic() + patience_s
        while self._file is None:
            try:
                self._file = _locked(self.folder / LOCK)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise UserError(f"{self.folder}: {_holder(self.folder / LOCK)}; one at a time") from None
                time.sleep(0.2)
            except OSError as wrong:
                raise MachineError(f"{self.folder}: cannot be written: {wrong.strerror}") from None
        _HELD.add(self)
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat(" ", "seconds")}
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(me).encode() + b"\n", 0)

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._file is None:
            return
        with suppress(OSError):
            os.ftruncate(self._file, 0)
        self._forget()

    def _forget(self) -> None:
        _HELD.discard(self)
        if self._file is not None:
            os.close(self._file)
        self._file = None

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _locked(path: Path) -> int:
    """Return an open file that holds the lock. Raises BlockingIOError if another has it."""
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(file), os.stat(path)):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the directory was deleted, and made again, since the file was opened


def _holder(path: Path) -> str:
    """Say who holds the lock, as far as its file tells."""
    try:
        said = json.loads(path.read_text())
        return f"is in use by process {int(said['pid'])} on {str(said['host'])[:80]!r} since {str(said['since'])[:40]}"
    except (OSError, ValueError, KeyError, TypeError):  # it is just being taken or given back
        return "is in use by another process"


def _let_go() -> None:
    """In a child that was forked: close the parent's locks, so that they end with the parent."""
    for hold in list(_HELD):
        hold._forget()


os.register_at_fork(after_in_child=_let_go)
