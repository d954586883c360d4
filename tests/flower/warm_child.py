"""The process that aggregates again, forked from one that has the libraries loaded: a cold one takes seconds."""

import multiprocessing
import os
from multiprocessing.connection import Connection
from typing import Any

from hanse.flower.valued import child

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["flwr.serverapp.strategy", "hanse.flower.valued.states", __name__])


def serve(asked: Connection, told: Connection) -> None:
    os.setsid()
    os.dup2(asked.fileno(), 0)
    os.dup2(told.fileno(), 1)
    child.main()


class Warm:
    """Stands in for the ``subprocess.Popen`` of ``reaggregate``."""

    def __init__(self, *_: Any, **__: Any) -> None:
        asked, asking = FORKS.Pipe(duplex=False)
        telling, told = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=serve, args=(asked, told), daemon=True)
        self._process.start()
        self.stdin, self.stdout = os.fdopen(os.dup(asking.fileno()), "wb"), os.fdopen(os.dup(telling.fileno()), "rb")
        for end in (asked, asking, telling, told):
            end.close()

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def wait(self) -> None:
        self._process.join()
