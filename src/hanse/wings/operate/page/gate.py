"""The gate that every request passes first. It also gives every answer its security headers.

:class:`RequestGate` checks the host name, the key or session, and whether this key may ask for this address. It is
plain ASGI in front of the whole application, so no address can bypass it. :func:`refuse` and :func:`refused_page` make
the refusals, which are all logged under "hanse.wings.operate.page".
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hanse.wings.operate.page.keys import ANYBODY, OPEN, Key, Sessions, may_ask
from hanse.wings.operate.page.pages import page

log = logging.getLogger("hanse.wings.operate.page")

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
    """Return the address that a request comes from, for the log; "?" if it is not known.

    Only nginx can use the socket of :mod:`hanse.wings.operate.page.proxy`, so nginx's header is trusted.
    """
    client = scope.get("client")
    return str(client[0]) if client else Headers(scope=scope).get("x-real-ip", "?")


def scheme(scope: Scope) -> str:
    """Return the browser's scheme: "https" if a proxy in front of the page says so, else "http".

    Without a proxy anybody can claim "https", but harms only itself, because a browser lets no other site send this
    header.
    """
    return "https" if Headers(scope=scope).get("x-forwarded-proto") == "https" else "http"


@dataclass(eq=False)
class RequestGate:
    """The gate in front of an ASGI application.

    Attributes:
        app: the application.
        sessions: who has a key, and who is logged in.
        cookie: the name of the session's cookie.
        hosts: the host names to which the page answers. None: any. A page without keys answers only to this machine's
            own names. Otherwise another site could point its name here, and read the page through a visitor's browser.
    """

    app: ASGIApp
    sessions: Sessions
    cookie: str
    hosts: frozenset[str] | None

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
                if scheme(scope) == "https":
                    headers.setdefault("Strict-Transport-Security", "max-age=31536000")
            await send(message)

        answer = self._check(scope)
        await (self.app if answer is None else answer)(scope, receive, with_headers)

    def _check(self, scope: Scope) -> Response | None:
        """Return the refusal of a request that may not pass; otherwise put its key into the scope and return None."""
        request, path = Request(scope), scope["path"]
        key, wrong = self._identify(request)
        if self.hosts is not None and _host(request.headers) not in self.hosts:
            return refuse(request, None, 421, "the page is not served under this name")
        if request.method not in ("GET", "POST"):
            return refuse(request, None, 405, "only GET and POST")
        if request.method == "POST" and not self._same_origin(request):
            return refuse(request, None, 403, "a form sent by another site")
        if wrong:
            return refuse(request, None, 401, "wrong key")
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

    def _same_origin(self, request: Request) -> bool:
        """Say whether a form comes from the page itself. Programs other than browsers do not say, and pass."""
        if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return False
        origin = request.headers.get("origin")
        return origin is None or urlsplit(origin)[:2] == (scheme(request.scope), request.headers.get("host"))


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
        key: who asked. None: nobody that is known.
        status: the HTTP status code.
        why: the reason, for the log and the answer.
        wait: after how many seconds the request may be tried again. 0: this is not stated.

    Examples:
        >>> request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""})
        >>> refuse(request, None, 401, "no key").body
        b'{"refused":"no key"}'
    """
    _note(request, key, status, why)
    headers = {"Retry-After": str(max(1, round(wait + 0.5)))} if wait else None
    return JSONResponse({"refused": why}, status, headers)


def refused_page(request: Request, key: Key, status: int, why: str) -> Response:
    """Return a refusal: a page for a browser, and otherwise the same as :func:`refuse`.

    Args:
        request: what was asked.
        key: who asked. None: nobody that is known.
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
