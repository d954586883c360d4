"""Sends each run's changes to everybody who watches it.

A run is read once, however many watch it, and not at all while nobody does. :meth:`Hub.watch` is the stream of one
watcher. Everything runs in one asyncio event loop, except that threads read the files.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from hanse.wings.operate.page.live_run import LiveRun, encode
from hanse.wings.operate.page.runs import ListedRun

log = logging.getLogger("hanse.wings.operate.page")

LOOK_S = 0.2  # seconds between two looks at a run's files
HELD = 32  # messages that wait for a slow watcher; with more it gets everything anew instead
BEAT_S = 15.0  # seconds of silence before a comment is sent, so no proxy on the way closes a quiet stream


@dataclass(eq=False)
class _Watcher:
    """One open stream: the messages that wait for it, and whether it needs everything from the beginning."""

    queue: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(HELD))
    behind: bool = True


@dataclass(eq=False)
class _Followed:
    """A run that is watched.

    Attributes:
        run: reads its directory.
        watchers: the streams that are open.
        turn: a lock, held while a newcomer gets everything so far, so it misses no change and gets none twice.
        alone: a lock, held while the files are read. A thread continues reading even if its stream is gone.
        task: reads the files again and again.
        begun: set once the files were read for the first time.
        ended: whether nothing is read any more.
    """

    run: LiveRun
    watchers: set[_Watcher] = field(default_factory=set)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    alone: threading.Lock = field(default_factory=threading.Lock)
    task: asyncio.Task[None] | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False

    def look(self) -> str | None:
        """Return the message with what is new, as JSON; None if nothing is."""
        with self.alone:
            message = self.run.look()
            return None if message is None else encode(message)

    def whole(self) -> str:
        """Return the message with everything so far, as JSON."""
        with self.alone:
            return encode(self.run.whole())


@dataclass(eq=False)
class Hub:
    """All runs that are being watched.

    Attributes:
        stopping: a function that says whether the server is going down, so streams end.
        look_s: seconds between two looks at a run's files.
    """

    stopping: Callable[[], bool] = lambda: False
    look_s: float = LOOK_S
    _followed: dict[str, _Followed] = field(default_factory=dict)

    async def watch(self, found: ListedRun, still: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
        """Yield a run's messages as server-sent events: first everything so far, then what changes.

        Args:
            found: the run.
            still: a function that is called repeatedly. The stream ends once it returns False, for example after a
                logout.
        """
        followed = self._follow(found)
        me = _Watcher()
        followed.watchers.add(me)
        try:
            yield "retry: 2000\n\n"
            await followed.begun.wait()
            quiet = 0.0
            while not (self.stopping() or followed.ended) and still():
                if me.behind:
                    async with followed.turn:
                        while not me.queue.empty():
                            me.queue.get_nowait()
                        message = await asyncio.to_thread(followed.whole)
                        me.behind = False
                    yield f"data: {message}\n\n"
                try:
                    # once a second at least it is looked whether the stream is to end
                    message = await asyncio.wait_for(me.queue.get(), 1.0)
                except TimeoutError:
                    quiet += 1.0
                    if quiet >= BEAT_S:
                        quiet = 0.0
                        yield ": still here\n\n"
                    continue
                quiet = 0.0
                if not me.behind:
                    yield f"data: {message}\n\n"
        finally:
            followed.watchers.discard(me)

    def _follow(self, found: ListedRun) -> _Followed:
        """Return a run that is watched; begin to read it if it was not."""
        followed = self._followed.get(found.id)
        if followed is None:
            followed = self._followed[found.id] = _Followed(LiveRun(found.folder, found.name))
            followed.task = asyncio.get_running_loop().create_task(self._read(found.id, followed))
        return followed

    async def _read(self, id_: str, followed: _Followed) -> None:
        """Read a run's files repeatedly, and send out what is new, until nobody has watched for ten seconds; so a
        reloaded page finds everything already read.
        """
        idle = 0
        try:
            while followed.watchers or idle < 10 / self.look_s:
                idle = 0 if followed.watchers else idle + 1
                async with followed.turn:
                    message = await asyncio.to_thread(followed.look)
                    if message is not None:
                        for watcher in followed.watchers:
                            try:
                                watcher.queue.put_nowait(message)
                            except asyncio.QueueFull:  # it will get everything again
                                watcher.behind = True
                followed.begun.set()
                # more is there than one look could read
                await asyncio.sleep(self.look_s / 10 if followed.run.behind else self.look_s)
        except Exception:  # a damaged run directory may cause anything: its streams end, others go on
            log.exception("%r can no longer be followed", followed.run.name)
        finally:
            followed.ended = True
            followed.begun.set()
            self._followed.pop(id_, None)
