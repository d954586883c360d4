"""The gate that every request passes before anything answers it, and that gives every answer its security headers.

:class:`RequestGate` checks the host name, the rate, the key or session, and whether this key may ask for this address.
It is written in ASGI itself and stands in front of the whole application, so that no address can be added that does not
pass it. :func:`refuse` and :func:`refused_page` make the refusals, which are all logged under "hanse.web".
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hanse.web.keys import ANYBODY, OPEN, Key, Sessions, may_ask
from hanse.web.pages import page

log = logging.getLogger("hanse.web")

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})  # the host names of this machine itself
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # "no-referrer" would send forms with the origin "null"
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


def asker(scope: Scope) -> str:
    """Return the address that a request comes from; "?" if it is not known."""
    client = scope.get("client")
    return str(client[0]) if client else "?"


@dataclass
class Limit:
    """A bound on how often each asker may ask: a token bucket each. Neither Starlette nor uvicorn has one.

    Attributes:
        burst: requests that may come at once.
        per_second: requests a second after that.
        most: how many askers are remembered, those that were heard last. An asker that was forgotten starts with a full
            bucket, as after a pause; forgetting bounds the memory.
        clock: returns the time in seconds; tests give another one.
    """

    burst: float
    per_second: float
    most: int = 4096
    clock: Callable[[], float] = time.monotonic
    _buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # left, when

    def take(self, asker: str) -> float:
        """Take one request from an asker's bucket and return 0; if it is empty, return the seconds until there is one
        again.

        Examples:
            >>> limit = Limit(burst=2, per_second=0.5, clock=lambda: 0.0)
            >>> [limit.take("192.0.2.7") for _ in range(3)]
            [0.0, 0.0, 2.0]
        """
        left, when = self._buckets.get(asker, (self.burst, self.clock()))
        left = min(self.burst, left + (self.clock() - when) * self.per_second)
        if left < 1:
            return (1 - left) / self.per_second
        self._buckets[asker] = (left - 1, self.clock())
        self._buckets.move_to_end(asker)
        if len(self._buckets) > self.most:
            self._buckets.popitem(last=False)
        return 0.0


@dataclass(eq=False)
class RequestGate:
    """The gate in front of an ASGI application.

    Attributes:
        app: the application.
        sessions: who holds a key and who is logged in.
        cookie: the name of the session's cookie.
        hosts: the host names under which the page may be asked for; None: any. A page without keys answers to this
            machine's own names alone, so that no other site can point its name here and read it through a visitor's
            browser.
        secure: whether the page is served by TLS.
        requests: the bound on all requests of an asker.
        failures: the bound on an asker's wrong keys: five, then one in twelve seconds.
    """

    app: ASGIApp
    sessions: Sessions
    cookie: str
    hosts: frozenset[str] | None
    secure: bool = False
    requests: Limit = field(default_factory=lambda: Limit(burst=240, per_second=40))
    failures: Limit = field(default_factory=lambda: Limit(burst=5, per_second=1 / 12))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application, or refuse it. Either answer gets the security headers."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return

        async def with_headers(message: Message) -> None:
            """Pass a part of the answer on; a header that the application has set itself stays."""
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if self.secure:
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
            await send(message)

        answer = self._check(scope)
        await (self.app if answer is None else answer)(scope, receive, with_headers)

    def _check(self, scope: Scope) -> Response | None:
        """Return the refusal of a request that may not pass. For one that may, return None and leave its key in the
        scope.
        """
        request, path = Request(scope), scope["path"]
        key, wrong = self._identify(request)
        # behind a proxy all share one address: a holder is counted by its key, so that no stranger can use up its share
        wait = self.requests.take(f"key {key.id}" if key is not None and key.id else asker(scope))
        if wait:
            return refuse(request, key, 429, "too many requests", wait)
        if self.hosts is not None and _host(request.headers) not in self.hosts:
            return refuse(request, None, 421, "the page is not served under this name")
        if request.method not in ("GET", "POST"):
            return refuse(request, None, 405, "only GET and POST")
        if request.method == "POST" and not self._same_origin(request):
            return refuse(request, None, 403, "a form sent by another site")
        if wrong:
            return self._wrong(request)
        open_ = path == OPEN[0] or path.startswith(OPEN[1])
        # a browser is led to the login form, a program gets an error
        if key is None and not open_:
            if path == "/" or "text/html" in request.headers.get("accept", ""):
                if path != "/":
                    _note(request, None, 401, "no key")
                return RedirectResponse("/login", 303)
            return refuse(request, None, 401, "no key")
        if key is not None and not may_ask(key, path):
            return refused_page(request, key, 403, "not for this key")
        scope.setdefault("state", {})["key"] = key
        return None

    def _identify(self, request: Request) -> tuple[Key | None, bool]:
        """Return who asks (None: nobody), and whether a wrong key was presented.

        A key comes in the header "Authorization: Bearer KEY", from programs; a session comes in the cookie.
        """
        if self.sessions.file is None:
            return ANYBODY, False
        kind, _, said = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            key = self.sessions.by_key(said.strip())
            return key, key is None
        session = request.cookies.get(self.cookie)
        return (self.sessions.by_session(session) if session else None), False

    def present(self, request: Request, said: str) -> tuple[Key | None, Response | None]:
        """Return the holder of a key that was typed into the form; or None and the refusal.

        A right key always passes, however many wrong ones came before. A key has 256 random bits and cannot be guessed.
        Wrong ones are slowed down for what they cost and for the log, and whoever sends them must not be able to lock
        out a holder who shares the address.
        """
        key = self.sessions.by_key(said)
        return key, None if key is not None else self._wrong(request)

    def _wrong(self, request: Request) -> Response:
        """Return the refusal of a wrong key."""
        wait = self.failures.take(asker(request.scope))
        if wait:
            return refuse(request, None, 429, "too many wrong keys", wait)
        return refuse(request, None, 401, "wrong key")

    def _same_origin(self, request: Request) -> bool:
        """Say whether a form comes from the page itself. A program that is no browser says nothing about that, and
        passes.
        """
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("origin")
        return origin is None or urlsplit(origin)[:2] == (request.url.scheme, request.headers.get("host"))


def _host(headers: Headers) -> str | None:
    """Return the host name that a request is for; None if the header cannot be read."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname
    except ValueError:
        return None


