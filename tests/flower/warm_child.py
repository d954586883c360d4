"""The process that aggregates again, forked from one that has the libraries loaded: a cold one takes seconds."""

import io
import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

from hanse.flower.valued import child

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["flwr.serverapp.strategy", "torch", __name__])


def serve(line: Connection) -> None:
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    child.main(line)


class Warm:
    """Stands in for the ``subprocess.Popen`` of ``reaggregate``."""

    def __init__(self, command: list[str], **_: Any) -> None:
        self.stdin = io.BytesIO()
        with Connection(os.dup(int(command[-1]))) as line:
            self._process = FORKS.Process(target=serve, args=(line,), daemon=True)
            self._process.start()

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode
