"""The addresses of the live page, as a FastAPI application.

``hanse serve`` makes a :class:`LivePage`, which holds the runs that are shown and who may see them. It then serves
:func:`make_app`. Every request first passes the gate (``gate.py``). It finds the holder of
the key, and refuses addresses that this key may not request.

An operator sees the list of runs (``/``) and each run live (``/run/ID``, fed by the stream ``/run/ID/events``). A
participant sees a list of its statements (``/``) and each of them (``/statement/ID/CLIENT``).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from markupsafe import Markup

from hanse.reports.vega import script
from hanse.reports.words import policy
from hanse.wings.operate.page.drawing import live_specs
from hanse.wings.operate.page.gate import RequestGate, refuse, refused_page, scheme
from hanse.wings.operate.page.hub import Hub
from hanse.wings.operate.page.keys import SESSION_S, Key, Sessions
from hanse.wings.operate.page.pages import page
from hanse.wings.operate.page.runs import ListedRun, find_runs, summary
from hanse.wings.operate.page.statements import NoStatementError, Statements

STREAMS = 100  # live pages open at once
STREAMS_EACH = 12  # of these for one holder of a key
FORM = 4096  # the most bytes of a login form
AGAIN_S = 2.0  # seconds before the folder is searched for runs again
_KEPT = {"Cache-Control": "private, max-age=86400"}  # the drawing library is large and stays the same
_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
# read once, by name: no path that somebody asks for is ever looked up on disk
_STATIC = {f.name: f.read_bytes() for f in files(__package__).joinpath("static").iterdir() if f.is_file()}


@dataclass(eq=False)
class LivePage:
    """What the page shows, and to whom.

    Attributes:
        root: the folder with the runs, or one run directory.
        sessions: who has a key, and who is logged in. Without a file of keys everybody is an operator.
        hosts: the host names to which the page answers. None: any.
        cookie: the name of the session's cookie.
        stopping: a function that says whether the server is going down.
        hub: the object that follows the runs that somebody watches.
        statements: the object that makes participants' statements.
        streams: how many streams are open, by the id of the key.
    """

    root: Path
    sessions: Sessions
    hosts: frozenset[str] | None = None
    cookie: str = "hanse_session"
    stopping: Callable[[], bool] = lambda: False
    hub: Hub = field(init=False)
    statements: Statements = field(init=False)
    streams: Counter[str] = field(default_factory=Counter)
    _runs: dict[str, ListedRun] = field(default_factory=dict)
    _searched: float = -AGAIN_S

    def __post_init__(self) -> None:
        self.hub = Hub(self.stopping)
        self.statements = Statements()

    async def runs(self) -> dict[str, ListedRun]:
        """Return the runs in the folder by their ids, as they were at most two seconds ago."""
        if time.monotonic() - self._searched >= AGAIN_S:
            self._runs = await asyncio.to_thread(find_runs, self.root)
            self._searched = time.monotonic()
        return self._runs


def make_app(shown: LivePage) -> RequestGate:
    """Return the application behind its gate, for an ASGI server.

    Args:
        shown: what the page shows.
    """
    # begun now: whoever opens the first page need not wait for it
    maker = ThreadPoolExecutor(1)
    library = maker.submit(script)
    maker.shutdown(wait=False)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    gate = RequestGate(app, shown.sessions, shown.cookie, shown.hosts)
    app.state.gate = gate
    _login(app, shown)
    _runs(app, shown)
    _statements(app, shown)

    @app.get("/static/{name}")
    async def static(name: str) -> Response:
        """Return a script, style sheet or picture of the page."""
        if name == "vega.js":
            text = await asyncio.wrap_future(library)
            return Response(text, media_type=_TYPES[".js"], headers=_KEPT)
        if name not in _STATIC:
            return Response(status_code=404)
        return Response(_STATIC[name], media_type=_TYPES[Path(name).suffix], headers={"Cache-Control": "no-cache"})

    return gate


def _words(shown: LivePage, request: Request) -> dict[str, Any]:
    """Return the values that every template needs: who asks, and whether there are keys."""
    return {"who": _key(request), "keys": shown.sessions.file is not None}


def _key(request: Request) -> Key:
    """Return the holder of the key that the gate has found."""
    key = request.state.key
    assert isinstance(key, Key)  # the gate lets nobody else through
    return key


def _login(app: FastAPI, shown: LivePage) -> None:
    """Add logging in and out."""

    @app.get("/login")
    async def login_form(request: Request) -> Response:
        """Show the form, or the start page to those who are logged in."""
        return RedirectResponse("/", 303) if request.state.key is not None else page("login", wrong=None)

    @app.post("/login")
    async def login(request: Request) -> Response:
        """Open a session for the holder of a key, or show the form again."""
        body = b""
        # read piece by piece, so nobody fills the memory with a form that never ends
        async for chunk in request.stream():
            body += chunk
            if len(body) > FORM:
                return refuse(request, None, 413, "a form that is too long")
        said = parse_qs(body.decode(errors="replace")).get("key", [""])[0].strip()
        key = shown.sessions.by_key(said)
        if key is None:
            return page("login", refuse(request, None, 401, "wrong key").status_code, wrong="This is not a valid key.")
        answer = RedirectResponse("/", 303)
        # scripts cannot read the cookie, and requests that other sites cause do not carry it
        answer.set_cookie(
            shown.cookie, shown.sessions.open_session(key), SESSION_S, path="/",
            secure=scheme(request.scope) == "https", httponly=True, samesite="strict",
        )  # fmt: skip
        return answer

    @app.post("/logout")
    async def logout(request: Request) -> Response:
        """Close the session."""
        shown.sessions.close_session(request.cookies.get(shown.cookie, ""))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(
            shown.cookie, path="/", secure=scheme(request.scope) == "https", httponly=True, samesite="strict"
        )
        return answer


def _runs(app: FastAPI, shown: LivePage) -> None:
    """Add the pages of runs: the list, each run live, and a participant's start page."""

    @app.get("/")
    async def start(request: Request) -> Response:
        """Show a participant its statements; show an operator the runs, or the run if there is only one."""
        key, runs = _key(request), await shown.runs()
        if key.role != "operator":
            mine = [f for f in runs.values() if key.run in (None, f.name)]
            lines = await asyncio.to_thread(_summaries, mine)
            # statements that there can be: of runs with a finished round and with so many clients
            lines = [line for line in lines if line["rounds"] and (line["clients"] or 1 << 60) > (key.client or 0)]
            return page("home", runs=lines, **_words(shown, request))
        if len(runs) == 1:
            return RedirectResponse(f"/run/{next(iter(runs))}", 303)
        lines = await asyncio.to_thread(_summaries, list(runs.values()))
        # what is going on comes first
        lines.sort(key=lambda line: (line["state"] not in ("running", "waiting"), line["name"]))
        return page("runs", runs=lines, root=str(shown.root.resolve()), **_words(shown, request))

    @app.get("/runs.json")
    async def listed() -> Response:
        """Return the list of runs as JSON."""
        runs = await shown.runs()
        return JSONResponse(await asyncio.to_thread(_summaries, list(runs.values())))

    @app.get("/run/{id_}")
    async def live(request: Request, id_: str) -> Response:
        """Show a run; the page then listens to its events."""
        runs = await shown.runs()
        if id_ not in runs:
            return _gone(shown, request)
        words = _words(shown, request)
        return page("live", run=runs[id_], many=len(runs) > 1, specs=Markup(live_specs()), **words)

    @app.get("/run/{id_}/events")
    async def events(request: Request, id_: str) -> Response:
        """Return the stream of a run's messages (:meth:`hanse.wings.operate.page.hub.Hub.watch`)."""
        key, runs = _key(request), await shown.runs()
        if id_ not in runs:
            return _gone(shown, request)
        # without keys all share one empty id, which may hold more of them
        if shown.streams.total() >= STREAMS or shown.streams[key.id] >= STREAMS_EACH * (8 if not key.id else 1):
            return refuse(request, key, 503, "too many live pages are open", 10.0)

        async def stream() -> AsyncIterator[str]:
            """Yield the messages, and count the stream while it is open."""
            shown.streams[key.id] += 1
            try:
                async for event in shown.hub.watch(runs[id_], lambda: _still(shown, request)):
                    yield event
            finally:
                shown.streams[key.id] -= 1

        # the header keeps nginx from holding events back
        return StreamingResponse(stream(), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


def _still(shown: LivePage, request: Request) -> bool:
    """Say whether a stream may continue: the key is still in the file, and the session was not closed."""
    sessions, session = shown.sessions, request.cookies.get(shown.cookie)
    if sessions.file is None or "authorization" in request.headers:
        return sessions.still(_key(request))
    return session is not None and sessions.by_session(session) is not None


def _statements(app: FastAPI, shown: LivePage) -> None:
    """Add participants' statements, which the operator may see too."""

    @app.get("/statement/{id_}/{client}")
    @app.get("/statement/{id_}/{client}/{form}")
    async def one(request: Request, id_: str, client: str, form: str = "html") -> Response:
        """Show a statement as a page, or return it as JSON."""
        return await _statement(shown, request, id_, client, form)


async def _statement(shown: LivePage, request: Request, id_: str, client: str, form: str) -> Response:
    """Return a client's statement of a run in the ``form`` "html" or "json", or a page that says why there is none."""
    key, found = _key(request), (await shown.runs()).get(id_)
    number = int(client) if client.isascii() and client.isdecimal() and len(client) < 10 else -1
    if key.role != "operator" and (found is None or not key.sees(found.name, number)):
        # the same answer whether or not it exists
        return refused_page(request, key, 403, "a statement of another client")
    if found is None or number < 0 or form not in ("html", "json"):
        return _gone(shown, request)
    try:
        text = await shown.statements.get(found, number, form)
    except NoStatementError as why:
        # only the operator reads why: the reason may speak of other participants
        said = (
            str(why)
            if key.role == "operator"
            else "It is not there yet, or cannot be made. Ask whoever runs this page."
        )
        return page("message", 404, title="There is no statement", text=said, **_words(shown, request))
    if form == "json":
        return Response(text, media_type="application/json")
    # a statement carries its styles and script with it, which the page's own policy would not allow
    allowed = f"{policy('statement.html.j2')}; frame-ancestors 'none'"
    return Response(text, media_type="text/html; charset=utf-8", headers={"Content-Security-Policy": allowed})


def _gone(shown: LivePage, request: Request) -> Response:
    """Return the page for a run that does not exist."""
    text = "There is no such run here. It may have been moved or deleted."
    return page("message", 404, title="Not found", text=text, **_words(shown, request))


def _summaries(found: list[ListedRun]) -> list[dict[str, Any]]:
    """Return a line about each run."""
    return [summary(one, time.time()) for one in found]
