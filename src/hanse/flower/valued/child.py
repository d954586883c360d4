"""The program in which a strategy aggregates some of a round's replies.

:mod:`hanse.flower.valued.reaggregate` starts it with pipes at its standard input and output. Whatever the strategy
does to its process (generators, logging, warnings, threads) happens here. Output is dropped. Python code that would
write a file, open a connection or start a program fails here, because the strategy has already done all this in its own
process.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import sys
import tempfile
from importlib import import_module
from typing import Any

REFUSED = "which is not allowed while the aggregate of some of the replies is made again"
IMPORTABLE = (
    "what it consists of must be found in modules, not in the program that was started, in a function or lambda"
)
GRACE_S = 5.0  # the parent kills this process at a limit; without a parent it ends itself this much later
# audit events that begin with one of these
_EVENTS = (
    "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "os.chmod", "os.utime",
    "os.chown", "os.setxattr", "os.removexattr", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
    "os.kill", "os.chdir", "pty.spawn", "subprocess.Popen", "shutil.", "socket.connect", "socket.send", "socket.bind",
    "socket.get", "sqlite3.connect", "tempfile.", "ctypes.dlopen", "ctypes.dlsym", "ctypes.call_function", "syslog.",
)  # fmt: skip
_UNHEARD = ("mkfifo", "mknod")  # functions of os that make files and raise no audit event
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class RefusedError(Exception):
    """The strategy tried something that is forbidden here. The message says, in one line, what and with which object.

    The object is only for the log: a path, a command or an address may contain secrets.
    """


def importing() -> bool:
    """Say whether a module is being imported in this thread. An import that is interrupted would leave it broken."""
    frame: Any = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


class TorchFirst(BaseException):
    """The strategy imports PyTorch only now, whose generator and files must be handled first."""


class Guard:
    """An audit hook that refuses effects outside this process, while ``works`` is set."""

    works = False

    def __call__(self, event: str, given: tuple[Any, ...]) -> None:
        """Hear of an audit event, in whichever thread."""
        if not self.works:
            return
        if event == "import" and given[0] == "torch":
            raise TorchFirst
        if event == "open":
            path, mode, flags = given
            writes = any(c in mode for c in "wax+") if isinstance(mode, str) else bool(flags & _WRITES)
            if writes and path != os.devnull and not importing():
                raise RefusedError(f"its aggregate_train writes a file, {REFUSED}", str(path)[:200])
        elif event.startswith(_EVENTS) and not importing():
            raise RefusedError(f"its aggregate_train does {event}, {REFUSED}", str(given[0])[:200] if given else "")


def refuse_file(path: Any, *_: Any, **__: Any) -> Any:
    """Stand in for a function that makes a file and raises no audit event. Always raises RefusedError."""
    raise RefusedError(f"its aggregate_train writes a file, {REFUSED}", str(path)[:200])


def one_line(wrong: BaseException) -> str:
    """Return an exception in one line."""
    return " ".join(f"{type(wrong).__name__}: {wrong}".split())[:200]


Answer = tuple[Any, str, str]  # arrays or None, why there is none, and what the log may know of it beside


def made(task: dict[str, Any], clients: list[int], guard: Guard) -> Answer:
    """Return the aggregate of some clients' replies, or the reason why it cannot be made.

    If both are missing, the strategy makes no aggregate of so few replies. Error messages from the user's code go only
    to the log, since they may contain secrets.

    Args:
        task: a round, as :class:`hanse.flower.valued.reaggregate.Again` sends it.
        clients: the clients whose replies are aggregated.
        guard: the guard, which is switched on while the strategy aggregates.
    """
    from flwr.app import ArrayRecord

    from hanse.flower.valued.states import put_settings, put_states

    if (torch := sys.modules.get("torch")) is not None:
        torch.serialization._open_zipfile_writer_file = refuse_file
    replies = [pickle.loads(reply) for client, reply in task["replies"].items() if client in clients]
    guard.works = True
    try:
        strategy = pickle.loads(task["strategy"])
        put_settings(task["settings"])
        put_states(task["states"])
        arrays, _ = strategy.aggregate_train(task["number"], replies)
    except TorchFirst:
        guard.works = False
        import_module("torch")
        return made(task, clients, guard)
    except RefusedError as wrong:
        why, with_what = wrong.args
        return None, why, with_what
    except (Exception, SystemExit) as wrong:  # a rule that needs more replies, most likely
        if len(replies) < len(task["replies"]):
            return None, "", ""
        return None, f"its aggregate_train raised {type(wrong).__name__} when it was called again", one_line(wrong)
    finally:
        guard.works = False
    if arrays is not None and type(arrays) is not ArrayRecord:
        return None, f"its aggregate_train returned {type(arrays).__name__}: must be an ArrayRecord", ""
    return arrays, "", ""


def opened(task: dict[str, Any]) -> Answer:
    """Return why the strategy cannot be restored from its pickle here, or no reason if it can."""
    try:
        pickle.loads(task["strategy"])
    except BaseException as wrong:
        kind = type(wrong).__name__
        return None, f"it cannot be imported in a process of its own ({kind}): {IMPORTABLE}", one_line(wrong)
    return None, "", ""


def main() -> None:
    """Answer questions until there are no more: a task first, then clients whose replies are to be aggregated."""
    asked, told = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    sys.path[:] = pickle.load(asked)
    for name in _UNHEARD:
        setattr(os, name, refuse_file)
    tempfile.gettempdir()  # tries by writing which folder it may use, once in a process
    guard, task = Guard(), dict[str, Any]()
    sys.addaudithook(guard)
    while True:
        try:
            seconds, question = pickle.load(asked)
        except EOFError:
            return
        faulthandler.dump_traceback_later(seconds + GRACE_S, exit=True, file=nowhere)
        if isinstance(question, dict):
            task = question
            answer = opened(task)
        else:
            answer = made(task, question, guard)
        pickle.dump(answer, told)
        told.flush()
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
