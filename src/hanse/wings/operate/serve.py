"""``hanse serve``: the report of runs, rendered again while they go on, on this machine alone.

A page is made when a browser asks for it, which does so again when its run has a new round. It changes nothing in a run
and imports nothing that a run's files name. Participants do not come here: they are sent :func:`statement_page`,
signed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from datetime import UTC, datetime
from functools import partial
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, unquote

import typer

from hanse.base.errors import UserError
from hanse.cli.options import say

log = logging.getLogger(__name__)

DEPTH, MOST = 5, 2000  # folders below the root in which runs are looked for, and how many are listed
MONITORED = ("/health", "/metrics")  # pages of a project for a monitor
REST, LEAST_S = 3, 2.0  # a page is shown so many times as long as it took to make, and so many seconds, at least
# asks now and then whether there is a newer page
_POLL = """<script>setInterval(function () { fetch(location.pathname + "?now").then(function (answer) {
return answer.text(); }).then(function (now) { if (now !== "STAMP") location.reload(); }); }, @EVERY@);</script>"""
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>hanse</title><body style="font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; padding: 0 1rem; margin: auto">
"""
_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; connect-src 'self'; "
    "frame-ancestors 'none'"
)


def statement_page(folder: Path, client: int) -> str:
    """Return a client's statement of a run, a page that participants are sent at its end."""
    from hanse.reports.statement import render, statement

    return render(statement(folder, client))


def serve(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run directory, or a folder with several.", show_default=False)
    ],
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="Port; 0: any that is free.")] = 8000,
) -> None:
    """Show the reports of past and current runs in a browser on this machine, and renew them as rounds end.

    The page is at 127.0.0.1: nobody else can reach it. From another machine, use a tunnel: ssh -L 8000:127.0.0.1:8000
    HOST. Participants on a network are sent their statements at the run's end.

    The page changes nothing in a run and imports nothing that a run's files name.

    Of a network's project, /health and /metrics (Prometheus' text) say what 'hanse network check' says.

    Examples:
        hanse serve runs/exp
        hanse serve runs
    """
    server = listen(folder, port)
    say(f"{folder} is at http://127.0.0.1:{server.server_address[1]}/ (Ctrl-C ends it)")
    with server, contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()


def listen(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server that listens on loopback, for ``serve_forever``.

    Args:
        folder: a run directory, or a folder with several.
        port: the port; 0 takes any that is free.

    Raises:
        UserError: there is no such folder, or the port is taken.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder")
    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), partial(_Answer, folder))
    except OSError as wrong:
        raise UserError(f"--port {port}: cannot listen there: {wrong.strerror}") from None
    server.daemon_threads = True
    return server


def runs_in(root: Path) -> dict[str, Path]:
    """Return the run directories in a folder, which may be one itself, by the names of their pages. Links are not
    followed.
    """
    from hanse.runs.round_record import METRICS

    found: dict[str, Path] = {}
    for here, folders, files in os.walk(root):
        place = Path(here)
        if METRICS in files or "environment.json" in files:  # which every run directory has from its beginning
            path = place.relative_to(root).as_posix()
            found["/" if path == "." else f"/{path}"] = place
            folders[:] = [f for f in folders if f not in ("rounds", "checkpoints", "receipts", "figures")]
        if len(place.relative_to(root).parts) >= DEPTH or len(found) >= MOST:
            folders.clear()
    return dict(sorted(found.items()))


def page(root: Path, name: str) -> str | None:
    """Return the page of a name, or the list of runs at "/" if there are several. None: there is no such run."""
    runs = runs_in(root)
    if name == "/" and name not in runs:
        return _listed(root, runs)
    return _report(runs[name]) if name in runs else None


def _report(run: Path) -> str:
    """Return a run's report, which asks for a newer one the less often the longer it takes to make."""
    from hanse.reports.report import report_page

    began, poll = time.monotonic(), _POLL.replace("STAMP", stamp(run))
    try:
        text = report_page([run], poll)
    except Exception as wrong:  # before its first round it has nothing to show; or it is damaged
        if not isinstance(wrong, UserError):
            log.exception("%s cannot be shown", run)
        text = f"{_PAGE}{poll}<h1>{escape(run.resolve().name)}</h1><p>{escape(str(wrong))}</p>"
    return text.replace("@EVERY@", f"{1000 * max(LEAST_S, REST * (time.monotonic() - began)):.0f}")


def monitored(project: Path, page: str) -> tuple[int, str]:
    """Return status and text of a page for a monitor: "/health" (503 if something failed), or "/metrics"."""
    from hanse.wings.operate.checks import exposition, findings, worst
    from hanse.wings.operate.loopback import Loopback

    found = findings(Loopback.read(project.resolve()), datetime.now(UTC))
    if page == "/metrics":
        return 200, exposition(found)
    lines = (one.line for one in found if one.state != "fine")
    return 503 if worst(found) == "failure" else 200, "\n".join([worst(found), *lines]) + "\n"


def stamp(run: Path) -> str:
    """Return what changes when a run has a new round: the time and the size of its metrics."""
    from hanse.runs.round_record import METRICS  # late: it imports torch, and --help loads this module

    try:
        status = (run / METRICS).stat()
    except OSError:
        return "none"
    return f"{status.st_mtime_ns}-{status.st_size}"


def _listed(root: Path, runs: dict[str, Path]) -> str:
    """Return the page with links to all runs, the latest first."""
    latest = sorted(runs, key=lambda name: stamp(runs[name]), reverse=True)
    links = "".join(f'<li><a href="{quote(name)}">{escape(name[1:])}</a></li>' for name in latest)
    none = f"<p>There is no run in {escape(str(root))} yet.</p>"
    return f"{_PAGE}<h1>Runs</h1>{f'<ul>{links}</ul>' if links else none}"


class _Answer(BaseHTTPRequestHandler):
    """Answers a browser. A page of another site cannot ask here by a name of its own (DNS rebinding)."""

    def __init__(self, root: Path, *given: object) -> None:
        self.root = root
        super().__init__(*given)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Send a page, or with "?now" what changes when there is a new one."""
        path, asked, _ = self.path.partition("?")
        name = unquote(path)
        local = re.fullmatch(r"(127\.0\.0\.1|localhost)(:\d+)?", self.headers.get("Host", ""))
        watched = name in MONITORED and (self.root / "network.json").exists()
        status, text = 200, None
        if local is not None and watched:
            status, text = monitored(self.root, name)
        elif local is not None and asked:
            run = runs_in(self.root).get(name)
            text = "" if run is None else stamp(run)
        elif local is not None:
            text = page(self.root, name)
        body = ("There is no such page." if text is None else text).encode(errors="replace")
        self.send_response(404 if text is None else status)
        kind = "plain" if text is None or asked or watched else "html"
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *said: object) -> None:
        """Say nothing of requests."""
