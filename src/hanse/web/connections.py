"""How many connections the page holds, and how long each may take to ask something.

uvicorn waits forever for the rest of a request's headers, and it counts connections only once a request is whole. A few
hundred connections that never say anything would therefore shut everybody else out. :class:`Connections` counts every
connection when it is made. One without a request under way is *waiting*: it may wait for a bounded time, and the one
that has waited longest makes room for a new one. A connection whose request is being served is never closed for the
sake of another.
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
    """All connections of a page.

    Give :meth:`protocol` to uvicorn as ``http``, and put :meth:`app` around the application.

    Attributes:
        total: the most connections at once.
        each: the most from one address; an IPv6 network /64 counts as one.
        wait_s: seconds that a connection may take for a request's headers and form.
    """

    total: int = 400
    each: int = 200
    wait_s: float = 10.0
    _open: dict[tuple[str, int], _Connection] = field(default_factory=dict)  # in order of when they began to wait

    def protocol(self, inner: Make) -> Make:
        """Return a function that makes a connection's protocol.

        Args:
            inner: uvicorn's own protocol class, which does all the work.
        """
        return lambda *given, **named: _Connection(self, inner(*given, **named))

    def app(self, app: ASGIApp) -> ASGIApp:
        """Return the application ``app``, which also tells a connection when a request of its is whole and when it is
        answered.
        """

        async def told(scope: Scope, receive: Receive, send: Send) -> None:
            """Answer one request."""
            peer = scope.get("client")
            connection = self._open.get(tuple(peer)) if peer else None
            if connection is None or scope["type"] != "http":
                await app(scope, receive, send)
                return

            whole = False

            def is_whole() -> None:
                """Tell the connection, once, that the whole request is here."""
                nonlocal whole
                if not whole:
                    whole = True
                    connection.begin()

            async def received() -> Message:
                """Pass on a piece of the request's body, and notice the last one."""
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

    def _admit(self, new: _Connection) -> bool:
        """Count a new connection, if need be in the place of one that is waiting; return False if there is no room."""
        same = [c for c in self._open.values() if c.address == new.address]
        for held, most in ((same, self.each), (list(self._open.values()), self.total)):
            if len(held) >= most:
                oldest = next((c for c in held if c.timer is not None), None)
                if oldest is None:
                    return False
                oldest.drop()
        self._open[new.peer] = new
        return True

    def _again(self, connection: _Connection) -> None:
        """Note that a connection begins to wait: the others have waited longer."""
        if self._open.pop(connection.peer, None) is not None:
            self._open[connection.peer] = connection

    def _forget(self, connection: _Connection) -> None:
        """Stop counting a connection."""
        if self._open.get(connection.peer) is connection:
            del self._open[connection.peer]


class _Connection(asyncio.Protocol):
    """One connection: it hands everything on to uvicorn's protocol, and keeps time while nothing is asked.

    Attributes:
        page: all connections, of which it is one.
        inner: uvicorn's protocol.
        busy: how many of its requests are being answered; the next one may come before the last one's end.
        peer: the address and port of the other side.
        address: what counts as one address (:func:`_network`).
        timer: closes the connection; None while a request is under way.
        transport: the connection itself; None: it was not admitted, or is lost.
    """

    def __init__(self, page: Connections, inner: asyncio.Protocol) -> None:
        self.page, self.inner, self.busy = page, inner, 0
        self.peer, self.address = ("", 0), ""
        self.timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: Any) -> None:
        peer = transport.get_extra_info("peername") or ("", id(self))
        self.peer, self.address = (str(peer[0]), int(peer[1])), _network(str(peer[0]))
        if not self.page._admit(self):
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
        self.page._forget(self)
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
        """Stop the clock: a whole request is here, and its answer may take its time."""
        self.busy += 1
        self._stop()

    def end(self, whole: bool) -> None:
        """Note that a request was answered, or given up before it was ``whole``; wait for the next one if none is under
        way.
        """
        self.busy -= whole
        if not self.busy:
            self._wait()

    def drop(self) -> None:
        """Close it at once."""
        self._stop()
        self.page._forget(self)
        if self.transport is not None:
            self.transport.abort()

    def _wait(self) -> None:
        """Start the clock anew."""
        self._stop()
        if self.transport is not None:
            self.timer = asyncio.get_running_loop().call_later(self.page.wait_s, self.drop)
            self.page._again(self)

    def _stop(self) -> None:
        """Stop the clock."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


def _has_body(scope: Scope) -> bool:
    """Say whether a request announces a body; its headers alone are not the whole request then."""
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in scope["headers"]
    )


def _network(host: str) -> str:
    """Return what counts as one asker: an IPv4 address, or the IPv6 network /64 that one customer usually has."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    return str(address.ipv4_mapped or ipaddress.ip_network((address, 64), strict=False))
