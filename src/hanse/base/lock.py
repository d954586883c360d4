"""Lets only one process write into a run directory. The lock ends when its process ends.

The lock is ``flock`` on the file ``lock`` in the directory. The alternatives are worse:

* A file with a process id outlives a killed process, and another process may later get the same id.
* POSIX record locks (``lockf``) are dropped as soon as *any* descriptor of the file is closed in the process. A backup
  made by the run's own process would release it. Nor do they exclude other threads.
* ``flock`` belongs to the open file, so it has neither of these problems. But a child made by ``fork`` shares the open
  file, and would keep the lock after its parent was killed. Children that run another program do not, because Python
  opens files close-on-exec. Other children close the file in the hook at the end of this module.

The directory itself is locked as well, since the file may be removed while it is locked, and who comes next would lock
a new one. (Linux cannot lock directories over NFS; there only the file is locked.)

Since the kernel holds the lock, nothing needs cleaning up after ``kill -9`` or a power cut, and the file's existence
means nothing. Over NFS, Linux keeps such locks at the server. Machines therefore exclude each other, unless the share
is mounted with ``nolock`` or ``local_lock=flock``. Windows has no ``flock``: hanse can be imported there, and value
models, but writes no run directory.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO
from weakref import WeakSet

from hanse.base.errors import MachineError, UserError

LOCK = "lock"  # the file in a run directory
_HELD: WeakSet[Hold] = WeakSet()  # by this process


def flock(file: int | IO[bytes] | IO[str], *, wait: bool = True, shared: bool = False) -> None:
    """Lock an open file until it is closed.

    Args:
        file: the file, or its descriptor.
        wait: whether to wait for others that have locked it.
        shared: whether others may lock it, too, to read.

    Raises:
        BlockingIOError: another has locked it, and ``wait`` is False.
        MachineError: the system has no such locks.
    """
    try:
        import fcntl  # here: Windows has no such module
    except ImportError:
        raise MachineError("this system has no flock, by which hanse locks the files that it writes") from None
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))


class Hold:
    """The right to write into a run directory. Use it as a context manager, which releases the lock at the end of the
    block.

    Creating one does not take the lock. Call :meth:`take` to do so.

    Attributes:
        folder: the run directory.

    Examples:
        >>> Path("run").mkdir()
        >>> with Hold(Path("run")) as hold:
        ...     hold.take()
        ...     sorted(path.name for path in Path("run").iterdir())
        ['lock']
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = -1
        self._held: ExitStack | None = None

    def take(self, patience_s: float = 0.0) -> None:
        """Take the lock of the folder, which must exist. Does nothing if this object holds it already.

        Args:
            patience_s: for how many seconds to wait for another process. A restarted server gives its predecessor this
                time to end.

        Raises:
            UserError: another process holds the lock. The message says which one, and since when.
            MachineError: the folder cannot be written.
        """
        end = time.monotonic() + patience_s
        while self._held is None:
            try:
                self._file, self._held = _locked(self.folder / LOCK)
            except BlockingIOError:
                if time.monotonic() > end:
                    raise UserError(f"{self.folder}: {_holder(self.folder / LOCK)}; one process at a time") from None
                time.sleep(0.2)
            except OSError as wrong:
                raise MachineError(f"{self.folder}: cannot be written: {wrong.strerror}") from None
        _HELD.add(self)
        # for people, and for the message of a process that comes second; the lock itself is the kernel's
        me = {"pid": os.getpid(), "host": socket.gethostname(), "since": datetime.now().isoformat(" ", "seconds")}
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, json.dumps(me).encode() + b"\n", 0)

    def release(self) -> None:
        """Release the lock. Does nothing if it is not held."""
        if self._held is not None:
            with suppress(OSError):
                os.ftruncate(self._file, 0)
            self._forget()

    def _forget(self) -> None:
        """Close the file, which ends the lock, without touching what the file says."""
        _HELD.discard(self)
        if self._held is not None:
            self._held.close()
        self._held = None

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


def in_use(folder: Path) -> bool:
    """Return whether a process holds the lock of a run directory, and plays the run."""
    try:
        with (folder / LOCK).open("rb") as file:
            flock(file, wait=False, shared=True)
    except OSError as wrong:
        return isinstance(wrong, BlockingIOError)
    return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes, which wait, out of a block that changes a file.

    Args:
        path: the lock's file, beside the file that is changed. It stays: if it were removed, a process that waits for
            it and one that makes it anew could both come in.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
    try:
        flock(file)
        yield
    finally:
        os.close(file)


def _locked(path: Path) -> tuple[int, ExitStack]:
    """Return an open file that holds the lock, and what closes it and its folder, which is locked, too.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the file cannot be opened.
    """
    while True:
        with ExitStack() as held:
            file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o644)
            held.callback(os.close, file)
            flock(file, wait=False)
            # else the directory was deleted, and made again, since the file was opened
            if os.path.exists(path) and os.path.samestat(os.fstat(file), os.stat(path)):
                folder = os.open(path.parent, os.O_RDONLY)
                held.callback(os.close, folder)
                try:
                    flock(folder, wait=False)
                except BlockingIOError:
                    raise
                except OSError:  # not over NFS
                    pass
                return file, held.pop_all()


def _holder(path: Path) -> str:
    """Say who holds the lock, as far as the file tells."""
    try:
        holder = json.loads(path.read_text())
        host, since = str(holder["host"])[:80], str(holder["since"])[:40]
        return f"is in use by process {int(holder['pid'])} on {host!r} since {since}"
    except (OSError, ValueError, KeyError, TypeError):  # it is just being taken or given back
        return "is in use by another process"


def _let_go() -> None:
    """Close the locks that a forked child inherited, so they end with the parent."""
    for hold in list(_HELD):
        hold._forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
