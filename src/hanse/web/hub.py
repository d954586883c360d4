"""Sends each run's changes to everybody who watches it; a run that nobody watches is not read."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from hanse.web.live_run import LiveRun, encode
from hanse.web.runs import ListedRun

log = logging.getLogger("hanse.web")

LOOK_S = 0.2  # between two looks at a run's files
HELD = 32  # messages that wait for a slow watcher; then it gets everything anew instead
BEAT_S = 15.0  # a comment in a quiet stream, so that nothing between here and there closes it


@dataclass(eq=False)
class _Watcher:
    queue: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(HELD))
    behind: bool = True  # wants everything so far


@dataclass(eq=False)
class _Followed:
    run: LiveRun
    watchers: set[_Watcher] = field(default_factory=set)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)  # nothing is handed out while a newcomer gets everything
    alone: threading.Lock = field(default_factory=threading.Lock)  # a thread goes on when the stream it was for is gone
    task: asyncio.Task[None] | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # the files were looked at once
    ended: bool = False

    def look(self) -> str | None:
        with self.alone:
            message = self.run.look()
            return None if message is None else encode(message)

    def whole(self) -> str:
        with self.alone:
            return encode(self.run.whole())

    def close(self) -> None:
        with self.alone:
            self.run.close()


@dataclass(eq=False)
class Hub:
    """All runs that are being watched. ``stopping`` says that the server ends, so that streams end too."""

    stopping: Callable[[], bool] = lambda: False
    look_s: float = LOOK_S
    ledger_url: str | None = None
    _followed: dict[str, _Followed] = field(default_factory=dict)

    @property
    def watchers(self) -> int:
        """How many streams are open."""
        return sum(len(followed.watchers) for followed in self._followed.values())

    async def watch(self, found: ListedRun, still: Callable[[], bool] = lambda: True) -> AsyncIterator[str]:
        """Yield a run's messages as server-sent events, all so far first; it ends when ``still`` holds no longer."""
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
        followed = self._followed.get(found.id)
        if followed is None:
            followed = self._followed[found.id] = _Followed(LiveRun(found.folder, found.name, self.ledger_url))
            followed.task = asyncio.get_running_loop().create_task(self._read(found.id, followed))
        return followed

    async def _read(self, id_: str, followed: _Followed) -> None:
        """Look at a run again and again, until nobody has watched it for a while (a reload is not the end)."""
        idle = 0
        try:
            while followed.watchers or idle < 10 / self.look_s:
                idle = 0 if followed.watchers else idle + 1
                async with followed.turn:
                    message = await asyncio.to_thread(followed.look)
                    if message is not None:
                        for watcher in followed.watchers:
                            _hand(watcher, message)
                followed.begun.set()
                await asyncio.sleep(self.look_s / 10 if followed.run.behind else self.look_s)
        except Exception:  # whatever a damaged run directory may cause: its streams end, and say so when they come back
            log.exception("%r can no longer be followed", followed.run.name)
        finally:
            followed.ended = True
            followed.begun.set()
            self._followed.pop(id_, None)
            await asyncio.to_thread(followed.close)


def _hand(watcher: _Watcher, message: str) -> None:
    if watcher.behind:
        return
    try:
        watcher.queue.put_nowait(message)
    except asyncio.QueueFull:
        watcher.behind = True
