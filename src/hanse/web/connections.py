"""How many connections the page holds, and how long each may take to ask something.

uvicorn waits for ever for the rest of a request's headers and counts connections only once a request is whole, so a
few hundred that never say anything would shut everybody else out. Here every connection is counted when it is made; one
that has no request under way is *waiting*, for so long and no longer, and it is the oldest waiting one that makes room
for a new one. Whoever asks something is served and not closed for another's sake.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FULL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 10\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
Make = Callable[..., asyncio.Protocol]


@dataclass(eq=False)
class Connections:
    """All connections of a page: at most ``total`` of them, ``each`` from one address (IPv6: one /64), and ``wait_s``
    seconds for a request's headers and form.

    :meth:`protocol` goes into uvicorn's ``http``, :meth:`app` around the application.
    """

    total: int = 400
    each: int = 200
    wait_s: float = 10.0
    _open: dict[tuple[str, int], _Connection] = field(default_factory=dict)  # in order of when they began to wait

    def protocol(self, inner: Make) -> Make:
        """Return what makes a connection's protocol, around uvicorn's ``inner``."""
        return lambda *given, **named: _Connection(self, inner(*given, **named))

    def app(self, app: ASGIApp) -> ASGIApp:
        """Return an application that tells its connection when a request is whole, and when it has been answered."""

        async def told(scope: Scope, receive: Receive, send: Send) -> None:
            peer = scope.get("client")
            connection = self._open.get(tuple(peer)) if peer else None
            if connection is None or scope["type"] != "http":
                await app(scope, receive, send)
                return

            whole = False

            def is_whole() -> None:
                nonlocal whole
                if not whole:
                    whole = True
                    connection.begin()

            async def received() -> Message:
                message = await receive()
                if not message.get("more_body", False):
                    is_whole()
                return message

            if not _has_body(scope):
                is_whole()
            try:
                await app(scope, received, send)
            finally:
                connection.end(whole)

        return told

    def admit(self, new: _Connection) -> bool:
        """Count a new connection, if need be in the place of one that waits; False: there is no room."""
        same = [c for c in self._open.values() if c.address == new.address]
        for held, most in ((same, self.each), (list(self._open.values()), self.total)):
            if len(held) >= most:
                oldest = next((c for c in held if c.timer is not None), None)
                if oldest is None:
                    return False
                oldest.drop()
        self._open[new.peer] = new
        return True

    def again(self, connection: _Connection) -> None:
        """Put a connection that waits from now on behind the others."""
        if self._open.pop(connection.peer, None) is not None:
            self._open[connection.peer] = connection

    def forget(self, connection: _Connection) -> None:
        """Count a connection no longer."""
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]


class _Connection(asyncio.Protocol):
    """One connection around uvicorn's protocol ``inner``, to which it hands everything on. ``timer`` runs while it
    waits, ``busy`` counts the requests that are being answered (a next one may come before the last one's end).
    """

    def __init__(self, page: Connections, inner: asyncio.Protocol) -> None:
        self.page, self.inner, self.busy = page, inner, 0
        self.peer, self.address = ("", 0), ""
        self.timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None  # None: not admitted, or lost

    def connection_made(self, transport: Any) -> None:
        peer = transport.get_extra_info("peername") or ("", id(self))
        self.peer, self.address = (str(peer[0]), int(peer[1])), _network(str(peer[0]))
        if not self.page.admit(self):
            transport.write(_FULL)
            transport.close()
            return
        self.transport = transport
        self.inner.connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        if self.transport is not None:
            self.inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self.inner.eof_received() if self.transport is not None else None

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.page.forget(self)
        if self.transport is not None:
            self.transport = None
            self.inner.connection_lost(exc)

    def pause_writing(self) -> None:
        if self.transport is not None:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self.transport is not None:
            self.inner.resume_writing()

    def begin(self) -> None:
        """Let it take its time: a whole request is here."""
        self.busy += 1
        self._stop()

    def end(self, whole: bool) -> None:
        """A request (``whole`` or given up before) was answered: wait for the next one."""
        self.busy -= whole
        if not self.busy:
            self._wait()

    def drop(self) -> None:
        """Close it at once."""
        self._stop()
        self.page.forget(self)
        if self.transport is not None:
            self.transport.abort()

    def _wait(self) -> None:
        self._stop()
        if self.transport is not None:
            self.timer = asyncio.get_running_loop().call_later(self.page.wait_s, self.drop)
            self.page.again(self)

    def _stop(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def _has_body(scope: Scope) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in scope["headers"]
    )


def _network(host: str) -> str:
    """Return what counts as one asker: an IPv4 address, or an IPv6 network of one customer."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
