"""A warm process that has imported torch and hanse, and forks for each message that a node answers.

Flower starts a command (``flwr-clientapp``) for every message, and a fresh interpreter spends seconds on imports.
:func:`link` makes a folder with a command of the same name. If that folder comes first on a node's ``PATH``, Flower
starts this command instead. The command is a few lines that pass their arguments to the warm process (:func:`keep`),
which forks and runs Flower's own entry point in the child. Flower itself is not changed. If there is no warm process,
the command says so and starts Flower's own command.

It also keeps what one of these children leaves for the next (:mod:`hanse.flower.warm_memory`).

``hanse network up`` sets all of this up, and ``hanse network join`` for a node on its own machine (:func:`warmed`).
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from hanse.base.errors import UserError
from hanse.base.files import write_whole
from hanse.core.declared import Declared
from hanse.federation.node import NODE_GUARDS
from hanse.flower.warm_memory import SOCKET, WAIT_S
from hanse.wings.operate.server_access import awaited

COMMAND = "flwr-clientapp"
MOST = 32  # things that are kept for later messages; several nodes of one machine share a warm process
# what is imported beforehand; torch imports the last one, for a second or more, when its first optimiser is made
WHAT = "the warm process, which imports torch and Flower"
READY = (
    "hanse.flower.client", "hanse.runs.setup", "sklearn.datasets", "flwr.supernode.cli", "httpcore", "torch._dynamo",
)  # fmt: skip

# The command on the node's PATH. Python's options -S (no site packages) and -E (no variables of Python) make it start
# within some ten milliseconds.
_LINK = """#!{python} -SE
import json, os, socket, sys
body = json.dumps({{"argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ)}}).encode()
try:
    keeper = socket.socket(socket.AF_UNIX)
    keeper.settimeout({wait})
    keeper.connect(os.environ["{variable}"])
    socket.send_fds(keeper, [b" "], [1, 2])
    keeper.sendall(body + b"\\n")
    if not keeper.recv(1):
        raise OSError("it did not take the message")
except (KeyError, OSError) as wrong:
    print("no warm keeper (" + repr(wrong) + "): starting cold", file=sys.stderr)
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
"""


def link(folder: Path) -> Path:
    """Create ``folder`` with the command that asks the warm process, and return it.

    Raises:
        UserError: Flower is not installed, or no program can be run from the folder.
    """
    beside = Path(sys.executable).parent / COMMAND
    real = str(beside) if beside.exists() else shutil.which(COMMAND)
    if real is None:
        raise UserError(f"{COMMAND}: is not installed; pip install '.[flower]' in a clone of hanse")
    command = folder / COMMAND
    write_whole(command, _LINK.format(python=sys.executable, variable=SOCKET, real=real, wait=WAIT_S))
    command.chmod(0o755)
    if not os.access(command, os.X_OK):
        raise UserError(f"{folder}: no program can be run from here (mounted noexec?); let TMPDIR name another folder")
    return folder


def starting(path: Path, imports: Sequence[str] = (), parent: int = 0) -> list[str]:
    """Return the command that starts the warm process, with the arguments of :func:`keep`."""
    return [sys.executable, "-m", "hanse.wings.operate.warm_process", str(path), str(parent), *imports]


def leading(path: Path, folder: Path, programs: str) -> dict[str, str]:
    """Return the environment variables that lead a node to a warm process.

    Args:
        path: the warm process's socket.
        folder: the folder in which :func:`link` makes the command.
        programs: the node's ``PATH`` without that folder.
    """
    return {SOCKET: str(path), "PATH": f"{link(folder)}{os.pathsep}{programs}"}


@contextmanager
def warmed(imports: Sequence[str] = ()) -> Iterator[Mapping[str, str]]:
    """Start a warm process for this process, and yield the environment variables that lead a node to it.

    Raises:
        UserError: the warm process does not start. The message has what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="hanse-") as folder:
        path = Path(folder) / "keeper"
        leads = leading(path, Path(folder) / "warm", os.environ.get("PATH", ""))
        # in a session of its own: Ctrl-C is for the node, which may still need it for its last words
        keeper = subprocess.Popen(starting(path, imports, os.getpid()), start_new_session=True)
        try:
            if not awaited(WHAT, path.exists, lambda: keeper.poll() is None):
                raise UserError("the node's warm process does not come up: its output above says why")
            yield leads
        finally:
            keeper.terminate()
            keeper.wait()


def keep(path: Path, parent: int, imports: Sequence[str]) -> None:
    """Serve calls at a Unix socket until this process is stopped.

    Args:
        path: the socket, which only this user can open. Its path must be short, at most about a hundred characters.
        parent: a process id. The process also ends once that process is no longer its parent. 0: it does not.
        imports: further modules to import. Whatever they load at import is shared by all messages.
    """
    atexit.register(_leave, os.getpid())  # before all imports' own, so that it comes last
    for name in (*READY, *imports):
        importlib.import_module(name)
    _ = [*NODE_GUARDS.values()]  # imports those of the wings
    Declared.prepare()
    for unmade in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        unmade.atexit = False  # torch has some 400, for its operators; Python shows them nowhere else
    [entry] = entry_points(group="console_scripts", name=COMMAND)
    run = entry.load()
    gc.freeze()  # the collector leaves what is loaded alone, so that forks go on sharing its memory
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the children
    path.unlink(missing_ok=True)
    kept: dict[str, int] = {}
    with socket.socket(socket.AF_UNIX) as server:
        # nobody else may hand this process a command
        before = os.umask(0o177)
        server.bind(str(path))
        os.umask(before)
        server.listen(64)
        # so that it looks now and then whether its parent is there
        server.settimeout(1.0)
        while not parent or os.getppid() == parent:
            try:
                caller, _ = server.accept()
            except TimeoutError:
                continue
            with caller:
                caller.settimeout(WAIT_S)
                handles, child = list[int](), -1
                try:
                    order, handles = read(caller, kept)
                    child = os.fork() if "argv" in order else -1
                except (OSError, ValueError) as wrong:
                    print(f"warm keeper: a call that fails: {wrong}", file=sys.stderr, flush=True)
                # the child becomes the command; this process waits for the next call
                if child == 0:
                    server.close()
                    caller.send(b"1")  # who waits no longer has started cold: this raises
                    _become(order, handles)
                    sys.exit(run())
                for handle in handles:
                    os.close(handle)


def _leave(keeper: int) -> None:
    """End a message's process at once: taking the interpreter down would copy and clear all that it shares with the
    keeper, which takes twenty times as long as the fork did. Nobody waits for its exit code.
    """
    if os.getpid() != keeper:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def read(caller: socket.socket, kept: dict[str, int]) -> tuple[dict[str, Any], list[int]]:
    """Return a call, and the caller's standard output and error as file descriptors.

    A call may instead leave a file in memory, which is put into ``kept``, ask for one, or, without a file to leave,
    have it forgotten. Such a call is acknowledged.
    """
    _, handles, _, _ = socket.recv_fds(caller, 1, 2)
    with caller.makefile("rb") as lines:
        body = lines.readline()
    if not body.endswith(b"\n"):
        raise ValueError("it ends early")
    match order := json.loads(body):
        case {"recall": str(key)} if key in kept:
            socket.send_fds(caller, [b"1"], [kept[key]])
            return order, handles
        case {"keep": str(key)}:
            last = [kept.pop(key)] if key in kept else []  # its last version, which is closed
            if handles:
                kept[key] = handles.pop(0)
            if len(kept) > MOST:
                last.append(kept.pop(next(iter(kept))))  # the oldest
            handles += last
    if "argv" not in order:
        caller.send(b"1")
    return order, handles


def _become(order: dict[str, Any], handles: list[int]) -> None:
    """Take over the caller's arguments, folder, environment and outputs."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for handle, mine in zip(handles, (1, 2), strict=False):
        os.dup2(handle, mine)
        os.close(handle)
    sys.argv[:] = order["argv"]
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])


if __name__ == "__main__":
    keep(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
