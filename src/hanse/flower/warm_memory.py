"""What the processes that answer a node's messages keep for each other, such as a table that took seconds to prepare.

A fork of the node's warm process (:mod:`hanse.wings.operate.warm_process`) answers each message and ends. What it made
it can leave with the warm process, as a file in memory by a key; nothing is written to a disk.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

SOCKET = "HANSE_WARM"  # the environment variable with the path of the warm process's socket
WAIT_S = 10.0  # seconds that the warm process has to answer
T = TypeVar("T")


def remembered(key: str, version: str, make: Callable[[], T]) -> T:
    """Return what ``make`` returned to a process before this one, or call it and leave the result for those after it.

    Without a warm process, or where the system has no files in memory, ``make`` is called.

    Args:
        key: names what is made, such as a file's path. Of each key only the last version is kept.
        version: names everything that the result depends on, such as a hash of the files that are read. "": that is
            not there, and nothing is kept.
        make: makes the result, which can be pickled.
    """
    path = os.environ.get(SOCKET)
    if path is None or not hasattr(os, "memfd_create"):
        return make()
    with _told():
        if found := asked(path, {"recall": key}):
            with open(found[0], "rb") as there, mmap.mmap(there.fileno(), 0, access=mmap.ACCESS_READ) as kept:
                was, value = pickle.loads(kept)  # of this user's own process
            if was == version:
                return value  # type: ignore[no-any-return]  # what an earlier call has pickled under this version
            asked(path, {"keep": key})  # gone at once: making may fail
    made = make()
    if not version:
        return made
    with _told(), open(os.memfd_create("hanse"), "wb") as file:
        pickle.dump((version, made), file, protocol=5)
        file.flush()
        asked(path, {"keep": key}, [file.fileno()])
    return made


@contextmanager
def _told() -> Iterator[None]:
    """Log that the warm process keeps nothing, if the system or the process fails; the message is answered without."""
    try:
        yield
    except OSError as wrong:
        logging.getLogger(__name__).warning("the warm process keeps nothing for the next message: %s", wrong)


def asked(path: str, order: Mapping[str, object], files: Sequence[int] = ()) -> list[int]:
    """Give the warm process at a socket an order, with files to keep, and return the files that it hands out.

    Raises:
        OSError: nobody answers there, or not in time.
    """
    with socket.socket(socket.AF_UNIX) as keeper:
        keeper.settimeout(WAIT_S)
        keeper.connect(path)
        socket.send_fds(keeper, [b" "], files)
        keeper.sendall(json.dumps(order).encode() + b"\n")
        return socket.recv_fds(keeper, 1, 1)[1]