def refuse(request: Request, key: Key | None, status: int, why: str, wait: float = 0.0) -> Response:
    """Return a refusal as JSON, and log it.

    Args:
        request: what was asked.
        key: who asked; None: nobody.
        status: the HTTP status code.
        why: the reason, for the log and the answer.
        wait: seconds after which it may be tried again; 0: it need not be said.

    Examples:
        >>> request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})
        >>> refuse(request, None, 401, "no key").body
        b'{"refused":"no key"}'
    """
    _note(request, key, status, why)
    headers = {"Retry-After": str(max(1, round(wait + 0.5)))} if wait else None
    return JSONResponse({"refused": why}, status, headers)


def refused_page(request: Request, key: Key, status: int, why: str) -> Response:
    """Return a refusal: as a page to a browser, otherwise as :func:`refuse` does.

    Args:
        request: what was asked.
        key: who asked; None: nobody.
        status: the HTTP status code.
        why: the reason, for the log and the answer.
    """
    if "text/html" not in request.headers.get("accept", ""):
        return refuse(request, key, status, why)
    _note(request, key, status, why)
    text = "Your key does not give access to this page. The attempt was logged."
    return page("message", status, title="No access", text=text, who=key, keys=True)


def _note(request: Request, key: Key | None, status: int, why: str) -> None:
    """Log a refusal: what was asked, by whom, and from where."""
    who = "nobody" if key is None else key.role
    if key is not None and key.client is not None:
        who += f" of client {key.client}"
    if key is not None and key.id:
        who += f" (key {key.id})"
    asked, where = request.url.path, asker(request.scope)
    log.warning("refused %d %s %.200r to %s from %s: %s", status, request.method, asked, who, where, why)
