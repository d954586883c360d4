"""The program in which a strategy aggregates some of a round's replies.

:mod:`hanse.flower.valued.reaggregate` starts it with one end of a pipe. Whatever the strategy does to its process
(generators, logging, warnings, threads) happens here, and what it prints is dropped. Python code that would write a
file, open a connection or start a program fails here, because the strategy has already done all this in its own
process.
"""

from __future__ import annotations

import os
import pickle
import random
import sys
import tempfile
import threading
from multiprocessing.connection import Connection
from typing import Any

REFUSED = "which is not allowed while the aggregate of some of the replies is made again"
IMPORTABLE = (
    "what it consists of must be found in modules, not in the program that was started, in a function or lambda"
)
# audit events that begin with one of these
_EVENTS = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.utime",
    "os.chown", "os.setxattr", "os.removexattr", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "os.kill", "os.chdir", "pty.spawn", "subprocess.Popen", "shutil.", "socket.connect", "socket.send", "socket.bind",
    "socket.get", "sqlite3.connect", "tempfile.", "ctypes.dlopen", "ctypes.dlsym", "ctypes.call_function", "syslog.",
)  # fmt: skip
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class RefusedError(Exception):
    """The strategy tried something that is forbidden here. The message says, in one line, what and with which object.

    The object is only for the log: a path, a command or an address may contain secrets.
    """


class EffectGuard:
    """An audit hook that refuses effects outside this process, while ``works`` is set.

    Imports are let through: an import that is interrupted would leave a broken module.
    """

    works = False

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        """Hear of an audit event, in whichever thread."""
        if not self.works or not (event == "open" or event.startswith(_EVENTS)) or _importing():
            return
        if event != "open":
            raise RefusedError(f"its aggregate_train does {event}, {REFUSED}", str(given[0])[:200] if given else "")
        path, mode, flags = given
        writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)
        if writes and path != os.devnull:
            refuse_file(path)


def _importing() -> bool:
    """Say whether a module is being imported in this thread."""
    frame: Any = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def refuse_file(path: Any, *_: Any, **__: Any) -> Any:
    """Stand in for a function that makes a file. Always raises RefusedError."""
    raise RefusedError(f"its aggregate_train writes a file, {REFUSED}", str(path)[:200])


Answer = tuple[Any, str, str]  # arrays or None, why there is none, and what the log may know of it beside


def answered(task: dict[str, Any], clients: list[int] | None, guard: EffectGuard) -> Answer:
    """Return the aggregate of some clients' replies, or the reason why it cannot be made.

    If both are missing, the strategy makes no aggregate of so few replies. Error messages from the user's code go only
    to the log, since they may contain secrets.

    Args:
        task: a round, as :class:`hanse.flower.valued.reaggregate.Reaggregation` sends it.
        clients: the clients whose replies are aggregated. None: the strategy is only restored from its pickle, which
            imports what it needs.
        guard: the guard, which is switched on while the strategy aggregates.
    """
    import numpy as np
    import torch

    some = [client for client in task["replies"] if client in (clients or ())]
    try:
        replies = [pickle.loads(task["replies"][client]) for client in some]
        guard.works = clients is not None
        strategy = pickle.loads(task["strategy"])
        if clients is None:
            return None, "", ""
        pythons, numpys, torchs = task["drawn"]
        random.setstate(pythons)
        np.random.set_state(numpys)  # noqa: NPY002
        torch.set_rng_state(torchs)
        return strategy.aggregate_train(task["number"], replies)[0], "", ""
    except RefusedError as wrong:
        why, with_what = wrong.args
        return None, why, with_what
    except BaseException as wrong:
        if clients is not None and len(some) < len(task["replies"]):  # a rule that needs more replies, most likely
            return None, "", ""
        kind, said = type(wrong).__name__, " ".join(f"{type(wrong).__name__}: {wrong}".split())[:200]
        if clients is None:
            return None, f"it cannot be imported in a process of its own ({kind}): {IMPORTABLE}", said
        return None, f"its aggregate_train raised {kind} when it was called again", said
    finally:
        guard.works = False


def main(line: Connection) -> None:
    """Answer questions until there are no more: a task first, then clients whose replies are to be aggregated."""
    sys.path[:] = pickle.loads(line.recv_bytes())
    import torch

    # these write files and raise no audit event
    for module, name in ((os, "mkfifo"), (os, "mknod"), (torch.serialization, "_open_zipfile_writer_file")):
        setattr(module, name, refuse_file)
    tempfile.gettempdir()  # tries by writing which folder it may use, once in a process
    guard, task = EffectGuard(), dict[str, Any]()
    sys.addaudithook(guard)
    while True:
        try:
            question = pickle.loads(line.recv_bytes())
        except EOFError:
            return
        if isinstance(question, dict):
            task, question = question, None
        line.send_bytes(pickle.dumps(answered(task, question, guard)))


if __name__ == "__main__":
    # its standard input ends with the process that has started it, which may be in the midst of an aggregate
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    main(Connection(int(sys.argv[1])))
